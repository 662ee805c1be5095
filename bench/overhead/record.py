"""Measures the cost of `legroom.record`: a recorded step compared with a plain step, and an empty recording.

    python -m bench.overhead.record [--recordings N]

Plain and recorded steps alternate in one run, with one recording for each group of steps. On the virtual GPU, the
plain steps also run on the virtual GPU. A recording inside another recording is compared with the outer recording
alone. These recordings do not search for leaks. The search for leaks is measured separately, because it scans all
objects several times in the first steps of a recording. Seconds are CPU time of the process, so other load on the
machine has little effect.
"""

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psutil
import torch
from torch import nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from bench.overhead.recorder import Training

ROUNDS = 5


class SmallStep:
    """A step of a small network, whose operations take a few microseconds each."""

    def __init__(self, device: str) -> None:
        layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
        self._model = nn.Sequential(*layers).to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._x = torch.randn(32, 64).to(device)

    def step(self) -> None:
        self._model(self._x).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def seconds_per_step(
    step: Callable[[], Any], steps: int, enter: Callable[[], AbstractContextManager[Any]]
) -> float:
    with enter():
        step()
        began = time.process_time()
        for _ in range(steps):
            step()
        return (time.process_time() - began) / steps


def compare(step: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Return the median seconds of a plain and of a recorded step."""
    plain, recorded = [], []
    for _ in range(ROUNDS):
        plain.append(seconds_per_step(step, steps, nullcontext))
        recorded.append(seconds_per_step(step, steps, lambda: legroom.record(leaks=False)))
    return statistics.median(plain), statistics.median(recorded)


def row(name: str, step: Callable[[], Any], steps: int = 20) -> list[str]:
    plain, recorded = compare(step, steps)
    return [name, f"{plain * 1000:.2f} ms", f"{recorded * 1000:.2f} ms", f"{recorded / plain:.2f}"]


def empty_recordings(count: int) -> str:
    def block() -> None:
        with legroom.record():
            torch.empty(16)

    for _ in range(50):
        block()
    gc.collect()
    before, began = psutil.Process().memory_info().rss, time.process_time()
    for _ in range(count):
        block()
    seconds = (time.process_time() - began) / count
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    return f"{count:,} recordings of one operation: {seconds * 1000:.1f} ms each, {grown / 2**20:+.1f} MiB resident."


def search_seconds() -> str:
    """Return the CPU time that the search for leaks adds to a recording of 20 small steps."""
    step, times = SmallStep("cpu").step, []
    for leaks in (True, False) * 3:
        began = time.process_time()
        with legroom.record(leaks=leaks):
            for _ in range(20):
                step()
        times.append(time.process_time() - began)
    added = statistics.median(times[::2]) - statistics.median(times[1::2])
    return f"The search for leaks adds {added:.2f} s to a recording of 20 small steps."


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--recordings", type=int, default=1000, help="number of short recordings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        row("CPU, small network", SmallStep("cpu").step),
        row("CPU, ResNet-18, batch 2", Training("cpu", 2).step, 2),
    ]
    with legroom.VirtualGPU("8GiB"):
        rows.append(row("virtual GPU, small network", SmallStep("cuda").step))
        rows.append(row("virtual GPU, ResNet-18, batch 2", Training("cuda", 2).step, 2))
    with legroom.record():
        rows.append(row("CPU, small network, inside a recording", SmallStep("cpu").step))
    if torch.cuda.is_available():
        rows.append(row("GPU, small network", SmallStep("cuda").step))
        rows.append(row("GPU, ResNet-18, batch 32", Training("cuda", 32).step))
    print_table("A recorded step", ["program", "plain", "recorded", "ratio"], rows)
    print(search_seconds())
    print(empty_recordings(options.recordings))


if __name__ == "__main__":
    main()
