"""The statistics of `torch.cuda.memory_stats()`, counted at low cost.

Each allocation and each free updates only running totals: the count, the bytes and the requested bytes. A current
value is the difference between the totals of allocations and frees. A peak can occur only before a decrease, so the
peaks are updated at the first free after an allocation (`update_peaks`).
"""

from collections.abc import Iterator
from typing import NamedTuple


class StatValues(NamedTuple):
    current: int
    peak: int
    allocated: int
    freed: int


class Stat:
    __slots__ = ("current", "increased", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.increased = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if amount > 0:
            self.increased += amount
            if self.current > self.peak:
                self.peak = self.current

    def values(self) -> StatValues:
        return StatValues(self.current, self.peak, self.increased, self.increased - self.current)


class PoolStatistics:
    __slots__ = (
        "allocated_bytes_total",
        "allocated_count",
        "bytes_freed",
        "freed",
        "inactive_bytes_down",
        "inactive_bytes_up",
        "inactive_down",
        "inactive_up",
        "pending",
        "pending_bytes",
        "requested_freed",
        "requested_total",
        "reserved",
        "segments",
    )

    def __init__(self) -> None:
        self.allocated_count = 0
        self.freed = 0
        self.allocated_bytes_total = 0
        self.bytes_freed = 0
        self.requested_total = 0
        self.requested_freed = 0
        """The total requested bytes of all blocks that have been freed, without pending frees.

        In contrast, `bytes_freed` increases as soon as a free is requested.
        """
        self.pending = 0
        self.pending_bytes = 0
        """`pending` is the number of blocks that wait to be freed, because another stream still uses them.

        `pending_bytes` is their total size.
        """
        self.inactive_up = 0
        self.inactive_down = 0
        self.inactive_bytes_up = 0
        self.inactive_bytes_down = 0
        """The totals of free blocks in partly used segments. As in torch, expandable segments are not included."""
        self.segments = Stat()
        self.reserved = Stat()


class Statistics:
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
        self.segments = Stat()
        self.reserved = Stat()
        self.oversize_allocations = Stat()
        self.oversize_segments = Stat()
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_synchronizations = 0
        self.device_allocations = 0
        self.device_frees = 0
        self.peaks = [0] * 9
        """The peaks of the number of allocations, the allocated bytes and the requested bytes.

        Each statistic has three values: for both pools, for the large pool and for the small pool.
        """
        self.peaks_active = [0] * 6
        """The peaks of the number and the bytes of all blocks in use, including pending frees.

        These peaks are updated only while a free is pending.
        """
        self.peaks_inactive = [0] * 6
        """The peaks of the number and the bytes of free blocks in partly used segments."""
        self.accumulated_before: dict[str, int] = {}

    @property
    def allocated(self) -> int:
        small, large = self.small, self.large
        return (
            small.allocated_bytes_total - small.bytes_freed + large.allocated_bytes_total - large.bytes_freed
        )

    @property
    def requested(self) -> int:
        small, large = self.small, self.large
        return small.requested_total - small.requested_freed + large.requested_total - large.requested_freed

    def update_peaks(self) -> None:
        """Update the peaks. This method must run before the values decrease and before a peak is read."""
        small, large = self.small, self.large
        small_count = small.allocated_count - small.freed
        large_count = large.allocated_count - large.freed
        small_bytes = small.allocated_bytes_total - small.bytes_freed
        large_bytes = large.allocated_bytes_total - large.bytes_freed
        small_requested = small.requested_total - small.requested_freed
        large_requested = large.requested_total - large.requested_freed
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
        if small.pending or large.pending:
            counts = (small_count + small.pending, large_count + large.pending)
            sizes = (small_bytes + small.pending_bytes, large_bytes + large.pending_bytes)
            now = (sum(counts), counts[1], counts[0], sum(sizes), sizes[1], sizes[0])
            self.peaks_active = [max(pair) for pair in zip(self.peaks_active, now, strict=True)]

    def update_inactive_peaks(self) -> None:
        """Update the peaks of free blocks in partly used segments, like `update_peaks`."""
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
        self.update_peaks()
        self.update_inactive_peaks()
        for stat in self._stats():
            stat.peak = stat.current

    def reset_accumulated(self) -> None:
        self.accumulated_before = {}
        self.accumulated_before = {
            key: value
            for key, value in self.as_dict(None).items()
            if key.endswith((".allocated", ".freed")) or key.startswith("num_")
        }

    def as_dict(self, max_split_size: int | None) -> dict[str, int]:
        self.update_peaks()
        self.update_inactive_peaks()
        stats = {
            f"{name}.{of}.{kind}": value
            for name, by_pool in self._by_pool()
            for of, values in zip(("all", "large_pool", "small_pool"), by_pool, strict=True)
            for kind, value in values._asdict().items()
        }
        for name, stat in (
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ):
            stats |= {f"{name}.{kind}": value for kind, value in stat.values()._asdict().items()}
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

    def _by_pool(self) -> Iterator[tuple[str, tuple[StatValues, StatValues, StatValues]]]:
        """Yield each statistic with its values for both pools, for the large pool and for the small pool."""
        small, large = self.small, self.large
        pools = (large, small)
        count_made = [pool.allocated_count for pool in pools]
        count_freed = [pool.freed for pool in pools]
        allocated_bytes_total = [pool.allocated_bytes_total for pool in pools]
        bytes_freed = [pool.bytes_freed for pool in pools]
        yield "allocation", _triple(count_made, count_freed, self.peaks[0:3])
        yield "allocated_bytes", _triple(allocated_bytes_total, bytes_freed, self.peaks[3:6])
        yield (
            "requested_bytes",
            _triple(
                [pool.requested_total for pool in pools],
                [pool.requested_freed for pool in pools],
                self.peaks[6:9],
            ),
        )
        # Active blocks are allocated or pending. Without pending blocks, the peaks are the same.
        active_peaks = [max(pair) for pair in zip(self.peaks_active, self.peaks, strict=False)]
        count_left = [freed - pool.pending for freed, pool in zip(count_freed, pools, strict=True)]
        bytes_left = [freed - pool.pending_bytes for freed, pool in zip(bytes_freed, pools, strict=True)]
        yield "active", _triple(count_made, count_left, active_peaks[0:3])
        yield "active_bytes", _triple(allocated_bytes_total, bytes_left, active_peaks[3:6])
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
        for name, stats_by_pool in (
            ("segment", (self.segments, large.segments, small.segments)),
            ("reserved_bytes", (self.reserved, large.reserved, small.reserved)),
        ):
            yield name, (stats_by_pool[0].values(), stats_by_pool[1].values(), stats_by_pool[2].values())

    def _stats(self) -> Iterator[Stat]:
        for part in (self, self.small, self.large):
            yield from (part.segments, part.reserved)
        yield from (self.oversize_allocations, self.oversize_segments)


def _triple(made: list[int], freed: list[int], peaks: list[int]) -> tuple[StatValues, StatValues, StatValues]:
    large = StatValues(made[0] - freed[0], peaks[1], made[0], freed[0])
    small = StatValues(made[1] - freed[1], peaks[2], made[1], freed[1])
    return StatValues(large.current + small.current, peaks[0], sum(made), sum(freed)), large, small
