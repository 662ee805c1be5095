"""Every operation that a training script may call: what it asks of CUDA's allocator, held against what a trace foretells.

    python -m bench.operation_sweep measure OUT [--jobs 8] [--seconds 150]     on a GPU: OUT/measured.jsonl.gz
    python -m bench.operation_sweep trace OUT [--jobs 8] [--seconds 150]       anywhere: OUT/traced.jsonl.gz
    python -m bench.operation_sweep compare OUT [--only WORD...] [--again]     prints what differs, largest first

Cases are operations × shapes × precisions × layouts (`sweep_*`), each a forward and a backward pass. A row is [name, requests] or [name,
null, why it failed]; requests are bytes asked for (+) and given back (-) in order. Measuring runs unwatched, after what libraries keep has been
taken. Tracing runs each case on a traced device; where a trace without data ends, it computes on the CPU, as `legroom estimate` does.
`compare` takes the rows of both, or with `--again` traces anew what was measured.
"""

import argparse
import concurrent.futures
import gc
import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench import (
    sweep_algebra,
    sweep_chance,
    sweep_layers,
    sweep_losses,
    sweep_sequences,
    sweep_training,
    sweep_values,
)
from bench.sweep_kit import Case
from bench.table import print_table

KEPT = (32 << 20, 1 << 20)
"""Bytes that cuBLAS takes once and keeps."""
RESULTS = {"measure": "measured", "trace": "traced"}
BLOCK = 512
SPOILT = 75
"""How a process ends after which CUDA does nothing more."""
LONGEST = 15
"""Seconds for one case."""
NOTABLE = 16 << 10
"""Bytes below which a difference is not one that anybody would see in a peak."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "trace", "compare", "list"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument(
        "--seconds", type=float, default=150, help="stop measuring after so long, whatever is left"
    )
    parser.add_argument("--part", default="", help="i/n: only every n-th case, from i")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="only cases with one of these words in their names"
    )
    parser.add_argument("--again", action="store_true", help="trace anew")
    parser.add_argument("--rows", type=int, default=100, help="print so many cases at most")
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
        sweep_values,
        sweep_layers,
        sweep_losses,
        sweep_sequences,
        sweep_algebra,
        sweep_training,
        sweep_chance,
    )
    return itertools.chain.from_iterable(part.cases() for part in parts)


def chosen(only: list[str]) -> list[Case]:
    return [one for one in cases() if any(word in one.name for word in only)]


# Measuring and tracing, side by side


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
    """One part; a process that an assertion on the device has spoilt is followed by another."""
    command = [
        sys.executable,
        "-m",
        "bench.operation_sweep",
        what,
        str(folder),
        "--part",
        part,
        "--only",
        *only,
    ]
    while (left := end - time.monotonic()) > 0:
        done = subprocess.run(
            [*command, "--seconds", str(left)], env=dict(os.environ, OMP_NUM_THREADS="1"), check=False
        )
        if done.returncode != SPOILT:
            return


def work(what: str, folder: Path, part: str, only: list[str], seconds: float) -> int:
    """The cases of one part that have no row yet."""
    index, count = map(int, part.split("/"))
    end = time.monotonic() + seconds
    path = folder / f"{RESULTS[what]}-{index}.jsonl"
    done = len(path.read_text().splitlines()) if path.exists() else 0
    device = Traced()
    signal.signal(signal.SIGALRM, _too_late)
    gc.collect()
    gc.freeze()
    gc.disable()  # so that cycles end at the same places on both sides
    if what == "measure":
        warm_up()
    with path.open("a") as file:
        for number, one in enumerate(chosen(only)[index::count][done:]):
            if time.monotonic() > end:
                break
            row = measured(one) if what == "measure" else traced(device, one)
            file.write(json.dumps(row) + "\n")
            if (
                what == "measure"
                and row[1] is None
                and ("CUDA error" in row[2] or "AcceleratorError" in row[2])
            ):
                return SPOILT
            if number % 20 == 19:
                gc.collect()
            if (
                what == "measure" and torch.cuda.memory_reserved() > 8 << 30
            ):  # several processes share the device
                torch.cuda.empty_cache()
    print(f"{what} {part}: {end - time.monotonic():.0f} s left", flush=True)
    return 0


def traced(device: "Traced", one: Case) -> list[Any]:
    try:
        signal.alarm(LONGEST)
        return [one.name, device.requests(one)]
    except Exception as error:
        device.close()
        return [one.name, None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"]
    finally:
        signal.alarm(0)


def _too_late(*_: Any) -> None:
    raise TimeoutError(f"took more than {LONGEST} seconds")


def warm_up() -> None:
    """What libraries take once and keep is taken before anything is counted: in this thread and in the backward pass's."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(64, 64, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(x, x, x[0]).sum().backward()
    torch.linalg.inv(torch.eye(4, device="cuda"))
    torch.cuda.synchronize()


