"""Measures the recorder's cost per operation and a virtual GPU's cost per ResNet-18 step.

    python -m bench.overhead.recorder

The recorder is compared with a dispatch mode that does nothing, and the virtual GPU is compared with the plain CPU.
The two sides of a comparison alternate in one run.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.gpus.catalog import find_gpu
from legroom.memory.allocator.allocator import Allocator
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.observe.virtual.host import VirtualDevice


class NoOpMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class CountingRecorder:
    """A recorder that counts every storage and drops all events."""

    def __enter__(self) -> None:
        device = VirtualDevice(0, find_gpu(1 << 40), Allocator(1 << 40))
        self.recorder = Recorder(lambda event: None, [device], host_only=True, eager=True)
        self.recorder.attach()

    def __exit__(self, *error: object) -> None:
        self.recorder.detach()


def op_bound() -> int:
    """Run small operations that each allocate a storage. Return the number of operations."""
    x = torch.ones(64)
    for _ in range(500):
        y = x + 1
        y = y * 2
        y = y.relu()
        y.sum()
    return 2000


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


def resnet18() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for outputs, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(Block(width, outputs, stride))
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Training:
    """A ResNet-18 step on a device."""

    def __init__(self, device: str, batch: int) -> None:
        self.model = resnet18().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.x = torch.randn(batch, 3, 224, 224).to(device)
        self.y = torch.randint(0, 1000, (batch,)).to(device)

    def step(self) -> int:
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return 1


def timed(work: Callable[[], int]) -> float:
    """Return the seconds per unit of work."""
    began = time.perf_counter()
    count = work()
    return (time.perf_counter() - began) / count


def alternating(
    sides: dict[str, Callable[[], AbstractContextManager[Any]]], work: Callable[[], int], rounds: int
) -> dict[str, float]:
    """Return the median of each side. The sides alternate, so that noise affects all sides."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, enter in sides.items():
            with enter():
                times[name].append(timed(work))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    command_line(__doc__).parse_args()
    torch.manual_seed(0)
    per_op = alternating(
        {"plain": nullcontext, "no-op mode": NoOpMode, "recorder": CountingRecorder}, op_bound, rounds=9
    )
    rows = [
        [name, f"{seconds * 1e6:.1f} µs", f"{seconds / per_op['no-op mode']:.2f}×"]
        for name, seconds in per_op.items()
    ]
    print_table("Per operation that allocates a storage", ["", "time", "relative to a no-op mode"], rows)

    rows = []
    for batch in (4, 16):
        plain = Training("cpu", batch)
        plain.step()
        cpu: list[float] = []
        virtual: list[float] = []
        for _ in range(2):
            with VirtualGPU("64GiB"):
                there = Training("cuda", batch)
                there.step()
                virtual += [timed(there.step) for _ in range(3)]
                del there
            cpu += [timed(plain.step) for _ in range(3)]
        a, b = statistics.median(cpu), statistics.median(virtual)
        rows.append([f"batch {batch}", f"{a:.3f} s", f"{b:.3f} s", f"{b / a:.2f}×"])
    print_table(
        "A ResNet-18 step, 224×224, SGD with momentum", ["", "plain CPU", "virtual GPU", "ratio"], rows
    )


if __name__ == "__main__":
    main()
