"""What each rank does in the tests of agreement: a plain training loop on top of `Ranks`, with a failure put in."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from legroom.errors import UsageError
from legroom.train.ranks.agree import Ranks, ranks_for
from legroom.train.ranks.lost_ranks import PeerFailed, RankMissing

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
        """`rank`: -1 for all, which then fail in different blocks."""
        self.rank, self.phase, self.chunk, self.times = rank, phase, chunk, times
        self.block = dist.get_rank() if rank == -1 else block
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.current_chunk = 0

    def watch(self, model: nn.Module) -> list[Any]:
        plain = model.module if isinstance(model, DistributedDataParallel) else model
        block = plain[self.block]
        if self.phase == "forward":
            return [block.register_forward_pre_hook(lambda *_: self.go_off())]
        return [block.register_full_backward_hook(lambda *_: self.go_off())]

    def go_off(self) -> None:
        if self.times and self.rank in (-1, dist.get_rank()) and self.current_chunk == self.chunk:
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
            return micro, plan.chunks, attempts
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


def in_double_precision(task: Callable[..., Any], *arguments: Any) -> Any:
    """Where more than two numbers are added up, their order shows in the last bits: there must be many of them."""
    torch.set_default_dtype(torch.float64)
    try:
        return task(*arguments)
    finally:
        torch.set_default_dtype(torch.float32)


def failing_twice(kind: str) -> Any:
    model = build(kind)
    story = train(ranks_of(model), model, 2, ROWS, {0: Boom(1, "backward", times=2)})
    return story, parameters(model), state(model), plainly(build(kind), [chunks for chunks, _ in story])


def exchanges_per_step(kind: str) -> list[tuple[int, int]]:
    """(exchanges between hosts, notices pinned up) in each of four steps."""
    model = build(kind)
    ranks = ranks_of(model)
    counts = [0, 0]
    plain_exchange, board = ranks._exchange, ranks._appointments._board
    plain_pin = board.pin

    def exchange(*arguments: Any) -> Any:
        counts[0] += 1
        return plain_exchange(*arguments)

    def pin(*arguments: Any) -> None:
        counts[1] += 1
        plain_pin(*arguments)

    ranks._exchange, board.pin = exchange, pin  # type: ignore[method-assign]
    seen = []
    for _ in range(4):
        counts[:] = [0, 0]
        train(ranks, model, 1)
        seen.append(tuple(counts))
    return seen


def _uneven(step: int) -> int:
    """Rank 1 has as many rows as the others, then twice as many, then half."""
    return [8, 16, 4, 16][step] if dist.get_rank() == 1 else 8


def uneven_batches(kind: str) -> Any:
    model = build(kind, nn.LayerNorm)  # a chunk may have one row
    story = train(ranks_of(model), model, 4, 4, rows=_uneven)
    truth = plainly(build(kind, nn.LayerNorm), [chunks for chunks, _ in story], _uneven)
    return story, parameters(model), state(model), truth


def another_error(kind: str, rank: int, with_oom: bool) -> str:
    """One rank raises an error that is no out-of-memory error. What each rank sees of it."""
    model = build(kind)
    ranks = ranks_of(model)
    train(ranks, model, 1)
    boom = Boom(rank, "forward", error=ValueError("label 7 is out of range"))
    boom.watch(model)
    if with_oom:
        Boom(1 - rank, "backward").watch(model)
    plan = ranks.plan(ROWS, ROWS)
    try:
        failed = attempt(ranks, model, batch(1, ROWS), plan.chunks, boom)
    except ValueError as error:
        answer = ranks.raised(error)
        return f"ValueError, {answer}"
    if failed:
        ranks.failed()
    try:
        return f"settled, {ranks.settle('oom' if failed else None, 4)}"
    except PeerFailed as error:
        return str(error)


def giving_up() -> str:
    model = build("fsdp")
    ranks = ranks_of(model)
    train(ranks, model, 1)
    if dist.get_rank() == 0:
        ranks.gave_up("GuardError: the optimizer does not fit")
        return "gave up"
    try:
        train(ranks, model, 1)
    except PeerFailed as error:
        return str(error)
    return "went on"


def dying() -> str:
    """The last rank dies in the middle of a step."""
    model = build("ddp")
    ranks = ranks_of(model)
    train(ranks, model, 1)
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(1)
    plan = ranks.plan(ROWS, ROWS)
    try:
        attempt(ranks, model, batch(1, ROWS), plan.chunks, None)
    except RuntimeError as error:
        try:
            ranks.raised(error)
        except RankMissing as missing:
            return str(missing)
    return "nothing was missed"


def absent() -> str:
    """Rank 1 does not come to where ranks meet."""
    model = build("ddp")
    ranks = ranks_of(model, patience=1)
    if dist.get_rank() == 1:
        return "stayed away"
    try:
        ranks.plan(ROWS, ROWS)
    except RankMissing as missing:
        return str(missing)
    return "nothing was missed"


class Branching(nn.Module):
    """`left` is used by rank 0 only, `never` by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.left, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(self.always(x)) if dist.get_rank() == 0 else self.always(x)


