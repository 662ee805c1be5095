"""Finds the true largest batch under a memory limit by running three training steps at each size. Needs a GPU.

    python -m bench.accuracy.measure_largest_batch OUT [--jobs 8] [--seconds 140] [--only WORD ...] [--group development]

Writes OUT/largest_batches.json. Needs torch, torchvision and transformers, not Legroom. Each size runs in a process
that has not used the GPU before, because the allocator, cuBLAS and cuDNN keep memory from earlier sizes. The
processes are forked from a process that has imported the libraries and built the model on the host. A size fits if
its steps finish. The search starts at the case's batch size and narrows the interval until the next larger size does
not fit. If time runs out, the largest size that fits and the smallest size that does not fit are written.
"""

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.accuracy.cases.build_step import build
from bench.accuracy.cases.case import Case
from bench.accuracy.cases.sets import BUILDERS
from bench.accuracy.largest_batch_cases import LARGEST_BATCH_CASES, Capped
from bench.lib.command_line import command_line
from bench.lib.forks import in_fork

STEPS = 3
GiB = 1 << 30
FITS, TOO_LARGE = 0, 3
STRIDES = (0.03, 0.06, 0.15, 0.4, 1.0)
"""The distances from the starting size, as fractions of that size, that are tried until one size fits and another does
not."""
CLOSE = 0.002
"""The relative tolerance. Sizes in the hundreds need not be exact."""


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=140)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--group", default="")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # threads do not survive a fork
    chosen = [
        capped
        for capped in LARGEST_BATCH_CASES
        if capped.group.startswith(options.group)
        and (not options.only or any(word in capped.key for word in options.only))
    ]
    until = time.monotonic() + options.seconds
    with torch.device("meta"):
        for name in {capped.case.model for capped in chosen}:
            with contextlib.suppress(NotImplementedError):  # the constructor reads tensor values
                BUILDERS[name]()  # imports its libraries
    print(f"imported after {options.seconds - (until - time.monotonic()):.0f} s", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        in_forks(chosen, options.jobs, Path(folder), until)
        rows = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
    (options.out / "largest_batches.json").write_text(json.dumps(rows, indent=1))
    return 0


def in_forks(chosen: list[Capped], jobs: int, folder: Path, until: float) -> None:
    """Run every case in its own process, `jobs` at a time. Cases with large limits run first, because they take longest."""
    waiting = sorted(enumerate(chosen), key=lambda item: -item[1].cap)
    running = 0
    while waiting or running:
        if waiting and running < jobs:
            number, capped = waiting.pop(0)
            if os.fork() == 0:
                row = largest(capped, until)
                (folder / f"{number:03}.json").write_text(json.dumps(row))
                print(json.dumps({name: row[name] for name in ("key", "largest", "smallest_too_large", "seconds")}),
                      flush=True)  # fmt: skip
                os._exit(0)
            running += 1
            continue
        os.wait()
        running -= 1


def largest(capped: Capped, until: float) -> dict[str, Any]:
    """Narrow the interval around the largest batch."""
    began = time.monotonic()
    spec = BUILDERS[capped.case.model]()
    BUILDERS[capped.case.model] = lambda: spec  # built once; each forked trial has its own copy
    tried: dict[int, dict[str, Any]] = {}
    low, high = 0, 1 << 30
    strides = iter(STRIDES)
    size = start = capped.case.batch
    while high - low > max(1, low * CLOSE) and time.monotonic() < until:
        outcome = tried[size] = trial(capped, size)
        if "error" in outcome and outcome["exit"] not in (FITS, TOO_LARGE):
            break
        if outcome["exit"] == FITS:
            low = size
        else:
            high = size
        if low and high < 1 << 30:
            size = (low + high) // 2
        else:
            stride = next(strides, None)
            if stride is None:
                size = low * 2 if low else high // 2
            else:
                stride = max(1, round(start * stride))
                size = max(1, start + stride if low else start - stride)
            if size in tried:  # the stride is less than one sample
                size = low + 1 if low else high - 1
            if size == 0:
                break
    return {
        "key": capped.key, "case": dataclasses.asdict(capped.case), "cap": capped.cap, "group": capped.group,
        "largest": low, "smallest_too_large": high, "seconds": round(time.monotonic() - began, 1),
        "tried": tried, "torch": torch.__version__,
    }  # fmt: skip


def trial(capped: Capped, size: int) -> dict[str, Any]:
    """Run three steps at one size in a forked process that has not used the GPU before."""
    return in_fork(lambda: steps_under_cap(capped, size)) or {"exit": 1, "error": "process died"}


def steps_under_cap(capped: Capped, size: int) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    try:
        if on_gpu:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction((capped.cap * GiB + (1 << 20)) / total)
        run_steps(dataclasses.replace(capped.case, batch=size), "cuda" if on_gpu else "cpu")
    except Exception as error:
        text = str(error)
        full = isinstance(error, torch.OutOfMemoryError) or "ALLOC_FAILED" in text or "out of memory" in text
        return {"exit": TOO_LARGE if full else 1, "error": f"{type(error).__name__}: {text[:160]}"}
    if not on_gpu:
        return {"exit": FITS}
    return {
        "exit": FITS,
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
    }


def run_steps(case: Case, device: str) -> None:
    """Run the training steps that decide whether a size fits."""
    _, _, step = build(case, device)
    for _ in range(STEPS):
        step()
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
