"""Determines the device of each storage and of each operation's results.

On a virtual GPU, CPU tensors represent device tensors. A result is on the device of the operation's inputs, unless the
call requested a different device (`CallContext.target`). If an operation mixes devices, the same error is raised as on
CUDA.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from legroom.memory.event_base import Category
from legroom.observe.dispatch.checks import device_mismatch
from legroom.observe.dispatch.storages import LiveStorage, inner_tensor, storage_of, tensors_in

HOST = -1
"""The value of `CallContext.target` if the results of the call are in host memory."""
INHERIT = -2
"""The value of `CallContext.target` if the results of the call are on the device of its inputs."""


class CallContext(threading.local):
    target: int = INHERIT
    factory_target: int = INHERIT
    """The device of the results of operations without tensor inputs, such as the causal mask that attention creates.
    Outside any call, the value is INHERIT, because the autograd engine runs operations on the device of the backward
    pass.
    """
    only_named_factories: bool = False
    """True if `factory_target` applies only to operations that have a `device` argument. If so, the results of all
    other operations are on the host.
    """
    category: Category | None = None
    call: tuple[Any, Any, Any] | None = None
    """The torch function that the program is calling, with its arguments and keyword arguments."""
    backward_device: int = HOST


class DevicePlacement:
    def __init__(self, live: dict[int, LiveStorage]) -> None:
        self.live = live
        self.context = CallContext()

    def device_of(self, tensor: torch.Tensor) -> int | None:
        """Return the device of a tensor, or None for the host."""
        storage = storage_of(tensor)
        known = self.live.get(storage._cdata) if storage is not None else None
        if known is None:
            inner = inner_tensor(tensor)
            return None if inner is None else self.device_of(inner)
        return known.device

    def measure(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return the key of a tensor's storage and its allocated bytes, or None if the tensor is in host memory."""
        storage = storage_of(tensor)
        known = self.live.get(storage._cdata) if storage is not None else None
        return None if known is None or known.block is None else (storage._cdata, known.block.size)

    def device_of_inputs(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None, *, in_backward: bool
    ) -> tuple[int | None, set[int]]:
        """Return the device of an operation's inputs, and the keys of the host storages among them."""
        device: int | None = None
        hosts: set[int] = set()
        mixed = any_tensor = False
        live = self.live
        tensors: Iterable[torch.Tensor] = [item for item in args if isinstance(item, torch.Tensor)]
        if kwargs or not tensors or any(isinstance(item, (list, tuple)) for item in args):
            tensors = tensors_in((args, kwargs) if kwargs else args)
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is None:
                continue
            any_tensor = True
            known = live.get(storage._cdata)
            if known is None:
                hosts.add(storage._cdata)
            elif device is None:
                device = known.device
            elif device != known.device:
                mixed = True
        if device is not None and (mixed or hosts):
            self._check_devices(func, args, kwargs)
        if device is None and not any_tensor:
            target = self.context.factory_target
            if target == INHERIT:
                target = self.context.backward_device if in_backward else HOST
            elif self.context.only_named_factories and not (kwargs and kwargs.get("device")):
                target = HOST
            device = None if target == HOST else target
        return device, hosts

    def check_in_place(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        device = self.device_of(args[0])
        for other in args[1:]:
            if isinstance(other, torch.Tensor) and self.device_of(other) != device:
                self._check_devices(func, args, kwargs)
                break

    def _check_devices(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        call = self.context.call
        device_mismatch.check(
            func,
            args,
            tensors_in((args, kwargs) if kwargs else args),
            self.device_of,
            None if call is None else (call[0], tensors_in((call[1], call[2] or {}))),
        )
