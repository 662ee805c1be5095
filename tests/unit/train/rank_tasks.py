"""Tasks that each rank runs in the coordinator tests: a training loop on top of `DistributedRanks`, with injected failures."""

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
from legroom.train.ranks.coordinator import DistributedRanks, ranks_for
from legroom.train.ranks.rank_errors import PeerFailed, RankMissing

BATCH_SIZE, WIDTH = 8, 12


class Block(nn.Module):
    """A block with buffers, dropout and a parameter that is used twice."""

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


def batch(step: int, batch_size: int) -> torch.Tensor:
    """Return this rank's batch. Every call with the same `step` returns the same batch and resets the random state."""
    torch.manual_seed(1000 * step + dist.get_rank())
    return torch.randn(batch_size, WIDTH)


class InjectedFailure:
    """Raises an out-of-memory error on one rank when the forward or backward pass reaches block `block` in micro-batch
    `index`. The error is raised `times` times."""

    def __init__(
        self, rank: int, phase: str, block: int = 1, index: int = 0, times: int = 1, error: Any = None
    ) -> None:
        """If `rank` is -1, all ranks fail, each in a different block."""
        self.rank, self.phase, self.index, self.times = rank, phase, index, times
        self.block = dist.get_rank() if rank == -1 else block
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.current_index = 0

    def attach(self, model: nn.Module) -> list[Any]:
        plain = model.module if isinstance(model, DistributedDataParallel) else model
        block = plain[self.block]
        if self.phase == "forward":
            return [block.register_forward_pre_hook(lambda *_: self.trigger())]
        return [block.register_full_backward_hook(lambda *_: self.trigger())]

    def trigger(self) -> None:
        if self.times and self.rank in (-1, dist.get_rank()) and self.current_index == self.index:
            self.times -= 1
            raise self.error


def train(
    ranks: DistributedRanks,
    model: nn.Module,
    steps: int,
    micro: int = BATCH_SIZE,
    failures: dict[int, InjectedFailure] | None = None,
    batch_size: Callable[[int], int] = lambda step: BATCH_SIZE,
) -> list[tuple[int, int]]:
    """Run steps of SGD with momentum. Returns (passes of the last attempt, number of attempts) for each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    history = []
    for step in range(steps):
        x = batch(step, batch_size(step))
        failure = (failures or {}).get(step)
        hooks = failure.attach(model) if failure else []
        micro, passes, attempts = one_step(ranks, model, x, micro, failure)
        for hook in hooks:
            hook.remove()
        optimizer.step()
        history.append((passes, attempts))
    return history


def one_step(
    ranks: DistributedRanks, model: nn.Module, x: torch.Tensor, micro: int, failure: InjectedFailure | None
) -> tuple[int, int, int]:
    attempts = 0
    while True:
        plan = ranks.plan(len(x), micro)
        attempts += 1
        random_state = torch.get_rng_state()
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        model.zero_grad(set_to_none=True)
        failed = attempt(ranks, model, x, plan.passes, failure)
        if failed:
            ranks.complete_pending()
        agreed = ranks.agree("oom" if failed else None, plan.micro_batch_size // 2)
        if agreed is None:
            return micro, plan.passes, attempts
        micro = agreed
        torch.set_rng_state(random_state)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def attempt(
    ranks: DistributedRanks, model: nn.Module, x: torch.Tensor, passes: int, failure: InjectedFailure | None
) -> bool:
    try:
        for index, part in enumerate(x.tensor_split(passes)):
            if failure:
                failure.current_index = index
            with ranks.micro_batch(index, passes):
                (model(part).square().sum() / len(x)).backward()
    except torch.OutOfMemoryError:
        return True
    return False


def parameters(model: nn.Module) -> list[Any]:
    """Return unsharded parameters as lists, which can be compared between processes."""
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [tensor.detach().tolist() for tensor in full]


def state(model: nn.Module) -> list[Any]:
    """Return parameters and buffers, which must equal those of an undisturbed run."""
    return [*parameters(model), *(buffer.tolist() for buffer in model.buffers())]


def train_plainly(
    model: nn.Module, splits: list[int], batch_size: Callable[[int], int] = lambda step: BATCH_SIZE
) -> list[Any]:
    """Run the same steps with plain DDP or FSDP2, with the given number of passes each, as the reference."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, passes in enumerate(splits):
        x = batch(step, batch_size(step))
        optimizer.zero_grad()
        for index, part in enumerate(x.tensor_split(passes)):
            accumulates = isinstance(model, DistributedDataParallel) and index < passes - 1
            with model.no_sync() if accumulates else contextlib.nullcontext():
                (model(part).square().sum() / len(x)).backward()
        optimizer.step()
    return state(model)


