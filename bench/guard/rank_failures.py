"""Makes allocations fail on one rank of a distributed step, and checks that all ranks recover together with the same
weights.

    python -m bench.guard.rank_failures [--failures 100] [--ranks 2]

Each rank is a process with a virtual GPU and its part of a model (DDP or FSDP2) under `legroom.Guard`. For each
combination of {DDP, FSDP2} × {forward, backward, optimizer} × {rank}, one allocation of the step fails on that rank.
This is the first allocation of that phase, then the second, and so on up to the last. The sequence repeats until the
given number of allocations have failed.

After each failure, parameters, optimizer state and buffers are compared bit for bit with plain DDP or FSDP2 at the
split that Guard used. Parameters are also compared between ranks. Every tenth failure occurs in the first step of a
new Guard.
"""

import contextlib
import hashlib
import itertools
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bench.lib import rank_pool
from bench.lib.command_line import command_line
from bench.lib.rank_pool import Hang, RankPool
from bench.lib.table import print_table
from legroom.train.sizes.micro_batch_size import MicroBatchSizer

ROWS, WIDTH, CLASSES = 8, 16, 4
PHASES = ("forward", "backward", "optimizer")
KINDS = ("DDP", "FSDP2")
FRESH_EVERY = 10
PATIENCE = 10.0  # seconds for one failure on average on a busy machine; more is a hang


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--failures", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    rows = []
    hangs = 0
    begun = time.monotonic()
    pool = _pool(options.ranks)
    for kind, phase, rank in itertools.product(KINDS, PHASES, range(options.ranks)):
        try:
            reports = pool.run(
                fail_many, kind, phase, rank, options.failures, timeout=PATIENCE * options.failures
            )
            rows.append(_row(kind, phase, rank, reports))
        except Hang:
            hangs += 1
            rows.append((kind, phase, rank, "hangs", "", "", "", ""))
            pool = _pool(options.ranks)
        print(*rows[-1], f"after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    pool.close()
    titles = ("model", "phase", "rank", "failures", "places", "same split", "same weights", "equal to plain")
    print_table(f"Memory runs out on one of {options.ranks} ranks: {hangs} hangs", titles, rows)


@dataclass(slots=True)
class RankReport:
    """The results on one rank."""

    failures: int = 0
    places: int = 0
    """The number of allocations in the phase."""
    splits: list[tuple[int, ...]] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    equal: int = 0
    """The number of failures after which all tensors equal a plain run."""


def fail_many(kind: str, phase: str, rank: int, failures: int) -> RankReport:
    """Inject failures on `rank`, one after another. This function runs on every rank."""
    logging.getLogger("legroom").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    report = RankReport()
    truths: dict[tuple[int, ...], str] = {}
    trial: Trial | None = None
    place = 0
    while report.failures < failures:
        if trial is None or report.failures % FRESH_EVERY == 0:
            trial = Trial(kind)
        else:
            trial.begin()
        place += 1
        happened = trial.step(phase, place if dist.get_rank() == rank else None)
        if not _on_any_rank(happened):
            report.places, place = place - 1, 0
            if not report.places:
                raise AssertionError(f"{phase} allocates nothing")
            continue
        split = trial.guard.last_step.split
        report.failures += 1
        report.splits.append(split)
        report.weights.append(trial.parameters())
        if split not in truths:
            truths[split] = plain_step(kind, split)
        report.equal += trial.state() == truths[split]
    return report


class HalvedSizes(MicroBatchSizer):
    """Halves the micro-batch size after every failure. Without this class, Guard would retry the same size, because an
    injected failure looks like fragmented memory."""

    def may_retry(self, micro: int, failure: Any) -> bool:
        return False


class Trial:
    """A model and its Guard in a fixed state. All trials start with the same values."""

    def __init__(self, kind: str) -> None:
        import legroom

        self.model, self.optimizer = build(kind)
        self.guard = legroom.Guard(self.model, self.optimizer, sizer=HalvedSizes())
        self._beginning = [tensor.clone() for tensor in self._tensors()]

    def begin(self) -> None:
        """Reset the state, except Guard's information about the ranks."""
        for tensor, value in zip(self._tensors(), self._beginning, strict=True):
            tensor.copy_(value)
        self.optimizer.zero_grad()
        self.guard.sizer = HalvedSizes()
        self.guard._ranks._agreed_passes = None

    def step(self, phase: str, place: int | None) -> bool:
        """Run one step in which allocation number `place` of the phase fails. Return False if there is no such
        allocation."""
        armed: list[Any] = []

        def arm(now: str) -> None:
            if place is not None and now == phase and not armed:
                armed.append(rank_pool.virtual_gpu.fail_allocation(place))

        def disarm(after: str) -> None:
            if armed and after == phase:
                armed[0].disarm()

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            arm("forward")
            result = nn.functional.cross_entropy(self.model(x), y)
            disarm("forward")
            arm("backward")
            return result

        x, y = batch()
        self.guard.backward(loss, x, y)
        disarm("backward")
        arm("optimizer")
        self.guard.optimizer_step()
        disarm("optimizer")
        return bool(armed) and armed[0].happened

    def parameters(self) -> str:
        return _digest(_whole(self.model))

    def state(self) -> str:
        return _digest([*_whole(self.model), *self._tensors()])

    def _tensors(self) -> list[torch.Tensor]:
        return _local(self.model, self.optimizer)


def plain_step(kind: str, split: Sequence[int]) -> str:
    """Return the expected result, from the same step with plain DDP or FSDP2."""
    model, optimizer = build(kind)
    x, y = batch()
    for index, (inputs, labels) in enumerate(zip(x.split(list(split)), y.split(list(split)), strict=True)):
        waits = isinstance(model, DistributedDataParallel) and index < len(split) - 1
        with model.no_sync() if waits else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(model(inputs), labels)
            (loss if len(split) == 1 else loss * (len(labels) / len(y))).backward()
    optimizer.step()
    return _digest([*_whole(model), *_local(model, optimizer)])


def build(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    inner = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1))
        for _ in range(2)
    ]
    model: nn.Module = nn.Sequential(*inner, nn.Linear(WIDTH, CLASSES)).to("cuda")
    if kind == "DDP":
        model = DistributedDataParallel(model)
    else:
        for part in model:
            fully_shard(part)
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for parameter in model.parameters():  # momentum from earlier steps
        parameter.grad = torch.full_like(parameter, 0.01)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's batch. The random state after each call is the same."""
    torch.manual_seed(7 + dist.get_rank())
    return torch.randn(ROWS, WIDTH, device="cuda"), torch.randint(CLASSES, (ROWS,), device="cuda")


