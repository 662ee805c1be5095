"""How near an estimate comes: predicted and measured peaks of training steps on an H200, case by case.

    python -m bench.accuracy                          all cases whose measurements are kept in tests/data/truth_peaks.json
    python -m bench.accuracy --cases study            one part only (reference, study, held-back, fresh, fresh-again, everyday, ordinary, ...)
    python -m bench.accuracy --only resnet gpt2       cases with these words in their names
    python -m bench.accuracy --every 6                every sixth of them
    python -m bench.accuracy --jobs 2                 so many at once
    python -m bench.accuracy --truth FOLDER           measurements from FOLDER/peaks.json (or LEGROOM_TRUTH)
    python -m bench.accuracy --peers                  other estimators on the same cases too (see bench/peers.py)
    python -m bench.accuracy --rows FILE              keep what is found in FILE, and go on from what it has (with one and the same code)
    python -m bench.accuracy --write docs/accuracy.md the tables go into that page, between its marks, as well
    python -m bench.accuracy --markdown               tables as that page has them

The measured step ran on the GPU with torch 2.11; the predicted one is traced on this machine without data. Cases whose
libraries are not installed here (torchvision, transformers) are named and left out.
"""

import argparse
import contextlib
import io
import math
import os
import resource
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.peers import PEERS
from bench.score import side_by_side
from bench.scored_case import Kept, Measured, Row, measured, score
from bench.table import print_table
from bench.workloads import CASES, Case

