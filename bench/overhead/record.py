"""Measures what `legroom.record` costs: a recorded step against a plain step, and an empty recording.

    python -m bench.overhead.record

Plain and recorded steps alternate in one run, with one recording for each group of steps. On the virtual GPU, the plain
steps also run on the virtual GPU. A recording inside another recording is compared with the outer recording alone.
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

ROUNDS, STEPS = 9, 10


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


def median_seconds(step: Callable[[], Any], enter: Callable[[], AbstractContextManager[Any]]) -> float:
    with enter():
        step()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        return (time.perf_counter() - began) / STEPS


def compare(step: Callable[[], Any]) -> tuple[float, float]:
    """Return the median seconds of a plain and of a recorded step."""
    plain, recorded = [], []
    for _ in range(ROUNDS):
        plain.append(median_seconds(step, nullcontext))
        recorded.append(median_seconds(step, legroom.record))
    return statistics.median(plain), statistics.median(recorded)


def row(name: str, step: Callable[[], Any]) -> list[str]:
    plain, recorded = compare(step)
    return [name, f"{plain * 1000:.2f} ms", f"{recorded * 1000:.2f} ms", f"{recorded / plain:.2f}"]


def empty_recordings(count: int = 1000) -> str:
    def block() -> None:
        with legroom.record():
            torch.empty(16)

    for _ in range(50):
        block()
    gc.collect()
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    for _ in range(count):
        block()
    seconds = (time.perf_counter() - began) / count
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    return f"{count:,} recordings of one operation: {seconds * 1000:.1f} ms each, {grown / 2**20:+.1f} MiB resident."


def main() -> None:
    command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = [
        row("CPU, small network", SmallStep("cpu").step),
        row("CPU, ResNet-18, batch 2", Training("cpu", 2).step),
    ]
    with legroom.VirtualGPU("8GiB"):
        rows.append(row("virtual GPU, small network", SmallStep("cuda").step))
        rows.append(row("virtual GPU, ResNet-18, batch 2", Training("cuda", 2).step))
    with legroom.record():
        rows.append(row("CPU, small network, inside a recording", SmallStep("cpu").step))
    if torch.cuda.is_available():
        rows.append(row("GPU, small network", SmallStep("cuda").step))
        rows.append(row("GPU, ResNet-18, batch 32", Training("cuda", 32).step))
    print_table("A recorded step", ["program", "plain", "recorded", "ratio"], rows)
    print(empty_recordings())


if __name__ == "__main__":
    main()
