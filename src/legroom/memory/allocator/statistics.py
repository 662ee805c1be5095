"""What torch.cuda.memory_stats() counts, kept so that counting costs next to nothing.

Each request and each free moves three figures: how many, how many bytes charged, how many bytes asked for. Only
running totals of them are kept; what is current is a difference, and a peak can only stand where a rise ends, so
peaks are looked for when the first free after a request comes (`note_peaks`). What moves rarely is a `Tally`.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Figures(NamedTuple):
    """One figure as memory_stats() gives it."""

    current: int
    peak: int
    allocated: int
    """The sum of all increases."""
    freed: int
    """The sum of all decreases."""


class Tally:
    """One figure that is kept up to date: its value, its peak, and the sum of its increases."""

    __slots__ = ("current", "increased", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.increased = 0

    def add(self, amount: int) -> None:
        """`amount` may be negative."""
        self.current += amount
        if amount > 0:
            self.increased += amount
            if self.current > self.peak:
                self.peak = self.current

    def figures(self) -> Figures:
        return Figures(self.current, self.peak, self.increased, self.increased - self.current)


class PoolStatistics:
    """The running totals of one pool."""

    __slots__ = (
        "bytes_freed",
        "bytes_made",
        "freed",
        "inactive_bytes_down",
        "inactive_bytes_up",
        "inactive_down",
        "inactive_up",
        "made",
        "requested_freed",
        "requested_made",
        "reserved",
        "segments",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.made = 0
        self.freed = 0
        self.bytes_made = 0
        self.bytes_freed = 0
        self.requested_made = 0
        self.requested_freed = 0
        """Grows when a free completes; `freed` and `bytes_freed` when it is asked for."""
        self.waiting = 0
        self.waiting_bytes = 0
        """Of frees that were asked for and are not complete, because another stream uses the block."""
        self.inactive_up = 0
        self.inactive_down = 0
        self.inactive_bytes_up = 0
        self.inactive_bytes_down = 0
        """Of free blocks in segments that are partly in use, expandable segments left aside as torch does."""
        self.segments = Tally()
        self.reserved = Tally()


class Statistics:
    """Both pools' totals, and every figure that is derived from them."""

    __slots__ = (
        "accumulated_before",
        "device_allocations",
        "device_frees",
        "large",
        "num_alloc_retries",
        "num_ooms",
        "num_synchronizations",
        "oversize_allocations",
        "oversize_segments",
        "peaks",
        "peaks_active",
        "peaks_inactive",
        "reserved",
        "segments",
        "small",
    )

    def __init__(self, small: PoolStatistics, large: PoolStatistics) -> None:
        self.small = small
        self.large = large
        self.segments = Tally()
        self.reserved = Tally()
        self.oversize_allocations = Tally()
        self.oversize_segments = Tally()
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_synchronizations = 0
        self.device_allocations = 0
        self.device_frees = 0
        self.peaks = [0] * 9
        """Count, bytes and requested bytes, each of both pools, of the large one and of the small one."""
        self.peaks_active = [0] * 6
        """Count and bytes likewise, with blocks whose free is not complete: noted only while there are any."""
        self.peaks_inactive = [0] * 6
        """Count and bytes likewise, of free blocks in segments that are partly in use."""
        self.accumulated_before: dict[str, int] = {}

    @property
    def allocated(self) -> int:
        small, large = self.small, self.large
        return small.bytes_made - small.bytes_freed + large.bytes_made - large.bytes_freed

    @property
    def requested(self) -> int:
        small, large = self.small, self.large
        return small.requested_made - small.requested_freed + large.requested_made - large.requested_freed

    def note_peaks(self) -> None:
        """To be called before the current figures fall, and before a peak is read."""
        small, large = self.small, self.large
        small_count = small.made - small.freed
        large_count = large.made - large.freed
        small_bytes = small.bytes_made - small.bytes_freed
        large_bytes = large.bytes_made - large.bytes_freed
        small_requested = small.requested_made - small.requested_freed
        large_requested = large.requested_made - large.requested_freed
        peaks = self.peaks
        if small_count + large_count > peaks[0]:
            peaks[0] = small_count + large_count
        if large_count > peaks[1]:
            peaks[1] = large_count
        if small_count > peaks[2]:
            peaks[2] = small_count
        if small_bytes + large_bytes > peaks[3]:
            peaks[3] = small_bytes + large_bytes
        if large_bytes > peaks[4]:
            peaks[4] = large_bytes
        if small_bytes > peaks[5]:
            peaks[5] = small_bytes
        if small_requested + large_requested > peaks[6]:
            peaks[6] = small_requested + large_requested
        if large_requested > peaks[7]:
            peaks[7] = large_requested
        if small_requested > peaks[8]:
            peaks[8] = small_requested
        if small.waiting or large.waiting:
            counts = (small_count + small.waiting, large_count + large.waiting)
            sizes = (small_bytes + small.waiting_bytes, large_bytes + large.waiting_bytes)
            now = (sum(counts), counts[1], counts[0], sum(sizes), sizes[1], sizes[0])
            self.peaks_active = [max(pair) for pair in zip(self.peaks_active, now, strict=True)]

    def note_inactive_peaks(self) -> None:
        """Likewise, for the free blocks in segments that are partly in use."""
        small, large = self.small, self.large
        small_count = small.inactive_up - small.inactive_down
        large_count = large.inactive_up - large.inactive_down
        small_bytes = small.inactive_bytes_up - small.inactive_bytes_down
        large_bytes = large.inactive_bytes_up - large.inactive_bytes_down
        peaks = self.peaks_inactive
        if small_count + large_count > peaks[0]:
            peaks[0] = small_count + large_count
        if large_count > peaks[1]:
            peaks[1] = large_count
        if small_count > peaks[2]:
            peaks[2] = small_count
        if small_bytes + large_bytes > peaks[3]:
            peaks[3] = small_bytes + large_bytes
        if large_bytes > peaks[4]:
            peaks[4] = large_bytes
        if small_bytes > peaks[5]:
            peaks[5] = small_bytes

    def reset_peaks(self) -> None:
        self.peaks = [0] * 9
        self.peaks_active = [0] * 6
        self.peaks_inactive = [0] * 6
        self.note_peaks()
        self.note_inactive_peaks()
        for tally in self._tallies():
            tally.peak = tally.current

    def reset_accumulated(self) -> None:
        """From here on, sums of increases and of decreases count from zero, and so do failures."""
        self.accumulated_before = {}
        self.accumulated_before = {
            key: value
            for key, value in self.as_dict(None).items()
            if key.endswith((".allocated", ".freed")) or key.startswith("num_")
        }

    def as_dict(self, max_split_size: int | None) -> dict[str, int]:
        """With the keys of torch.cuda.memory_stats()."""
        self.note_peaks()
        self.note_inactive_peaks()
        stats = {
            f"{name}.{of}.{kind}": value
            for name, by_pool in self._by_pool()
            for of, figures in zip(("all", "large_pool", "small_pool"), by_pool, strict=True)
            for kind, value in figures._asdict().items()
        }
        for name, tally in (
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ):
            stats |= {f"{name}.{kind}": value for kind, value in tally.figures()._asdict().items()}
        stats |= {
            "num_alloc_retries": self.num_alloc_retries,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_synchronizations,
            "num_device_alloc": self.device_allocations,
            "num_device_free": self.device_frees,
        }
        for key, before in self.accumulated_before.items():
            stats[key] -= before
        stats["max_split_size"] = -1 if max_split_size is None else max_split_size
        return dict(sorted(stats.items()))

    def _by_pool(self) -> Iterator[tuple[str, tuple[Figures, Figures, Figures]]]:
        """Each figure of both pools, of the large one and of the small one."""
        small, large = self.small, self.large
        pools = (large, small)
        count_made = [pool.made for pool in pools]
        count_freed = [pool.freed for pool in pools]
        bytes_made = [pool.bytes_made for pool in pools]
        bytes_freed = [pool.bytes_freed for pool in pools]
        yield "allocation", _triple(count_made, count_freed, self.peaks[0:3])
        yield "allocated_bytes", _triple(bytes_made, bytes_freed, self.peaks[3:6])
        yield (
            "requested_bytes",
            _triple(
                [pool.requested_made for pool in pools],
                [pool.requested_freed for pool in pools],
                self.peaks[6:9],
            ),
        )
        # What is active is what is allocated and what waits; without waiting blocks their peaks are the same.
        active_peaks = [max(pair) for pair in zip(self.peaks_active, self.peaks, strict=False)]
        count_left = [freed - pool.waiting for freed, pool in zip(count_freed, pools, strict=True)]
        bytes_left = [freed - pool.waiting_bytes for freed, pool in zip(bytes_freed, pools, strict=True)]
        yield "active", _triple(count_made, count_left, active_peaks[0:3])
        yield "active_bytes", _triple(bytes_made, bytes_left, active_peaks[3:6])
        yield (
            "inactive_split",
            _triple(
                [pool.inactive_up for pool in pools],
                [pool.inactive_down for pool in pools],
                self.peaks_inactive[0:3],
            ),
        )
        yield (
            "inactive_split_bytes",
            _triple(
                [pool.inactive_bytes_up for pool in pools],
                [pool.inactive_bytes_down for pool in pools],
                self.peaks_inactive[3:6],
            ),
        )
        for name, tallies in (
            ("segment", (self.segments, large.segments, small.segments)),
            ("reserved_bytes", (self.reserved, large.reserved, small.reserved)),
        ):
            yield name, (tallies[0].figures(), tallies[1].figures(), tallies[2].figures())

    def _tallies(self) -> Iterator[Tally]:
        for part in (self, self.small, self.large):
            yield from (part.segments, part.reserved)
        yield from (self.oversize_allocations, self.oversize_segments)


def _triple(made: list[int], freed: list[int], peaks: list[int]) -> tuple[Figures, Figures, Figures]:
    """From the figures of the large and the small pool, and the peaks of both, of the large and of the small."""
    large = Figures(made[0] - freed[0], peaks[1], made[0], freed[0])
    small = Figures(made[1] - freed[1], peaks[2], made[1], freed[1])
    return Figures(large.current + small.current, peaks[0], sum(made), sum(freed)), large, small
