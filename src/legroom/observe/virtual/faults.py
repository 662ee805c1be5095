"""Allocations that fail on purpose: what a program does when memory runs out exactly there.

A step makes a known number of allocations. Failing the first, the second and so on to the last shows whether a handler
leaves everything right wherever memory runs out; waiting for a GPU to be full shows one place.
"""

from collections.abc import Iterable
from typing import Any

from legroom.errors import UsageError
from legroom.memory.allocator.allocator import AllocationFailed, Allocator


class Injected(AllocationFailed):
    """A failure that somebody asked for: it is not tried again, whatever room there is."""


class Faults:
    """Allocation number `number` from now fails, and so do the `times - 1` that follow it; then all is as before."""

    def __init__(self, allocators: Iterable[Allocator], number: int, times: int) -> None:
        if number < 1 or times < 1:
            raise UsageError("allocations are counted from 1: fail_allocation(1) fails the next one")
        self._allocators: list[Any] = list(allocators)
        self._first, self._last, self._count = number, number + times - 1, 0
        for allocator in self._allocators:
            allocator.malloc = self._counting(allocator)

    @property
    def happened(self) -> bool:
        """Whether the first of them has failed by now."""
        return self._count >= self._first

    def disarm(self) -> None:
        """No more failures."""
        for allocator in self._allocators:
            vars(allocator).pop("malloc", None)
        self._allocators = []

    def _counting(self, allocator: Allocator) -> Any:
        plain = allocator.malloc

        def malloc(size: int, stream: int = 0) -> Any:
            self._count += 1
            if self._count >= self._last:
                self.disarm()
            if self._count < self._first:
                return plain(size, stream)
            raise Injected(size, size)

        return malloc
