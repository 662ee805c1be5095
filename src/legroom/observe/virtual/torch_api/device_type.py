"""`torch.device(0)`: a plain number names the accelerator's device, and a CPU build of torch refuses it.

The type itself cannot be extended, so a stand-in takes its name: it makes real devices, and real devices are its
instances. Pickling looks a type up by name and would find the stand-in, so while it stands, devices are pickled
through it; what is written names `torch.device` as ever.
"""

import contextlib
import copyreg
from collections.abc import Iterator
from typing import Any

import torch

from legroom.observe.virtual.patching import replaced, table

_Device = torch.device


class _Meta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if len(args) == 1 and not kwargs and type(args[0]) is int:
            return _Device("cuda", args[0])
        return _Device(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Device)

    def __subclasscheck__(cls, kind: type) -> bool:
        return kind is cls or issubclass(kind, _Device)


@contextlib.contextmanager
def numbers_name_devices() -> Iterator[None]:
    """Within the block, `torch.device(1)` is `cuda:1`."""
    stand_in = _Meta("device", (), {"__module__": "torch", "__doc__": _Device.__doc__})

    def reduced(device: torch.device) -> tuple[Any, tuple[Any, ...]]:
        return stand_in, (device.type,) if device.index is None else (device.type, device.index)

    copyreg.pickle(_Device, reduced)
    try:
        with replaced(table(torch, {"device": stand_in})):
            yield
    finally:
        copyreg.dispatch_table.pop(_Device, None)
