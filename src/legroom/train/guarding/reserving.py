"""Room for the state that an optimizer makes in its first step, kept from before the first forward pass.

Adam and its like make twice the parameters' memory in their first step, when the batch that fitted has already been chosen: the
next step would not fit any more, or that very step would not. With the room kept from the start, memory runs out in the
passes instead, where a smaller split helps. It is given back just before the optimizer asks for it, in pieces of the very sizes
it will ask for: the optimizer itself is not touched, so its numbers and counters are those of a plain run.
"""

import contextlib
import inspect
from collections.abc import Iterable
from typing import Any

import torch

from legroom.train.guarding.recovery import read_failure, release


class ReservedState:
    """The room for one optimizer's state. `kinds`: optimizers of which it can be found out what they will make."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, kinds: Iterable[type]) -> None:
        self._optimizer, self._device = optimizer, device
        self._is_due = device.type != "cpu" and type(optimizer) in set(kinds)
        self._held: list[torch.Tensor] = []

    def take(self) -> None:
        """Before the first pass; later calls do nothing. Where state and gradients have no room beside the parameters, none is
        kept: no split could make any."""
        if not self._is_due:
            return
        self._is_due = False
        state = state_to_come(self._optimizer)
        gradients = gradients_to_come(self._optimizer) if state else []
        try:
            for size in (*state, *gradients):
                self._held.append(torch.empty(size, dtype=torch.uint8, device=self._device))
            del self._held[len(state) :]
            return
        except RuntimeError as error:
            if not read_failure(error).is_oom:
                raise
        self.give()
        release()

    def give(self) -> bool:
        """The room is free for whoever needs it. False: none was kept."""
        kept = bool(self._held)
        self._held.clear()
        return kept


def state_to_come(optimizer: torch.optim.Optimizer) -> list[int]:
    """Bytes of each tensor that the first step will make, in its order: found out by a step on tensors without data."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        new = [each for each in group["params"] if each.requires_grad and not optimizer.state.get(each)]
        if new:
            groups.append({**group, **_PLAINLY, "params": [_without_data(each) for each in new]})
    if not groups:
        return []
    kind: Any = type(optimizer)
    twin = kind(groups)
    step = inspect.unwrap(kind.step)  # whoever watches optimizers is not to hear of this one
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # some ask for a value, when all state is made
        step(twin)
    values = [value for state in twin.state.values() for value in state.values()]
    return [
        value.nbytes
        for value in values
        if isinstance(value, torch.Tensor) and value.is_meta and value.numel() > 1
    ]


def gradients_to_come(optimizer: torch.optim.Optimizer) -> list[int]:
    """Bytes of each gradient that the backward pass will make."""
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    return [_mine(each).nbytes for each in parameters if each.requires_grad and each.grad is None]


_PLAINLY = {"foreach": False, "fused": False, "capturable": False, "differentiable": False, "lr": 0.1}
"""What a step needs to run without data; none of it decides what state there is."""


def _without_data(parameter: Any) -> torch.nn.Parameter:
    mine = _mine(parameter)
    stand_in = torch.nn.Parameter(torch.empty(mine.shape, dtype=mine.dtype, device="meta"))
    stand_in.grad = torch.empty_like(stand_in)
    return stand_in


def _mine(parameter: Any) -> Any:
    """Of a sharded parameter, what this rank holds."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
