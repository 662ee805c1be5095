"""Parses the memory sizes in the text of an out-of-memory error, in bytes.

Every allocator has its own wording, which differs between versions. All libraries divide by 1024, whether they print
GB, G or GiB. A size near 2^64 is an unsigned underflow and is ignored.
"""

import re
from dataclasses import dataclass

from legroom.units import GiB, KiB, MiB, TiB

_UNITS = {"": 1, "b": 1, "byte": 1, "k": KiB, "m": MiB, "g": GiB, "t": TiB}
_SIZE = r"([\d,]+(?:\.\d+)?)\s?([KMGT]?i?B\b|bytes?\b|[KMGT]\b|B\b)"
_TOO_LARGE = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSizes:
    """The sizes in an error message, in bytes. A size that is not in the message is None."""

    device: int | None = None
    requested: int | None = None
    capacity: int | None = None
    free: int | None = None
    allowed: int | None = None
    in_use: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    others: int | None = None

    @property
    def limit(self) -> int | None:
        """The number of bytes that PyTorch's allocator can reserve, or None if the message does not show this number."""
        limits = [size for size in (self.capacity, self.allowed) if size is not None]
        reserved = self.allocated if self.reserved is None else self.reserved
        if self.free is not None and reserved is not None:
            limits.append(reserved + self.free)
        return min(limits, default=None)

    @property
    def is_fragmented(self) -> bool:
        """True if enough memory was free for the request, but not in one block."""
        if self.requested is None or self.allocated is None or self.limit is None:
            return False
        return self.allocated + self.requested <= self.limit


def parse_sizes(text: str) -> ReportedSizes:
    allocated = _first(
        text,
        rf"allocated memory {_SIZE} is allocated by PyTorch",
        rf"{_SIZE} already allocated",
        rf"Currently allocated\s*:\s*{_SIZE}",
        rf"MPS allocated: {_SIZE}",
        rf"allocated so far: {_SIZE}",
    )
    unused = _first(text, rf"and {_SIZE} is reserved by PyTorch but unallocated")
    reserved = _first(
        text, rf"{_SIZE} reserved in total by PyTorch", rf"{_SIZE} cached\)?", rf"{_SIZE} reserved\b"
    )
    if unused is not None and allocated is not None:
        reserved = allocated + unused
    return ReportedSizes(
        device=_device(text),
        requested=_first(
            text,
            rf"Tried to allocate {_SIZE}",
            rf"tried to allocate {_SIZE}",
            rf"Unable to allocate {_SIZE}",
            rf"trying to allocate {_SIZE}",
            rf"failed to allocate [\d.]+[KMGT]? \({_SIZE}\)",
            rf"memory allocating {_SIZE}",
            rf"Requested\s*:\s*{_SIZE}",
            rf"Invalid buffer size: {_SIZE}",
            rf"unable to mmap {_SIZE}",
            r"unable to allocate shared memory\(shm\) for file .*?: .*? of size ([\d,]+)()",
        ),
        capacity=_first(
            text,
            rf"total capacity of {_SIZE}",
            rf"{_SIZE} total capacity",
            rf"Device limit\s*:\s*{_SIZE}",
            rf"bytes free, {_SIZE} total",
        ),
        free=_first(
            text,
            rf"of which {_SIZE} is free",
            rf"{_SIZE} free;",
            rf"Free \(according to CUDA\)\s*:\s*{_SIZE}",
            rf"{_SIZE} free, [\d,]+ bytes total",
        ),
        allowed=_first(
            text,
            rf"{_SIZE} allowed;",
            rf"max allowed: {_SIZE}",
            rf"limit set to: {_SIZE}",
            rf"PyTorch limit \(set by user-supplied memory fraction\)\s*:\s*{_SIZE}",
        ),
        in_use=_first(text, rf"this process has {_SIZE} memory in use"),
        allocated=allocated,
        reserved=reserved,
        others=_others(text),
    )


def _first(text: str, *patterns: str) -> int | None:
    for pattern in patterns:
        match = re.search(pattern, text)
        if match is not None:
            return _bytes(*match.groups())
    return None


def _bytes(number: str, unit: str) -> int | None:
    kind = unit.lower().removesuffix("s")
    factor = _UNITS.get(kind, _UNITS.get(kind[:1], 1))
    size = int(float(number.replace(",", "")) * factor)
    return size if size < _TOO_LARGE else None


def _device(text: str) -> int | None:
    match = re.search(r"\bGPU (\d+)|\bon device (\d+)|\bDevice (\d+) OOM|\bcuda:(\d+)", text)
    return None if match is None else int(next(group for group in match.groups() if group is not None))


def _others(text: str) -> int | None:
    """Return the memory of other processes.

    If torch cannot identify its own process, its message lists that process among the other processes.
    """
    sizes = [_bytes(*groups) for groups in re.findall(rf"Process \d+ has {_SIZE} memory in use", text)]
    if not sizes and (other := _first(text, rf"other allocations: {_SIZE}")) is not None:
        return other
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None