def measured(one: Case) -> list[Any]:
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(max_entries=200_000, context=None)
    try:
        signal.alarm(LONGEST)
        one.run()
        torch.cuda.synchronize()
    except Exception as error:
        return [one.name, None, f"{type(error).__name__}: {str(error)[:120]}"]
    finally:
        signal.alarm(0)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [one.name, told(trace)]


def told(trace: list[dict[str, Any]]) -> list[int]:
    """Bytes asked for and given back; what an earlier case left is not this one's."""
    sizes: dict[int, int] = {}
    requests = []
    for event in trace:
        if event["action"] == "alloc":
            sizes[event["addr"]] = event["size"]
            requests.append(event["size"])
        elif event["action"] == "free_completed" and event["addr"] in sizes:
            requests.append(-sizes.pop(event["addr"]))
    return requests


def read(folder: Path, what: str) -> dict[str, tuple[list[int] | None, str]]:
    """Name → requests, or why there are none."""
    path = folder / f"{RESULTS[what]}.jsonl.gz"
    if not path.exists():
        return {}
    with gzip.open(path, "rt") as file:
        return {name: (requests, why[0] if why else "") for name, requests, *why in map(json.loads, file)}


# Comparing


class Difference(NamedTuple):
    """One case whose requests are others than foretold."""

    name: str
    measured: int
    """Bytes at the peak."""
    traced: int
    only_measured: list[int]
    """Requests that only the GPU saw, largest first."""
    only_traced: list[int]

    @property
    def size(self) -> int:
        """By how many bytes the peak is wrong, or else the largest request that is."""
        return abs(self.measured - self.traced) or max((*self.only_measured, *self.only_traced), default=0)


class Traced:
    """Cases run on a traced device, which stays open from one to the next, as that is most of the cost."""

    def __init__(self) -> None:
        self._device: Any = None
        self._mode = ""
        self._events: list[Any] = []

    def requests(self, one: Case) -> list[int]:
        """Bytes asked for and given back."""
        from legroom.predict.tracing import needs_arithmetic

        try:
            return self._in("fake", one)
        except Exception as error:
            self.close()
            if not needs_arithmetic(error):
                raise
        try:
            return self._in("cpu", one)
        except Exception:
            self.close()
            raise

    def _in(self, mode: str, one: Case) -> list[int]:
        if self._mode != mode:
            self.close()
            self._open(mode)
        torch.manual_seed(0)
        before = len(self._events)
        one.run()
        return signed(self._events, before)

    def _open(self, mode: Any) -> None:
        from legroom.observe.gpus import find_gpu
        from legroom.predict.tracing import make_device

        self._events = []
        self._device = make_device(find_gpu("h200"), mode, self._events.append)
        self._device.__enter__()
        self._mode = mode
        warm_up()

    def close(self) -> None:
        if self._device is not None:
            self._device.__exit__(None, None, None)
        self._device, self._mode = None, ""


