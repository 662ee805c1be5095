"""Which chunks of a capture stay when it outgrows its bound, and the file without the others.

A chunk needs no other, so a chunk can be dropped whole. What stays, in this order while there is room: the newest
chunk, those in which memory was highest, the first out-of-memory and the latest ones, the first chunk of all, and
then the newer before the older. Of a dropped chunk its Step events stay, so that the history of steps is whole;
should even these come to outgrow their share, every second step goes, again and again.
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
    """A part of a capture file: events, or what was kept of dropped ones."""

    number: int
    offset: int
    """In the file, in bytes; likewise `size`."""
    size: int
    first_event: int
    events: int
    begin: int
    """Microseconds; likewise `end`."""
    end: int
    step_rows: bytes
    """Its Step rows, compressed."""
    ooms: int = 0
    whole: bool = True
    """False for one that stands for dropped chunks and holds their steps alone."""
    every: int = 1
    """Of those steps, one in so many was kept."""


def trim(
    chunks: Sequence[Chunk],
    *,
    highest: Iterable[int],
    header: dict[str, Any],
    max_bytes: int,
    source: BinaryIO,
    target: BinaryIO,
) -> list[Chunk]:
    """Copy `source` to `target` without what must go, at most about half of `max_bytes`; the chunks that result.

    `highest` names the chunks in which memory was highest.
    """
    kept = choose(chunks, highest=highest, max_bytes=max_bytes)
    result: list[Chunk] = []
    for stays, group in groupby(chunks, key=lambda chunk: chunk.number in kept):
        neighbours = list(group)
        result += neighbours if stays else [_merge(neighbours)]
    _thin([chunk for chunk in result if not chunk.whole], max_bytes // 8)
    for chunk in result:
        begin = target.tell()
        if chunk.whole:
            source.seek(chunk.offset)
            _copy(source, target, chunk.size)
        else:
            target.write(_steps_only(chunk, header))
        chunk.offset, chunk.size = begin, target.tell() - begin
    return result


def choose(chunks: Sequence[Chunk], *, highest: Iterable[int], max_bytes: int) -> set[int]:
    """The numbers of the chunks that stay whole."""
    whole = {chunk.number: chunk for chunk in chunks if chunk.whole}
    newest_first = sorted(whole, reverse=True)
    with_oom = [number for number in newest_first if whole[number].ooms]
    wanted = [*newest_first[:1], *highest, *with_oom[-1:], *with_oom[:4], *newest_first[-1:], *newest_first]
    steps = sum(len(chunk.step_rows) for chunk in chunks)
    room = max_bytes // 2 - min(steps, max_bytes // 8)
    kept: set[int] = set()
    for number in wanted:
        if number in whole and number not in kept and whole[number].size <= room:
            kept.add(number)
            room -= whole[number].size
    return kept


def left_out(chunk: Chunk) -> int:
    """How many of a chunk's events are not in the file: all but the steps that were kept, of one that stands for others."""
    return 0 if chunk.whole else chunk.events - zlib.decompress(chunk.step_rows).count(b"\n")


def _merge(run: list[Chunk]) -> Chunk:
    first, last = run[0], run[-1]
    return Chunk(
        number=first.number,
        offset=0,
        size=0,
        first_event=first.first_event,
        events=sum(chunk.events for chunk in run),
        begin=first.begin,
        end=last.end,
        step_rows=zlib.compress(b"".join(zlib.decompress(chunk.step_rows) for chunk in run)),
        whole=False,
        every=max(chunk.every for chunk in run),
    )


def _thin(chunks: list[Chunk], room: int) -> None:
    while sum(len(chunk.step_rows) for chunk in chunks) > room:
        every = 2 * max(chunk.every for chunk in chunks)
        for chunk in chunks:
            rows = zlib.decompress(chunk.step_rows).splitlines(keepends=True)
            chunk.step_rows = zlib.compress(b"".join(row for row in rows if json.loads(row)[2] % every == 0))
            chunk.every = every
        if every > 1 << 30:  # nothing is left to thin: `room` is smaller than the empty rows
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
    rows = zlib.decompress(chunk.step_rows)
    return member.compress(to_json(first_line).encode() + b"\n" + rows) + member.flush()


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size > 0:
        piece = source.read(min(size, 1 << 20))
        if not piece:
            raise OSError("the capture was cut short by another program")
        target.write(piece)
        size -= len(piece)
