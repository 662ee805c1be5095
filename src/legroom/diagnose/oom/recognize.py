"""Is this error about memory? One answer for exceptions and texts, with how sure it is.

    failure = classify(error)
    failure.is_oom          # a device ran out of memory: smaller work will do
    failure.requested       # what was asked for, where the text says so

Errors that hide the cause (`CUDNN_STATUS_EXECUTION_FAILED`) count only if little memory was free when the question is put,
so ask inside `except`, before anything is cleaned up. What comes back holds no exception, no frame and no tensor.

An error is read together with the errors that it came from, as Python prints them: `__cause__`, or `__context__` unless it was
suppressed. Ctrl-C and `sys.exit` while memory was short are still what they are. A group of errors is about memory
only if all of its members are. Does not import torch; it asks torch only where the program has.
"""

import errno
import linecache
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Literal

from legroom.diagnose.oom.messages import Certainty, find_spelling
from legroom.diagnose.oom.sizes import ReportedSizes, parse_sizes
from legroom.units import MiB, format_size

FreeMemory = Callable[[int | None], tuple[int, int] | None]
"""A device's index (None: the current one) → its free and total bytes; None where they cannot be had."""
Link = Literal["itself", "cause", "context", "group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClassification(ReportedSizes):
    """What an error has to do with memory, and the figures that it tells."""

    certainty: Certainty
    source: str = ""
    """Who said it: CUDA, cuDNN, NCCL, CPU, shared memory and so on; empty when it is not about memory."""
    reason: str
    """One sentence: why it is judged so."""
    is_oom: bool = False
    """A device ran out of memory: sure, or disguised and little was free."""
    message: str = ""
    """The line that decided it."""
    link: Link = "itself"
    """Which error of the chain it was read off."""

    @property
    def is_memory(self) -> bool:
        """A device, the host or page-locked memory ran out."""
        return self.is_oom or self.certainty in (Certainty.HOST, Certainty.PINNED)


def is_oom(error: BaseException | str) -> bool:
    """Did a device run out of memory?"""
    return classify(error).is_oom


def device_memory(index: int | None = None) -> tuple[int, int] | None:
    """Free and total bytes of a GPU now, less what a fraction set for this process forbids; None where there is none, or
    where it does not answer any more."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return None
        free, total = torch.cuda.mem_get_info(index)
        asked = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        if asked is not None:
            allowed = int(asked(index) * total)
            free = min(free, max(allowed - torch.cuda.memory_reserved(index), 0))
        return int(free), int(total)
    except Exception:  # after a fault of the GPU every question fails, each in its own way
        return None


def classify(
    error: BaseException | str, *, free_memory: FreeMemory | None = device_memory
) -> ErrorClassification:
    """What `error` has to do with memory. `free_memory` is asked only for a disguised exception; a text may be from
    another machine, so it is asked for a text only where it is given."""
    if isinstance(error, str):
        failure = _read(error)
        free_memory = None if free_memory is device_memory else free_memory
    else:
        failure = _walk(error)
    if failure.certainty is not Certainty.DISGUISED:
        return failure
    return _judged(failure, free_memory(failure.device) if free_memory is not None else None)


# --- a disguised one


def low_memory(total: int) -> int:
    """Less than this is too little to tell a disguised error from any other: a twentieth of the device, for workspaces grow
    with what it can compute; at least 512 MiB, which the libraries take to start; never more than a quarter."""
    return max(total // 20, min(512 * MiB, total // 4))


def _judged(failure: ErrorClassification, memory: tuple[int, int] | None) -> ErrorClassification:
    if memory is None:
        return replace(failure, reason=f"{failure.reason} How much memory was free is not known.")
    free, total = memory
    said = f"{format_size(free)} of {format_size(total)} were free"
    if free < low_memory(total):
        reason = f"{failure.reason} Only {said}, so it counts as out of memory."
        return replace(failure, reason=reason, is_oom=True, free=free, capacity=total)
    return replace(
        failure, reason=f"{failure.reason} But {said}: look for another cause.", free=free, capacity=total
    )


# --- an exception and those that it came from


_INTERRUPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_MISTAKES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""Errors of these kinds speak of the program, whatever words they use; what they came from may still be memory."""
_SURE_FIRST = (Certainty.SURE, Certainty.PINNED, Certainty.HOST, Certainty.DISGUISED)
_NOTHING = ErrorClassification(certainty=Certainty.NOT_MEMORY, reason="Nothing in it speaks of memory.")


def _walk(error: BaseException) -> ErrorClassification:
    """The failure that the chain of `error` tells: a sure one before any other, otherwise the outermost."""
    found: list[ErrorClassification] = []
    first: ErrorClassification | None = None
    seen: set[int] = set()
    how: Link = "itself"
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, _INTERRUPTIONS):
            break
        read = _group(link) if isinstance(link, BaseExceptionGroup) else _read_exception(link)
        first = first or read
        if read.certainty is not Certainty.NOT_MEMORY:
            found.append(read if how == "itself" else replace(read, link=how))
        if link.__cause__ is not None:
            link, how = link.__cause__, "cause"
        else:
            link, how = (None if link.__suppress_context__ else link.__context__), "context"
    sure = [failure for failure in found if failure.certainty is Certainty.SURE]
    return next(iter(sure or found), first or _NOTHING)


