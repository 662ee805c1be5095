"""Compares predicted and measured peak memory of training steps on an H200.

    python -m bench.accuracy.peaks                        all measured cases (bench/results/measured_peaks.json)
    python -m bench.accuracy.peaks --cases reference      one set: reference, unseen-small, unseen-broad
    python -m bench.accuracy.peaks --only resnet gpt2     cases whose keys contain one of these words
    python -m bench.accuracy.peaks --every 6              every sixth case
    python -m bench.accuracy.peaks --jobs 2               cases at a time
    python -m bench.accuracy.peaks --truth FOLDER         measurements from FOLDER/peaks.json (or LEGROOM_TRUTH)
    python -m bench.accuracy.peaks --peers FILE           also ask other estimators (see other_estimators.py); FILE caches their answers
    python -m bench.accuracy.peaks --rows FILE            save rows to FILE; continue from the rows it has (same code only)
    python -m bench.accuracy.peaks --write PAGE           also write the summary tables into PAGE, between their marks
    python -m bench.accuracy.peaks --markdown             print Markdown tables

The steps were measured with torch 2.11 and are traced here without a GPU. Cases whose libraries are not installed
(torchvision, transformers) are listed and skipped.
"""

import contextlib
import io
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from bench.accuracy.cases.case import Case
from bench.accuracy.cases.sets import CASES
from bench.accuracy.other_estimators import PEERS, Answers, ask_all
from bench.accuracy.score_cases import failures_of, score
from bench.accuracy.scored_case import Measured, Row, RowFile, measured
from bench.lib.command_line import command_line
from bench.lib.table import percentile, print_table

Chosen = list[tuple[str, Case, Measured]]


def main(argv: Sequence[str] = ()) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--truth", type=Path, default=os.environ.get("LEGROOM_TRUTH"))
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(argv)
    cases = chosen(options.cases or CASES, options.only, options.truth)[:: options.every]
    rows, skipped = scored(cases, options.rows, options.jobs)
    answers = Answers(options.peers)
    if options.peers is not None:
        ask_all([(case_set, case) for case_set, case, _ in cases], answers, options.jobs)
        answers = Answers(options.peers)
    show_cases(rows, markdown=options.markdown)
    show_summary(rows, markdown=options.markdown)
    show_peers(rows, answers, markdown=options.markdown)
    for reason, keys in skipped.items():
        print(f"skipped {len(keys)} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''}): {reason}")
    print(f"peak host memory: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.2f} GiB")
    if options.write is not None:
        write(options.write, rows, answers)
    return 0


def scored(cases: Chosen, path: Path | None, jobs: int) -> tuple[list[Row], dict[str, list[str]]]:
    """Return the rows, and the keys of the cases without a row, grouped by reason."""
    with tempfile.TemporaryDirectory() as folder:
        path = path or Path(folder) / "rows.jsonl"
        failures_of(path).unlink(missing_ok=True)
        score(cases, path, jobs)
        known = RowFile(path)
        skipped: dict[str, list[str]] = {}
        for line in failures_of(path).read_text().splitlines() if failures_of(path).exists() else ():
            key, _, reason = line.partition(": ")
            skipped.setdefault(reason, []).append(key)
    found = [known.get(case_set, case) for case_set, case, _ in cases]
    return [row for row in found if row is not None], skipped


def write(page: Path, rows: list[Row], answers: Answers) -> None:
    """Replace the tables between the marks of a page."""
    peers = partial(show_peers, answers=answers)
    for mark, tables in (("summary", show_summary), ("peers", peers)):
        begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        before, found, rest = page.read_text().partition(begin)
        if not found:
            sys.exit(f"{page} has no place for this table. Add the marks {begin} and {end}.")
        _, _, after = rest.partition(end)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            tables(rows, markdown=True)
        if printed.getvalue():
            page.write_text(f"{before}{begin}\n{printed.getvalue().strip()}\n{end}{after}")


def chosen(case_sets: Iterable[str], words: Sequence[str], truth: Path | None) -> Chosen:
    """Return the measured cases of these sets whose keys contain one of the words."""
    found: Chosen = []
    for case_set in case_sets:
        peaks = measured(case_set, truth)
        found += [
            (case_set, case, peaks[case.key])
            for case in CASES[case_set]
            if case.key in peaks and any(word in case.key for word in words)
        ]
    return found


def show_cases(rows: list[Row], *, markdown: bool) -> None:
    for case_set in dict.fromkeys(row.case_set for row in rows):
        chosen = [row for row in rows if row.case_set == case_set]
        show(
            f"{case_set}: {len(chosen)} cases, MiB",
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
    sets = {
        case_set: [row for row in rows if row.case_set == case_set]
        for case_set in dict.fromkeys(row.case_set for row in rows)
    }
    if len(sets) > 1:
        sets["all"] = rows
    title = "" if markdown else "summary"
    show(title, SUMMARY, [[name, *summary(chosen)] for name, chosen in sets.items()], markdown)


def show_peers(rows: list[Row], answers: Answers, *, markdown: bool) -> None:
    """Print the error of each estimator on the cases that it supports, next to Legroom's error on the same cases."""
    lines: list[list[str]] = []
    for peer in PEERS:
        asked = [row for row in rows if answers.has(row.case_set, row.key, peer)]
        answered = [(row, answer) for row in asked if (answer := answers.get(row.case_set, row.key, peer))]
        if not answered:
            continue
        theirs = [answer / row.real_allocated - 1 for row, answer in answered]
        ours = [row.allocated_error for row, _ in answered]
        lines.append([peer, f"{len(answered)} of {len(asked)}", *errors(theirs, 1), *errors(ours, 2)])
    if lines:
        title = "" if markdown else "allocated memory, other estimators"
        show(title, PEER_COLUMNS, lines, markdown)


PEER_COLUMNS = [
    "estimator", "cases it supports", "median", "p95", "worst under",
    "Legroom on these: median", "p95", "worst under",
]  # fmt: skip
SUMMARY = [
    "set", "cases", "allocated: median", "p95", "worst under", "reserved: median", "p95", "worst under", "above safe bound",
    "safe margin: median", "under −4%", "seconds: median", "max",
]  # fmt: skip


def summary(rows: list[Row]) -> list[str]:
    if not rows:
        return ["0", *[""] * (len(SUMMARY) - 2)]
    above = sum(row.real_reserved > row.safe for row in rows)
    return [
        str(len(rows)),
        *errors([row.allocated_error for row in rows], 2),
        *errors([row.reserved_error for row in rows], 2),
        f"{above} ({above / len(rows):.1%})",
        f"{statistics.median(row.safe / row.reserved - 1 for row in rows):.1%}",
        str(sum(min(row.allocated_error, row.reserved_error) < -0.04 for row in rows)),
        f"{statistics.median(row.seconds for row in rows):.1f}",
        f"{max(row.seconds for row in rows):.1f}",
    ]


def errors(values: list[float], digits: int) -> list[str]:
    """Format the median and 95th percentile of the absolute errors, and the lowest error."""
    shown = (statistics.median(map(abs, values)), percentile(values, 0.95), min(values))
    return [f"{value:.{digits}%}" for value in shown]


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
