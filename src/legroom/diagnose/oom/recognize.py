"""Decides whether an exception or a string is an out-of-memory error, and how certain the decision is.

    result = classify(error)
    result.is_oom          # a device ran out of memory, so a smaller workload can succeed
    result.requested       # the requested bytes, if the message contains them

An ambiguous error such as `CUDNN_STATUS_EXECUTION_FAILED` counts as out of memory only if little memory is free at
the time of the call. If the free memory is unknown, a failed allocation in a library (`CUDNN_STATUS_ALLOC_FAILED`)
counts as out of memory. Call `classify` inside `except`, before memory is freed. The result of `classify` keeps no
exception, frame or tensor alive.

The whole exception chain is read as Python prints it: `__cause__`, or `__context__` unless suppressed. Ctrl-C and
`sys.exit` are never out-of-memory errors. An exception group is an out-of-memory error only if all of its members
are. This module does not import torch, and uses torch only if the program has imported it.
"""

import errno
import linecache
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Literal

from legroom.diagnose.oom.known_messages import IMPOSSIBLE_SIZE, Certainty, find_pattern
from legroom.diagnose.oom.sizes import ReportedSizes, parse_sizes
from legroom.units import MiB, format_size

FreeMemory = Callable[[int | None], tuple[int, int] | None]
"""A function that returns the free and total bytes of a device, or None if they are unknown.

The argument is the device index, or None for the current device.
"""
Link = Literal["itself", "cause", "context", "group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClassification(ReportedSizes):
    """The classification of an error: whether the error is about memory, and the sizes in its message."""

    certainty: Certainty
    source: str = ""
    """The library or kind of memory that the error refers to, such as cuDNN, NCCL or shared memory. The value is "" if
    the error is not about memory.
    """
    reason: str
    is_oom: bool = False
    """True if a device ran out of memory.

    For an ambiguous error, the value is True only if little memory is free.
    """
    message: str = ""
    link: Link = "itself"
    """Whether the exception itself, its cause or its context matched."""

    @property
    def is_memory(self) -> bool:
        return self.is_oom or self.certainty in (Certainty.HOST, Certainty.PINNED)


def is_oom(error: BaseException | str) -> bool:
    return classify(error).is_oom


def device_memory(index: int | None = None) -> tuple[int, int] | None:
    """Return the free and total bytes of a GPU, within the memory fraction of this process.

    The result is None without a GPU, or if the GPU no longer responds.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return None
        free, total = torch.cuda.mem_get_info(index)
        get_fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        if get_fraction is not None:
            allowed = int(get_fraction(index) * total)
            free = min(free, max(allowed - torch.cuda.memory_reserved(index), 0))
        return int(free), int(total)
    except Exception:  # after a GPU fault, every call fails with a different exception
        return None


def classify(
    error: BaseException | str, *, free_memory: FreeMemory | None = device_memory
) -> ErrorClassification:
    """Classify an exception or a string.

    `free_memory` is called only for an ambiguous error. A string may come from another machine, so `device_memory` is
    not called for a string.
    """
    if isinstance(error, str):
        result = _classify_text(error)
        free_memory = None if free_memory is device_memory else free_memory
    else:
        result = _classify_chain(error)
    if result.certainty not in (Certainty.DISGUISED, Certainty.LIKELY):
        return result
    return _decide_by_free_memory(result, free_memory(result.device) if free_memory is not None else None)


# --- ambiguous errors


def low_memory(total: int) -> int:
    """Return the number of free bytes below which an ambiguous error counts as out of memory.

    The value is a twentieth of the device's memory, because workspaces are larger on larger GPUs. The value is at
    least 512 MiB, which the libraries need to initialize, and at most a quarter of the device's memory.
    """
    return max(total // 20, min(512 * MiB, total // 4))


def is_low_on_memory(sizes: ReportedSizes) -> bool:
    return sizes.free is not None and sizes.capacity is not None and sizes.free < low_memory(sizes.capacity)


def _decide_by_free_memory(
    result: ErrorClassification, memory: tuple[int, int] | None
) -> ErrorClassification:
    if memory is None:
        reason = f"{result.reason} The amount of free memory is unknown."
        return replace(result, reason=reason, is_oom=result.certainty is Certainty.LIKELY)
    free, total = memory
    available = f"{format_size(free)} of {format_size(total)} was free"
    if free < low_memory(total):
        reason = f"{result.reason} Only {available}, so the error is treated as an out-of-memory error."
        return replace(result, reason=reason, is_oom=True, free=free, capacity=total)
    reason = f"{result.reason} However, {available}, so memory is probably not the cause."
    return replace(result, reason=reason, free=free, capacity=total)


# --- exceptions


_INTERRUPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_PROGRAM_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""Exceptions of these types are programming errors, regardless of their message.

The cause of such an exception may still be an out-of-memory error.
"""
_BY_CERTAINTY = (Certainty.SURE, Certainty.PINNED, Certainty.HOST, Certainty.LIKELY, Certainty.DISGUISED)
_NOT_MEMORY = ErrorClassification(certainty=Certainty.NOT_MEMORY, reason="The error is unrelated to memory.")


def _classify_chain(error: BaseException) -> ErrorClassification:
    """Classify an exception chain.

    If the classification of one exception is certain, this classification is returned. Otherwise, the classification
    of the outermost exception is returned.
    """
    found: list[ErrorClassification] = []
    first: ErrorClassification | None = None
    seen: set[int] = set()
    how: Link = "itself"
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, _INTERRUPTIONS):
            break
        result = _classify_group(link) if isinstance(link, BaseExceptionGroup) else _classify_one(link)
        first = first or result
        if result.certainty is not Certainty.NOT_MEMORY:
            found.append(result if how == "itself" else replace(result, link=how))
        if link.__cause__ is not None:
            link, how = link.__cause__, "cause"
        else:
            link, how = (None if link.__suppress_context__ else link.__context__), "context"
    certain = [each for each in found if each.certainty is Certainty.SURE]
    return next(iter(certain or found), first or _NOT_MEMORY)


