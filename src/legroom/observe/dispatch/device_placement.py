"""Which device a storage lives on, and where the results of an operation will.

On a virtual GPU, CPU tensors stand for those of devices: a result lives where the operation's inputs live, unless the call said
otherwise (`Context.target`). Where tensors of two devices meet, torch's own sentence is raised, as CUDA would.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from legroom.memory.events import Category
from legroom.observe.dispatch import device_mismatch
from legroom.observe.dispatch.storages import Live, storage_of, tensors_in

HOST = -1
"""`Context.target`: what the call makes lives in host memory."""
INHERIT = -2
"""`Context.target`: what the call makes lives where its inputs live."""


class Context(threading.local):
    """What the call in progress on this thread said about its results."""

    target: int = INHERIT
    orphans: int = INHERIT
    """Where results of an operation without tensor inputs live: such are made inside larger ones (a causal mask
    inside attention). INHERIT outside any call: the engine made it, and it lives where the backward pass is."""
    category: Category | None = None
    call: tuple[Any, Any, Any] | None = None
    """The torch function that the program called, its arguments and its named arguments, while it runs."""


class Residence:
    """Tells where storages live, by those that are known to live on a device."""

    def __init__(self, live: dict[int, Live]) -> None:
        self.live = live
        self.context = Context()
        self.backward_device = HOST
        """The device that the last backward operation was on."""

    def device_of(self, tensor: torch.Tensor) -> int | None:
        """The device a tensor lives on, or None for the host."""
        storage = storage_of(tensor)
        known = self.live.get(storage._cdata) if storage is not None else None
        if known is None:
            local = getattr(tensor, "_local_tensor", None)  # a sharded tensor has no storage, its shard has
            return None if local is None else self.device_of(local)
        return known.device

    def measure(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """The key of a tensor's storage and the bytes it is charged, or None for the host."""
        storage = storage_of(tensor)
        known = self.live.get(storage._cdata) if storage is not None else None
        return None if known is None or known.block is None else (storage._cdata, known.block.size)

    def of_inputs(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None, *, in_backward: bool
    ) -> tuple[int | None, set[int]]:
        """The device that an operation's inputs live on, and the host storages among them."""
        device: int | None = None
        hosts: set[int] = set()
        mixed = any_tensor = False
        for tensor in tensors_in((args, kwargs) if kwargs else args):
            storage = storage_of(tensor)
            if storage is None:
                continue
            any_tensor = True
            known = self.live.get(storage._cdata)
            if known is None:
                hosts.add(storage._cdata)
            elif device is None:
                device = known.device
            elif device != known.device:
                mixed = True
        if device is not None and (mixed or hosts):
            self._check_meeting(func, args, kwargs)
        if device is None and not any_tensor:
            orphans = self.context.orphans
            if orphans == INHERIT:
                orphans = self.backward_device if in_backward else HOST
            device = None if orphans == HOST else orphans
        return device, hosts

    def check_written_together(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        """For an operation that only writes into its inputs: they must be on one device."""
        here = self.device_of(args[0])
        for other in args[1:]:
            if isinstance(other, torch.Tensor) and self.device_of(other) != here:
                self._check_meeting(func, args, kwargs)
                break

    def _check_meeting(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        call = self.context.call
        device_mismatch.check(
            func,
            args,
            tensors_in((args, kwargs) if kwargs else args),
            self.device_of,
            None if call is None else (call[0], tensors_in((call[1], call[2] or {}))),
        )
