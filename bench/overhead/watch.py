"""Measures the cost of `legroom.watch`, and the fraction of a failing run's memory that it explains.

    python -m bench.overhead.watch [--parts always-on scan coverage] [--seconds 20] [--milliseconds 1 5] [--json FILE]

1. Always-on: Training loops of small operations run plain, with the detector attached, and inside `legroom.watch`.
   They run in short blocks in varying order, each between two plain blocks. Plain blocks between plain blocks show the
   noise. The program prints the median iteration and the total time of a block relative to the plain blocks around it,
   as the median over all rounds, and the time to draw the progress line. On the CPU, times are CPU times.
2. Scan: With 300,000 objects in the process, the CPU time to list all tensors and to find the holder of one tensor.
3. Coverage: Programs run out of memory on a virtual or real GPU, each in its own process. The result is the fraction of
   live bytes that have a category, a line and a holder. Temporary memory counts only if the current step allocated it
   and its holder is known.
"""

import gc
import io
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.gpus.catalog import find_gpu
from legroom.memory.annotations import HolderCoverage
from legroom.memory.event_base import Category
from legroom.memory.events import Oom
from legroom.memory.ledger import Ledger
from legroom.observe.holders.paths import find_path
from legroom.observe.holders.variables import Variables
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.leaks.live_objects import find_live_objects
from legroom.observe.session import Session
from legroom.show.watch.watch import REPAINT_SECONDS, _Line, _shared
from legroom.units import GiB, MiB

