"""The device memory and the address space that the allocator uses."""

from bisect import insort
from collections.abc import Callable
from typing import Final

from legroom.errors import UsageError
from legroom.units import MiB, TiB

FIRST_SEGMENT_ADDRESS: Final = 0x7F00_0000_0000
FIRST_RANGE_ADDRESS: Final = 0x3_0200_0000
ADDRESS_UNIT: Final = 32 * MiB
UPPER_GAP: Final = (FIRST_SEGMENT_ADDRESS + 74 * MiB, 24 * MiB)
"""The address and size of a gap above the first segment."""
WIDE_GAP: Final = 414 * MiB
"""The size of the gap below the first segment, which exists after the first kernel."""
WIDE_GAP_START: Final = FIRST_SEGMENT_ADDRESS - WIDE_GAP
LIBRARY_BYTES: Final = 64 * MiB
"""The size of the address space that each cuBLAS handle uses, without its workspace."""
UNLIMITED_TOTAL: Final = 1 * TiB
"""The memory assumed for a device of unknown capacity. This number determines the length of address ranges."""

Trace = Callable[[str, int, int, int], None]
"""A function that is called with (action, address, size, stream).

The actions are those of PyTorch's history: `segment_alloc`, `segment_free`, `segment_map` and `segment_unmap`.
"""


class DeviceMemory:
    __slots__ = ("allowed", "capacity", "on_segment", "reserved", "total", "trace")

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
        self.reserved = 0
        self.on_segment = on_segment
        self.trace = trace

    @property
    def limit(self) -> int | None:
        bounds = [bound for bound in (self.capacity, self.allowed) if bound is not None]
        return min(bounds) if bounds else None

    def set_fraction(self, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise UsageError(f"A memory fraction must be between 0 and 1, not {fraction}.")
        if fraction == 1:
            self.allowed = None
            return
        if self.total is None:
            raise UsageError("A memory fraction requires a device with a known capacity.")
        self.allowed = round(fraction * self.total)

    def allows(self, size: int) -> bool:
        return self.allowed is None or self.reserved + size <= self.allowed

    def has(self, size: int) -> bool:
        return self.capacity is None or self.reserved + size <= self.capacity

    def reserve(self, action: str, address: int, size: int, stream: int) -> None:
        self.reserved += size
        if self.on_segment is not None:
            self.on_segment(size)
        if self.trace is not None:
            self.trace(action, address, size, stream)

    def release(self, action: str, address: int, size: int, stream: int) -> None:
        self.reserved -= size
        if self.on_segment is not None:
            self.on_segment(-size)
        if self.trace is not None:
            self.trace(action, address, size, stream)


class AddressSpace:
    """Simulates the addresses at which CUDA places segments.

    Up to torch 2.12, the addresses decide which of several free blocks of equal size is used.

    The rules were derived from 108 recorded runs on an H200. For 103 of these runs, a replay with the simulated
    addresses reserves exactly the measured memory. A segment is placed in the lowest free gap that is large enough.
    At first, there are two small gaps: one for the first small segment, and `UPPER_GAP`. If no gap is large enough,
    units of 32 MiB are added below all other units. After the first operation, there is also a wide gap (`WIDE_GAP`)
    between the first segment and the units. Early segments therefore have decreasing addresses. The next several
    hundred MiB have increasing addresses, and later segments have decreasing addresses again. If the first segment
    was larger than a unit, the wide gap is divided into units, starting at its top. Handles of cuBLAS also use
    address space in these gaps. Address space that other libraries and host memory use is not simulated. Ranges for
    expandable segments are placed at increasing addresses, starting at a low address.
    """

    __slots__ = ("first_was_large", "free", "highest_unit", "lowest_unit", "next_range")

    def __init__(self) -> None:
        self.free = [(FIRST_SEGMENT_ADDRESS, 2 * MiB), UPPER_GAP]
        """The gaps as pairs (address, size), lowest address first."""
        self.lowest_unit = WIDE_GAP_START
        """The address of the lowest unit. Units fill the address space from this address to `WIDE_GAP_START`."""
        self.highest_unit = WIDE_GAP_START
        """New units are placed below this address, down to `WIDE_GAP_START`, and then below `lowest_unit`."""
        self.first_was_large: bool | None = None
        """True if the first segment was larger than a unit, and None before the first segment."""
        self.next_range = FIRST_RANGE_ADDRESS

    def kernels_run(self) -> None:
        if self.first_was_large:
            self.highest_unit += WIDE_GAP // ADDRESS_UNIT * ADDRESS_UNIT
        else:
            insort(self.free, (WIDE_GAP_START, WIDE_GAP))

    def library_loaded(self) -> None:
        self.segment(LIBRARY_BYTES, 0)

    def segment(self, size: int, stream: int) -> int:
        if self.first_was_large is None:
            self.first_was_large = size > ADDRESS_UNIT
        for position, (address, room) in enumerate(self.free):
            if room >= size:
                self.free[position : position + 1] = [(address + size, room - size)] if room > size else []
                return address
        units = -(-size // ADDRESS_UNIT) * ADDRESS_UNIT
        if self.highest_unit - units >= WIDE_GAP_START:
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
