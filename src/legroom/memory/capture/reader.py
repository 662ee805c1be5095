"""Reads a capture file back, whoever wrote it and however it ended.

A file that breaks off, as after a crash, is read up to where it breaks. Where chunks were dropped to keep it small,
the events go on from the state in which the next chunk found the run: between a `GapStarted` and a `GapEnded`
are the steps of the dropped chunks, then the allocations, frees and tags that lead to that state.

A capture may come from a stranger: every value is checked, and what unpacks to absurd sizes is refused.
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
from legroom.memory.capture.lines import FORMAT, VERSION, BadRow, RowDecoder, Site
from legroom.memory.events import Alloc, Category, Event, Free, Segment, Tag
from legroom.memory.garbage_collection import no_garbage_collection
from legroom.units import MiB

MAX_ROWS = 60_000_000
"""Some 15 GB of events: four times what a capture of the default size can hold."""

_PIECE = MiB // 4
_LONGEST_LINE = 4 * MiB
_HIGHEST_RATIO = 250
"""Unpacked to packed. The compressor cannot do much better even on equal lines; real captures are at about 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a capture file holds."""

    path: Path
    run: dict[str, Any]
    """What the writer said of the run: script, devices, versions, settings. Unchecked but for being JSON."""
    events: list[Event]
    """In order."""
    truncated: bool
    """Whether the file breaks off: the run was killed, or still goes on, or the file is damaged."""
    dropped: int
    """How many events are missing because the file was kept small."""


def read_capture(path: str | os.PathLike[str], *, max_rows: int = MAX_ROWS) -> Capture:
    """Read a capture, or say in a sentence why it cannot be read (CaptureError, CaptureVersionError)."""
    path = Path(path)
    try:
        with open(path, "rb") as file, no_garbage_collection():
            return _Reader(path, max_rows).read(file)
    except FileNotFoundError:
        raise CaptureError(f"{path} does not exist: check the path") from None
    except IsADirectoryError:
        raise CaptureError(f"{path} is a folder: give a capture in it") from None
    except OSError as error:
        raise CaptureError(f"{path} cannot be read ({error.strerror or error})") from None


class _Reader:
    def __init__(self, path: Path, max_rows: int) -> None:
        self._path = path
        self._max_rows = max_rows
        self._run: dict[str, Any] | None = None
        self._events: list[Event] = []
        self._dropped = 0
        self._position = 0
        """Which event of the run comes next."""
        self._in_gap = False
        self._steps_only = False
        self._known: dict[Site, Site] = {}
        self._decoder = RowDecoder(0, self._known, state_first=True)
        self._alive = _Alive()

    def read(self, file: BinaryIO) -> Capture:
        with suppress(BadRow):  # the file breaks off there
            self._read_chunks(file)
        if self._run is None:
            file.seek(0)
            raise CaptureError(_why_no_capture(self._path, file.read(4096)))
        return Capture(
            path=self._path,
            run=self._run,
            events=self._events,
            truncated=not self._decoder.ended,
            dropped=self._dropped,
        )

    def _read_chunks(self, file: BinaryIO) -> None:
        rows_read = 0
        for begins, lines in _lines(file, self._path):
            if begins:
                self._begin_chunk(_parse(lines.pop(0)))
            rows_read += len(lines)
            if rows_read > self._max_rows:
                raise CaptureError(
                    f"{self._path} holds more than {self._max_rows:,} rows, too many to read at once: "
                    "record the run again with a lower limit on the size of its capture"
                )
            rows, sound = _parse_all(lines)
            self._decode(rows)
            if self._decoder.ended:
                return
            if not sound:
                raise BadRow

    def _begin_chunk(self, header: Any) -> None:
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise BadRow
        if self._run is None and header.get("version") != VERSION:
            raise CaptureVersionError(_why_other_version(self._path, header.get("version")))
        run, first_event, time = header.get("run"), header.get("first_event"), header.get("time")
        if not (isinstance(run, dict) and type(first_event) is int and type(time) is int):
            raise BadRow
        missing = first_event - self._position
        if missing < 0:
            raise BadRow
        self._run = run
        self._steps_only = header.get("holds") == "steps"
        self._decoder = RowDecoder(time, self._known, state_first=not self._steps_only)
        if self._steps_only:
            number, until, every = header.get("events"), header.get("until"), header.get("every")
            if not (type(number) is type(until) is type(every) is int):
                raise BadRow
            missing += number
            self._enter_gap(time, missing, every)
        elif missing:
            self._enter_gap(time, missing)
        self._dropped += missing
        self._position += missing

    def _decode(self, rows: list[Any]) -> None:
        fresh: list[Event] = []
        try:
            self._decoder.decode(rows, fresh)
        finally:
            if self._steps_only:
                self._dropped -= len(fresh)
            else:
                self._position += len(fresh)
                if self._in_gap and self._decoder.begun:
                    self._leave_gap()
            self._events += fresh

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


class _Alive:
    """What is alive where the events stop, so that a gap can be bridged."""

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
            elif isinstance(event, Segment):
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
                yield Segment(time, device, change)


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[bool, list[bytes]]]:
    """The complete lines of each chunk, in batches, and whether a batch begins a chunk; ends where the file breaks."""
    current, begins, rest = -1, True, b""
    for chunk, text in _unpacked(file, path):
        if chunk != current:
            current, begins, rest = chunk, True, b""
        *lines, rest = (rest + text).split(b"\n")
        if lines:
            yield begins, lines
            begins = False
        if len(rest) > _LONGEST_LINE:
            return


def _unpacked(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """The text of the file in pieces, each with the number of the gzip member that it comes from."""
    chunk = packed = unpacked = 0
    unpacker = zlib.decompressobj(31)
    while piece := file.read(_PIECE):
        packed += len(piece)
        while piece:
            before = unpacker.copy()
            try:
                text = unpacker.decompress(piece, 4 * _PIECE)
            except zlib.error:
                yield chunk, _unpack_until_damage(before, piece)
                return
            unpacked += len(text)
            if unpacked > 64 * MiB + _HIGHEST_RATIO * packed:
                raise CaptureError(f"{path} unpacks to an absurd size: it is damaged, or was made to do harm")
            yield chunk, text
            if unpacker.eof:
                piece = unpacker.unused_data
                unpacker = zlib.decompressobj(31)
                chunk += 1
            else:
                piece = unpacker.unconsumed_tail
    yield chunk, unpacker.flush()


def _unpack_until_damage(unpacker: "zlib._Decompress", piece: bytes) -> bytes:
    """What `piece` holds before the byte at which it is damaged."""
    text = b""
    with suppress(zlib.error):
        for position in range(len(piece)):
            text += unpacker.decompress(piece[position : position + 1])
    return text


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise BadRow from error


def _parse_all(lines: list[bytes]) -> tuple[list[Any], bool]:
    """The rows that `lines` say up to the first bad one, and whether there is none."""
    try:  # all at once is several times as fast as one by one
        return list(json.loads("[" + b",".join(lines).decode() + "]")), True
    except (ValueError, RecursionError):
        rows: list[Any] = []
        with suppress(BadRow):
            for line in lines:
                rows.append(_parse(line))
        return rows, False


def _why_no_capture(path: Path, start: bytes) -> str:
    if not start:
        return f"{path} is empty: the run ended before anything was recorded; run it again"
    opening = b'{"format":"' + FORMAT.encode()
    text = _unpack_until_damage(zlib.decompressobj(31), start)
    if (
        start[:2] == b"\x1f\x8b"[: len(start)]
        and opening.startswith(text[: len(opening)])
        and b"\n" not in text
    ):
        return f"{path} breaks off before its first line: the run was killed as it began; run it again"
    return f"{path} is no capture of Legroom: give a file that `legroom run` wrote"


def _why_other_version(path: Path, version: Any) -> str:
    if type(version) is int and version > VERSION:
        return (
            f"{path} was written by a newer Legroom (its format is {version}, this one reads {VERSION}): "
            "upgrade with pip install -U legroom"
        )
    return (
        f"{path} was written by another version of Legroom (its format is not {VERSION}): "
        "record the run again with this one"
    )
