"""An optimizer's state by the names of its parameters instead of their numbers.

Numbers depend on the order of the groups and, where ranks hold different parts of a model, on the rank. By name, a
state finds its parameter in another strategy, and a checkpoint of another optimizer can be told apart from this one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from legroom.errors import CheckpointError
from legroom.train.checkpoints.key_check import nearest, plain_name
from legroom.train.checkpoints.unwrapped_modules import unwrapped

Names = Mapping[int, str]
"""Of parameters, by `id`."""


def parameter_names(modules: Iterable[nn.Module]) -> dict[int, str]:
    """The names of all parameters of the tracked modules."""
    return {
        id(parameter): plain_name(name)
        for module in modules
        for name, parameter in unwrapped(module).named_parameters()
    }


def by_name(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, Any]:
    """What `optimizer.state_dict()` gives, with names."""
    state = optimizer.state_dict()
    called = _called(optimizer, names)
    return {
        **state,
        "state": {called.get(number, number): values for number, values in state["state"].items()},
        "param_groups": [
            {**group, "params": [called[number] for number in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def by_number(
    saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, names: Names, what: str
) -> dict[str, Any]:
    """What `optimizer.load_state_dict` takes, from what `by_name` gave. Each group finds the saved group of its parameters."""
    now = optimizer.state_dict()
    called = _called(optimizer, names)
    homes = {name: group for group in saved["param_groups"] for name in group["params"]}
    missing = [name for name in called.values() if name not in homes]
    if missing:
        near = nearest(missing[0], homes)
        raise CheckpointError(
            f"the checkpoint's {what} did not train {missing[0]}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + (f" (nearest: {near})" if near else "")
            + ": make the optimizer of the parameters it had, or leave it out of track() to start it anew"
        )
    return {
        **saved,
        "state": {number: saved["state"][name] for number, name in called.items() if name in saved["state"]},
        "param_groups": [
            {**homes[called[group["params"][0]]], "params": group["params"]} if group["params"] else group
            for group in now["param_groups"]
        ],
    }


def like_parameter(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, torch.Tensor]:
    """Each parameter by its name: its state is spread over ranks as it is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {_name(parameter, number, names): parameter for number, parameter in enumerate(parameters)}


def merged(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state of those that ranks with different parts of a model saved."""
    first = states[0]
    groups = []
    for index, group in enumerate(first["param_groups"]):
        every = [
            name for state in states if index < len(state["param_groups"]) for name in state["param_groups"][index]["params"]
        ]  # fmt: skip
        groups.append({**group, "params": list(dict.fromkeys(every))})
    together = {name: values for state in states for name, values in state["state"].items()}
    return {**first, "state": together, "param_groups": groups}


def _called(optimizer: torch.optim.Optimizer, names: Names) -> dict[int, str]:
    """Names by number. Numbers count through the groups, as torch has it."""
    return {
        number: _name(parameter, number, names)
        for number, parameter in enumerate(
            parameter for group in optimizer.param_groups for parameter in group["params"]
        )
    }


def _name(parameter: torch.Tensor, number: int, names: Names) -> str:
    return names.get(id(parameter), f"#{number}")
