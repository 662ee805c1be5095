"""Reading what ranks with different parts of a model saved: each rank takes the parts it has now, however many ranks
there were.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from legroom.train.checkpoints.catalog import Saved
from legroom.train.checkpoints.files.checked_files import read_file
from legroom.train.checkpoints.optimizer_names import like_parameter, merged, parameter_names
from legroom.train.checkpoints.plain_state import names_of_tensors, put_together, read_plain
from legroom.train.checkpoints.process_group import Crew
from legroom.train.checkpoints.saving import rank_file
from legroom.train.checkpoints.sharded import FOLDER, read_sharded, sharded_sizes
from legroom.train.checkpoints.unwrapped_modules import module_state

States = dict[str, dict[str, Any]]


def read_spread(saved: Saved, parts: Mapping[str, Any], crew: Crew) -> tuple[States, States]:
    """The modules' and the optimizers' states. Of names that this rank does not have, shapes alone are told."""

    def before() -> list[dict[str, Any]]:
        if crew.main:
            for name, expected in saved.files.items():
                if name.startswith(f"{FOLDER}/"):
                    read_file(saved.path / name, expected)
        return [
            read_plain(saved.path / file, saved.files[file]) for file in map(rank_file, range(saved.ranks))
        ]

    everyone = crew.each(before)
    modules = {
        name: {key: entry for one in everyone for key, entry in one["modules"][name].items()}
        for name in everyone[0]["modules"]
        if name in parts
    }
    optimizers = {
        name: merged([one["optimizers"][name] for one in everyone])
        for name in everyone[0]["optimizers"]
        if name in parts
    }
    wanted = {
        **_for_modules(modules, parts),
        **_for_optimizers(optimizers, parts),
    }
    tensors = crew.each(lambda: read_sharded(saved.path, wanted, crew))
    elsewhere = {
        name: torch.empty(shape, dtype=dtype, device="meta")
        for name, (shape, dtype) in sharded_sizes(saved.path).items()
        if name not in tensors
    }
    tensors = {**elsewhere, **tensors}
    return put_together(modules, tensors), put_together(optimizers, tensors)


def _for_modules(modules: States, parts: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank's modules need, each with the tensor that it will go into."""
    wanted: dict[str, Any] = {}
    for name, entries in modules.items():
        now = module_state(parts[name])
        wanted |= {path: now[key] for key, path in names_of_tensors(entries).items() if key in now}
    return wanted


def _for_optimizers(optimizers: States, parts: Mapping[str, Any]) -> dict[str, Any]:
    """What the state of this rank's parameters needs, each with its parameter."""
    names = parameter_names(part for part in parts.values() if isinstance(part, nn.Module))
    wanted: dict[str, Any] = {}
    for name, state in optimizers.items():
        parameters = like_parameter(parts[name], names)
        for called, entries in state["state"].items():
            if called in parameters:
                wanted |= dict.fromkeys(names_of_tensors(entries).values(), parameters[called])
    return wanted
