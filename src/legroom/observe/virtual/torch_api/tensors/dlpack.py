"""Converts device tensors to and from DLPack capsules. A capsule has the device type CUDA, so libraries for the CPU
(NumPy) reject it.

The data of a tensor on a virtual GPU is in host memory. Therefore the capsule is created as a CPU capsule, and its
device type is then changed in place. Before torch imports the capsule, the device type is changed back to CPU. The
structures have the layout of the DLPack standard.
"""

import ctypes
from collections.abc import Iterable
from typing import Any

import torch

from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, optional_module, table

CPU, CUDA = 1, 2
_DEVICE_OFFSETS = {b"dltensor": 8, b"dltensor_versioned": 40}
"""Maps the name of a capsule to the byte offset of its `device` field."""

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    original_to: Any = getattr(torch._C, "_to_dlpack", None)
    original_from: Any = getattr(torch._C, "_from_dlpack", None)
    if original_to is None or original_from is None:
        return

    def to_dlpack(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return with_device(original_to(tensor, *arguments, **options), host.device_of(tensor))

    def from_dlpack(capsule: Any) -> Any:
        device = _device_of(capsule)
        if device is None or device.device_type != CUDA:
            return original_from(capsule)
        index = device.device_id
        device.device_type, device.device_id = CPU, 0
        made = original_from(capsule)
        # The memory counts for the exported tensor, which the capsule keeps alive.
        host.mark(made.untyped_storage(), index, counted=False)
        return made

    yield from table(torch._C, {"_to_dlpack": to_dlpack, "_from_dlpack": from_dlpack})
    for owner in (torch, optional_module("torch.utils.dlpack")):
        yield from table(owner, {"to_dlpack": to_dlpack, "_from_dlpack": from_dlpack})


def with_device(capsule: Any, index: int | None) -> Any:
    device = None if index is None else _device_of(capsule)
    if device is not None:
        device.device_type, device.device_id = CUDA, index
    return capsule


def _device_of(capsule: Any) -> _DLDevice | None:
    if type(capsule).__name__ != "PyCapsule":
        return None
    name = _name(capsule)
    offset = _DEVICE_OFFSETS.get(name)
    return None if offset is None else _DLDevice.from_address(_pointer(capsule, name) + offset)
