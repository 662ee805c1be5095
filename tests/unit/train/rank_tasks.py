"""What each rank does in the tests of agreement: a plain training loop on top of `Ranks`, with a failure put in."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from legroom.train.agree import Ranks, ranks_for

ROWS, WIDTH = 8, 12


class Block(nn.Module):
    """Something with buffers, with dropout and with a parameter that is used twice."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.norm = norm(WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.norm(self.inner(self.inner(x).relu())))


def build(kind: str, norm: type[nn.Module] = nn.BatchNorm1d, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(Block(norm), Block(norm), nn.Linear(WIDTH, 3))
    if kind == "ddp":
        return DistributedDataParallel(model, **options)
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def batch(step: int, rows: int) -> torch.Tensor:
    """This rank's, the same at every call; random numbers drawn after it are the same too."""
    torch.manual_seed(1000 * step + dist.get_rank())
    return torch.randn(rows, WIDTH)


class Boom:
    """Out of memory on one rank, when forward or backward comes to block number `block`, in chunk `chunk`, `times` times."""

    def __init__(
        self, rank: int, phase: str, block: int = 1, chunk: int = 0, times: int = 1, error: Any = None
    ) -> None:
        self.rank, self.phase, self.block, self.chunk, self.times = rank, phase, block, chunk, times
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.current_chunk = 0

    def watch(self, model: nn.Module) -> list[Any]:
        plain = model.module if isinstance(model, DistributedDataParallel) else model
        block = plain[self.block]
        if self.phase == "forward":
            return [block.register_forward_pre_hook(lambda *_: self.go_off())]
        return [block.register_full_backward_hook(lambda *_: self.go_off())]

    def go_off(self) -> None:
        if self.times and dist.get_rank() == self.rank and self.current_chunk == self.chunk:
            self.times -= 1
            raise self.error


def train(
    ranks: Ranks,
    model: nn.Module,
    steps: int,
    micro: int = ROWS,
    booms: dict[int, Boom] | None = None,
    rows: Callable[[int], int] = lambda step: ROWS,
) -> list[tuple[int, int]]:
    """Some steps of SGD with momentum; for each (chunks of the last attempt, attempts)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    story = []
    for step in range(steps):
        x = batch(step, rows(step))
        boom = (booms or {}).get(step)
        hooks = boom.watch(model) if boom else []
        micro, chunks, attempts = one_step(ranks, model, x, micro, boom)
        for hook in hooks:
            hook.remove()
        optimizer.step()
        story.append((chunks, attempts))
    return story


def one_step(
    ranks: Ranks, model: nn.Module, x: torch.Tensor, micro: int, boom: Boom | None
) -> tuple[int, int, int]:
    attempts = 0
    while True:
        plan = ranks.plan(len(x), micro)
        attempts += 1
        random_state = torch.get_rng_state()
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        model.zero_grad(set_to_none=True)
        failed = attempt(ranks, model, x, plan.chunks, boom)
        if failed:
            ranks.failed()
        agreed = ranks.settle("oom" if failed else None, plan.micro // 2)
        if agreed is None:
            return plan.micro, plan.chunks, attempts
        micro = agreed
        torch.set_rng_state(random_state)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def attempt(ranks: Ranks, model: nn.Module, x: torch.Tensor, chunks: int, boom: Boom | None) -> bool:
    try:
        for index, piece in enumerate(x.tensor_split(chunks)):
            if boom:
                boom.current_chunk = index
            with ranks.chunk(index, chunks):
                (model(piece).square().sum() / len(x)).backward()
    except torch.OutOfMemoryError:
        return True
    return False


def parameters(model: nn.Module) -> list[Any]:
    """Whole parameters as plain lists, so that they can be compared between processes."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [tensor.detach().tolist() for tensor in whole]


def state(model: nn.Module) -> list[Any]:
    """Parameters and buffers: what must equal a run that nothing interrupted."""
    return [*parameters(model), *(buffer.tolist() for buffer in model.buffers())]


def plainly(model: nn.Module, splits: list[int], rows: Callable[[int], int] = lambda step: ROWS) -> list[Any]:
    """The same steps with DDP or FSDP2 alone, each at the given number of chunks: the truth."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, chunks in enumerate(splits):
        x = batch(step, rows(step))
        optimizer.zero_grad()
        pieces = x.tensor_split(chunks)
        for index, piece in enumerate(pieces):
            waits = isinstance(model, DistributedDataParallel) and index < chunks - 1
            with model.no_sync() if waits else contextlib.nullcontext():
                (model(piece).square().sum() / len(x)).backward()
        optimizer.step()
    return state(model)


def ranks_of(model: nn.Module, patience: float = 20) -> Ranks:
    ranks = ranks_for(model, patience=patience)
    assert ranks is not None
    return ranks


def with_failures(kind: str, booms: dict[int, tuple[Any, ...]], micro: int = ROWS, **options: Any) -> Any:
    """Three steps with failures, by step: the story, the state after it, and the state of a plain run at these splits."""
    model = build(kind, **options)
    story = train(ranks_of(model), model, 3, micro, {step: Boom(*boom) for step, boom in booms.items()})
    truth = plainly(build(kind, **options), [chunks for chunks, _ in story])
    return story, parameters(model), state(model), truth
