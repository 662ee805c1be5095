"""Measures how much time `legroom.watch` adds to the first epochs of a program.

    python -m bench.overhead.first_epochs [--steps 60] [--processes 5] [--milliseconds 1 5 20]

Each process runs plain epochs, watched epochs and again plain epochs of the same steps. The process has about as many
Python objects as a program that imports a large library, because the time of a heap scan depends on them. The first
watched epoch includes the import of Legroom's modules. The program prints the added time of each watched epoch in
milliseconds, and as a fraction of the fastest plain epoch (medians over all processes).
"""

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table

EPOCHS = 3
OBJECTS = 400_000


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--milliseconds", type=float, nargs="+", default=(1.0, 5.0, 20.0))
    parser.add_argument(
        "--one", type=float, help="the times of one process with steps of this length, as JSON"
    )
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.steps, options.one)))
        return
    rows = []
    for milliseconds in options.milliseconds:
        seen = [_in_a_process(options.steps, milliseconds) for _ in range(options.processes)]
        plain = statistics.median(min(each["plain"]) for each in seen)
        added = [
            statistics.median(each["watched"][epoch] - min(each["plain"]) for each in seen)
            for epoch in range(EPOCHS)
        ]
        rows.append(
            [
                f"{plain / options.steps * 1e3:.1f} ms",
                f"{plain * 1e3:.0f} ms",
                *(f"{each * 1e3:+.0f} ms, {each / plain:+.1%}" for each in added),
            ]
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print_table(
        f"legroom.watch, epochs of {options.steps} steps, torch {torch.__version__} on {device}",
        ["plain step", "plain epoch", *(f"epoch {epoch + 1}" for epoch in range(EPOCHS))],
        rows,
    )


def _in_a_process(steps: int, milliseconds: float) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "bench.overhead.first_epochs", "--steps", str(steps), "--one", str(milliseconds)]  # fmt: skip
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    times: dict[str, list[float]] = json.loads(ended.stdout.splitlines()[-1])
    return times


def measure(steps: int, milliseconds: float) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    epoch = _epoch(steps, milliseconds)
    epoch(lambda batches: batches)
    gc.collect()
    ballast: list[Any] = []
    ballast.extend([i] for i in range(OBJECTS - len(gc.get_objects())))
    gc.collect()
    plain = [epoch(lambda batches: batches) for _ in range(EPOCHS)]
    watched = [epoch(lambda batches: legroom.watch(batches, quiet=True)) for _ in range(EPOCHS)]
    return {"plain": plain + [epoch(lambda batches: batches) for _ in range(EPOCHS)], "watched": watched}


def _epoch(steps: int, milliseconds: float) -> Callable[[Callable[[Any], Iterable[torch.Tensor]]], float]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4))).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    batches = [torch.randn(16, 64) for _ in range(steps)]

    def epoch(mode: Callable[[Any], Iterable[torch.Tensor]]) -> float:
        began = time.perf_counter()
        for batch in mode(batches):
            ends = time.perf_counter() + milliseconds / 1e3
            loss = model(batch.to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            while time.perf_counter() < ends:
                pass
        return time.perf_counter() - began

    return epoch


if __name__ == "__main__":
    main()