def ranks_of(model: nn.Module, timeout: float = 20) -> DistributedRanks:
    ranks = ranks_for(model, timeout=timeout)
    assert ranks is not None
    return ranks


def with_failures(
    kind: str, failures: dict[int, tuple[Any, ...]], micro: int = BATCH_SIZE, **options: Any
) -> Any:
    """Run three steps with failures. Returns the history, the state, and the state of a plain run with the same splits."""
    model = build(kind, **options)
    injected = {step: InjectedFailure(*arguments) for step, arguments in failures.items()}
    history = train(ranks_of(model), model, 3, micro, injected)
    reference = train_plainly(build(kind, **options), [passes for passes, _ in history])
    return history, parameters(model), state(model), reference


def in_double_precision(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task in float64, because with more than two ranks, the order of summation affects the last bits."""
    torch.set_default_dtype(torch.float64)
    try:
        return task(*arguments)
    finally:
        torch.set_default_dtype(torch.float32)


def failing_twice(kind: str) -> Any:
    model = build(kind)
    history = train(ranks_of(model), model, 2, BATCH_SIZE, {0: InjectedFailure(1, "backward", times=2)})
    return (
        history,
        parameters(model),
        state(model),
        train_plainly(build(kind), [passes for passes, _ in history]),
    )


def exchanges_per_step(kind: str) -> list[tuple[int, int]]:
    """Return (exchanges between hosts, announcements) for each of four steps."""
    model = build(kind)
    ranks = ranks_of(model)
    counts = [0, 0]
    original_exchange, announcements = ranks._exchange, ranks._pending._announcements
    original_announce = announcements.announce

    def exchange(*arguments: Any) -> Any:
        counts[0] += 1
        return original_exchange(*arguments)

    def announce(*arguments: Any) -> None:
        counts[1] += 1
        original_announce(*arguments)

    ranks._exchange, announcements.announce = exchange, announce  # type: ignore[method-assign]
    steps = []
    for _ in range(4):
        counts[:] = [0, 0]
        train(ranks, model, 1)
        steps.append(tuple(counts))
    return steps


def _uneven(step: int) -> int:
    """Return the batch size of this rank. Rank 1 has the same size as the others, then twice, half and twice that
    size."""
    return [8, 16, 4, 16][step] if dist.get_rank() == 1 else 8


def uneven_batches(kind: str) -> Any:
    model = build(kind, nn.LayerNorm)  # accepts a single sample
    history = train(ranks_of(model), model, 4, 4, batch_size=_uneven)
    reference = train_plainly(build(kind, nn.LayerNorm), [passes for passes, _ in history], _uneven)
    return history, parameters(model), state(model), reference


def another_error(kind: str, rank: int, with_oom: bool) -> str:
    """Raise another error on one rank. Returns the result on this rank."""
    model = build(kind)
    ranks = ranks_of(model)
    train(ranks, model, 1)
    failure = InjectedFailure(rank, "forward", error=ValueError("label 7 is out of range"))
    failure.attach(model)
    if with_oom:
        InjectedFailure(1 - rank, "backward").attach(model)
    plan = ranks.plan(BATCH_SIZE, BATCH_SIZE)
    try:
        failed = attempt(ranks, model, batch(1, BATCH_SIZE), plan.passes, failure)
    except ValueError as error:
        return f"ValueError, {ranks.report_error(error)}"
    if failed:
        ranks.complete_pending()
    try:
        return f"agreed, {ranks.agree('oom' if failed else None, 4)}"
    except PeerFailed as error:
        return str(error)


def aborting() -> str:
    model = build("fsdp")
    ranks = ranks_of(model)
    train(ranks, model, 1)
    if dist.get_rank() == 0:
        ranks.abort("GuardError: the optimizer does not fit")
        return "aborted"
    try:
        train(ranks, model, 1)
    except PeerFailed as error:
        return str(error)
    return "continued"


def dying() -> str:
    """Run a step in which the last rank dies."""
    model = build("ddp")
    ranks = ranks_of(model)
    train(ranks, model, 1)
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(1)
    plan = ranks.plan(BATCH_SIZE, BATCH_SIZE)
    try:
        attempt(ranks, model, batch(1, BATCH_SIZE), plan.passes, None)
    except RuntimeError as error:
        try:
            ranks.report_error(error)
        except RankMissing as missing:
            return str(missing)
    return "no error"


def absent() -> str:
    """Run an exchange in which rank 1 does not take part."""
    model = build("ddp")
    ranks = ranks_of(model, timeout=1)
    if dist.get_rank() == 1:
        return "absent"
    try:
        ranks.plan(BATCH_SIZE, BATCH_SIZE)
    except RankMissing as missing:
        return str(missing)
    return "no error"


class Branching(nn.Module):
    """A model with unused layers. Only rank 0 uses `left`, and no rank uses `never`."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.left, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(self.always(x)) if dist.get_rank() == 0 else self.always(x)


def unused_parameters() -> tuple[list[Any], list[Any]]:
    """Return the gradients of GradientReducer and of DDP."""

    def gradients(model: nn.Module) -> list[Any]:
        return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]

    torch.manual_seed(0)
    model = DistributedDataParallel(Branching(), find_unused_parameters=True)
    x = batch(0, BATCH_SIZE)
    ranks = ranks_of(model)
    plan = ranks.plan(BATCH_SIZE, BATCH_SIZE)
    attempt(ranks, model, x, plan.passes, None)
    ours = gradients(model)
    model.zero_grad(set_to_none=True)
    (model(x).square().sum() / len(x)).backward()
    return ours, gradients(model)


