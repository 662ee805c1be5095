"""The device as the allocator sees it: how much it has, how much this process may take, where the next piece lies."""

from collections.abc import Callable
from typing import Final

from legroom.errors import UsageError
from legroom.units import MiB, TiB

HIGHEST_SEGMENT: Final = 0x7F00_0000_0000
LOWEST_RANGE: Final = 0x3_0200_0000
ADDRESS_UNIT: Final = 32 * MiB
UNLIMITED_TOTAL: Final = 1 * TiB
"""What a device without a capacity is taken to have where a figure is needed: for the length of address ranges."""

Trace = Callable[[str, int, int, int], None]
"""Is told (action, address, size, stream) as torch's own history records it: `segment_alloc`, `segment_free`,
`segment_map`, `segment_unmap`."""


class DeviceMemory:
    """Keeps the account of what is taken; blocks and pools are none of its business."""

    __slots__ = ("allowed", "capacity", "on_segment", "taken", "total", "trace")

    def __init__(
        self,
        capacity: int | None,
        total: int | None,
        on_segment: Callable[[int], None] | None,
        trace: Trace | None,
    ) -> None:
        self.capacity = capacity
        self.total = total if total is not None else capacity
        self.allowed: int | None = None
        """What a per-process fraction leaves."""
        self.taken = 0
        self.on_segment = on_segment
        self.trace = trace

    @property
    def limit(self) -> int | None:
        bounds = [bound for bound in (self.capacity, self.allowed) if bound is not None]
        return min(bounds) if bounds else None

    def set_fraction(self, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise UsageError(f"a memory fraction lies between 0 and 1: {fraction} does not")
        if fraction == 1:
            self.allowed = None
            return
        if self.total is None:
            raise UsageError("a fraction of a device without a size is no limit: give the device a capacity")
        self.allowed = round(fraction * self.total)

    def allows(self, size: int) -> bool:
        """Whether the per-process fraction leaves room; asked before the device is."""
        return self.allowed is None or self.taken + size <= self.allowed

    def has(self, size: int) -> bool:
        """Whether the device still has `size` bytes."""
        return self.capacity is None or self.taken + size <= self.capacity

    def take(self, action: str, address: int, size: int, stream: int) -> None:
        self.taken += size
        if self.on_segment is not None:
            self.on_segment(size)
        if self.trace is not None:
            self.trace(action, address, size, stream)

    def give_back(self, action: str, address: int, size: int, stream: int) -> None:
        self.taken -= size
        if self.on_segment is not None:
            self.on_segment(-size)
        if self.trace is not None:
            self.trace(action, address, size, stream)


class AddressSpace:
    """Where CUDA would place the next piece of memory, as far as that can be known.

    Segments go downwards in units of 32 MiB; what a unit has left over serves the next segment that fits into it,
    the newest unit first. Ranges for expandable segments go upwards from a low address. A real process also has
    holes that libraries left, which nobody can foresee: addresses matter only where blocks of equal size compete,
    and there only before torch 2.13.
    """

    __slots__ = ("lowest_segment", "next_range", "rests")

    def __init__(self) -> None:
        self.lowest_segment = HIGHEST_SEGMENT
        self.next_range = LOWEST_RANGE
        self.rests: list[tuple[int, int]] = []
        """(address, size) of what units have left over, the newest last."""

    def segment(self, size: int, stream: int) -> int:
        for position in range(len(self.rests) - 1, -1, -1):
            address, rest = self.rests[position]
            if rest >= size:
                self.rests[position : position + 1] = [(address + size, rest - size)] if rest > size else []
                return address
        units = -(-size // ADDRESS_UNIT) * ADDRESS_UNIT
        self.lowest_segment -= units
        if units > size:
            self.rests.append((self.lowest_segment + size, units - size))
        return self.lowest_segment

    def range(self, size: int, stream: int) -> int:
        address = self.next_range
        self.next_range += -(-size // ADDRESS_UNIT) * ADDRESS_UNIT
        return address
