"""Selects the chunks to keep when a capture grows too large, and writes the file without the other chunks.

A chunk does not depend on other chunks, so it can be dropped as a whole. While there is space, chunks are kept in this
order: the newest chunk, the chunks with the highest memory, the first and the latest chunks with an out-of-memory
error, and the first chunk. The remaining space is used for other chunks, newest first. The Step events of dropped
chunks are kept, so that the history of steps is complete. If the steps alone need too much space, every second step is
dropped until the remaining steps fit.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, BinaryIO

from legroom.memory.capture.lines import to_json


@dataclass(slots=True, kw_only=True)
class Chunk:
    """A chunk of a capture file, with all events or only the steps of dropped chunks."""

    number: int
    offset: int
    size: int
    first_event: int
    events: int
    begin: int
    end: int
    step_lines: bytes
    ooms: int = 0
    is_complete: bool = True
    """True if the chunk contains all its events, and False if it contains only the steps of dropped chunks."""
    every: int = 1
    """If `every` is 4, a chunk that is not complete contains only every fourth step."""


def trim(
    chunks: Sequence[Chunk],
    *,
    highest: Iterable[int],
    header: dict[str, Any],
    max_bytes: int,
    source: BinaryIO,
    target: BinaryIO,
) -> list[Chunk]:
    """Write a capture of at most about half of `max_bytes` to `target`, and return its chunks.

    Dropped chunks are merged into chunks that contain only their steps. `highest` contains the numbers
    (`Chunk.number`) of the chunks with the highest memory.
    """
    kept = choose(chunks, highest=highest, max_bytes=max_bytes)
    result: list[Chunk] = []
    for is_kept, group in groupby(chunks, key=lambda chunk: chunk.number in kept):
        adjacent = list(group)
        result += adjacent if is_kept else [_merge(adjacent)]
    _thin([chunk for chunk in result if not chunk.is_complete], max_bytes // 8)
    for chunk in result:
        begin = target.tell()
        if chunk.is_complete:
            source.seek(chunk.offset)
            _copy(source, target, chunk.size)
        else:
            target.write(_steps_only(chunk, header))
        chunk.offset, chunk.size = begin, target.tell() - begin
    return result


def choose(chunks: Sequence[Chunk], *, highest: Iterable[int], max_bytes: int) -> set[int]:
    complete = {chunk.number: chunk for chunk in chunks if chunk.is_complete}
    newest_first = sorted(complete, reverse=True)
    with_oom = [number for number in newest_first if complete[number].ooms]
    candidates = [
        *newest_first[:1],
        *highest,
        *with_oom[-1:],
        *with_oom[:4],
        *newest_first[-1:],
        *newest_first,
    ]
    steps = sum(len(chunk.step_lines) for chunk in chunks)
    room = max_bytes // 2 - min(steps, max_bytes // 8)
    kept: set[int] = set()
    for number in candidates:
        if number in complete and number not in kept and complete[number].size <= room:
            kept.add(number)
            room -= complete[number].size
    return kept


def dropped_events(chunk: Chunk) -> int:
    """Return the number of events that were dropped from a chunk.

    A chunk with dropped events keeps only its steps.
    """
    return 0 if chunk.is_complete else chunk.events - zlib.decompress(chunk.step_lines).count(b"\n")


def _merge(chunks: list[Chunk]) -> Chunk:
    first, last = chunks[0], chunks[-1]
    return Chunk(
        number=first.number,
        offset=0,
        size=0,
        first_event=first.first_event,
        events=sum(chunk.events for chunk in chunks),
        begin=first.begin,
        end=last.end,
        step_lines=zlib.compress(b"".join(zlib.decompress(chunk.step_lines) for chunk in chunks)),
        is_complete=False,
        every=max(chunk.every for chunk in chunks),
    )


def _thin(chunks: list[Chunk], room: int) -> None:
    while sum(len(chunk.step_lines) for chunk in chunks) > room:
        every = 2 * max(chunk.every for chunk in chunks)
        for chunk in chunks:
            lines = zlib.decompress(chunk.step_lines).splitlines(keepends=True)
            chunk.step_lines = zlib.compress(
                b"".join(line for line in lines if json.loads(line)[2] % every == 0)
            )
            chunk.every = every
        if every > 1 << 30:  # no steps are left, but the empty compressed data exceeds `room`
            break


def _steps_only(chunk: Chunk, header: dict[str, Any]) -> bytes:
    first_line = {
        **header,
        "chunk": chunk.number,
        "holds": "steps",
        "first_event": chunk.first_event,
        "events": chunk.events,
        "time": chunk.begin,
        "until": chunk.end,
        "every": chunk.every,
    }
    member = zlib.compressobj(6, zlib.DEFLATED, 31)
    lines = zlib.decompress(chunk.step_lines)
    return member.compress(to_json(first_line).encode() + b"\n" + lines) + member.flush()


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size > 0:
        data = source.read(min(size, 1 << 20))
        if not data:
            raise OSError("another program truncated the capture")
        target.write(data)
        size -= len(data)
