"""Replaces the parameters of an optimizer after the model has been wrapped."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError

Optimizer = torch.optim.Optimizer | Callable[[Any], torch.optim.Optimizer] | None


def checked_optimizer(optimizer: Any, model: nn.Module) -> torch.optim.Optimizer | None:
    """Return `optimizer`, or the optimizer that `optimizer` creates if it is a function. The optimizer must contain
    this model's parameters.
    """
    if optimizer is None:
        return None
    result: torch.optim.Optimizer = optimizer
    if not isinstance(result, torch.optim.Optimizer):
        if not callable(result):
            raise UsageError(
                "optimizer= must be a torch.optim.Optimizer or a function that creates an optimizer from the "
                f"parameters, not {type(result).__name__}."
            )
        result = result([parameter for parameter in model.parameters() if parameter.requires_grad])
    known = set(map(id, model.parameters()))
    if not any(id(parameter) in known for group in result.param_groups for parameter in group["params"]):
        raise UsageError(
            "The optimizer has no parameters of this model. Create the optimizer from model.parameters() of "
            "the same model."
        )
    return result


def replace_parameters(
    optimizer: torch.optim.Optimizer | None, replacements: Mapping[nn.Parameter, nn.Parameter | None]
) -> None:
    """Replace the parameters of an optimizer. A parameter whose replacement is None is on a different rank and is
    removed.

    Empty groups are kept, because learning rate schedulers count all groups.
    """
    if optimizer is None:
        return
    for group in optimizer.param_groups:
        new = [replacements.get(parameter, parameter) for parameter in group["params"]]
        for parameter, replacement in zip(group["params"], new, strict=True):
            if replacement is not parameter:
                state = optimizer.state.pop(parameter, None)
                if state and replacement is not None:
                    raise UsageError(
                        "The optimizer already has state, which cannot be moved to sharded parameters. "
                        "Call legroom.parallel first, then load the optimizer state."
                    )
        group["params"] = [parameter for parameter in new if parameter is not None]
