"""Replays a recorded history of the CUDA allocator in the simulated allocator, and reports the differences.

The rows come from `torch.cuda.memory._snapshot()["device_traces"]`, as [action, address, size, stream]. The actions of
the program (alloc, free_requested) are repeated. The actions of the allocator (segment_alloc, segment_free, segment_map,
segment_unmap, free_completed, oom) are compared.

Some calls of the program have no row in torch's history. A recording may have additional rows for these calls:
`empty_cache`, and `set_limit` with the limit as its size. Without such rows, the replay assumes that memory was
released to make room if there is a limit, and otherwise by `empty_cache`.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import PENDING_FREE, Block
from legroom.memory.allocator.device import FIRST_SEGMENT_ADDRESS
from legroom.memory.allocator.settings import AllocatorSettings

Row = Sequence[Any]
"""[action, address, size, stream]."""

_RESERVES: Final = ("segment_alloc", "segment_map")
_RELEASES: Final = ("segment_free", "segment_unmap")
_MAX_EXAMPLES: Final = 20
_OTHER_STREAM: Final = -1


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    allocator: Allocator
    """The allocator after the replay."""
    events: int = 0
    """The number of replayed requests and frees."""
    mismatches: int = 0
    examples: list[str] = field(default_factory=list)
    """Descriptions of the first mismatches."""

    def add_mismatch(self, row: int, what: str) -> None:
        self.mismatches += 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(f"row {row}: {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A recording of tests/gpu/record_histories.py."""

    name: str
    rows: list[list[Any]]
    settings: AllocatorSettings
    total: int
    """The total memory of the device."""
    capacity: int
    """The memory that the process could use."""
    peaks: tuple[int, int]
    """The peaks of allocated and reserved memory in bytes."""
    stats: dict[str, int]
    """The final `memory_stats()`; empty if not recorded."""
    segments: list[dict[str, Any]]
    """Parts of the final `memory_snapshot()`; empty if not recorded."""
    errors: list[dict[str, Any]]
    """The message of each OutOfMemoryError, and the statistics at that time."""

    @classmethod
    def read(cls, path: Path) -> "History":
        data = json.loads(gzip.decompress(path.read_bytes()))
        settings = AllocatorSettings.from_environment(
            {"PYTORCH_CUDA_ALLOC_CONF": data["conf"]}, torch_version=data["torch"]
        )
        return cls(
            name=data["case"],
            rows=data["rows"],
            settings=settings,
            total=data["total"],
            capacity=data.get("capacity", data["total"]),
            peaks=(data["peak_alloc"], data["peak_reserved"]),
            stats=data.get("stats", {}),
            segments=data.get("segments", []),
            errors=data.get("errors", []),
        )

    def replay(self, *, with_addresses: bool = True) -> Replay:
        return replay(
            self.rows,
            settings=self.settings,
            capacity=self.capacity,
            total=self.total,
            with_addresses=with_addresses,
            peaks=self.peaks,
        )


def replay(
    rows: Sequence[Row],
    *,
    settings: AllocatorSettings | None = None,
    capacity: int | None = None,
    total: int | None = None,
    with_addresses: bool = True,
    peaks: tuple[int, int] | None = None,
) -> Replay:
    """Replay `rows`, starting with an empty allocator.

    `with_addresses`: segments are placed at the recorded addresses, and every address and segment must agree. Without
    it, only failures and the measured `peaks` (allocated, reserved) are compared, because these do not depend on
    addresses. `settings.ties` must be "address" for recordings of torch before 2.13.
    """
    return _Replayer(rows, settings, capacity, total, with_addresses).run(peaks)


