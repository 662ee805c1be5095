"""Lists the tensors and modules that were created since the leak detector started.

Reading all objects of a process takes tens of milliseconds, because most of them (classes, functions and module
dictionaries) are not in the CPU's caches. New objects are in the young generations of Python's garbage collector. An
object can leave these generations only by a collection. This module therefore reads the young generations before each
such collection and keeps weak references to the tensors and modules in them. `gc.freeze` hides objects from the
collector, and thus from this module.

The objects that existed before the start are read once, when a scan finds possible growth or the loop has run for some
iterations. This module continues between loops, for example during a validation, so that later loops need not read all
objects again.
"""

import gc
import sys
import time
import weakref
from typing import Any

from legroom.observe.instances import find_instances
from legroom.observe.interrupts import deliver_interrupts
from legroom.observe.leaks.live_objects import KINDS, LiveObjects
from legroom.observe.tensor_reference import TensorReference

_YOUNG = (0,) if sys.version_info >= (3, 14) else (0, 1)
"""The generations whose objects are new. In Python 3.14 and newer, each collection moves the objects of generation 0 to
the old objects. Without the global interpreter lock, all objects are in generation 0.
"""
_MIN_PRUNED = 1024
READ_AFTER_ITERATIONS = 20
KEEP_SECONDS = 60.0
"""How long this module continues after the last loop."""


class CreatedObjects:
    def __init__(self) -> None:
        self.includes_earlier = False
        """True if the objects that existed before the start are included."""
        self._users, self._stopped = 0, 0.0
        self._is_reading = False
        self._references: list[weakref.ref[Any]] = []
        """The tensors and modules that have left the young generations, and possibly objects that were freed."""
        self._earlier: dict[int, weakref.ref[Any]] = {}
        """Before the earlier objects are read, the objects that were young at the start."""
        self._prune_above = _MIN_PRUNED

    def start(self) -> None:
        self._users += 1
        if self._is_reading:
            return
        self._is_reading = True
        deliver_interrupts()
        self._references, self.includes_earlier = [], False
        self._earlier = {id(each): TensorReference(each) for each in _young_objects()}
        if self._collects not in gc.callbacks:
            gc.callbacks.append(self._collects)

    def stop(self) -> None:
        self._users -= 1
        self._stopped = time.perf_counter()

    def find(self) -> tuple[LiveObjects, LiveObjects]:
        """Return the live objects that were created since the start, and the earlier objects. The second result is
        empty until `read_earlier_objects` was called.
        """
        earlier = {key: each for key, reference in self._earlier.items() if (each := reference()) is not None}
        created = {id(each): each for each in _young_objects()}
        created |= {id(each): each for reference in self._references if (each := reference()) is not None}
        new = LiveObjects.of(each for key, each in created.items() if key not in earlier)
        return new, LiveObjects.of(earlier.values() if self.includes_earlier else ())

    def read_earlier_objects(self) -> None:
        created = {id(each) for group in self.find()[0] for each in group}
        earlier = (each for each in find_instances(KINDS) if id(each) not in created)
        self._earlier = {id(each): TensorReference(each) for each in earlier}
        self.includes_earlier = True

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if not self._is_reading:
            return  # a callback must not be removed during a collection, because the next callback would be skipped
        if not self._users and time.perf_counter() - self._stopped > KEEP_SECONDS:
            self._is_reading = False
            self._references, self._earlier = [], {}
        elif phase == "start" and info["generation"] >= _YOUNG[-1]:
            self._references += map(TensorReference, _young_objects())
            if len(self._references) > self._prune_above:
                self._references = [each for each in self._references if each() is not None]
                self._prune_above = max(2 * len(self._references), _MIN_PRUNED)


def _young_objects() -> list[Any]:
    return [each for generation in _YOUNG for each in find_instances(KINDS, generation)]


created_objects = CreatedObjects()
"""Shared by all leak detectors of the process."""
