"""Small training functions for the tests."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def quadratic(config: dict[str, Any], trial: Any) -> None:
    """Trains no model. The loss is the squared distance of `x` from 3, plus a term that decreases with each step."""
    for step in range(1, config.get("steps", 3) + 1):
        trial.report(loss=(config["x"] - 3) ** 2 + 1 / step, checkpoint={"step": step})


def raises_in_some(config: dict[str, Any], trial: Any) -> dict[str, float]:
    if config["x"] % 2:
        raise ValueError("an odd configuration")
    return {"loss": config["x"]}


def suggests(trial: Any) -> float:
    """Suggests its parameters, as in Optuna. A branch and a loop suggest further parameters."""
    import optuna

    layers = trial.suggest_int("layers", 1, 3)
    widths = [trial.suggest_float(f"width_{layer}", 0, 1) for layer in range(layers)]
    kind = trial.suggest_categorical("kind", ["plain", "large"])
    if kind == "large":
        widths.append(trial.suggest_int("extra", 2, 8, step=2))
    trial.report(100.0, 0)
    if trial.should_prune() or sum(widths) > 6:
        raise optuna.TrialPruned
    return sum(widths)


def two_metrics(config: dict[str, Any], trial: Any) -> dict[str, float]:
    return {"loss": abs(config["x"] - 3.0), "speed": config["x"] % 7.0}


def sleeps(config: dict[str, Any], trial: Any) -> None:
    time.sleep(600)


def dies(config: dict[str, Any], trial: Any) -> None:
    os._exit(3)


def network(config: dict[str, Any], trial: Any) -> None:
    """Trains a wide layer, whose activations grow with the batch size times `width`."""
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
    """Trains steps that fit, and then runs an evaluation that needs more memory."""
    network({**config, "steps": 1}, trial)
    torch.zeros(config["extra"], dtype=torch.uint8, device=trial.device)
    trial.report(loss=0.0)


def needs_data(config: dict[str, Any], trial: Any) -> None:
    layer = torch.nn.Linear(4, 4).to(trial.device)
    if (layer(torch.ones(2, 4, device=trial.device)) * 0).sum().item() != 0.0:
        raise RuntimeError("the data are wrong")
    network(config, trial)


def changes_files(config: dict[str, Any], trial: Any) -> None:
    """Writes a file in `config["folder"]`, overwrites another one and deletes a third, then reads them back."""
    folder = Path(config["folder"])
    (folder / "new.txt").write_text("new")
    torch.save({"weight": torch.ones(2)}, folder / "checkpoint.pt")
    (folder / "overwritten.txt").write_text("changed")
    (folder / "deleted.txt").unlink()
    if (folder / "overwritten.txt").read_text() != "changed" or (folder / "deleted.txt").exists():
        raise RuntimeError("the function does not see its own changes")
    network(config, trial)


def loads_to_the_gpu(config: dict[str, Any], trial: Any) -> None:
    state = trial.load_checkpoint(map_location=trial.device)
    network(config, trial)
    del state


def loads_to_the_host(config: dict[str, Any], trial: Any) -> None:
    state = trial.load_checkpoint()
    network(config, trial)
    del state


def any_of_these(config: dict[str, Any], trial: Any) -> None:
    """Calls the function named in the configuration."""
    functions = {
        "network": network,
        "without guard": without_guard,
        "needs data": needs_data,
        "loads to the gpu": loads_to_the_gpu,
        "loads to the host": loads_to_the_host,
    }
    functions[config.get("kind", "network")](config, trial)


def ranks_agree(config: dict[str, Any], trial: Any) -> None:
    """Reports a loss that contains the sum over all ranks."""
    import torch.distributed as dist

    total = torch.tensor([trial.rank + 1.0])
    dist.all_reduce(total)
    for step in range(4):
        trial.report(loss=total.item() + config["x"] - step)


def resumes(config: dict[str, Any], trial: Any) -> None:
    """Counts its starts in its checkpoint."""
    began = trial.load_checkpoint()
    begins = 1 if began is None else began["begins"] + 1
    for step in range(trial.step, 4):
        trial.report(
            loss=config["x"] - step, begins=begins, checkpoint={"begins": begins, "weight": config["x"]}
        )


def finds_the_disk_full_once(config: dict[str, Any], trial: Any) -> None:
    """Simulates a full disk at the first start of the second trial."""
    marker = trial.folder.parent / "full"
    if config["x"] == 1 and not marker.exists():
        marker.touch()
        torch.save = fail_with_full_disk
    quadratic(config, trial)


def fail_with_full_disk(state: Any, path: Any) -> None:
    path.write_bytes(b"a part")
    raise OSError(errno.ENOSPC, "No space left on device")
