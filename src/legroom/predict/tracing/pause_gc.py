"""Python's cycle collector rests while a script imports its libraries.

Importing torch and transformers makes some hundred thousand objects that all live on, and the collector walks over them again and
again: a fifth of the time that such imports take. What they made is then put out of its sight (`gc.freeze`), so that later
collections, and forks that would copy each page it touches, are spared it too. Once the device holds something the
collector works as ever: what it frees there, and when, is the script's own.
"""

import builtins
import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def resting_during_imports(may_freeze: Callable[[], bool]) -> Iterator[None]:
    """While active, no collection takes place inside an import. `may_freeze`: whether what lives after one may be passed over."""
    plain_import = builtins.__import__
    depth = 0

    def rested(*arguments: Any, **options: Any) -> Any:
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
            if gc.get_count()[0] - before > MANY and may_freeze():
                gc.freeze()
            gc.enable()

    builtins.__import__ = rested
    try:
        yield
    finally:
        builtins.__import__ = plain_import


MANY = 10_000
"""New objects after which passing over them is worth it."""


def living(kind: type) -> Iterator[Any]:
    """Everything of a kind that the collector knows, frozen or not."""
    gc.unfreeze()
    return (thing for thing in gc.get_objects() if issubclass(type(thing), kind))
