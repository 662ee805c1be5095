"""Scores measured cases in parallel, each in a forked process with a time limit.

    python -m bench.accuracy.score_cases ROWS [--cases unseen-broad] [--jobs 14] [--limit 200] [--truth FOLDER]

The program appends one row per case to ROWS, for `python -m bench.accuracy.peaks --rows ROWS`. A case that has a row
is not scored again. ROWS.failed lists the cases without a row and the reasons. Measurements come from
FOLDER/peaks-<cases>.json if this file exists, and otherwise from bench/results/measured_peaks.json.
"""

import contextlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch

from bench.accuracy.cases.case import Case
from bench.accuracy.cases.sets import CASES
from bench.accuracy.scored_case import Measured, RowFile, compare, measured
from bench.lib.command_line import command_line
from bench.lib.parallel_tasks import Task, run_parallel

with contextlib.suppress(ImportError):  # imported once before forking, not in every case
    import transformers  # noqa: F401

LIMIT = 200.0
"""The maximum time in seconds for one case."""
Chosen = Iterable[tuple[str, Case, Measured]]
"""The name of the set, the case, and its measured peaks."""


def main(argv: Sequence[str] = ()) -> int:
    parser = command_line(__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one case")
    parser.add_argument("--truth", type=Path)
    options = parser.parse_args(argv)
    waiting: list[tuple[str, Case, Measured]] = []
    for case_set in options.cases or CASES:
        truth = (measured(case_set, options.truth) if options.truth else {}) or measured(case_set, None)
        waiting += [(case_set, case, truth[case.key]) for case in CASES[case_set] if case.key in truth]
    score(waiting, options.rows, options.jobs, options.limit)
    return 0


def score(cases: Chosen, rows: Path, jobs: int, limit: float = LIMIT) -> None:
    """Add the missing rows to the file `rows`."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = RowFile(rows)
    tasks = [
        Task(case.key, partial(_score, case_set, case, real, rows), partial(_fail, rows, case.key))
        for case_set, case, real in cases
        if known.get(case_set, case) is None
    ]
    run_parallel(tasks, jobs, limit)


def _score(case_set: str, case: Case, real: Measured, rows: Path) -> None:
    """Write one row, or the reason why there is no row."""
    try:
        RowFile(rows).put(compare(case_set, case, real))
    except Exception as error:
        _fail(rows, case.key, f"{type(error).__name__}: {str(error)[:300]}")


def _fail(rows: Path, key: str, reason: str) -> None:
    with failures_of(rows).open("a") as file:
        file.write(f"{key}: {' '.join(reason.split())}\n")


def failures_of(rows: Path) -> Path:
    """Return the path of the file that lists the cases without a row."""
    return rows.with_suffix(".failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
