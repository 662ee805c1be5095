"""What each rank does in the tests of checkpoints over several ranks. Every result is plain data that ranks can be compared by."""

import copy
import os
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

WIDTH = 10
"""Not a multiple of four: pieces of four ranks have different sizes, one of them none."""


def build(kind: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """`plain`, `ddp`, `fsdp`, or `part`: this rank's half of a pipeline, under the whole model's names."""
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


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, kind: str, steps: int = 2) -> None:
    torch.manual_seed(7)  # every rank the same batch: then every strategy learns the same
    for _ in range(steps):
        width = next(iter(model.parameters())).shape[1] if kind == "part" else 4
        model(torch.randn(6, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[Any]]:
    """Weights and moments by name, whole."""
    names = {id(parameter): name.removeprefix("module.") for name, parameter in model.named_parameters()}
    told = {name.removeprefix("module."): whole(value) for name, value in model.state_dict().items()}
    for parameter, state in optimizer.state.items():
        told |= {f"{names[id(parameter)]}/{key}": whole(value) for key, value in state.items()}
    return told


def whole(tensor: torch.Tensor) -> list[Any]:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).tolist()


def tracked(folder: str, kind: str, seed: int = 0, **options: Any) -> tuple[Any, Any, legroom.Checkpoints]:
    model, optimizer = build(kind, seed)
    checkpoints = legroom.Checkpoints(folder, **options)
    checkpoints.track(model=model, optimizer=optimizer)
    return model, optimizer, checkpoints


def save(folder: str, kind: str, background: bool = False) -> dict[str, Any]:
    model, optimizer, checkpoints = tracked(folder, kind, background=background)
    learn(model, optimizer, kind)
    told = whole_state(model, optimizer)
    checkpoints.save(5)
    if background:  # what comes after must not be in it
        learn(model, optimizer, kind)
    checkpoints.close()
    return told


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


def goes_on_alike(folder: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Three steps, and two steps, saved and resumed, and one: the states at the end."""
    model, optimizer, checkpoints = tracked(folder, kind)
    learn(model, optimizer, kind)
    checkpoints.save(1)
    learn(model, optimizer, kind, 1)
    other, its_optimizer, checkpoints = tracked(folder, kind, seed=99)
    checkpoints.resume()
    learn(other, its_optimizer, kind, 1)
    return whole_state(model, optimizer), whole_state(other, its_optimizer)


def fails_on_one_rank(folder: str, kind: str, failing: int) -> tuple[str, list[str]]:
    """A disk that is full on one rank: what each rank is told, and what is left."""
    _, _, checkpoints = tracked(folder, kind)
    checkpoints.save(1)
    plain = os.pwrite

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    try:
        if dist.get_rank() == failing:
            os.pwrite = full
        checkpoints.save(2)
        told = "nothing"
    except LegroomError as error:
        told = str(error)
    finally:
        os.pwrite = plain
    dist.barrier()
    left = sorted(path.name for path in Path(folder).iterdir())
    checkpoints.save(3)
    return told, [*left, *(saved.path.name for saved in checkpoints.saved)]


def mismatch_told(folder: str, kind: str) -> str:
    model, _ = build(kind)
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=model)
    try:
        checkpoints.resume()
    except LegroomError as error:
        return str(error)
    return "nothing"


def rows_seen(folder: str, batches: int | None) -> list[int]:
    """`batches` of four rows and a save, or the rest of the epoch."""
    data = TensorDataset(torch.arange(48))
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=nn.Linear(1, 1))
    loader = checkpoints.loader(DataLoader(data, 4, sampler=DistributedSampler(data)))
    checkpoints.resume()
    seen = []
    for number, (rows,) in enumerate(loader, 1):
        seen += rows.tolist()
        if number == batches:
            checkpoints.save(number)
            break
    return seen


def in_parallel(folder: str, strategy: str, steps: int) -> tuple[int, float]:
    """A run of `legroom.parallel` that resumes, makes some steps of an epoch of five, and saves: the last step and its loss over all ranks."""
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


def random_numbers_go_on(folder: str) -> bool:
    """Each rank's own."""
    torch.manual_seed(100 + dist.get_rank())
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=copy.deepcopy(nn.Linear(1, 1)))
    checkpoints.save(1)
    drawn = torch.rand(4).tolist()
    checkpoints.resume()
    return torch.rand(4).tolist() == drawn
