"""How near an estimate comes: predicted and measured peaks of training steps on an H200, case by case.

    python -m bench.accuracy.peaks                          all cases whose measurements are kept in tests/data/truth_peaks.json
    python -m bench.accuracy.peaks --cases study            one part only (reference, study, held-back, fresh, fresh-again, everyday, ordinary, ...)
    python -m bench.accuracy.peaks --only resnet gpt2       cases with these words in their names
    python -m bench.accuracy.peaks --every 6                every sixth of them
    python -m bench.accuracy.peaks --jobs 2                 so many at once
    python -m bench.accuracy.peaks --truth FOLDER           measurements from FOLDER/peaks.json (or LEGROOM_TRUTH)
    python -m bench.accuracy.peaks --peers FILE             other estimators on the same cases too (see bench/accuracy/other_estimators.py), what they say kept in FILE
    python -m bench.accuracy.peaks --rows FILE              keep what is found in FILE, and go on from what it has (with one and the same code)
    python -m bench.accuracy.peaks --write docs/accuracy*.md the tables go into those pages, between their marks, as well
    python -m bench.accuracy.peaks --markdown               tables as those pages have them

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
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from bench.accuracy.cases.steps import CASES, Case
from bench.accuracy.other_estimators import PEERS, Answers, ask_all
from bench.accuracy.score_cases import failures_of, score
from bench.accuracy.scored_case import Kept, Measured, Row, measured
from bench.lib.table import print_table

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
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--write", type=Path, nargs="+")
    options = parser.parse_args(argv)
    cases = chosen(options.cases or CASES, options.only, options.truth)[:: options.every]
    rows, left_out = scored(cases, options.rows, options.jobs)
    answers = Answers(options.peers)
    if options.peers is not None:
        ask_all([(half, case) for half, case, _ in cases], answers, options.jobs)
        answers = Answers(options.peers)
    show_cases(rows, markdown=options.markdown)
    show_summary(rows, markdown=options.markdown)
    show_peers(rows, answers, markdown=options.markdown)
    for why, keys in left_out.items():
        print(f"left out, {len(keys)} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''}): {why}")
    print(f"highest host memory: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.2f} GiB")
    if options.write is not None:
        write(options.write, rows, answers)
    return 0


def scored(cases: Chosen, path: Path | None, jobs: int) -> tuple[list[Row], dict[str, list[str]]]:
    """Their rows; and the names of what could not be scored, by the reason."""
    with tempfile.TemporaryDirectory() as folder:
        path = path or Path(folder) / "rows.jsonl"
        failures_of(path).unlink(missing_ok=True)
        score(cases, path, jobs)
        kept = Kept(path)
        left_out: dict[str, list[str]] = {}
        for line in failures_of(path).read_text().splitlines() if failures_of(path).exists() else ():
            key, _, why = line.partition(": ")
            left_out.setdefault(why, []).append(key)
    found = [kept.get(half, case) for half, case, _ in cases]
    return [row for row in found if row is not None], left_out


def write(pages: list[Path], rows: list[Row], answers: Answers) -> None:
    """Put the tables into pages, in the place of those between their marks."""
    of_peers = partial(show_peers, answers=answers)
    for mark, tables in (("summary", show_summary), ("cases", show_cases), ("peers", of_peers)):
        begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        page = next((page for page in pages if begin in page.read_text()), None)
        if page is None:
            sys.exit(f"no page has a place for this table: {begin} ... {end}")
        before, _, rest = page.read_text().partition(begin)
        _, _, after = rest.partition(end)
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            tables(rows, markdown=True)
        if told.getvalue():
            page.write_text(f"{before}{begin}\n{told.getvalue().strip()}\n{end}{after}")


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


def show_peers(rows: list[Row], answers: Answers, *, markdown: bool) -> None:
    """The error of every estimator on allocated memory, over the cases that it can do, and ours on the same."""
    told: list[list[str]] = []
    for peer in PEERS:
        asked = [row for row in rows if answers.has(row.half, row.key, peer)]
        said = [(row, answer) for row in asked if (answer := answers.get(row.half, row.key, peer))]
        if not said:
            continue
        theirs = [answer / row.real_allocated - 1 for row, answer in said]
        ours = [row.allocated_error for row, _ in said]
        told.append([peer, f"{len(said)} of {len(asked)}", *worth(theirs, 1), *worth(ours, 2)])
    if told:
        title = "" if markdown else "allocated memory, by other estimators"
        show(title, BESIDE, told, markdown)


BESIDE = [
    "", "cases it can do", "median", "p95", "worst under",
    "Legroom on these: median", "p95", "worst under",
]  # fmt: skip
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
        *worth(allocated, 2),
        *worth(reserved, 2),
        f"{above} ({above / len(rows):.1%})",
        f"{statistics.median(row.safe / row.reserved - 1 for row in rows):.1%}",
        str(sum(min(row.allocated_error, row.reserved_error) < -0.04 for row in rows)),
        f"{statistics.median(row.seconds for row in rows):.1f}",
        f"{max(row.seconds for row in rows):.1f}",
    ]


def worth(errors: list[float], digits: int) -> list[str]:
    """Median and 95th percentile of their absolute values, and the lowest."""
    return [f"{value:.{digits}%}" for value in (median(errors), percentile(errors, 0.95), min(errors))]


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
