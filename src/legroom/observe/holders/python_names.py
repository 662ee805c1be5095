"""Reads the objects that names refer to: local variables and attributes.

The garbage collector does not track the local variables of running functions, so they are read from the frames. No
method of the user's objects is called, including `repr`, properties and `__eq__`.
"""

import inspect
import sys
from collections import deque
from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

CONTAINERS = (list, dict, tuple, set, frozenset, deque)
LEAVES = (
    str, bytes, bytearray, int, float, complex, type(None), range, ModuleType, type, torch.dtype, torch.device, FrameType,
)  # fmt: skip
"""The types of objects that are not searched for tensors."""
_COPIES_LOCALS = sys.version_info < (3, 13)


def locals_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the local variables of a frame. Up to CPython 3.12, reading local variables creates a copy in the frame,
    which this function clears.
    """
    variables = frame.f_locals
    try:
        for name in list(variables):
            if isinstance(name, str):
                yield name, variables[name]
    finally:
        if _COPIES_LOCALS and variables is not frame.f_globals:
            variables.clear()


def attributes_of(item: Any) -> dict[str, Any] | None:
    """Return the attributes of an instance without running code from its class."""
    if isinstance(item, (*CONTAINERS, type, ModuleType, torch.Tensor, FunctionType)):
        return None
    try:
        attributes = object.__getattribute__(item, "__dict__")
        if isinstance(attributes, dict) and attributes:
            return attributes
    except (AttributeError, TypeError):
        pass
    slots: dict[str, Any] = {}
    for kind in type(item).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            descriptor = kind.__dict__.get(name)
            if inspect.ismemberdescriptor(descriptor):
                try:
                    slots[name] = descriptor.__get__(item)
                except AttributeError:
                    continue
    return slots or None


def key_of(mapping: dict[Any, Any], value: Any) -> str | None:
    for key, each in list(mapping.items()):
        if each is value and isinstance(key, str):
            return key
    return None


def file_of(kind: type) -> str | None:
    module = sys.modules.get(getattr(kind, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None
