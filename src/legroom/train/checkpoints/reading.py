"""Reads a checkpoint. All data is read and checked before any object is changed, so an attempt to load a checkpoint of
a different model changes nothing.

Each tensor is copied to the current device of its parameter, which may differ from the device at the time of the save.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legroom.errors import CheckpointError
from legroom.log import log
from legroom.train.checkpoints.catalog import CheckpointInfo
from legroom.train.checkpoints.files.tensor_file import read_tensors
from legroom.train.checkpoints.key_check import Shapes, closest_name
from legroom.train.checkpoints.optimizer_names import parameter_names, state_by_index
from legroom.train.checkpoints.plain_state import insert_tensors, read_plain
from legroom.train.checkpoints.process_group import CheckpointGroup
from legroom.train.checkpoints.random_states import restore_random_states
from legroom.train.checkpoints.saving import STATE, STATE_TENSORS, module_file, rank_file
from legroom.train.checkpoints.unwrapped_modules import (
    check_module,
    load_module,
    module_state,
    shapes,
    shard_like,
)


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """The contents of one checkpoint, after its files have been checked."""

    info: CheckpointInfo
    modules: dict[str, dict[str, Any]]
    parts: dict[str, Any]
    own: dict[str, Any]


def read(info: CheckpointInfo, parts: Mapping[str, Any], group: CheckpointGroup) -> LoadedCheckpoint:
    """Read the data of the objects in `parts` from a checkpoint. Every rank must call this function, and an error on
    one rank is raised on all ranks.
    """
    own = group.run(lambda: _plain(info, rank_file(min(group.rank, info.ranks - 1))))
    shared = group.run(lambda: _plain(info, STATE))
    others = group.run(lambda: _other_states(info, shared["parts"], parts))
    if info.sharded:
        from legroom.train.checkpoints.reading_sharded import read_sharded_states

        modules, optimizers = read_sharded_states(info, parts, group)
        return LoadedCheckpoint(info, modules, {**others, **optimizers}, own)

    def read_modules() -> dict[str, dict[str, Any]]:
        return {
            name: insert_tensors(entries, _tensors(info, module_file(name)))
            for name, entries in shared["modules"].items()
            if name in parts
        }

    return LoadedCheckpoint(info, group.run(read_modules), others, own)


def check(contents: LoadedCheckpoint, parts: Mapping[str, Any], group: CheckpointGroup) -> None:
    """Raise CheckpointError on every rank if the checkpoint does not match the objects in `parts`."""
    models = {name: module_state(part) for name, part in parts.items() if isinstance(part, nn.Module)}
    own = {name: shapes(state) for name, state in models.items()}
    all_ranks = group.gather(lambda: own)
    group.run(lambda: _check(contents, parts, all_ranks))


def _check(
    contents: LoadedCheckpoint, parts: Mapping[str, Any], all_ranks: Sequence[Mapping[str, Shapes]]
) -> None:
    available = (*contents.modules, *contents.parts, *contents.own["loaders"])
    missing = [name for name in parts if name not in contents.info.parts]
    if missing:
        closest = closest_name(missing[0], available)
        raise CheckpointError(
            f"{contents.info.path} contains no '{missing[0]}'{f' (closest: {closest})' if closest else ''}. The checkpoint contains {', '.join(contents.info.parts)}. Track only these objects, or call resume(strict=False) to "
            "keep the initial state of all other objects."
        )
    for name in all_ranks[0]:
        if name not in contents.modules:
            raise CheckpointError(
                f"'{name}' in {contents.info.path} is not a model. Track the model under the same name as in the "
                "checkpoint."
            )
        expected: dict[str, Any] = {}
        for rank in all_ranks:  # ranks may have different parts of a model
            expected |= rank[name]
        check_module(contents.modules[name], expected, str(contents.info.path))


def load(contents: LoadedCheckpoint, parts: Mapping[str, Any], group: CheckpointGroup) -> None:
    """Load the contents into the tracked objects. Models are loaded first, because optimizer state is loaded onto the
    devices and into the shards of the parameters.
    """
    names = parameter_names(part for part in parts.values() if isinstance(part, nn.Module))
    optimizers = group.run(
        lambda: {
            name: state_by_index(contents.parts[name], part, names, name)
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
    if contents.info.ranks == group.size:
        restore_random_states(contents.own["random"])
    untracked = [name for name in contents.info.parts if name not in parts]
    if untracked and group.is_main:
        log.warning(
            "%s also contains %s, which is not tracked and was not loaded.",
            contents.info.path,
            ", ".join(untracked),
        )


def _plain(info: CheckpointInfo, file: str) -> Any:
    return read_plain(info.path / file, info.files[file])


def _tensors(info: CheckpointInfo, file: str) -> dict[str, torch.Tensor]:
    return read_tensors(info.path / file, info.files[file]) if file in info.files else {}


def _other_states(
    info: CheckpointInfo, states: Mapping[str, Any], parts: Mapping[str, Any]
) -> dict[str, Any]:
    tracked = {name: state for name, state in states.items() if name in parts}
    return insert_tensors(tracked, _state_tensors(info, parts)) if tracked else {}


def _state_tensors(info: CheckpointInfo, parts: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of the tracked objects. Optimizer state is copied later, because it is large. All other
    tensors are copied by this function, because objects keep references to loaded tensors.
    """
    return {
        name: tensor
        if isinstance(parts.get(name.partition(".")[0]), torch.optim.Optimizer)
        else tensor.clone()
        for name, tensor in _tensors(info, STATE_TENSORS).items()
    }


def _optimizer_tensor(tensor: Any, parameter: torch.Tensor) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    sharded = shard_like(tensor, parameter)
    # The optimizer copies to a GPU itself, but keeps single numbers (its step counter) where they are.
    return sharded if sharded is not tensor or (parameter.is_cuda and tensor.dim() > 0) else tensor.clone()


def _for_loading(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        **state,
        "state": {
            number: {key: _optimizer_tensor(value, parameters[number]) for key, value in values.items()}
            for number, values in state["state"].items()
        },
    }
