"""Reads a capture file.

An incomplete file, for example after a crash, is read up to its last valid line. If chunks were dropped to limit the
size of the file, the events continue from the state at the start of the next chunk. The events between `GapStarted`
and `GapEnded` are the steps of the dropped chunks, and the allocations, frees and tags that lead to this state.

A capture may come from an untrusted source, so every value is checked and decompression bombs are rejected.
"""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from legroom.errors import CaptureError, CaptureVersionError
from legroom.memory.annotations import GapEnded, GapStarted
from legroom.memory.capture.lines import FORMAT, VERSION, InvalidLine, LineDecoder, Site
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc, Event, Free, SegmentChange, Tag
from legroom.memory.garbage_collection import no_garbage_collection
from legroom.units import MiB

MAX_LINES = 60_000_000
"""The maximum number of lines to read: four times as many as a capture of the default size can contain. That many
events use about 15 GB of memory.
"""

_READ_SIZE = MiB // 4
_MAX_LINE = 4 * MiB
_MAX_RATIO = 250
"""The maximum ratio of decompressed to compressed size.

Real captures have a ratio of about 5, and identical lines reach about 250.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The content of a capture file."""

    path: Path
    run: dict[str, Any]
    """A description of the run: script, devices, versions, settings.

    The values have JSON types and are not checked further.
    """
    events: list[Event]
    truncated: bool
    """True if the end mark is missing, because the run was killed or is still running, or because the file
    was cut off or damaged.
    """
    dropped: int
    damaged: bool = False
    """True if the file contains invalid data. Only the events before this data are read."""


def read_capture(path: str | os.PathLike[str], *, max_lines: int = MAX_LINES) -> Capture:
    path = Path(path)
    try:
        with open(path, "rb") as file, no_garbage_collection():
            return _Reader(path, max_lines).read(file)
    except FileNotFoundError:
        raise CaptureError(f"{path} does not exist. Check the path.") from None
    except IsADirectoryError:
        raise CaptureError(f"{path} is a directory. Pass the path to a capture.") from None
    except OSError as error:
        raise CaptureError(f"Cannot read {path}: {error.strerror or error}.") from None


_OPENING = b'{"format":"' + FORMAT.encode() + b'"'
"""The first bytes of the decompressed text of a capture."""


class _Reader:
    def __init__(self, path: Path, max_lines: int) -> None:
        self._path = path
        self._max_lines = max_lines
        self._run: dict[str, Any] | None = None
        self._events: list[Event] = []
        self._dropped = 0
        self._position = 0
        self._in_gap = False
        self._steps_only = False
        self._known: dict[Site, Site] = {}
        self._decoder = LineDecoder(0, self._known, state_first=True)
        self._alive = _LiveStorages()

    def read(self, file: BinaryIO) -> Capture:
        damaged = False
        try:
            self._read_chunks(file)
        except InvalidLine:  # the file is valid up to here
            damaged = True
        if self._run is None:
            file.seek(0)
            raise CaptureError(_not_a_capture(self._path, file.read(4096)))
        return Capture(
            path=self._path,
            run=self._run,
            events=self._events,
            truncated=not self._decoder.ended,
            dropped=self._dropped,
            damaged=damaged,
        )

    def _read_chunks(self, file: BinaryIO) -> None:
        lines_read = 0
        for begins, lines in _lines(file, self._path):
            if begins:
                self._begin_chunk(_parse(lines.pop(0)))
            lines_read += len(lines)
            if lines_read > self._max_lines:
                raise CaptureError(
                    f"{self._path} contains more than {self._max_lines:,} lines, which is too many to read. "
                    "Record the run again with a smaller maximum size."
                )
            rows, all_valid = _parse_all(lines)
            self._decode(rows)
            if self._decoder.ended:
                return
            if not all_valid:
                raise InvalidLine

    def _begin_chunk(self, header: Any) -> None:
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise InvalidLine
        if self._run is None and header.get("version") != VERSION:
            raise CaptureVersionError(_other_version(self._path, header.get("version")))
        run, first_event, time = header.get("run"), header.get("first_event"), header.get("time")
        if not (isinstance(run, dict) and type(first_event) is int and type(time) is int):
            raise InvalidLine
        missing = first_event - self._position
        if missing < 0:
            raise InvalidLine
        self._run = run
        self._steps_only = header.get("holds") == "steps"
        self._decoder = LineDecoder(time, self._known, state_first=not self._steps_only)
        if self._steps_only:
            number, until, every = header.get("events"), header.get("until"), header.get("every")
            if not (type(number) is type(until) is type(every) is int):
                raise InvalidLine
            missing += number
            self._enter_gap(time, missing, every)
        elif missing:
            self._enter_gap(time, missing)
        self._dropped += missing
        self._position += missing

    def _decode(self, rows: list[Any]) -> None:
        decoded: list[Event] = []
        try:
            self._decoder.decode(rows, decoded)
        finally:
            if self._steps_only:
                self._dropped -= len(decoded)
            else:
                self._position += len(decoded)
                if self._in_gap and self._decoder.begun:
                    self._leave_gap()
            self._events += decoded

    def _enter_gap(self, microseconds: int, missing: int, every: int = 1) -> None:
        if not self._in_gap:
            self._alive.fold(self._events)
            self._events.append(GapStarted(microseconds / 1e6, missing, every))
        self._in_gap = True

    def _leave_gap(self) -> None:
        time = self._decoder.time / 1e6
        self._events += self._alive.changes_to(self._decoder.live, self._decoder.reserved, time)
        self._events.append(GapEnded(time))
        self._in_gap = False


