"""Keeps the cyclic garbage collector away from millions of objects without cycles."""

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector inside the block."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _find_untrack() -> Callable[[Any], object]:
    """Return CPython's function, or one that does nothing in other interpreters."""
    try:
        function = ctypes.PyDLL(None).PyObject_GC_UnTrack  # its own object: others may set other types
        function.argtypes, function.restype = (ctypes.py_object,), None
        probe: list[Any] = [[]]
        function(probe)
        if not gc.is_tracked(probe):
            return function
    except (AttributeError, OSError, TypeError):
        pass
    return lambda value: None


untrack = _find_untrack()
"""`untrack(value)`: exclude an object from the garbage collector, which then neither visits it nor frees its cycles.

A program with a million live tensors has several objects of the recorder per tensor. The collector would visit all of them."""