MILLISECONDS = (1.0, 5.0)
ITERATIONS, NOT_COUNTED = 12, 3
"""The number of steps per block, and the number of steps that are not counted."""
PARTS = ["scan", "always-on", "coverage"]
"""The parts in the order in which they run. The scan runs first, because it needs a fixed number of objects."""
MODES = ["plain again", "detector", "legroom.watch"]
WARM_UP_ITERATIONS = 400
"""The number of iterations before counting starts. The first iterations are all sampled, and include the first scans."""
SUMS: dict[str, Callable[[list[float]], float]] = {
    "median iteration": statistics.median,
    "all iterations": sum,
}
OBJECTS = 300_000
KEPT: list[torch.Tensor] = []
"""The tensor that the scan searches for."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for each size of step")
    parser.add_argument(
        "--milliseconds", type=float, nargs="+", default=MILLISECONDS, help="approximate time of a plain step"
    )
    parser.add_argument("--program", choices=PROGRAMS, help="the coverage of this program only, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.program:
        print(json.dumps(coverage(device, PROGRAMS[options.program])))
        return
    figures: dict[str, Any] = {"torch": torch.__version__, "device": device}
    for part in (each for each in PARTS if each in options.parts):
        if part == "scan":
            figures[part] = scan()
            show_scan(figures[part])
        elif part == "always-on":
            figures[part] = [always_on(device, each, options.seconds) for each in options.milliseconds]
            show_always_on(figures[part], device)
        else:
            figures[part] = {name: coverage_in_a_process(name) for name in PROGRAMS}
            show_coverage(figures[part], device)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def show_always_on(rows: list[dict[str, Any]], device: str) -> None:
    print_table(
        f"Watching without growth, torch {torch.__version__} on {device}: time of a step / plain step",
        ["plain step", "", *MODES, "rounds"],
        [
            [
                f"{on['plain_ms']:.2f} ms",
                of,
                *(f"{on[of][mode]:.4f}" for mode in MODES),
                str(on["rounds"]),
            ]
            for on in rows
            for of in SUMS
        ],
    )
    paint = statistics.median(on["paint_us"] for on in rows)
    share = paint / (REPAINT_SECONDS * 1e6)
    print(
        f"Drawing the line takes {paint:.0f} µs every {REPAINT_SECONDS} s at most: {share:.2%} of the time."
    )


def show_scan(seen: dict[str, Any]) -> None:
    print_table(
        "A scan",
        ["figure", "value"],
        [
            ["objects in the process", f"{seen['objects']:,}"],
            ["list all tensors", f"{seen['list_ms']:.0f} ms"],
            ["find the holder of one", f"{seen['path_ms']:.0f} ms ({seen['holder']})"],
            ["both, best of seven", f"{seen['both_ms']:.0f} ms"],
            ["load of the machine", f"{seen['load']:.1f} on {os.cpu_count()} cores"],
        ],
    )


def show_coverage(rows: dict[str, dict[str, Any]], device: str) -> None:
    print_table(
        f"Bytes alive at an out-of-memory error, {'on the GPU' if device == 'cuda' else 'on a virtual GPU'}",
        ["program", "with a category", "with a line", "with a holder", "by category"],
        [
            [
                name,
                *(f"{row[share]:.1%}" for share in ("category", "line", "holder")),
                ", ".join(f"{category} {part:.1%}" for category, part in row["by_category"].items()),
            ]
            for name, row in rows.items()
        ],
    )


def always_on(device: str, milliseconds: float, seconds: float) -> dict[str, Any]:
    """Return the time of a step relative to a plain step in the same round, as the median over all rounds."""
    layers = max(round(8 * milliseconds / (_median_iteration(_loop(device, 8)) * 1e3)), 1)
    iterations = _loop(device, layers)
    detector = LeakDetector(lambda leak: None)

    def attached() -> list[float]:
        detector.attach()
        try:
            return iterations(lambda batches: batches)
        finally:
            detector.detach()

    def plain() -> list[float]:
        return iterations(lambda batches: batches)

    ways: dict[str, Callable[[], list[float]]] = {
        "plain again": plain,
        "detector": attached,
        "legroom.watch": lambda: iterations(lambda batches: legroom.watch(batches, quiet=True)),
    }
    while detector.iteration < WARM_UP_ITERATIONS:
        for mode in MODES:
            ways[mode]()
    compared: dict[str, list[tuple[list[float], ...]]] = {mode: [] for mode in MODES}
    before, until = plain(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        for mode in random.sample(MODES, len(MODES)):
            looked = detector.scan_seconds, _shared.detector.scan_seconds
            block, after = ways[mode](), plain()
            # Scans occur only if memory grows, so they are not part of the permanent cost.
            if looked == (detector.scan_seconds, _shared.detector.scan_seconds):
                compared[mode].append((before, block, after))
            before = after
    figures: dict[str, Any] = {
        of: {
            mode: statistics.median(
                2 * sum_of(block) / (sum_of(before) + sum_of(after))
                for before, block, after in compared[mode]
            )
            for mode in MODES
        }
        for of, sum_of in SUMS.items()
    }
    return {
        "plain_ms": statistics.median(before[0] for blocks in compared.values() for before, _, _ in blocks)
        * 1e3,
        "layers": layers,
        "rounds": min(map(len, compared.values())),
        "paint_us": _draw_us(),
        **figures,
    }


def _loop(device: str, layers: int) -> Callable[[Callable[[Any], Iterable[torch.Tensor]]], list[float]]:
    """Return a function that runs a training loop over batches and returns the time of each iteration."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(layers))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    batches = [torch.randn(16, 64, device=device)] * ITERATIONS
    clock = time.perf_counter if device == "cuda" else time.thread_time

    def iterations(mode: Callable[[Any], Iterable[torch.Tensor]]) -> list[float]:
        """Return the times from one batch to the next, without the first iterations."""
        ends = []
        for batch in mode(batches):
            ends.append(clock())
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        return [after - before for before, after in pairwise(ends[NOT_COUNTED:])]

    return iterations


def _median_iteration(iterations: Callable[[Callable[[Any], Iterable[torch.Tensor]]], list[float]]) -> float:
    return min(statistics.median(iterations(lambda batches: batches)) for _ in range(3))


def _draw_us(times: int = 200) -> float:
    """Return the time in microseconds to draw the line once."""
    line = _Line(_Terminal(), "epoch 1", 1000, quiet=False)
    began = time.perf_counter()
    for _ in range(times):
        line._show(time.perf_counter())
    return (time.perf_counter() - began) / times * 1e6


