"""Tasks that each rank runs in the checkpoint tests. Results are plain data, which can be compared between ranks."""

import contextlib
import copy
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import legroom
from legroom.errors import LegroomError
from legroom.train.checkpoints import process_group
from legroom.train.ranks import waiting

WIDTH = 10
"""Not a multiple of four, so that the shards of four ranks have different sizes and one shard is empty."""


def build(kind: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Build a `plain`, `ddp` or `fsdp` model, or a `part`, which is this rank's half of a pipeline with the parameter
    names of the whole model."""
    torch.manual_seed(seed)
    whole = nn.Sequential(nn.Linear(4, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))
    model: nn.Module = whole
    if kind == "ddp":
        model = DistributedDataParallel(whole)
    elif kind == "fsdp":
        fully_shard(whole[0])
        model = fully_shard(whole)
    elif kind == "part":
        model = nn.Sequential()
        for name, layer in list(whole.named_children())[2 * dist.get_rank() : 2 * dist.get_rank() + 2]:
            model.add_module(name, layer)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, kind: str, steps: int = 2) -> None:
    torch.manual_seed(7)  # the same batch on every rank, so that every strategy has the same result
    for _ in range(steps):
        width = next(iter(model.parameters())).shape[1] if kind == "part" else 4
        model(torch.randn(6, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[Any]]:
    """Return unsharded weights and optimizer state by name."""
    names = {id(parameter): name.removeprefix("module.") for name, parameter in model.named_parameters()}
    state_by_name = {
        name.removeprefix("module."): unsharded(value) for name, value in model.state_dict().items()
    }
    for parameter, state in optimizer.state.items():
        state_by_name |= {f"{names[id(parameter)]}/{key}": unsharded(value) for key, value in state.items()}
    return state_by_name


def unsharded(tensor: torch.Tensor) -> list[Any]:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).tolist()


def tracked(folder: str, kind: str, seed: int = 0, **options: Any) -> tuple[Any, Any, legroom.Checkpoints]:
    model, optimizer = build(kind, seed)
    checkpoints = legroom.Checkpoints(folder, **options)
    checkpoints.track(model=model, optimizer=optimizer)
    return model, optimizer, checkpoints


def save(folder: str, kind: str, background: bool = False) -> dict[str, Any]:
    model, optimizer, checkpoints = tracked(folder, kind, background=background)
    train(model, optimizer, kind)
    state = whole_state(model, optimizer)
    checkpoints.save(5)
    if background:  # later changes must not be in the checkpoint
        train(model, optimizer, kind)
    checkpoints.close()
    return state


def resume(folder: str, kind: str) -> tuple[int, dict[str, Any]]:
    model, optimizer, checkpoints = tracked(folder, kind, seed=99)
    step = checkpoints.resume()
    return step, whole_state(model, optimizer)


def resume_and_save(folder: str, kind: str, into: str) -> tuple[int, dict[str, Any]]:
    model, optimizer, checkpoints = tracked(folder, kind, seed=99)
    step = checkpoints.resume()
    again = legroom.Checkpoints(into)
    again.track(model=model, optimizer=optimizer)
    again.save(step)
    return step, whole_state(model, optimizer)


def uninterrupted_and_resumed(folder: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states after three steps, and after two steps, a resume, and one more step."""
    model, optimizer, checkpoints = tracked(folder, kind)
    train(model, optimizer, kind)
    checkpoints.save(1)
    train(model, optimizer, kind, 1)
    other, other_optimizer, checkpoints = tracked(folder, kind, seed=99)
    checkpoints.resume()
    train(other, other_optimizer, kind, 1)
    return whole_state(model, optimizer), whole_state(other, other_optimizer)


def fails_on_one_rank(folder: str, kind: str, failing: int) -> tuple[str, list[str]]:
    """Simulate a full disk on one rank. Return the error of this rank and the remaining files."""
    _, _, checkpoints = tracked(folder, kind)
    checkpoints.save(1)
    original = os.pwrite

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    try:
        if dist.get_rank() == failing:
            os.pwrite = full
        checkpoints.save(2)
        message = "no error"
    except LegroomError as error:
        message = str(error)
    finally:
        os.pwrite = original
    dist.barrier()
    left = sorted(path.name for path in Path(folder).iterdir())
    checkpoints.save(3)
    return message, [*left, *(saved.path.name for saved in checkpoints.saved)]


def resume_error(folder: str, kind: str) -> str:
    model, _ = build(kind)
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=model)
    try:
        checkpoints.resume()
    except LegroomError as error:
        return str(error)
    return "no error"


