"""Writes files with checksums. Each function flushes its files to disk before it returns.

Several threads write the blocks of a file in parallel. Each block has its own CRC-32, so several threads can also
verify a file in parallel.
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

BLOCK_BYTES = 16 * MiB
THREADS = min(8, processors())
ADVICE = "Resume from another checkpoint."
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checksum:
    """The size of a file, the size of its header, and the CRC-32 of the header and of each following block."""

    size: int
    head: int
    sums: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Checksum":
        return Checksum(int(data["size"]), int(data["head"]), tuple(int(each) for each in data["sums"]))


def write_file(path: Path, head: bytes, views: Sequence[memoryview] = ()) -> Checksum:
    blocks = _split(views)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:

        def write_block(item: tuple[int, list[memoryview]]) -> int:
            offset, block = item
            checksum = 0
            for view in block:
                checksum = zlib.crc32(view, checksum)
                while view:
                    written = os.pwrite(descriptor, view, offset)
                    offset, view = offset + written, view[written:]
            return checksum

        items = [(len(head) + index * BLOCK_BYTES, block) for index, block in enumerate(blocks)]
        sums = _in_threads(write_block, [(0, [memoryview(head)]), *items])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Checksum(len(head) + sum(len(view) for view in views), len(head), tuple(sums))


def read_file(path: Path, expected: Checksum) -> memoryview:
    """Memory-map a file (copy-on-write) after checking its checksums. Raises CheckpointError if the file is damaged."""
    contents = _map(path)
    if len(contents) != expected.size:
        raise _damaged(path, f"the file has {len(contents)} bytes instead of {expected.size}")
    if _sums(contents, expected.head) != expected.sums:
        raise _damaged(path, "the contents have changed since the file was written")
    return contents


def checksum_of(path: Path) -> Checksum:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    contents = _map(path)
    return Checksum(len(contents), 0, _sums(contents, 0))


def _split(views: Sequence[memoryview]) -> list[list[memoryview]]:
    blocks: list[list[memoryview]] = []
    remaining = 0
    for view in views:
        while view:
            if remaining == 0:
                blocks.append([])
                remaining = BLOCK_BYTES
            blocks[-1].append(view[:remaining])
            view, remaining = view[remaining:], remaining - len(blocks[-1][-1])
    return blocks


def _sums(contents: memoryview, head: int) -> tuple[int, ...]:
    blocks = [
        contents[:head],
        *(contents[start : start + BLOCK_BYTES] for start in range(head, len(contents), BLOCK_BYTES)),
    ]
    return tuple(_in_threads(zlib.crc32, blocks))


def _map(path: Path) -> memoryview:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except FileNotFoundError:
        raise _damaged(path, "the file is missing") from None
    except OSError as error:
        raise _damaged(path, f"the file cannot be read ({error.strerror})") from None


def _in_threads(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    if len(items) <= 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {reason}. {ADVICE}")
