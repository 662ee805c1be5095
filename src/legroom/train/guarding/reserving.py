"""Reserves memory for the optimizer state before the first forward pass, and releases it at the first optimizer step.

Optimizers such as Adam allocate twice the memory of the parameters in their first step. Without a reservation, a batch
could fit in the first passes and then fail in the optimizer or in the next step. With the reservation, a batch that is
too large fails in the passes, where smaller micro-batches help. The reserved blocks have the same sizes as the tensors
that the optimizer will allocate. The optimizer itself is not modified.
"""

import contextlib
import inspect
from collections.abc import Iterable
from typing import Any

import torch

from legroom.train.guarding.recovery import classify_failure, release_memory


class StateReservation:
    """Memory that is reserved for the state of an optimizer. `supported` contains the optimizer classes whose state
    sizes can be predicted."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: torch.device, supported: Iterable[type]
    ) -> None:
        self._optimizer, self._device = optimizer, device
        self._is_pending = device.type != "cpu" and type(optimizer) in set(supported)
        self._blocks: list[torch.Tensor] = []

    def reserve(self) -> None:
        """Reserve memory before the first pass. Later calls do nothing.

        If parameters, gradients and state together do not fit on the device, nothing is reserved, because smaller
        micro-batches would not help.
        """
        if not self._is_pending:
            return
        self._is_pending = False
        state = future_state_sizes(self._optimizer)
        gradients = future_gradient_sizes(self._optimizer) if state else []
        try:
            for size in (*state, *gradients):
                self._blocks.append(torch.empty(size, dtype=torch.uint8, device=self._device))
            del self._blocks[len(state) :]
            return
        except RuntimeError as error:
            if not classify_failure(error).is_oom:
                raise
        self.release()
        release_memory()

    def release(self) -> bool:
        had_blocks = bool(self._blocks)
        self._blocks.clear()
        return had_blocks


def future_state_sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return the size in bytes of each state tensor that the first step will create, in the order of creation. The
    sizes are determined by a step on meta tensors."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        new = [each for each in group["params"] if each.requires_grad and not optimizer.state.get(each)]
        if new:
            groups.append({**group, **_META_OPTIONS, "params": [_meta_parameter(each) for each in new]})
    if not groups:
        return []
    optimizer_class: Any = type(optimizer)
    meta_optimizer = optimizer_class(groups)
    step = inspect.unwrap(optimizer_class.step)  # do not trigger hooks that observe optimizers
    # Some optimizers read a value, but only after all state is created.
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        step(meta_optimizer)
    values = [value for state in meta_optimizer.state.values() for value in state.values()]
    return [
        value.nbytes
        for value in values
        if isinstance(value, torch.Tensor) and value.is_meta and value.numel() > 1
    ]


def future_gradient_sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    return [_local(each).nbytes for each in parameters if each.requires_grad and each.grad is None]


_META_OPTIONS = {"foreach": False, "fused": False, "capturable": False, "differentiable": False, "lr": 0.1}


def _meta_parameter(parameter: Any) -> torch.nn.Parameter:
    local = _local(parameter)
    meta = torch.nn.Parameter(torch.empty(local.shape, dtype=local.dtype, device="meta"))
    meta.grad = torch.empty_like(meta)
    return meta


def _local(parameter: Any) -> Any:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
