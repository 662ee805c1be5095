"""Scores measured cases side by side: each in a forked process of its own, with a limit of time.

    python -m bench.accuracy.score_cases ROWS --cases sealed --cases everyday [--jobs 14] [--limit 200] [--truth FOLDER]

Every case's row is appended to ROWS when it is done, for `python -m bench.accuracy.peaks --rows ROWS`; a case that has one already is
not scored again. Why others have none is appended to ROWS.failed. Measurements are taken from FOLDER/peaks-<cases>.json where
there is such a file, else from those that are kept with the tests.
"""

import argparse
import contextlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch

from bench.accuracy.cases.steps import CASES, Case
from bench.accuracy.scored_case import Kept, Measured, compare, measured
from bench.lib.parallel_tasks import Task, side_by_side

with contextlib.suppress(ImportError):  # before forking, so that not every case imports it
    import transformers  # noqa: F401

LIMIT = 200.0
"""Seconds for one case."""
Chosen = Iterable[tuple[str, Case, Measured]]
"""Which set, the case, what it took on the GPU."""


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one case")
    parser.add_argument("--truth", type=Path)
    options = parser.parse_args(argv)
    waiting: list[tuple[str, Case, Measured]] = []
    for half in options.cases or CASES:
        truth = (measured(half, options.truth) if options.truth else {}) or measured(half, None)
        waiting += [(half, case, truth[case.key]) for case in CASES[half] if case.key in truth]
    score(waiting, options.rows, options.jobs, options.limit)
    return 0


def score(cases: Chosen, rows: Path, jobs: int, limit: float = LIMIT) -> None:
    """Fill `rows` with those that it does not have."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept = Kept(rows)
    tasks = [
        Task(case.key, partial(_score, half, case, real, rows), partial(_fail, rows, case.key))
        for half, case, real in cases
        if kept.get(half, case) is None
    ]
    side_by_side(tasks, jobs, limit)


def _score(half: str, case: Case, real: Measured, rows: Path) -> None:
    """One row; whatever goes wrong is a line of the other file."""
    try:
        Kept(rows).put(compare(half, case, real))
    except Exception as error:
        _fail(rows, case.key, f"{type(error).__name__}: {str(error)[:300]}")


def _fail(rows: Path, key: str, why: str) -> None:
    with failures_of(rows).open("a") as file:
        file.write(f"{key}: {' '.join(why.split())}\n")


def failures_of(rows: Path) -> Path:
    """Where it is written why cases have no row."""
    return rows.with_suffix(".failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
