"""Scores measured cases side by side: each in a forked process of its own, with a limit of time.

    python -m bench.score ROWS --cases sealed --cases everyday [--jobs 14] [--limit 200] [--truth FOLDER]

Every case's row is appended to ROWS when it is done, for `python -m bench.accuracy --rows ROWS`; a case that has one already is
not scored again. Why others have none is appended to ROWS.failed. Measurements are taken from FOLDER/peaks-<cases>.json where
there is such a file, else from those that are kept with the tests.
"""

import argparse
import collections
import contextlib
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from bench.accuracy import Kept, Measured, compare, measured
from bench.workloads import CASES, Case

with contextlib.suppress(ImportError):  # before forking, so that not every case imports it
    import transformers  # noqa: F401


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=200, help="seconds for one case")
    parser.add_argument("--truth", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept = Kept(options.rows)
    waiting = collections.deque[tuple[str, Case, Measured]]()
    for half in options.cases or CASES:
        truth = (measured(half, options.truth) if options.truth else {}) or measured(half, None)
        for case in CASES[half]:
            if case.key in truth and kept.get(half, case) is None:
                waiting.append((half, case, truth[case.key]))
    side_by_side(waiting, options.rows, options.jobs, options.limit)
    return 0


def side_by_side(
    waiting: collections.deque[tuple[str, Case, Measured]], rows: Path, jobs: int, limit: float
) -> None:
    running: dict[multiprocessing.process.BaseProcess, tuple[str, float]] = {}
    forking = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < jobs:
            half, case, real = waiting.popleft()
            process = forking.Process(target=score, args=(half, case, real, rows))
            process.start()
            running[process] = (case.key, time.monotonic())
        time.sleep(0.05)
        for process, (key, began) in list(running.items()):
            if process.is_alive() and time.monotonic() - began < limit:
                continue
            if process.is_alive():
                process.kill()
                fail(rows, key, f"took more than {limit:.0f} s")
            elif process.exitcode:
                fail(rows, key, f"its process ended with {process.exitcode}")
            process.join()
            del running[process]
            print(f"{len(waiting) + len(running)} to go, {key} done", flush=True)


def score(half: str, case: Case, real: Measured, rows: Path) -> None:
    """One row; whatever goes wrong is a line of the other file."""
    try:
        row = compare(half, case, real)
    except Exception as error:
        fail(rows, case.key, f"{type(error).__name__}: {str(error)[:300]}")
        return
    with rows.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def fail(rows: Path, key: str, why: str) -> None:
    with rows.with_suffix(".failed").open("a") as file:
        file.write(f"{key}: {' '.join(why.split())}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
