"""Files that are on the disk when a call returns, and that are recognised when they are damaged.

A file is written in pieces by several threads; each piece has its own CRC-32, so that checking it again is as parallel
as writing.
"""

import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from legroom.errors import CheckpointError
from legroom.gpus.machine import processors
from legroom.units import MiB

PIECE = 16 * MiB
THREADS = min(8, processors())
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checksum:
    """How a file is recognised: its size, and the CRC-32 of its head and of each piece after that."""

    size: int
    head: int
    """Bytes before the first piece."""
    sums: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(told: dict[str, Any]) -> "Checksum":
        return Checksum(int(told["size"]), int(told["head"]), tuple(int(one) for one in told["sums"]))


def write_file(path: Path, head: bytes, views: Sequence[memoryview] = ()) -> Checksum:
    """`head`, then all of `views`. They are on the disk when this returns."""
    pieces = _cut(views)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:

        def put(numbered: tuple[int, list[memoryview]]) -> int:
            offset, piece = numbered
            checksum = 0
            for view in piece:
                checksum = zlib.crc32(view, checksum)
                while view:
                    written = os.pwrite(descriptor, view, offset)
                    offset, view = offset + written, view[written:]
            return checksum

        places = [(len(head) + index * PIECE, piece) for index, piece in enumerate(pieces)]
        sums = _in_threads(put, [(0, [memoryview(head)]), *places])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Checksum(len(head) + sum(len(view) for view in views), len(head), tuple(sums))


def read_file(path: Path, expected: Checksum) -> memoryview:
    """The file's contents, mapped: read when looked at, private when changed. A damaged file is refused."""
    contents = _mapped(path)
    if len(contents) != expected.size:
        raise _damaged(path, f"it has {len(contents)} bytes of {expected.size}")
    if _sums(contents, expected.head) != expected.sums:
        raise _damaged(path, "its contents have changed since it was written")
    return contents


def checksum_of(path: Path) -> Checksum:
    """Of a file that something else wrote; it is on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    contents = _mapped(path)
    return Checksum(len(contents), 0, _sums(contents, 0))


def _cut(views: Sequence[memoryview]) -> list[list[memoryview]]:
    """The views in pieces of `PIECE` bytes, the last one shorter."""
    pieces: list[list[memoryview]] = []
    room = 0
    for view in views:
        while view:
            if room == 0:
                pieces.append([])
                room = PIECE
            pieces[-1].append(view[:room])
            view, room = view[room:], room - len(pieces[-1][-1])
    return pieces


def _sums(contents: memoryview, head: int) -> tuple[int, ...]:
    pieces = [
        contents[:head],
        *(contents[start : start + PIECE] for start in range(head, len(contents), PIECE)),
    ]
    return tuple(_in_threads(zlib.crc32, pieces))


def _mapped(path: Path) -> memoryview:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except OSError as error:
        raise _damaged(path, f"it cannot be read ({error.strerror})") from None


def _in_threads(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    if len(items) <= 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {what}. Resume from another checkpoint of that folder")
