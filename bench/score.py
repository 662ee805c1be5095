"""Scores measured cases side by side: each in a forked process of its own, with a limit of time.

    python -m bench.score ROWS --cases sealed --cases everyday [--jobs 14] [--limit 200] [--truth FOLDER] [--peers]

Every case's row is appended to ROWS when it is done, for `python -m bench.accuracy --rows ROWS`; a case that has one already is
not scored again. Why others have none is appended to ROWS.failed. Measurements are taken from FOLDER/peaks-<cases>.json where
there is such a file, else from those that are kept with the tests.
"""

import argparse
import collections
import contextlib
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from bench.scored_case import Kept, Measured, measured
from bench.scored_case import score as score_case
from bench.workloads import CASES, Case

with contextlib.suppress(ImportError):  # before forking, so that not every case imports it
    import transformers  # noqa: F401

LIMIT = 200.0
"""Seconds for one case."""


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one case")
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--peers", action="store_true", help="ask other estimators too")
    options = parser.parse_args(argv)
    waiting: list[tuple[str, Case, Measured]] = []
    for half in options.cases or CASES:
        truth = (measured(half, options.truth) if options.truth else {}) or measured(half, None)
        waiting += [(half, case, truth[case.key]) for case in CASES[half] if case.key in truth]
    side_by_side(waiting, options.rows, options.jobs, options.limit, peers=options.peers)
    return 0


def side_by_side(
    cases: Iterable[tuple[str, Case, Measured]],
    rows: Path,
    jobs: int,
    limit: float = LIMIT,
    *,
    peers: bool = False,
) -> None:
    """Fill `rows` with those that it does not have."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept = Kept(rows)

    def is_missing(half: str, case: Case) -> bool:
        row = kept.get(half, case)
        return row is None or (peers and not row.peers)

    waiting = collections.deque((half, case, real) for half, case, real in cases if is_missing(half, case))
    running: dict[multiprocessing.process.BaseProcess, tuple[str, float]] = {}
    forking = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < jobs:
            half, case, real = waiting.popleft()
            process = forking.Process(target=_score, args=(half, case, real, rows, peers))
            process.start()
            running[process] = (case.key, time.monotonic())
        time.sleep(0.05)
        for one, (key, began) in list(running.items()):
            if one.is_alive() and time.monotonic() - began < limit:
                continue
            if one.is_alive():
                one.kill()
                _fail(rows, key, f"took more than {limit:.0f} s")
            elif one.exitcode:
                _fail(rows, key, f"its process ended with {one.exitcode}")
            one.join()
            del running[one]
            print(f"{len(waiting) + len(running)} to go, {key} done", file=sys.stderr, flush=True)


def _score(half: str, case: Case, real: Measured, rows: Path, peers: bool) -> None:
    """One row; whatever goes wrong is a line of the other file."""
    try:
        score_case(half, case, real, Kept(rows), peers=peers)
    except Exception as error:
        _fail(rows, case.key, f"{type(error).__name__}: {str(error)[:300]}")


def _fail(rows: Path, key: str, why: str) -> None:
    with rows.with_suffix(".failed").open("a") as file:
        file.write(f"{key}: {' '.join(why.split())}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