def _local(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return this rank's parameters or shards, optimizer state and buffers."""
    state = [value for values in optimizer.state.values() for value in values.values()]
    tensors = [*model.parameters(), *state, *model.buffers()]
    return [
        tensor.to_local().detach() if hasattr(tensor, "to_local") else tensor.detach() for tensor in tensors
    ]


def _whole(model: nn.Module) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        yield parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def _digest(tensors: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr(tensor.detach().cpu().double().tolist()).encode())
    return digest.hexdigest()


def _on_any_rank(happened: bool) -> bool:
    flag = torch.tensor([int(happened)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def _pool(ranks: int) -> RankPool:
    return RankPool(ranks, gpu=",".join(f"{64 << rank}MiB" for rank in range(ranks)))


def _row(kind: str, phase: str, rank: int, reports: list[RankReport]) -> tuple[Any, ...]:
    count = reports[0].failures
    same_split = sum(len(set(splits)) == 1 for splits in zip(*(each.splits for each in reports), strict=True))
    same_weights = sum(
        len(set(found)) == 1 for found in zip(*(each.weights for each in reports), strict=True)
    )
    return (
        kind,
        phase,
        rank,
        count,
        reports[0].places,
        same_split,
        same_weights,
        min(each.equal for each in reports),
    )


if __name__ == "__main__":
    main()
