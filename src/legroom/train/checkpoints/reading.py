"""Reading: everything is read and checked before anything is changed, so a checkpoint that does not fit leaves the
training as it was.

Tensors are copied from host memory to where each parameter is, on this rank's device: nothing is ever put on the GPU of
the rank that saved it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legroom.errors import CheckpointError
from legroom.log import log
from legroom.train.checkpoints.catalog import Saved
from legroom.train.checkpoints.files.tensor_file import read_tensors
from legroom.train.checkpoints.key_check import Shapes, nearest
from legroom.train.checkpoints.optimizer_names import by_number, parameter_names
from legroom.train.checkpoints.plain_state import put_together, read_plain
from legroom.train.checkpoints.process_group import Crew
from legroom.train.checkpoints.random_numbers import restore_random_numbers
from legroom.train.checkpoints.saving import STATE, STATE_TENSORS, module_file, rank_file
from legroom.train.checkpoints.unwrapped_modules import (
    check_module,
    load_module,
    module_state,
    shapes,
    spread_like,
)


@dataclass(frozen=True, slots=True)
class Read:
    """One checkpoint's contents, whole and checked."""

    saved: Saved
    modules: dict[str, dict[str, Any]]
    parts: dict[str, Any]
    own: dict[str, Any]
    """Of this rank: its random generators and its loaders' places."""


def read(saved: Saved, parts: Mapping[str, Any], crew: Crew) -> Read:
    """All of a checkpoint that `parts` need. Every rank calls it, and it fails on all or none."""
    own = crew.each(lambda: _plain(saved, rank_file(min(crew.rank, saved.ranks - 1))))
    shared = crew.each(lambda: _plain(saved, STATE))
    others = crew.each(lambda: _others(saved, shared["parts"], parts))
    if saved.sharded:
        from legroom.train.checkpoints.reading_sharded import read_spread

        modules, optimizers = read_spread(saved, parts, crew)
        return Read(saved, modules, {**others, **optimizers}, own)

    def from_files() -> dict[str, dict[str, Any]]:
        return {
            name: put_together(entries, _tensors(saved, module_file(name)))
            for name, entries in shared["modules"].items()
            if name in parts
        }

    return Read(saved, crew.each(from_files), others, own)


def check(contents: Read, parts: Mapping[str, Any], crew: Crew) -> None:
    """Refuse a checkpoint that is not of these objects, on every rank if on one."""
    models = {name: module_state(part) for name, part in parts.items() if isinstance(part, nn.Module)}
    mine = {name: shapes(state) for name, state in models.items()}
    everyone = crew.together(lambda: mine)
    crew.each(lambda: _check(contents, parts, everyone))


def _check(contents: Read, parts: Mapping[str, Any], everyone: Sequence[Mapping[str, Shapes]]) -> None:
    held = (*contents.modules, *contents.parts, *contents.own["loaders"])
    missing = [name for name in parts if name not in contents.saved.parts]
    if missing:
        near = nearest(missing[0], held)
        raise CheckpointError(
            f"{contents.saved.path} holds no '{missing[0]}'{f', but {near}' if near else ''}: it was saved with "
            f"{', '.join(contents.saved.parts)}. Track what it was saved with, or call resume(strict=False) to start the rest anew"
        )
    for name in everyone[0]:
        if name not in contents.modules:
            raise CheckpointError(
                f"'{name}' in {contents.saved.path} is no model: track it under the name it was saved with"
            )
        wanted: dict[str, Any] = {}
        for one in everyone:  # ranks may hold different parts of a model
            wanted |= one[name]
        check_module(contents.modules[name], wanted, str(contents.saved.path))


def load(contents: Read, parts: Mapping[str, Any], crew: Crew) -> None:
    """Put it all into the tracked objects, models first: optimizers follow their parameters."""
    names = parameter_names(part for part in parts.values() if isinstance(part, nn.Module))
    optimizers = crew.each(
        lambda: {
            name: by_number(contents.parts[name], part, names, name)
            for name, part in parts.items()
            if isinstance(part, torch.optim.Optimizer) and name in contents.parts
        }
    )
    for name, part in parts.items():
        if name in contents.modules:
            load_module(part, contents.modules[name])
    for name, part in parts.items():
        if name in optimizers:
            part.load_state_dict(_for_loading(optimizers[name], part))
        elif name in contents.parts:
            part.load_state_dict(contents.parts[name])
        elif name in contents.own["loaders"]:
            part.load_state_dict(contents.own["loaders"][name])
    if contents.saved.ranks == crew.size:
        restore_random_numbers(contents.own["random"])
    left = [name for name in contents.saved.parts if name not in parts]
    if left and crew.main:
        log.warning(
            "%s also holds %s, which is not tracked: that starts anew.", contents.saved.path, ", ".join(left)
        )


def _plain(saved: Saved, file: str) -> Any:
    return read_plain(saved.path / file, saved.files[file])


def _tensors(saved: Saved, file: str) -> dict[str, torch.Tensor]:
    return read_tensors(saved.path / file, saved.files[file]) if file in saved.files else {}


def _others(saved: Saved, told: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """The states of what is no model, as far as it is wanted."""
    wanted = {name: state for name, state in told.items() if name in parts}
    return put_together(wanted, _state_tensors(saved, parts)) if wanted else {}


def _state_tensors(saved: Saved, parts: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Copies, since an object keeps what it loads. An optimizer's, which are large, are copied when they are loaded."""
    return {
        name: tensor
        if isinstance(parts.get(name.partition(".")[0]), torch.optim.Optimizer)
        else tensor.clone()
        for name, tensor in _tensors(saved, STATE_TENSORS).items()
    }


def _own(tensor: Any, parameter: torch.Tensor) -> Any:
    """A tensor for an optimizer to keep: over ranks as its parameter is, and out of the file."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    placed = spread_like(tensor, parameter)
    # The optimizer copies to a GPU by itself, but leaves single numbers (its count of steps) where they are.
    return placed if placed is not tensor or (parameter.is_cuda and tensor.dim() > 0) else tensor.clone()


def _for_loading(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        **state,
        "state": {
            number: {key: _own(value, parameters[number]) for key, value in values.items()}
            for number, values in state["state"].items()
        },
    }