class Communicating(nn.Module):
    """A layer that issues collectives itself, like SyncBatchNorm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().mean(0)
        dist.all_reduce(mean)
        return x - mean / dist.get_world_size()


def communicating_layers() -> Any:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return DistributedDataParallel(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), Communicating(), nn.Linear(WIDTH, 3))
        )

    model = make()
    history = train(
        ranks_of(model),
        model,
        3,
        8,
        {0: InjectedFailure(1, "forward", 1), 2: InjectedFailure(0, "backward", 0, 1)},
    )
    return history, parameters(model), state(model), train_plainly(make(), [passes for passes, _ in history])


class Recomputing(nn.Module):
    """A model whose backward pass adds to the same gradients twice, in two nested backward passes."""

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
    history = train(ranks, model, 2)
    torch.manual_seed(0)
    reference = DistributedDataParallel(Recomputing(), static_graph=True)
    return history, parameters(model), state(model), train_plainly(reference, [1, 1])


def shared_weights() -> float:
    """Return the total weight of 3 tokens on rank 0 and 9 tokens on rank 1."""
    ranks = ranks_of(build("ddp"))
    ranks.plan(BATCH_SIZE, BATCH_SIZE)
    return ranks.total_weight([3.0, 9.0][dist.get_rank()], counts_samples=False)


def changing_collectives() -> list[Any]:
    """Run steps whose collectives change, with a failure on one rank after the change."""
    torch.manual_seed(0)
    communicating = Communicating()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), communicating, nn.Linear(WIDTH, 3))
    )
    ranks = ranks_of(model)
    history = train(ranks, model, 2)
    model.module[1] = nn.Identity()
    history += train(ranks, model, 1)
    history += train(ranks, model, 1, failures={0: InjectedFailure(1, "forward", 2)})
    return [history, parameters(model)]


def plain_ddp_afterwards() -> list[Any]:
    """Train with plain DDP after a failure."""
    model = build("ddp")
    train(ranks_of(model), model, 1, BATCH_SIZE, {0: InjectedFailure(0, "backward")})
    train_plainly(model, [1, 2])
    return parameters(model)


def rejected(option: str) -> str:
    torch.manual_seed(0)
    if option == "sparse":
        model = DistributedDataParallel(nn.Sequential(nn.Embedding(4, WIDTH, sparse=True)))
        ranks = ranks_of(model)
        try:
            with ranks.micro_batch(0, ranks.plan(2, 2).passes):
                model(torch.tensor([0, 1])).sum().backward()
        except UsageError as error:
            return str(error)
    model = build("ddp")
    if option == "precision":
        model.mixed_precision = object()  # real mixed precision requires CUDA
    else:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    try:
        ranks_for(model)
    except UsageError as error:
        return str(error)
    return "accepted"