def _group(group: BaseExceptionGroup[Any]) -> ErrorClassification:
    members = [_walk(member) for member in group.exceptions]
    others = [member for member in members if member.certainty is Certainty.NOT_MEMORY]
    if others:
        if len(others) < len(members):
            return replace(_NOTHING, reason="Beside an error about memory, the group holds one that is not.")
        return others[0]
    worst = min(members, key=lambda member: _SURE_FIRST.index(member.certainty))
    return replace(worst, link="group")


def _read_exception(error: BaseException) -> ErrorClassification:
    text = _text(error)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        failure = _read(text)
        if failure.certainty is Certainty.SURE:
            return failure
        return _built(
            Certainty.SURE,
            "CUDA",
            "It is PyTorch's own out-of-memory error.",
            _line(text),
            parse_sizes(text),
        )
    if isinstance(error, MemoryError):
        failure = _read(text)
        if failure.certainty in (Certainty.SURE, Certainty.HOST, Certainty.PINNED):
            return failure
        if type(error).__module__.partition(".")[0] in _ON_DEVICE:
            reason = "A library that computes on the GPU could not allocate there."
            return _built(
                Certainty.SURE,
                type(error).__module__.partition(".")[0],
                reason,
                _line(text),
                parse_sizes(text),
            )
        return _built(
            Certainty.HOST,
            "Python",
            "Python could not allocate host memory.",
            _line(text),
            parse_sizes(text),
        )
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return _built(
            Certainty.HOST, "system", "The system could not give host memory.", _line(text), ReportedSizes()
        )
    if isinstance(error, _MISTAKES):
        return _NOTHING
    failure = _read(text)
    if (
        failure.certainty is Certainty.SURE
        and failure.requested is None
        and _was_pinning(error.__traceback__)
    ):
        reason = "CUDA says only that it is out of memory, but the call was one that pins host memory."
        return replace(failure, certainty=Certainty.PINNED, is_oom=False, reason=reason)
    return failure


_ON_DEVICE = ("cupy", "pycuda", "rmm", "numba")
"""Libraries whose MemoryError is about the GPU's memory."""


def _was_pinning(traceback: TracebackType | None) -> bool:
    """Whether the innermost frame was pinning memory: CUDA's words for that are the same as for a device's."""
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
    except Exception:  # a broken `__str__` is the user's; it must not hide their error
        return ""


# --- a text


def _read(text: str) -> ErrorClassification:
    found = find_spelling(text)
    if found is None:
        return _NOTHING
    spelling, line, around = found
    return _built(spelling.certainty, spelling.source, spelling.reason, line, parse_sizes(around))


def _line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _built(
    certainty: Certainty, source: str, reason: str, line: str, figures: ReportedSizes
) -> ErrorClassification:
    if certainty is Certainty.NOT_MEMORY:
        return ErrorClassification(certainty=certainty, reason=reason, message=line)
    return ErrorClassification(
        certainty=certainty,
        source=source,
        reason=reason,
        is_oom=certainty is Certainty.SURE,
        message=line,
        **asdict(figures),
    )
