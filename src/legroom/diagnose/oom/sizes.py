"""The figures that the text of an out-of-memory error tells, in bytes.

Every allocator words them in its own way, and the words changed over the years. Whatever a library calls its units
(GB, G, GiB), it divides by 1024. A figure near 2^64 is a subtraction that went below zero: it says nothing.
"""

import re
from dataclasses import dataclass

from legroom.units import GiB, KiB, MiB, TiB

_UNITS = {"": 1, "b": 1, "byte": 1, "k": KiB, "m": MiB, "g": GiB, "t": TiB}
_SIZE = r"([\d,]+(?:\.\d+)?)\s?([KMGT]?i?B\b|bytes?\b|[KMGT]\b|B\b)"
_NONSENSE = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSizes:
    """What was told, sizes in bytes; None where nothing was."""

    device: int | None = None
    requested: int | None = None
    capacity: int | None = None
    """The device's memory."""
    free: int | None = None
    allowed: int | None = None
    """What this process may use of it, where that is less."""
    in_use: int | None = None
    """By this process, CUDA's own context included."""
    allocated: int | None = None
    """By tensors."""
    reserved: int | None = None
    """By PyTorch's allocator, tensors included."""
    others: int | None = None
    """By other processes."""


def parse_sizes(text: str) -> ReportedSizes:
    """The figures in the text of an error."""
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
        ),
        free=_first(
            text,
            rf"of which {_SIZE} is free",
            rf"{_SIZE} free;",
            rf"Free \(according to CUDA\)\s*:\s*{_SIZE}",
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
    return size if size < _NONSENSE else None


def _device(text: str) -> int | None:
    match = re.search(r"\bGPU (\d+)|\bon device (\d+)|\bDevice (\d+) OOM|\bcuda:(\d+)", text)
    return None if match is None else int(next(group for group in match.groups() if group is not None))


def _others(text: str) -> int | None:
    """What other processes hold. Where torch cannot tell which process is its own, it counts that one among them."""
    found = [_bytes(*groups) for groups in re.findall(rf"Process \d+ has {_SIZE} memory in use", text)]
    if not found and (other := _first(text, rf"other allocations: {_SIZE}")) is not None:
        return other
    told = [size for size in found if size is not None]
    return sum(told) if told else None