class _Replayer:
    """Processes rows in groups: the actions of the allocator, then the request that caused them."""

    def __init__(
        self,
        rows: Sequence[Row],
        settings: AllocatorSettings | None,
        capacity: int | None,
        total: int | None,
        with_addresses: bool,
    ) -> None:
        self.rows = rows
        self.with_addresses = with_addresses
        self.live: dict[int, Block] = {}
        self.pending: dict[int, Block] = {}
        """Blocks whose free is pending, by recorded address."""
        self.completed: list[int] = []
        """Addresses whose free completed since the last request."""
        self.expected: list[tuple[Any, ...]] = []
        """The segment actions of the recorded allocator since the last request."""
        self.done: list[tuple[Any, ...]] = []
        """The segment actions of the simulated allocator since the last request."""
        self.unknown_address = FIRST_SEGMENT_ADDRESS
        self.has_call_rows = any(row[0] in ("empty_cache", "set_limit") for row in rows)
        self.collects_garbage = settings is not None and settings.garbage_collection_threshold > 0
        self.allocator = Allocator(
            capacity,
            settings=settings,
            total=total,
            base_address=self._recorded_address if with_addresses else None,
            streams_are_synchronous=False,
            trace=lambda *row: self.done.append(row),
        )
        self.result = Replay(self.allocator)

    def run(self, peaks: tuple[int, int] | None) -> Replay:
        rows, number = self.rows, 0
        while number < len(rows):
            action, address, size, stream = rows[number]
            if action == "alloc" or action == "oom":
                self._request(number, action == "alloc", address, size, stream)
            elif action == "free_requested":
                following = rows[number + 1] if number + 1 < len(rows) else None
                at_once = (
                    following is not None and following[0] == "free_completed" and following[1] == address
                )
                self._free(number, address, at_once)
                number += at_once
            elif action == "free_completed":
                self.completed.append(address)
            elif action in _RESERVES or action in _RELEASES:
                self.expected.append((action, address, size, stream))
            elif action == "empty_cache":
                number = self._empty_cache(number)
            elif action == "set_limit":
                self.allocator.set_limit(size)
            number += 1
        self._finish_group(number)
        if peaks is not None and peaks != (self.allocator.peak_allocated, self.allocator.peak_reserved):
            self.result.add_mismatch(
                number,
                f"peaks are {peaks}, replayed {self.allocator.peak_allocated, self.allocator.peak_reserved}",
            )
        return self.result

    def _request(self, number: int, succeeded: bool, address: int, size: int, stream: int) -> None:
        self.result.events += 1
        released = any(row[0] in _RELEASES for row in self.expected)
        if released and not self.has_call_rows and self.allocator.limit is None:
            self._empty_cache_unmarked(number)
            released = False
        # With a limit, frees complete when the allocator waits for all streams, after the search for a block has failed.
        if not (released or not succeeded) or self.collects_garbage:
            self._complete(number)
        try:
            block = self.allocator.malloc(size, stream)
        except AllocationFailed:
            if succeeded:
                self.result.add_mismatch(number, f"{size} bytes could be allocated, replayed they could not")
        else:
            if succeeded:
                self.live[address] = block
                if self.with_addresses and block.address != address:
                    self.result.add_mismatch(
                        number, f"{size} bytes lie at {address:#x}, replayed at {block.address:#x}"
                    )
            else:
                self.result.add_mismatch(number, f"{size} bytes could not be allocated, replayed they could")
                self.allocator.free(block)
        self._compare(number)
        self._complete(number)

    def _free(self, number: int, address: int, at_once: bool) -> None:
        self.result.events += 1
        self._finish_group(number)
        block = self.live.pop(address, None)
        if block is None:
            self.result.add_mismatch(number, f"{address:#x} is freed and was not allocated")
            return
        if not at_once:
            self.allocator.record_stream(block, _OTHER_STREAM)
            self.pending[address] = block
        self.allocator.free(block)

    def _empty_cache(self, number: int) -> int:
        """Replay `empty_cache`, and return the number of the last row that it caused."""
        self._finish_group(number)
        while number + 1 < len(self.rows) and (
            self.rows[number + 1][0] in _RELEASES or self.rows[number + 1][0] == "free_completed"
        ):
            number += 1
            row = self.rows[number]
            if row[0] == "free_completed":
                self.completed.append(row[1])
            else:
                self.expected.append(tuple(row))
        self.allocator.empty_cache()
        self._finish_group(number)
        return number

    def _empty_cache_unmarked(self, number: int) -> None:
        """Replay a call to `empty_cache` that has no row, but released memory."""
        released = [row for row in self.expected if row[0] in _RELEASES]
        reserved = [row for row in self.expected if row[0] in _RESERVES]
        self.expected = released
        self.allocator.empty_cache()
        self._finish_group(number)
        self.expected = reserved

    def _finish_group(self, number: int) -> None:
        """Process the remaining actions of a group."""
        self._compare(number)
        self._complete(number)

    def _complete(self, number: int) -> None:
        for address in self.completed:
            block = self.pending.pop(address, None)
            if block is None:
                self.result.add_mismatch(number, f"{address:#x} completed its free and was not waiting")
            elif block.state == PENDING_FREE:
                self.allocator.complete_free(block)
        self.completed.clear()

    def _compare(self, number: int) -> None:
        if self.with_addresses and self.expected != self.done:
            self.result.add_mismatch(number, f"segments {self.expected}, replayed {self.done}")
        self.expected = []
        self.done.clear()

    def _recorded_address(self, size: int, stream: int) -> int:
        """Return the address of the next recorded segment."""
        row = self.expected[len(self.done)] if len(self.done) < len(self.expected) else None
        if row is not None and row[0] in _RESERVES:
            return int(row[1])
        self.unknown_address += size
        return self.unknown_address