Chosen = list[tuple[str, Case, Measured]]


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--truth", type=Path, default=os.environ.get("LEGROOM_TRUTH"))
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    cases = chosen(options.cases or CASES, options.only, options.truth)[:: options.every]
    if options.jobs > 1:
        rows, left_out = scored_at_once(cases, options.rows, options.jobs, peers=options.peers)
    else:
        rows, left_out = scored(cases, Kept(options.rows), peers=options.peers)
    report(rows, markdown=options.markdown)
    for line in left_out:
        print(f"left out, {line}")
    print(f"highest host memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    if options.write is not None:
        write(options.write, rows)
    return 0


def scored(cases: Chosen, kept: Kept, *, peers: bool) -> tuple[list[Row], list[str]]:
    """Their rows, one after the other; and what could not be scored, and why."""
    rows: list[Row] = []
    left_out: list[str] = []
    for half, case, real in cases:
        try:
            row = score(half, case, real, kept, peers=peers)
        except (ImportError, RuntimeError) as error:
            left_out.append(f"{case.key}: {error}")
        else:
            rows.append(row)
            show_progress(row)
    return rows, left_out


def scored_at_once(
    cases: Chosen, path: Path | None, jobs: int, *, peers: bool
) -> tuple[list[Row], list[str]]:
    """The same, several at a time."""
    with tempfile.TemporaryDirectory() as folder:
        path = path or Path(folder) / "rows.jsonl"
        failed = path.with_suffix(".failed")
        failed.unlink(missing_ok=True)
        side_by_side(cases, path, jobs, peers=peers)
        kept = Kept(path)
        found = [kept.get(half, case) for half, case, _ in cases]
        return [row for row in found if row is not None], (
            failed.read_text().splitlines() if failed.exists() else []
        )


def write(page: Path, rows: list[Row]) -> None:
    """Put the tables into a page, in the place of those between its marks."""
    text = page.read_text()
    for mark, tables in (("summary", show_summary), ("cases", show_cases), ("peers", show_peers)):
        begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            sys.exit(f"{page} has no place for this table: {begin} ... {end}")
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            tables(rows, markdown=True)
        text = f"{before}{begin}\n{told.getvalue().strip()}\n{end}{after}" if told.getvalue() else text
    page.write_text(text)


def chosen(halves: Iterable[str], words: Sequence[str], truth: Path | None) -> Chosen:
    """The cases that were measured, of these parts and with one of these words in their names."""
    found: Chosen = []
    for half in halves:
        peaks = measured(half, truth)
        found += [
            (half, case, peaks[case.key])
            for case in CASES[half]
            if case.key in peaks and any(word in case.key for word in words)
        ]
    return found


def show_progress(row: Row) -> None:
    if sys.stderr.isatty():
        print(f"{row.key}: {row.allocated_error:+.2%} {row.reserved_error:+.2%}", file=sys.stderr)


def report(rows: list[Row], *, markdown: bool) -> None:
    show_cases(rows, markdown=markdown)
    show_summary(rows, markdown=markdown)
    show_peers(rows, markdown=markdown)


def show_cases(rows: list[Row], *, markdown: bool) -> None:
    for half in dict.fromkeys(row.half for row in rows):
        chosen = [row for row in rows if row.half == half]
        show(
            f"{half}: {len(chosen)} cases, MiB",
            ["case", "allocated", "real", "error", "reserved", "real", "error", "safe", "s"],
            [
                [
                    row.key, f"{row.allocated / 2**20:.0f}", f"{row.real_allocated / 2**20:.0f}", f"{row.allocated_error:+.2%}",
                    f"{row.reserved / 2**20:.0f}", f"{row.real_reserved / 2**20:.0f}", f"{row.reserved_error:+.2%}",
                    f"{row.safe / 2**20:.0f}", f"{row.seconds:.1f}",
                ]
                for row in chosen
            ],
            markdown,
        )  # fmt: skip


def show_summary(rows: list[Row], *, markdown: bool) -> None:
    halves = {
        half: [row for row in rows if row.half == half] for half in dict.fromkeys(row.half for row in rows)
    }
    if len(halves) > 1:
        halves["all"] = rows
    title = "" if markdown else "summary"
    show(title, SUMMARY, [[name, *summary(chosen)] for name, chosen in halves.items()], markdown)


def show_peers(rows: list[Row], *, markdown: bool) -> None:
    """The error of every estimator on allocated memory, over the cases that it can do."""
    told: list[list[str]] = []
    for index, name in enumerate(PEERS):
        errors = [
            said / row.real_allocated - 1
            for row in rows
            if row.peers and (said := row.peers[index]) is not None
        ]
        if errors:
            told.append(
                [
                    name,
                    str(len(errors)),
                    *(f"{value:.1%}" for value in (median(errors), percentile(errors, 0.95), min(errors))),
                ]
            )
    if told:
        ours = [row.allocated_error for row in rows]
        told.insert(
            0,
            [
                "Legroom",
                str(len(ours)),
                *(f"{value:.1%}" for value in (median(ours), percentile(ours, 0.95), min(ours))),
            ],
        )
        title = "" if markdown else "allocated, by estimator"
        show(title, ["", "cases", "median", "p95", "worst under"], told, markdown)


SUMMARY = [
    "", "cases", "allocated: median", "p95", "worst under", "reserved: median", "p95", "worst under", "above safe bound",
    "safe margin: median", "under −4%", "seconds: median", "most",
]  # fmt: skip


def summary(rows: list[Row]) -> list[str]:
    if not rows:
        return ["0", *[""] * (len(SUMMARY) - 2)]
    allocated = [row.allocated_error for row in rows]
    reserved = [row.reserved_error for row in rows]
    above = sum(row.real_reserved > row.safe for row in rows)
    return [
        str(len(rows)),
        *(f"{value:.2%}" for value in (median(allocated), percentile(allocated, 0.95), min(allocated))),
        *(f"{value:.2%}" for value in (median(reserved), percentile(reserved, 0.95), min(reserved))),
        f"{above} ({above / len(rows):.1%})",
        f"{statistics.median(row.safe / row.reserved - 1 for row in rows):.1%}",
        str(sum(min(row.allocated_error, row.reserved_error) < -0.04 for row in rows)),
        f"{statistics.median(row.seconds for row in rows):.1f}",
        f"{max(row.seconds for row in rows):.1f}",
    ]


def median(errors: list[float]) -> float:
    return statistics.median(map(abs, errors))


def percentile(errors: list[float], share: float) -> float:
    """The smallest error that `share` of all cases stay within."""
    ordered = sorted(map(abs, errors))
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def show(title: str, columns: list[str], rows: list[list[str]], markdown: bool) -> None:
    if not markdown:
        print_table(title, columns, rows)
        return
    if title:
        print(f"\n### {title}\n")
    for cells in (columns, ["---"] * len(columns), *rows):
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