class _Terminal(io.StringIO):
    """A terminal that discards its output."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.seek(0)
        return super().write(text)


def scan() -> dict[str, Any]:
    KEPT.extend(torch.ones(2, requires_grad=True) * i for i in range(400))
    gc.collect()
    ballast: list[Any] = []
    ballast.extend([i] for i in range(OBJECTS - len(gc.get_objects())))
    listing, following, holder = [], [], ""
    for _ in range(7):
        began = time.thread_time()
        tensors, _ = find_live_objects()
        listing.append(time.thread_time() - began)
        del tensors
        began = time.thread_time()
        path = find_path(KEPT[200], Variables(None), min_length=64)
        following.append(time.thread_time() - began)
        holder = f"{path.name} ({path.described})"
    figures = {
        "objects": len(gc.get_objects()),
        "list_ms": min(listing) * 1e3,
        "path_ms": min(following) * 1e3,
        "both_ms": min(map(sum, zip(listing, following, strict=True))) * 1e3,
        "load": os.getloadavg()[0],
        "holder": holder,
    }
    del ballast
    KEPT.clear()
    return figures


def coverage_in_a_process(name: str) -> dict[str, Any]:
    """Run one program in its own process. In a shared process, its cached memory and workspaces would count for the
    next program."""
    ended = subprocess.run(
        [sys.executable, "-m", "bench.overhead.watch", "--program", name],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    row: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return row


def coverage(device: str, program: Callable[[], None]) -> dict[str, Any]:
    """Run the program until memory runs out, and return the fractions of explained memory at the failure."""
    events: list[Any] = []
    gpus = None if device == "cuda" else [find_gpu(96 * MiB)]
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(8 * GiB / torch.cuda.get_device_properties(0).total_memory)
    session = Session(
        events.append, gpus=gpus
    )  # a script may also keep the session in a variable, and it must not be reported as a holder
    try:
        with session:
            program()
    except torch.OutOfMemoryError:
        pass
    ledger = Ledger(events)
    oom: Oom = ledger.ooms()[-1]
    state = ledger.at_oom(len(ledger.ooms()) - 1)
    reached = max((event.bytes for event in events if isinstance(event, HolderCoverage)), default=0)
    total = sum(each.block_bytes for each in state.live)
    in_hand = sum(
        each.block_bytes
        for each in state.live
        if each.category is Category.TEMPORARY and each.step == oom.step
    )
    by_category = state.by_category()
    categorized = total - by_category[Category.TEMPORARY] + max(in_hand - (total - reached), 0)
    return {
        "category": categorized / total,
        "line": state.coverage(),
        "holder": reached / total,
        "bytes": total,
        "by_category": {str(category): size / total for category, size in by_category.items() if size},
        "holders": [(holder.path, holder.bytes) for holder in ledger.holders(len(ledger.ooms()) - 1)],
    }


def _train_until_full(model: nn.Module, shape: tuple[int, ...]) -> None:
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = 2
    while True:
        x = torch.randn(batch, *shape, device="cuda")
        out = model(x)
        loss = (out[0] if isinstance(out, tuple) else out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch *= 2


def _transformer() -> None:
    width = 1024 if torch.cuda.get_device_properties(0).total_memory > GiB else 256
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
    _train_until_full(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (64, width))


def _convolutions() -> None:
    layers = [(3, 16), (16, 32), (32, 32)]
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
        for a, b in layers
    ]
    _train_until_full(nn.Sequential(*blocks, nn.Flatten(), nn.LazyLinear(10)), (3, 64, 64))


def _recurrent() -> None:
    _train_until_full(nn.LSTM(64, 128, num_layers=2, batch_first=True), (32, 64))


def _checkpointed() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(6))  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return x

    _train_until_full(Checkpointed(), (64, 256))


def _kept_losses() -> None:
    """Train with a leak. The graph of every step stays alive until memory is full."""
    rows = 8192 if torch.cuda.get_device_properties(0).total_memory > GiB else 512
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    while True:
        loss = model(torch.randn(rows, 256, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        kept.append(loss)


PROGRAMS: dict[str, Callable[[], None]] = {
    "transformer": _transformer,
    "convolutions with batch norm": _convolutions,
    "LSTM": _recurrent,
    "checkpointed blocks": _checkpointed,
    "a list of losses that keeps graphs": _kept_losses,
}


if __name__ == "__main__":
    main()