def used_samples(folder: str, batches: int | None) -> list[int]:
    """Use `batches` batches of four samples and save. If None, use the rest of the epoch."""
    data = TensorDataset(torch.arange(48))
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=nn.Linear(1, 1))
    loader = checkpoints.loader(DataLoader(data, 4, sampler=DistributedSampler(data)))
    checkpoints.resume()
    used = []
    for number, (samples,) in enumerate(loader, 1):
        used += samples.tolist()
        if number == batches:
            checkpoints.save(number)
            break
    return used


def in_parallel(folder: str, strategy: str, steps: int) -> tuple[int, float]:
    """Resume a run of `legroom.parallel`, train some steps of an epoch of five, and save. Returns the last step and its loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = legroom.parallel(model, optimizer, strategy=strategy, batch=data[:8])
    loader = run.loader(data, batch_size=8)
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=run.module, optimizer=run.optimizer, run=run)
    step = checkpoints.resume()
    batches = iter(loader)
    for _ in range(steps):
        loss = run.step(lambda x, y: nn.functional.cross_entropy(run.model(x), y), *next(batches))
        step += 1
    checkpoints.save(step)
    return step, run.gather(loss).mean().item()


def random_state_is_restored(folder: str) -> bool:
    """Save and resume with a different random state on each rank."""
    torch.manual_seed(100 + dist.get_rank())
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=copy.deepcopy(nn.Linear(1, 1)))
    checkpoints.save(1)
    drawn = torch.rand(4).tolist()
    checkpoints.resume()
    return torch.rand(4).tolist() == drawn


def only_rank_zero_saves(folder: str, kind: str) -> Any:
    """Save on rank 0 only, continue training, and then save on all ranks. Rank 1 arrives after rank 0 has stopped
    waiting."""
    process_group.ARRIVAL_SECONDS = 0.5
    waiting._POLL_SECONDS = 0.1
    with waiting.waiting("a test"):
        dist.barrier()  # all ranks observe messages
    model, optimizer, checkpoints = tracked(folder, kind)
    train(model, optimizer, kind)
    errors: list[str] = []
    with logged() as messages:
        if dist.get_rank() == 0:
            try:
                checkpoints.save(1)
                checkpoints.load_weights(model, "last")
            except LegroomError as error:
                errors.append(str(error))
        else:
            time.sleep(1.0)
    if errors or any("Rank 0 stopped" in message for message in messages):
        return errors, messages, []
    train(model, optimizer, kind)
    for step in (2, 3):
        if step == 2 and dist.get_rank() == 1:
            time.sleep(1.5)
        checkpoints.save(step)
        dist.barrier()
    ranks = {info.step: info.ranks for info in checkpoints.saved}
    return errors, messages, [ranks, checkpoints.resume(), whole_state(model, optimizer)]


def one_rank_does_not_save(folder: str) -> list[str]:
    """Rank 1 calls `save` two seconds late, so that rank 0 waits. Return the messages."""
    waiting.REPORT_SECONDS, waiting._POLL_SECONDS = 0.5, 0.1
    _, _, checkpoints = tracked(folder, "ddp")
    checkpoints.save(1)
    with logged() as messages:
        if dist.get_rank() == 1:
            time.sleep(2.0)
        checkpoints.save(2)
    return messages


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the messages that Legroom logs in the block."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("legroom").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("legroom").removeHandler(handler)
