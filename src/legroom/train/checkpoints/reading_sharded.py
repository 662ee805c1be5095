"""Reads checkpoints in which each rank saved its own shards or its own pipeline stage of a model. Each rank reads only
the tensors that it needs. The number of ranks may differ from the number of ranks that saved the checkpoint.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from legroom.train.checkpoints.catalog import CheckpointInfo
from legroom.train.checkpoints.files.checked_files import read_file
from legroom.train.checkpoints.optimizer_names import merge_states, parameter_names, parameters_by_name
from legroom.train.checkpoints.plain_state import insert_tensors, read_plain, tensor_names
from legroom.train.checkpoints.process_group import CheckpointGroup
from legroom.train.checkpoints.saving import rank_file
from legroom.train.checkpoints.sharded import FOLDER, read_sharded, sharded_sizes
from legroom.train.checkpoints.unwrapped_modules import module_state

States = dict[str, dict[str, Any]]


def read_sharded_states(
    info: CheckpointInfo, parts: Mapping[str, Any], group: CheckpointGroup
) -> tuple[States, States]:
    """Return the states of modules and optimizers. Tensors that this rank does not need are meta tensors."""

    def read_rank_files() -> list[dict[str, Any]]:
        if group.is_main:
            for name, expected in info.files.items():
                if name.startswith(f"{FOLDER}/"):
                    read_file(info.path / name, expected)
        return [read_plain(info.path / file, info.files[file]) for file in map(rank_file, range(info.ranks))]

    saved_ranks = group.run(read_rank_files)
    modules = {
        name: {key: entry for rank in saved_ranks for key, entry in rank["modules"][name].items()}
        for name in saved_ranks[0]["modules"]
        if name in parts
    }
    optimizers = {
        name: merge_states([rank["optimizers"][name] for rank in saved_ranks])
        for name in saved_ranks[0]["optimizers"]
        if name in parts
    }
    targets = {
        **_module_targets(modules, parts),
        **_optimizer_targets(optimizers, parts),
    }
    tensors = group.run(lambda: read_sharded(info.path, targets, group))
    on_other_ranks = {
        name: torch.empty(shape, dtype=dtype, device="meta")
        for name, (shape, dtype) in sharded_sizes(info.path).items()
        if name not in tensors
    }
    tensors = {**on_other_ranks, **tensors}
    return insert_tensors(modules, tensors), insert_tensors(optimizers, tensors)


def _module_targets(modules: States, parts: Mapping[str, Any]) -> dict[str, Any]:
    targets: dict[str, Any] = {}
    for name, entries in modules.items():
        state = module_state(parts[name])
        targets |= {path: state[key] for key, path in tensor_names(entries).items() if key in state}
    return targets


def _optimizer_targets(optimizers: States, parts: Mapping[str, Any]) -> dict[str, Any]:
    names = parameter_names(part for part in parts.values() if isinstance(part, nn.Module))
    targets: dict[str, Any] = {}
    for name, state in optimizers.items():
        parameters = parameters_by_name(parts[name], names)
        for parameter, entries in state["state"].items():
            if parameter in parameters:
                targets |= dict.fromkeys(tensor_names(entries).values(), parameters[parameter])
    return targets
