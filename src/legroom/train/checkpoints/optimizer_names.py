"""Converts the state of an optimizer to use parameter names instead of parameter indices.

Indices depend on the order of the parameter groups. They also depend on the rank if each rank has only some of the
parameters. With names, the state can be loaded under a different parallel strategy. If the checkpoint has no state for
a parameter name, loading fails, because the optimizer was created with different parameters.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from legroom.errors import CheckpointError
from legroom.train.checkpoints.key_check import closest_name, plain_name
from legroom.train.checkpoints.unwrapped_modules import unwrapped

Names = Mapping[int, str]


def parameter_names(modules: Iterable[nn.Module]) -> dict[int, str]:
    return {
        id(parameter): plain_name(name)
        for module in modules
        for name, parameter in unwrapped(module).named_parameters()
    }


def state_by_name(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, Any]:
    """Return `optimizer.state_dict()` with parameter names instead of indices."""
    state = optimizer.state_dict()
    by_index = _names_by_index(optimizer, names)
    return {
        **state,
        "state": {by_index.get(index, index): values for index, values in state["state"].items()},
        "param_groups": [
            {**group, "params": [by_index[index] for index in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def state_by_index(
    saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, names: Names, label: str
) -> dict[str, Any]:
    """Convert the result of `state_by_name` for `optimizer.load_state_dict`. Each group gets the options that were
    saved for its parameters.
    """
    current = optimizer.state_dict()
    by_index = _names_by_index(optimizer, names)
    saved_groups = {name: group for group in saved["param_groups"] for name in group["params"]}
    missing = [name for name in by_index.values() if name not in saved_groups]
    if missing:
        closest = closest_name(missing[0], saved_groups)
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        similar = f" (closest: {closest})" if closest else ""
        raise CheckpointError(
            f"The {label} in the checkpoint has no state for {missing[0]}{more}{similar}. Create the optimizer with "
            "the same parameters. To start with a new state, do not track the optimizer."
        )
    return {
        **saved,
        "state": {index: saved["state"][name] for index, name in by_index.items() if name in saved["state"]},
        "param_groups": [
            {**saved_groups[by_index[group["params"][0]]], "params": group["params"]}
            if group["params"]
            else group
            for group in current["param_groups"]
        ],
    }


def parameters_by_name(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, torch.Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {_name(parameter, index, names): parameter for index, parameter in enumerate(parameters)}


def merge_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    first = states[0]
    groups = []
    for index, group in enumerate(first["param_groups"]):
        members = [
            name for state in states if index < len(state["param_groups"]) for name in state["param_groups"][index]["params"]
        ]  # fmt: skip
        groups.append({**group, "params": list(dict.fromkeys(members))})
    combined = {name: values for state in states for name, values in state["state"].items()}
    return {**first, "state": combined, "param_groups": groups}


def _names_by_index(optimizer: torch.optim.Optimizer, names: Names) -> dict[int, str]:
    """Return a dict that maps the index of each parameter to its name. As in torch, the indices are consecutive across
    the groups."""
    return {
        index: _name(parameter, index, names)
        for index, parameter in enumerate(
            parameter for group in optimizer.param_groups for parameter in group["params"]
        )
    }


def _name(parameter: torch.Tensor, index: int, names: Names) -> str:
    return names.get(id(parameter), f"#{index}")
