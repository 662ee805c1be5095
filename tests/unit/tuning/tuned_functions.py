"""Training functions that the tests tune: real, and small enough to be done in a moment."""

import errno
import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def quadratic(config: dict[str, Any], trial: Any) -> None:
    """No network: the loss is how far `x` is from 3; each step comes closer."""
    for step in range(1, config.get("steps", 3) + 1):
        trial.report(loss=(config["x"] - 3) ** 2 + 1 / step, checkpoint={"step": step})


def raises_in_some(config: dict[str, Any], trial: Any) -> dict[str, float]:
    if config["x"] % 2:
        raise ValueError("an odd configuration")
    return {"loss": config["x"]}


def sleeps(config: dict[str, Any], trial: Any) -> None:
    time.sleep(600)


def dies(config: dict[str, Any], trial: Any) -> None:
    os._exit(3)


def network(config: dict[str, Any], trial: Any) -> None:
    """A wide layer: its activations are the batch times `width`."""
    torch.manual_seed(0)
    width = config["width"]
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2)).to(trial.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    guard = trial.guard(model, optimizer)
    x = torch.randn(config["batch_size"], 8, generator=torch.Generator().manual_seed(1)).to(trial.device)
    y = (x[:, 0] > 0).long()
    for _ in range(3):
        loss = guard.step(lambda a, b: F.cross_entropy(model(a), b), x, y)
        trial.report(loss=loss.item(), checkpoint=model.state_dict())


def without_guard(config: dict[str, Any], trial: Any) -> None:
    model = nn.Linear(8, config["width"]).to(trial.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(config["batch_size"], 8, device=trial.device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    trial.report(loss=0.0)


def evaluates_too_much(config: dict[str, Any], trial: Any) -> None:
    """The steps fit as estimated; what comes after them was not traced and takes more."""
    network({**config, "steps": 1}, trial)
    torch.zeros(config["extra"], dtype=torch.uint8, device=trial.device)
    trial.report(loss=0.0)


def needs_data(config: dict[str, Any], trial: Any) -> None:
    layer = torch.nn.Linear(4, 4).to(trial.device)
    if (layer(torch.ones(2, 4, device=trial.device)) * 0).sum().item() != 0.0:
        raise RuntimeError("the data are not what they were")
    network(config, trial)


def any_of_these(config: dict[str, Any], trial: Any) -> None:
    """The function that the configuration names."""
    functions = {"network": network, "without guard": without_guard, "needs data": needs_data}
    functions[config.get("kind", "network")](config, trial)


def ranks_agree(config: dict[str, Any], trial: Any) -> None:
    """Two processes add up what they are."""
    import torch.distributed as dist

    total = torch.tensor([trial.rank + 1.0])
    dist.all_reduce(total)
    for step in range(4):
        trial.report(loss=total.item() + config["x"] - step)


def resumes(config: dict[str, Any], trial: Any) -> None:
    """Counts in its checkpoint how often it began."""
    began = trial.load_checkpoint()
    begins = 1 if began is None else began["begins"] + 1
    for step in range(trial.step, 4):
        trial.report(
            loss=config["x"] - step, begins=begins, checkpoint={"begins": begins, "weight": config["x"]}
        )


def finds_the_disk_full_once(config: dict[str, Any], trial: Any) -> None:
    """The second trial that saves finds no room, as long as there is no file that says it did."""
    told = trial.folder.parent / "full"
    if config["x"] == 1 and not told.exists():
        told.touch()
        torch.save = no_room
    quadratic(config, trial)


def no_room(state: Any, path: Any) -> None:
    path.write_bytes(b"a part")
    raise OSError(errno.ENOSPC, "No space left on device")
