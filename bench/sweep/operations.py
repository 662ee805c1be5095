"""Compares the allocations of every operation of a training script on a GPU with the predictions of a trace.

    python -m bench.sweep.operations measure OUT [--jobs 8] [--seconds 150]     on a GPU: OUT/measured.jsonl.gz
    python -m bench.sweep.operations trace OUT [--jobs 8] [--seconds 150]       anywhere: OUT/traced.jsonl.gz
    python -m bench.sweep.operations compare OUT [--only WORD...] [--again]     prints the differences, largest first

Cases are operations × shapes × precisions × layouts (the other modules of this folder), each a forward and a backward
pass. A row is [name, requests, ""] or [name, null, error]; requests are bytes allocated (+) and freed (-) in order.
The measurement runs without a recorder, after libraries have allocated the memory that they keep. The trace runs each
case on a traced device. A case that needs data is computed on the CPU, as in `legroom estimate`. `compare` compares
the rows of both. With `--again`, `compare` traces the measured cases again.
"""

import concurrent.futures
import gc
import gzip
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from bench.lib.command_line import command_line
from bench.sweep import (
    algebra,
    compositions,
    layers,
    losses,
    random_numbers,
    sequences,
    training,
    values,
)
from bench.sweep.both_sides import Measured, Traced, warm_up
from bench.sweep.differences import Comparison
from bench.sweep.kit import Case

KEPT = (32 << 20, 1 << 20)
"""The sizes in bytes of the workspaces that cuBLAS allocates once and keeps."""
RESULTS = {"measure": "measured", "trace": "traced"}
UNUSABLE = 75
"""The exit code of a process whose CUDA context is unusable."""
LONGEST = 6
"""The maximum time in seconds for one case."""


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("what", choices=["measure", "trace", "compare", "list"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=150, help="stop measuring after so many seconds")
    parser.add_argument("--part", default="", help="i/n: only every n-th case, from i")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="only cases with one of these words in their names"
    )
    parser.add_argument("--again", action="store_true", help="trace again")
    parser.add_argument("--rows", type=int, default=100, help="maximum number of cases to print")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    if options.what == "list":
        names = [one.name for one in cases()]
        print(
            *names,
            f"{len(names)} cases of {len({name.split(' ')[0] for name in names})} operations",
            sep="\n",
        )
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.what == "compare":
        return compare(options.folder, options.only, options.rows, options.again)
    if options.part:
        return work(options.what, options.folder, options.part, options.only, options.seconds)
    return in_parts(options.what, options.folder, options.jobs, options.only, options.seconds)


def cases() -> Iterator[Case]:
    parts = (
        values,
        layers,
        losses,
        sequences,
        algebra,
        training,
        random_numbers,
        compositions,
    )
    return itertools.chain.from_iterable(part.cases() for part in parts)


def chosen(only: list[str]) -> list[Case]:
    """Return the cases in a fixed order with mixed kinds, so that a time limit omits some cases of each kind."""
    found = [one for one in cases() if any(word in one.name for word in only)]
    random.Random(0).shuffle(found)
    return found


# Measuring and tracing in parallel


def in_parts(what: str, folder: Path, jobs: int, only: list[str], seconds: float) -> int:
    end = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda part: in_processes(what, folder, f"{part}/{jobs}", only, end), range(jobs)))
    rows = 0
    with gzip.open(folder / f"{RESULTS[what]}.jsonl.gz", "wt") as file:
        for path in sorted(folder.glob(f"{RESULTS[what]}-*.jsonl")):
            lines = path.read_text().splitlines(keepends=True)
            file.writelines(lines)
            rows += len(lines)
            path.unlink()
    print(f"{what}: {rows} rows", flush=True)
    return 0


def in_processes(what: str, folder: Path, part: str, only: list[str], end: float) -> None:
    """Run one part. If the CUDA context of a process becomes unusable, another process replaces it."""
    command = [
        sys.executable,
        "-m",
        "bench.sweep.operations",
        what,
        str(folder),
        "--part",
        part,
        "--only",
        *only,
    ]
    while (left := end - time.monotonic()) > 0:
        try:
            done = subprocess.run(
                [*command, "--seconds", str(left)],
                env=dict(os.environ, OMP_NUM_THREADS="1"),
                check=False,
                timeout=left + LONGEST,
            )
        except subprocess.TimeoutExpired:
            return  # a kernel or a library ignored the alarm; earlier rows are kept
        if done.returncode != UNUSABLE:
            return


def work(what: str, folder: Path, part: str, only: list[str], seconds: float) -> int:
    """Run the cases of one part that have no row yet."""
    index, count = map(int, part.split("/"))
    end = time.monotonic() + seconds
    path = folder / f"{RESULTS[what]}-{index}.jsonl"
    done = len(path.read_text().splitlines()) if path.exists() else 0
    side = Measured() if what == "measure" else Traced()
    gc.collect()
    gc.freeze()
    gc.disable()  # so that reference cycles are collected at the same points on both sides
    if what == "measure":
        warm_up()
    with path.open("a", buffering=1) as file:
        for number, one in enumerate(chosen(only)[index::count][done:]):
            if time.monotonic() > end:
                break
            hard_end = threading.Timer(LONGEST + 2, give_up, (file, one))
            hard_end.daemon = True
            hard_end.start()
            requests, why = row(side, one)
            hard_end.cancel()
            file.write(json.dumps([one.name, requests, why]) + "\n")
            if "CUDA error" in why or "AcceleratorError" in why:
                return UNUSABLE
            if number % 20 == 19:
                gc.collect()
    print(f"{what} {part}: {end - time.monotonic():.0f} s left", flush=True)
    return 0


def give_up(file: TextIO, one: Case) -> None:
    """Exit the process, because a kernel or a library ignores the alarm."""
    file.write(json.dumps([one.name, None, "hangs"]) + "\n")
    file.flush()
    os._exit(UNUSABLE)


def row(side: Measured | Traced, one: Case) -> tuple[list[int] | None, str]:
    """Return the requests of a case, or the error."""
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(LONGEST)
    try:
        return side.requests(one), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
    finally:
        signal.alarm(0)
        side.rest()


def _too_late(*_: Any) -> None:
    raise TimeoutError(f"took more than {LONGEST} seconds")


def read(folder: Path, what: str) -> dict[str, tuple[list[int] | None, str]]:
    """Return the requests or the error of each case, by name."""
    path = folder / f"{RESULTS[what]}.jsonl.gz"
    if not path.exists():
        return {}
    with gzip.open(path, "rt") as file:
        return {name: (requests, why) for name, requests, why in map(json.loads, file)}


def compare(folder: Path, only: list[str], rows: int, again: bool) -> int:
    known = {one.name: one for one in chosen(only)}
    predicted = {} if again else read(folder, "trace")
    found = Comparison()
    device = Traced()
    for name, (requests, why) in read(folder, "measure").items():
        if name not in known:
            continue
        if requests is None:
            found.failures[f"not on the GPU: {why[:60]}"].append(name)
            continue
        traced, reason = row(device, known[name]) if again else predicted.get(name, (None, "no row"))
        if traced is None:
            found.failures[f"not traced: {reason[:80]}"].append(name)
            continue
        found.add(name, *([size for size in one if abs(size) not in KEPT] for one in (requests, traced)))
    device.close()
    found.report(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