class _LiveStorages:
    """The live storages before a gap, from which the changes during the gap are computed."""

    def __init__(self) -> None:
        self._folded = 0
        self._live: dict[int, Category] = {}
        self._reserved: dict[int, int] = {}

    def fold(self, events: list[Event]) -> None:
        for position in range(self._folded, len(events)):
            event = events[position]
            if isinstance(event, Alloc):
                self._live[event.id] = event.category
            elif isinstance(event, Free):
                self._live.pop(event.id, None)
            elif isinstance(event, Tag):
                if event.id in self._live:
                    self._live[event.id] = event.category
            elif isinstance(event, SegmentChange):
                self._reserved[event.device] = self._reserved.get(event.device, 0) + event.bytes
        self._folded = len(events)

    def changes_to(self, live: dict[int, Alloc], reserved: dict[int, int], time: float) -> Iterator[Event]:
        for id in self._live:
            if id not in live:
                yield Free(time, id)
        for id, alloc in live.items():
            if id not in self._live:
                yield alloc
            elif self._live[id] != alloc.category:
                yield Tag(id, alloc.category)
        for device in sorted({*reserved, *self._reserved}):
            change = reserved.get(device, 0) - self._reserved.get(device, 0)
            if change:
                yield SegmentChange(time, device, change)


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[bool, list[bytes]]]:
    """Yield the complete lines of the file in batches, each with a flag that is True if the batch starts a chunk.

    Reading stops at damaged data.
    """
    current, begins, rest = -1, True, b""
    for chunk, text in _decompressed(file, path):
        if chunk != current:
            current, begins, rest = chunk, True, b""
        *lines, rest = (rest + text).split(b"\n")
        if lines:
            yield begins, lines
            begins = False
        if len(rest) > _MAX_LINE:
            raise InvalidLine


def _decompressed(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the decompressed data in batches, each with the index of its gzip member."""
    chunk = bytes_read = bytes_decompressed = 0
    decompressor = zlib.decompressobj(31)
    while data := file.read(_READ_SIZE):
        bytes_read += len(data)
        while data:
            before = decompressor.copy()
            try:
                text = decompressor.decompress(data, 4 * _READ_SIZE)
            except zlib.error:
                yield chunk, _decompress_until_damage(before, data)
                raise InvalidLine from None
            bytes_decompressed += len(text)
            if bytes_decompressed > 64 * MiB + _MAX_RATIO * bytes_read:
                raise CaptureError(
                    f"{path} is too large after decompression. The file is damaged or malicious. Do not use "
                    "the file."
                )
            yield chunk, text
            if decompressor.eof:
                data = decompressor.unused_data
                decompressor = zlib.decompressobj(31)
                chunk += 1
            else:
                data = decompressor.unconsumed_tail
    yield chunk, decompressor.flush()


def _decompress_until_damage(decompressor: "zlib._Decompress", data: bytes) -> bytes:
    text = b""
    with suppress(zlib.error):
        for position in range(len(data)):
            text += decompressor.decompress(data[position : position + 1])
    return text


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidLine from error


def _parse_all(lines: list[bytes]) -> tuple[list[Any], bool]:
    """Return the values of `lines` up to the first invalid line, and whether all lines are valid."""
    try:  # several times as fast as one by one
        return list(json.loads("[" + b",".join(lines).decode() + "]")), True
    except (ValueError, RecursionError):
        rows: list[Any] = []
        with suppress(InvalidLine):
            for line in lines:
                rows.append(_parse(line))
        return rows, False


def is_start_of_capture(start: bytes) -> bool:
    """Return whether the first bytes of a file are those of a capture of any version."""
    return _decompress_until_damage(zlib.decompressobj(31), start).startswith(_OPENING)


def _not_a_capture(path: Path, start: bytes) -> str:
    if not start:
        return f"{path} is empty: it was cut off, or nothing was recorded. Record the run again."
    text = _decompress_until_damage(zlib.decompressobj(31), start)
    if (
        start[:2] == b"\x1f\x8b"[: len(start)]
        and _OPENING.startswith(text[: len(_OPENING)])
        and b"\n" not in text
    ):
        return f"{path} contains no events: it was cut off, or nothing was recorded. Record the run again."
    return f"{path} is not a Legroom capture. Pass a file that `legroom run` wrote."


def _other_version(path: Path, version: Any) -> str:
    if type(version) is int and version > VERSION:
        return (
            f"{path} was written by a newer version of Legroom in capture format {version}. This version "
            f"reads format {VERSION}. Upgrade with `pip install -U legroom`."
        )
    return (
        f"{path} was written by an older version of Legroom. This version reads only capture format "
        f"{VERSION}. Record the run again."
    )