def unused_parameters() -> tuple[list[Any], list[Any]]:
    """Gradients with our reducer, and with DDP's own."""

    def gradients(model: nn.Module) -> list[Any]:
        return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]

    torch.manual_seed(0)
    model = DistributedDataParallel(Branching(), find_unused_parameters=True)
    x = batch(0, ROWS)
    ranks = ranks_of(model)
    plan = ranks.plan(ROWS, ROWS)
    attempt(ranks, model, x, plan.chunks, None)
    ours = gradients(model)
    model.zero_grad(set_to_none=True)
    (model(x).square().sum() / len(x)).backward()
    return ours, gradients(model)


class Talking(nn.Module):
    """A layer that makes collectives of its own, as SyncBatchNorm does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().mean(0)
        dist.all_reduce(mean)
        return x - mean / dist.get_world_size()


def talking_layers() -> Any:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), Talking(), nn.Linear(WIDTH, 3)))

    model = make()
    story = train(ranks_of(model), model, 3, 8, {0: Boom(1, "forward", 1), 2: Boom(0, "backward", 0, 1)})
    return story, parameters(model), state(model), plainly(make(), [chunks for chunks, _ in story])


class Recomputing(nn.Module):
    """Backward comes to the same parameters twice, in two nested backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        once = checkpoint(self.inner, x, use_reentrant=True)
        return checkpoint(self.inner, once, use_reentrant=True)


def recomputed_parameters() -> Any:
    torch.manual_seed(0)
    model = DistributedDataParallel(Recomputing())
    ranks = ranks_of(model)
    story = train(ranks, model, 2)
    torch.manual_seed(0)
    truth = DistributedDataParallel(Recomputing(), static_graph=True)
    return story, parameters(model), state(model), plainly(truth, [1, 1])


def shared_weights() -> float:
    """Rank 0 has 3 tokens, rank 1 has 9."""
    ranks = ranks_of(build("ddp"))
    ranks.plan(ROWS, ROWS)
    return ranks.weights([3.0, 9.0][dist.get_rank()], by_rows=False)


def changing_collectives() -> list[Any]:
    """Steps of one kind whose collectives change: a rank fails where they are not what they were."""
    torch.manual_seed(0)
    talking = Talking()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), talking, nn.Linear(WIDTH, 3)))
    ranks = ranks_of(model)
    story = train(ranks, model, 2)
    model.module[1] = nn.Identity()
    story += train(ranks, model, 1)
    story += train(ranks, model, 1, booms={0: Boom(1, "forward", 2)})
    return [story, parameters(model)]


def then_without_us() -> list[Any]:
    """After a failure, DDP by itself goes on as ever."""
    model = build("ddp")
    train(ranks_of(model), model, 1, ROWS, {0: Boom(0, "backward")})
    plainly(model, [1, 2])
    return parameters(model)


def refusal(option: str) -> str:
    torch.manual_seed(0)
    if option == "sparse":
        model = DistributedDataParallel(nn.Sequential(nn.Embedding(4, WIDTH, sparse=True)))
        ranks = ranks_of(model)
        try:
            with ranks.chunk(0, ranks.plan(2, 2).chunks):
                model(torch.tensor([0, 1])).sum().backward()
        except UsageError as error:
            return str(error)
    model = build("ddp")
    if option == "precision":
        model.mixed_precision = object()  # as DDP keeps what it was given; with a real one it asks for CUDA
    else:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    try:
        ranks_for(model)
    except UsageError as error:
        return str(error)
    return "accepted"
