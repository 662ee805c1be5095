"""Keeps the cyclic garbage collector from scanning millions of objects without cycles."""

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _find_untrack() -> Callable[[Any], object]:
    try:
        # `PyDLL` creates a new function object. Other code may set different argument types on a shared function
        # object.
        function = ctypes.PyDLL(None).PyObject_GC_UnTrack
        function.argtypes, function.restype = (ctypes.py_object,), None
        probe: list[Any] = [[]]
        function(probe)
        if not gc.is_tracked(probe):
            return function
    except (AttributeError, OSError, TypeError):
        pass
    return lambda value: None


untrack = _find_untrack()
"""`untrack(value)` excludes an object from the garbage collector.

The collector then neither visits the object nor frees reference cycles that contain it.

Never untrack a weak reference that has a callback: the collector moves such references between its lists, and crashes
if a reference is not in a list.

A program with a million live tensors has several recorder objects per tensor, which the collector would visit.
"""
