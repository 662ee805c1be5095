"""The device as the allocator sees it: how much it has, how much this process may take, where the next piece lies."""

from bisect import insort
from collections.abc import Callable
from typing import Final

from legroom.errors import UsageError
from legroom.units import MiB, TiB

HIGHEST_SEGMENT: Final = 0x7F00_0000_0000
LOWEST_RANGE: Final = 0x3_0200_0000
ADDRESS_UNIT: Final = 32 * MiB
TOP: Final = (HIGHEST_SEGMENT + 74 * MiB, 24 * MiB)
"""Address and size of a place above the first segment."""
BETWEEN: Final = 414 * MiB
"""Below the first segment: what becomes free when kernels run."""
LOWEST_BETWEEN: Final = HIGHEST_SEGMENT - BETWEEN
LIBRARY: Final = 64 * MiB
"""What cuBLAS takes of the address space for each of its handles, before its workspace."""
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
    """Where CUDA places the next piece of memory: that decides which of several free blocks of one size is taken, up to torch 2.12.

    Read off 108 runs on an H200 whose segments were recorded; 103 of them, replayed so, reserve what they did. A segment takes the lowest free
    place that is large enough. There is little at first: a place for the first small segment, and `TOP` above it. Where nothing is free a unit
    of 32 MiB or several are added below all others. Once the first operation has run there is a wide place between the first
    segment and those units (`BETWEEN`): so early segments go downwards, then some hundred MiB upwards, and all that follow downwards again. Where
    the first segment was more than a unit, the wide place is not the driver's own but the system's, and is cut into units from its
    top. cuBLAS takes such a place too; what other libraries and the host's own memory take in between is left out. Ranges for expandable segments go upwards from a low address.
    """

    __slots__ = ("began_with_unit", "free", "highest_unit", "lowest_unit", "next_range")

    def __init__(self) -> None:
        self.free = [(HIGHEST_SEGMENT, 2 * MiB), TOP]
        """(address, size) of places, lowest first."""
        self.lowest_unit = LOWEST_BETWEEN
        """No unit lies below it, and none between it and `LOWEST_BETWEEN` is missing."""
        self.highest_unit = LOWEST_BETWEEN
        """From here down to `LOWEST_BETWEEN` units can be added as well."""
        self.began_with_unit: bool | None = None
        """Whether the first segment needed more than a unit; None before it."""
        self.next_range = LOWEST_RANGE

    def kernels_run(self) -> None:
        """The first operation has run."""
        if self.began_with_unit:
            self.highest_unit += BETWEEN // ADDRESS_UNIT * ADDRESS_UNIT
        else:
            insort(self.free, (LOWEST_BETWEEN, BETWEEN))

    def library_loaded(self) -> None:
        """cuBLAS was asked for a handle."""
        self.segment(LIBRARY, 0)

    def segment(self, size: int, stream: int) -> int:
        if self.began_with_unit is None:
            self.began_with_unit = size > ADDRESS_UNIT
        for position, (address, room) in enumerate(self.free):
            if room >= size:
                self.free[position : position + 1] = [(address + size, room - size)] if room > size else []
                return address
        units = -(-size // ADDRESS_UNIT) * ADDRESS_UNIT
        if self.highest_unit - units >= LOWEST_BETWEEN:
            address = self.highest_unit = self.highest_unit - units
        else:
            address = self.lowest_unit = self.lowest_unit - units
        if units > size:
            insort(self.free, (address + size, units - size))
        return address

    def range(self, size: int, stream: int) -> int:
        address = self.next_range
        self.next_range += -(-size // ADDRESS_UNIT) * ADDRESS_UNIT
        return address