def signed(events: list[Any], before: int) -> list[int]:
    """The requests among events from the `before`-th on; what was there before is not given back."""
    from legroom.memory.events import Alloc, Free

    sizes: dict[int, int] = {}
    requests = []
    for event in events[before:]:
        if isinstance(event, Alloc):
            sizes[event.id] = event.bytes
            requests.append(event.bytes)
        elif isinstance(event, Free) and event.id in sizes:
            requests.append(-sizes[event.id])
    return requests


def peak(requests: list[int]) -> int:
    """The most that is allocated at once, in blocks."""
    blocks = ((size + BLOCK - 1) // BLOCK * BLOCK if size > 0 else -((-size + BLOCK - 1) // BLOCK * BLOCK) for size in requests)  # fmt: skip
    return max(itertools.accumulate(blocks), default=0)


def difference(name: str, real: list[int], said: list[int]) -> Difference:
    asked, foretold = (Counter(size for size in one if size > BLOCK) for one in (real, said))
    return Difference(
        name, peak(real), peak(said), sorted((asked - foretold).elements(), reverse=True),
        sorted((foretold - asked).elements(), reverse=True),
    )  # fmt: skip


def compare(folder: Path, only: list[str], rows: int, again: bool) -> int:
    known = {one.name: one for one in chosen(only)}
    foretold = {} if again else read(folder, "trace")
    found = Findings()
    device = Traced()
    signal.signal(signal.SIGALRM, _too_late)
    for name, (requests, why) in read(folder, "measure").items():
        if name not in known:
            continue
        if requests is None:
            found.failures[f"not on the GPU: {why[:60]}"].append(name)
            continue
        said, reason = (
            foretold.get(name, (None, "no row")) if not again else _unpacked(traced(device, known[name]))
        )
        if said is None:
            found.failures[f"not traced: {reason[:80]}"].append(name)
            continue
        found.add(name, *([size for size in one if abs(size) not in KEPT] for one in (requests, said)))
    device.close()
    found.report(rows)
    return 0


def _unpacked(row: list[Any]) -> tuple[list[int] | None, str]:
    return row[1], row[2] if len(row) > 2 else ""


class Findings:
    """What was the same and what was not."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.others: dict[str, list[Difference]] = defaultdict(list)
        self.failures: dict[str, list[str]] = defaultdict(list)

    def add(self, name: str, real: list[int], said: list[int]) -> None:
        operation = name.split(" ")[0]
        self.totals[operation] += 1
        found = difference(name, real, said)
        if real == said:
            self.counts["every request alike, in order"] += 1
        elif found.measured != found.traced:
            near = abs(found.measured - found.traced) <= NOTABLE
            self.counts["peak within 16 KiB" if near else "another peak"] += 1
        elif found.only_measured or found.only_traced:
            self.counts["peak alike, other requests"] += 1
        else:
            self.counts["peak and requests alike, in another order"] += 1
        if found.size > NOTABLE:
            self.others[operation].append(found)

    def report(self, rows: int) -> None:
        ordered = sorted(self.others.items(), key=lambda item: -max(one.size for one in item[1]))
        for operation, found in ordered[:rows]:
            wrong_peaks = sum(one.measured != one.traced for one in found)
            print(
                f"{operation}: {len(found)} of {self.totals[operation]} differ, {wrong_peaks} in their peaks"
            )
            for one in sorted(found, key=lambda one: -one.size)[:6]:
                print(
                    f"    {one.name.partition(' ')[2]}: {one.measured:,} measured, {one.traced:,} traced ({one.traced / max(1, one.measured) - 1:+.1%});"
                    f" only measured {one.only_measured[:5]}, only traced {one.only_traced[:5]}"
                )
        for why, names in sorted(self.failures.items(), key=lambda item: -len(item[1])):
            print(f"{why}: {len(names)}, {sorted({name.split(' ')[0] for name in names})[:12]}")
        print_table(
            f"{sum(self.totals.values())} cases of {len(self.totals)} operations",
            ["", "cases"],
            [[what, str(count)] for what, count in self.counts.most_common()],
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