def _classify_group(group: BaseExceptionGroup[Any]) -> ErrorClassification:
    members = [_classify_chain(member) for member in group.exceptions]
    others = [member for member in members if member.certainty is Certainty.NOT_MEMORY]
    if others:
        if len(others) < len(members):
            return replace(
                _NOT_MEMORY,
                reason=("The exception group also contains an error that is unrelated to memory."),
            )
        return others[0]
    most_certain = min(members, key=lambda member: _BY_CERTAINTY.index(member.certainty))
    return replace(most_certain, link="group")


def _classify_one(error: BaseException) -> ErrorClassification:
    text = _text(error)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        result = _classify_text(text)
        if result.certainty is Certainty.SURE or result.reason == IMPOSSIBLE_SIZE:
            return result
        return _build(
            Certainty.SURE,
            "CUDA",
            "The exception is PyTorch's own out-of-memory error.",
            _first_line(text),
            parse_sizes(text),
        )
    if isinstance(error, MemoryError):
        result = _classify_text(text)
        if result.certainty in (Certainty.SURE, Certainty.HOST, Certainty.PINNED):
            return result
        if result.reason == IMPOSSIBLE_SIZE:
            return result
        if type(error).__module__.partition(".")[0] in _GPU_LIBRARIES:
            reason = "A GPU library could not allocate GPU memory."
            return _build(
                Certainty.SURE,
                type(error).__module__.partition(".")[0],
                reason,
                _first_line(text),
                parse_sizes(text),
            )
        return _build(
            Certainty.HOST,
            "Python",
            "Python could not allocate host memory.",
            _first_line(text),
            parse_sizes(text),
        )
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return _build(
            Certainty.HOST,
            "system",
            "The operating system could not allocate host memory.",
            _first_line(text),
            ReportedSizes(),
        )
    if isinstance(error, _PROGRAM_ERRORS):
        return _NOT_MEMORY
    result = _classify_text(text)
    if result.certainty is Certainty.SURE and result.requested is None and _was_pinning(error.__traceback__):
        reason = "CUDA reported an out-of-memory error in a call that pins host memory."
        return replace(result, certainty=Certainty.PINNED, is_oom=False, reason=reason)
    return result


_GPU_LIBRARIES = ("cupy", "pycuda", "rmm", "numba")
"""Libraries whose MemoryError refers to GPU memory."""


def _was_pinning(traceback: TracebackType | None) -> bool:
    """Return True if the innermost frame pins memory.

    CUDA's message does not distinguish page-locked memory from device memory.
    """
    innermost = traceback
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None:
        return False
    code = innermost.tb_frame.f_code
    return "pin_memory" in code.co_name or "pin_memory" in linecache.getline(
        code.co_filename, innermost.tb_lineno
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken `__str__` must not hide the user's error
        return ""


# --- texts


def _classify_text(text: str) -> ErrorClassification:
    found = find_pattern(text)
    if found is None:
        return _NOT_MEMORY
    pattern, line, around = found
    return _build(pattern.certainty, pattern.source, pattern.reason, line, parse_sizes(around))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _build(
    certainty: Certainty, source: str, reason: str, line: str, sizes: ReportedSizes
) -> ErrorClassification:
    if certainty is Certainty.NOT_MEMORY:
        return ErrorClassification(certainty=certainty, reason=reason, message=line)
    return ErrorClassification(
        certainty=certainty,
        source=source,
        reason=reason,
        is_oom=certainty is Certainty.SURE,
        message=line,
        **asdict(sizes),
    )
