"""A recorded history of the CUDA allocator, put through the replayed one, and where the two disagree.

The rows are those of `torch.cuda.memory._snapshot()["device_traces"]`, as [action, address, size, stream]. What the
program did (alloc, free_requested) is done again; what the allocator did of itself (segment_alloc, segment_free,
segment_map, segment_unmap, free_completed, oom) is compared.

A program's own calls leave no row. A recording may say where they were, in rows of its own: `empty_cache`, and
`set_limit` with the limit as its size. Without such rows, memory given back under a limit was given back to make
room, and memory given back without one by `empty_cache`.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import WAITING, Block
from legroom.memory.allocator.device import HIGHEST_SEGMENT
from legroom.memory.allocator.settings import AllocatorSettings

Row = Sequence[Any]
"""[action, address, size, stream]."""

_TAKES: Final = ("segment_alloc", "segment_map")
_GIVES_BACK: Final = ("segment_free", "segment_unmap")
_KEPT_EXAMPLES: Final = 20
_OTHER_STREAM: Final = -1


@dataclass(slots=True)
class Replay:
    """What came of it."""

    allocator: Allocator
    """As the history left it."""
    events: int = 0
    """Requests and frees that were replayed."""
    mismatches: int = 0
    examples: list[str] = field(default_factory=list)
    """The first mismatches, in words."""

    def disagree(self, row: int, what: str) -> None:
        self.mismatches += 1
        if len(self.examples) < _KEPT_EXAMPLES:
            self.examples.append(f"row {row}: {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A recording, as tests/gpu/record_histories.py writes it."""

    name: str
    rows: list[list[Any]]
    settings: AllocatorSettings
    total: int
    """The device's memory ..."""
    capacity: int
    """... and what of it this process could have."""
    peaks: tuple[int, int]
    """Allocated, reserved."""
    stats: dict[str, int]
    """memory_stats() at the end; empty where not recorded."""
    segments: list[dict[str, Any]]
    """memory_snapshot() at the end, cut down; empty where not recorded."""
    errors: list[dict[str, Any]]
    """Each OutOfMemoryError: its text, and the figures around it."""

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
    """Replays `rows` from an empty allocator on.

    `with_addresses`: segments are placed where CUDA placed them, and every address and every segment must agree;
    otherwise only what does not depend on addresses is compared: failures, and the `peaks` (allocated, reserved)
    that were measured. Mind that `settings.ties` is "address" for recordings of torch before 2.13.
    """
    return _Replayer(rows, settings, capacity, total, with_addresses).run(peaks)


class _Replayer:
    """Reads rows in groups: what the allocator did of itself, then the request that made it do so."""

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
        self.waiting: dict[int, Block] = {}
        """Both by the recorded address."""
        self.completed: list[int] = []
        """Addresses whose free completed since the last request."""
        self.expected: list[tuple[Any, ...]] = []
        """What the recorded allocator took from the device and gave back since the last request ..."""
        self.done: list[tuple[Any, ...]] = []
        """... and the replayed one."""
        self.unknown_address = HIGHEST_SEGMENT
        self.calls_are_marked = any(row[0] in ("empty_cache", "set_limit") for row in rows)
        self.collects_garbage = settings is not None and settings.garbage_collection_threshold > 0
        self.allocator = Allocator(
            capacity,
            settings=settings,
            total=total,
            base_address=self._recorded_address if with_addresses else None,
            streams_keep_up=False,
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
            elif action in _TAKES or action in _GIVES_BACK:
                self.expected.append((action, address, size, stream))
            elif action == "empty_cache":
                number = self._empty_cache(number)
            elif action == "set_limit":
                self.allocator.set_limit(size)
            number += 1
        self._settle(number)
        if peaks is not None and peaks != (self.allocator.peak_allocated, self.allocator.peak_reserved):
            self.result.disagree(
                number,
                f"peaks are {peaks}, replayed {self.allocator.peak_allocated, self.allocator.peak_reserved}",
            )
        return self.result

    def _request(self, number: int, succeeded: bool, address: int, size: int, stream: int) -> None:
        self.result.events += 1
        gave_back = any(row[0] in _GIVES_BACK for row in self.expected)
        if gave_back and not self.calls_are_marked and self.allocator.limit is None:
            self._empty_cache_unmarked(number)
            gave_back = False
        # Under a limit, frees complete where the allocator waits for all streams, after the search has failed.
        if not (gave_back or not succeeded) or self.collects_garbage:
            self._complete(number)
        try:
            block = self.allocator.malloc(size, stream)
        except AllocationFailed:
            if succeeded:
                self.result.disagree(number, f"{size} bytes could be allocated, replayed they could not")
        else:
            if succeeded:
                self.live[address] = block
                if self.with_addresses and block.address != address:
                    self.result.disagree(
                        number, f"{size} bytes lie at {address:#x}, replayed at {block.address:#x}"
                    )
            else:
                self.result.disagree(number, f"{size} bytes could not be allocated, replayed they could")
                self.allocator.free(block)
        self._compare(number)
        self._complete(number)

    def _free(self, number: int, address: int, at_once: bool) -> None:
        self.result.events += 1
        self._settle(number)
        block = self.live.pop(address, None)
        if block is None:
            self.result.disagree(number, f"{address:#x} is freed and was not allocated")
            return
        if not at_once:
            self.allocator.record_stream(block, _OTHER_STREAM)
            self.waiting[address] = block
        self.allocator.free(block)

    def _empty_cache(self, number: int) -> int:
        """The last row that the call caused."""
        self._settle(number)
        while number + 1 < len(self.rows) and (
            self.rows[number + 1][0] in _GIVES_BACK or self.rows[number + 1][0] == "free_completed"
        ):
            number += 1
            row = self.rows[number]
            if row[0] == "free_completed":
                self.completed.append(row[1])
            else:
                self.expected.append(tuple(row))
        self.allocator.empty_cache()
        self._settle(number)
        return number

    def _empty_cache_unmarked(self, number: int) -> None:
        """Memory was given back, and nothing but the program can have asked for it."""
        given = [row for row in self.expected if row[0] in _GIVES_BACK]
        taken = [row for row in self.expected if row[0] in _TAKES]
        self.expected = given
        self.allocator.empty_cache()
        self._settle(number)
        self.expected = taken

    def _settle(self, number: int) -> None:
        """Before the next group: what is left over of this one."""
        self._compare(number)
        self._complete(number)

    def _complete(self, number: int) -> None:
        for address in self.completed:
            block = self.waiting.pop(address, None)
            if block is None:
                self.result.disagree(number, f"{address:#x} completed its free and was not waiting")
            elif block.state == WAITING:
                self.allocator.complete_free(block)
        self.completed.clear()

    def _compare(self, number: int) -> None:
        if self.with_addresses and self.expected != self.done:
            self.result.disagree(number, f"segments {self.expected}, replayed {self.done}")
        self.expected = []
        self.done.clear()

    def _recorded_address(self, size: int, stream: int) -> int:
        """Of the segment that the recorded allocator took next."""
        row = self.expected[len(self.done)] if len(self.done) < len(self.expected) else None
        if row is not None and row[0] in _TAKES:
            return int(row[1])
        self.unknown_address += size
        return self.unknown_address
