"""Pauses Python's garbage collector while a script imports its libraries.

Importing torch and transformers creates several hundred thousand objects that stay alive. The collector scans these
objects repeatedly, which takes a fifth of the import time. After an import, the new objects are frozen (`gc.freeze`),
so later collections skip them. No collection writes to the memory pages of frozen objects, so forks do not copy these
pages. Once device memory is in use, the collector runs as usual, because it affects when the script's tensors are
freed.
"""

import builtins
import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def gc_paused_during_imports(may_freeze: Callable[[], bool]) -> Iterator[None]:
    """Disable garbage collection while modules are imported. After an import that creates many objects, all objects are
    frozen (`gc.freeze`) if `may_freeze` returns True.
    """
    plain_import = builtins.__import__
    depth = 0

    def import_without_gc(*arguments: Any, **options: Any) -> Any:
        nonlocal depth
        if depth or not gc.isenabled():
            return plain_import(*arguments, **options)
        depth = 1
        before = gc.get_count()[0]
        gc.disable()
        try:
            return plain_import(*arguments, **options)
        finally:
            depth = 0
            if gc.get_count()[0] - before > MANY_OBJECTS and may_freeze():
                gc.freeze()
            gc.enable()

    builtins.__import__ = import_without_gc
    try:
        yield
    finally:
        builtins.__import__ = plain_import


MANY_OBJECTS = 10_000


def instances_of(kind: type) -> Iterator[Any]:
    gc.unfreeze()
    return (thing for thing in gc.get_objects() if issubclass(type(thing), kind))
