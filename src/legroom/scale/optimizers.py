"""An optimizer that was made for the plain model goes on with the parameters that took their place."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError

Optimizer = torch.optim.Optimizer | Callable[[Any], torch.optim.Optimizer] | None


def checked_optimizer(optimizer: Any, model: nn.Module) -> torch.optim.Optimizer | None:
    """The optimizer, made now if a function of the parameters was given. It must hold parameters of this model."""
    if optimizer is None:
        return None
    made: torch.optim.Optimizer = optimizer
    if not isinstance(made, torch.optim.Optimizer):
        if not callable(made):
            raise UsageError(
                f"optimizer= is a {type(made).__name__}: give a torch.optim.Optimizer, or a function of the parameters that makes one"
            )
        made = made([parameter for parameter in model.parameters() if parameter.requires_grad])
    known = set(map(id, model.parameters()))
    if not any(id(parameter) in known for group in made.param_groups for parameter in group["params"]):
        raise UsageError(
            "the optimizer holds no parameter of this model: make it from model.parameters() of the model given here"
        )
    return made


def rebound(optimizer: torch.optim.Optimizer | None, now: Mapping[nn.Parameter, nn.Parameter | None]) -> None:
    """Put each parameter's successor in its place; one whose successor is None lives on another rank and goes.

    Groups stay, even empty ones: learning-rate schedules count them.
    """
    if optimizer is None:
        return
    for group in optimizer.param_groups:
        successors = [now.get(parameter, parameter) for parameter in group["params"]]
        for parameter, successor in zip(group["params"], successors, strict=True):
            if successor is not parameter:
                state = optimizer.state.pop(parameter, None)
                if state and successor is not None:
                    raise UsageError(
                        "the optimizer has taken steps already, and its state cannot follow parameters that are sharded now: "
                        "call legroom.parallel first, then load the optimizer's state"
                    )
        group["params"] = [successor for successor in successors if successor is not None]
