"""Files that are on the disk when a call returns, and that are recognised when they are damaged.

A file is written in pieces by several threads; each piece has its own CRC-32, so that checking it again is as parallel as writing.
"""

import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from legroom.errors import CheckpointError
from legroom.units import MiB

PIECE = 64 * MiB
THREADS = min(8, os.cpu_count() or 1)
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


def write_file(path: Path, head: bytes, pieces: Sequence[memoryview] = ()) -> Checksum:
    """`head`, then `pieces`, each of `PIECE` bytes but the last. They are on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:

        def put(numbered: tuple[int, memoryview]) -> int:
            offset, piece = numbered
            checksum = zlib.crc32(piece)
            while piece:
                written = os.pwrite(descriptor, piece, offset)
                offset, piece = offset + written, piece[written:]
            return checksum

        places = [(0, memoryview(head))] + [
            (len(head) + index * PIECE, piece) for index, piece in enumerate(pieces)
        ]
        sums = _in_threads(put, places)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Checksum(len(head) + sum(len(piece) for piece in pieces), len(head), tuple(sums))


def read_pieces(path: Path, expected: Checksum, target: memoryview) -> bytes:
    """The file's head, and all after it in `target`. A CheckpointError says what is wrong with a damaged one."""
    _check_size(path, expected)
    descriptor = _opened(path)
    try:

        def get(numbered: tuple[int, int]) -> bytes:
            index, checksum = numbered
            if index == 0:
                head = os.pread(descriptor, expected.head, 0)
                _check(path, head, checksum)
                return head
            start = (index - 1) * PIECE
            piece = target[start : start + PIECE]
            filled = 0
            while filled < len(piece):
                count = os.preadv(descriptor, [piece[filled:]], expected.head + start + filled)
                if count == 0:
                    break
                filled += count
            _check(path, piece, checksum)
            return b""

        heads = _in_threads(get, list(enumerate(expected.sums)))
    finally:
        os.close(descriptor)
    return heads[0]


def read_small(path: Path, expected: Checksum) -> bytes:
    """The whole of a file that has a head alone."""
    return read_pieces(path, expected, memoryview(bytearray()))


def checksum_of(path: Path) -> Checksum:
    """Of a file that something else wrote; it is on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
        sums = _in_threads(
            lambda start: zlib.crc32(os.pread(descriptor, PIECE, start)), range(0, size, PIECE)
        )
    finally:
        os.close(descriptor)
    return Checksum(size, 0, (0, *sums))


def check_file(path: Path, expected: Checksum) -> None:
    """Whether a file that something else will read is as it was written."""
    _check_size(path, expected)
    if checksum_of(path) != expected:
        raise _damaged(path, "its contents have changed since it was written")


def _in_threads(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    if len(items) <= 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise _damaged(path, f"it cannot be opened ({error.strerror})") from None


def _check_size(path: Path, expected: Checksum) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        raise _damaged(path, "it is missing") from None
    if size != expected.size:
        raise _damaged(path, f"it has {size} bytes of {expected.size}")


def _check(path: Path, data: bytes | memoryview, checksum: int) -> None:
    if zlib.crc32(data) != checksum:
        raise _damaged(path, "its contents have changed since it was written")


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {what}. Resume from another checkpoint of that folder")
