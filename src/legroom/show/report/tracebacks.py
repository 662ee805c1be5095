"""Tracebacks without Legroom's frames, and tracebacks that fold the frames of libraries.

After an out-of-memory error, only the user's frames are relevant. Frames in torch are folded into one line such as `… 7
frames in torch`. For any other error, the frames of libraries may be relevant, so only Legroom's own frames are
omitted. The same applies to the traceback in the message of an error from a replica of `DataParallel` or from a
DataLoader worker.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import TracebackType

from legroom.log import one_line, printable
from legroom.show.common.formatting import format_location

_LEGROOM = os.path.join(str(Path(__file__).resolve().parents[2]), "")
_PACKAGES = ("/site-packages/", "/dist-packages/")
_FOLDED = "\0folded"
_SUGGESTION = re.compile(r"\. Did you mean: '\w+'\?$")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_ORIGINAL = "Original Traceback (most recent call last):"
"""The line with which torch starts the traceback of another thread or process in the message of an error."""
_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')
_Choose = Callable[[StackSummary], Iterator[FrameSummary]]


def format_short_traceback(error: BaseException, is_user_file: Callable[[str], bool]) -> str:
    """Return the traceback, with consecutive frames outside the user's code folded into one line."""
    return _render(error, lambda stack: _fold(stack, is_user_file))


def format_traceback(error: BaseException) -> str:
    return _render(error, _omit_legroom)


def omit_dispatch_frames(error: BaseException) -> None:
    """Remove the frames that only a virtual GPU adds from the traceback of an error and of its causes, for a hook of
    the program that prints the traceback itself. These are Legroom's frames and the frames of torch that they call.
    """
    part: BaseException | None = error
    seen: set[int] = set()
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        kept, in_dispatch = [], False
        for entry in _entries(part.__traceback__):
            file = entry.tb_frame.f_code.co_filename
            in_dispatch = file.startswith(_LEGROOM) or (in_dispatch and _package(file) == "torch")
            if not in_dispatch:
                kept.append(entry)
        part.__traceback__ = None
        for entry in reversed(kept):
            part.__traceback__ = TracebackType(
                part.__traceback__, entry.tb_frame, entry.tb_lasti, entry.tb_lineno
            )
        part = part.__cause__ or part.__context__


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def format_error_line(error: BaseException) -> str:
    """Return the last line of the traceback, which contains the error message, without notes."""
    lines = list(TracebackException.from_exception(error, limit=0, compact=True).format_exception_only())
    line = lines[-1] if isinstance(error, SyntaxError) else lines[0]
    return printable(_reduce_original(_COLORS.sub("", line.strip()), _omit_legroom)) + _suggestion(error)


def innermost_user_location(error: BaseException, is_user_file: Callable[[str], bool]) -> str:
    for frame in reversed(TracebackException.from_exception(error, lookup_lines=False, compact=True).stack):
        if is_user_file(frame.filename):
            return format_location(frame.filename, frame.lineno)
    return "an unknown line"


def _render(error: BaseException, choose: _Choose) -> str:
    summary = TracebackException.from_exception(error, compact=True)
    seen: set[int] = set()
    pending = [summary]
    while pending:  # causes, contexts and members of groups have their own stacks
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        part.stack = _Stack(choose(part.stack))
        if getattr(part, "filename", None):  # of a SyntaxError
            part.filename = one_line(part.filename)
        pending += [other for other in (part.__cause__, part.__context__) if other is not None]
        pending += getattr(part, "exceptions", None) or []
    text = printable(_COLORS.sub("", "".join(summary.format())))
    suggestion = _suggestion(error)
    ends_with_error = text.rstrip().endswith(str(error))  # not with a note
    text = f"{text.rstrip()}{suggestion}\n" if suggestion and ends_with_error else text
    return _reduce_original(text, choose)


def _reduce_original(text: str, choose: _Choose) -> str:
    """Apply `choose` to the frames in `text` that follow the start of an original traceback. The frames of the error
    itself, which may also follow, have been chosen before.
    """
    start = text.find(_ORIGINAL)
    if start < 0:
        return text
    result: list[str] = [text[:start]]
    stack = StackSummary()
    shown: dict[int, str] = {}  # the lines of each frame in `stack`

    def end_stack() -> None:
        result.extend(
            f"  {frame.name}\n" if frame.filename == _FOLDED else shown[id(frame)] for frame in choose(stack)
        )
        shown.clear()
        stack.clear()

    for line in text[start:].splitlines(keepends=True):
        header = _FRAME.match(line)
        if header is not None:
            frame = FrameSummary(header[1], int(header[2]), header[3], lookup_line=False, line="")
            stack.append(frame)
            shown[id(frame)] = line
        elif stack and line.startswith(("    ", "  [Previous line repeated")):
            shown[id(stack[-1])] += line
        else:
            end_stack()
            result.append(line)
    end_stack()
    return "".join(result)


def _suggestion(error: BaseException) -> str:
    """Return the similar name that Python 3.11 suggests after a NameError or AttributeError, or "".

    In Python 3.11, only the interpreter's own output contains the suggestion, not `TracebackException`.
    """
    if sys.version_info >= (3, 12) or not isinstance(error, NameError | AttributeError):
        return ""
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        sys.__excepthook__(type(error), error, error.__traceback__)
    found = _SUGGESTION.search(printed.getvalue().rstrip())
    return "" if found is None else found[0]


class _Stack(StackSummary):
    def format_frame_summary(self, frame_summary: FrameSummary, **options: object) -> str:
        if frame_summary.filename == _FOLDED:
            return f"  {frame_summary.name}\n"
        text = super().format_frame_summary(frame_summary, **options)
        return text.replace(frame_summary.filename, one_line(frame_summary.filename), 1)


def _fold(stack: StackSummary, is_user_file: Callable[[str], bool]) -> Iterator[FrameSummary]:
    visible = [frame for frame in stack if not _is_legroom(frame)]
    for users, frames in groupby(visible, key=lambda frame: is_user_file(frame.filename)):
        group = list(frames)
        if users:
            yield from group
        else:
            names = ", ".join(dict.fromkeys(_package(frame.filename) for frame in group))
            count = "1 frame" if len(group) == 1 else f"{len(group)} frames"
            yield FrameSummary(_FOLDED, 0, f"… {count} in {names}", lookup_line=False, line="")


def _omit_legroom(stack: StackSummary) -> Iterator[FrameSummary]:
    return (frame for frame in stack if not _is_legroom(frame))


def _is_legroom(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_LEGROOM)


def _package(file: str) -> str:
    file = file.replace(os.sep, "/")
    for folder in _PACKAGES:
        if folder in file:
            return file.split(folder, 1)[1].split("/", 1)[0].removesuffix(".py")
    return "Python"
