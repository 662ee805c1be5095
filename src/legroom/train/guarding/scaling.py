"""The ways in which Guard can scale losses: with a `Precision`, with the user's GradScaler, or not at all."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from legroom.errors import UsageError


class Scaling(Protocol):
    """The interface of `legroom.precision(...)` that Guard uses."""

    scaler: Any

    def autocast(self) -> AbstractContextManager[Any]: ...
    def scale(self, loss: torch.Tensor) -> torch.Tensor: ...
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None: ...
    def step(self, optimizer: torch.optim.Optimizer) -> object: ...
    def update(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class UserScaling:
    """Scaling with the user's own GradScaler, or no scaling. The user's function must apply autocast itself."""

    def __init__(self, scaler: Any = None) -> None:
        if scaler is not None and not hasattr(scaler, "unscale_"):
            raise UsageError(
                f"scaler= must be a torch.amp.GradScaler, not {type(scaler).__name__}. Alternatively, use precision='fp16'."
            )
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._is_unscaled = False

    def autocast(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = loss if self.scaler is None else self.scaler.scale(loss)
        return scaled

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler is not None and not self._is_unscaled:
            self.scaler.unscale_(optimizer)
            self._is_unscaled = True

    def step(self, optimizer: torch.optim.Optimizer) -> object:
        return optimizer.step() if self.scaler is None else self.scaler.step(optimizer)

    def update(self) -> None:
        if self.scaler is not None:
            self.scaler.update()
            self._is_unscaled = False

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)


def make_scaling(precision: Any, scaler: Any, device: torch.device) -> Scaling:
    if precision is None:
        return UserScaling(scaler)
    if scaler is not None:
        raise UsageError("precision= includes a GradScaler. Pass either precision= or scaler=, not both.")
    from legroom.train.precision import precision as make

    is_scaling = hasattr(precision, "autocast")
    scaling: Scaling = precision if is_scaling else make(precision, device=device)  # rejects other values
    return scaling
