"""Finds the line that contains the error message.

The error line is the last line of a traceback, or a line that looks like an error.

Launchers, loggers and notebooks put prefixes such as a rank, a time or a level before a line. `without_prefix`
removes these prefixes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from legroom.diagnose.explain.plain_text import INNER, inner_breaks

TRACEBACK = "traceback (most recent call last)"
_MAX_TRACEBACK = 1 << 16
"""The number of characters, from the start of a traceback, that are searched for its last line."""
_MAX_TRACEBACKS = 40
_AFTER = 5000
_MAX_SHOWN = 400
_FEW_LINES = 3
"""The maximum number of lines in a pasted message. Longer text is treated as a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLine:
    """The line of a log that contains the error message."""

    line: int
    """The line number in the printed text. If the file contains JSON, a line of the file may contain several lines."""
    kind: str
    """The exception class, for example `torch.OutOfMemoryError`, or "" if the line names no class."""
    text: str
    frames: str = ""
    """The traceback above the line, in lower case. The files of a traceback show which library raised the error."""
    place: str = ""
    """The last line of the user's code in the traceback, for example `train.py:42`."""
    after: str = ""
    """The text after the line, which shows whether the program continued."""
    is_background: bool = False
    """True if a thread other than the main thread raised the error."""
    inner: int = 0
    """The number of preceding line breaks that are escaped in the file."""

    @property
    def file_line(self) -> int:
        return self.line - self.inner


def traceback_errors(text: str, lowered: str) -> list[ErrorLine]:
    """Return the error lines of the last tracebacks in a text, in their order.

    Tracebacks of finalizers and exit handlers, and reports about errors in other processes, are ignored.
    """
    errors: list[ErrorLine] = []
    number, counted, is_escaped = 1, 0, INNER in text
    for position in _last_positions(lowered):
        number += text.count("\n", counted, position)
        counted = position
        begin = lowered.rfind("\n", 0, position) + 1
        opening = _CONSEQUENCE.search(lowered, max(begin - 200, 0), position)
        if opening is None or opening["thread"]:
            found = _end_of_traceback(text, begin, position, number, is_escaped=is_escaped)
            if found is not None and not _is_wrapper(found):
                errors.append(replace(found, is_background=opening is not None))
    return errors


def _last_positions(lowered: str) -> list[int]:
    positions: list[int] = []
    position = lowered.rfind(TRACEBACK)
    while position >= 0 and len(positions) < _MAX_TRACEBACKS:
        positions.append(position)
        position = lowered.rfind(TRACEBACK, 0, position)
    return positions[::-1]


def _is_wrapper(error: ErrorLine) -> bool:
    return (
        error.kind.rpartition(".")[2] in _WRAPPERS
        or error.text.lower().endswith(f": {TRACEBACK}:")  # the message is the traceback of a worker
        or _REFERS_TO_CAUSE.search(error.text) is not None
    )


def find_error_line(text: str, first_line: int = 1, end: int | None = None) -> ErrorLine | None:
    """Return the last line that looks like an error, for text without a traceback.

    `end` is the number of the first line that only reports that a process failed. This line and the following lines are
    ignored.
    """
    text = _IGNORED.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines = [without_prefix(line.rpartition("\r")[2].strip()) for line in text.split("\n")]
    inner = [0, *accumulate(line.endswith("\v") for line in text.split("\n"))]
    if end is not None:
        lines = lines[: max(end - first_line, 0)]
    is_log = sum(map(bool, lines)) > _FEW_LINES  # in a log, a warning is not the error
    is_wrapped = False
    qualified = (_FROM_ERRORS,) if is_log else (_QUALIFIED, _WARNING)
    for pattern in (_RAISED_ANYWHERE, *qualified, _MARKED, _ERROR_LIKE):
        for offset in reversed(range(len(lines))):
            match = pattern.search(lines[offset])
            if match is not None and not _is_informational(lines[offset], pattern):
                kind = match[1] if pattern.groups else ""
                line = first_line + offset
                frames = _join_frames(lines[:offset])
                found = ErrorLine(
                    line=line,
                    kind=kind,
                    text=_message(kind, lines[offset:]),
                    frames=frames,
                    after="\n".join(lines[offset + 1 :])[:_AFTER],
                    inner=inner[offset],
                )
                if not is_log or not _is_wrapper(found):
                    return found
                is_wrapped = True
        if is_wrapped:
            return None  # only the report about an error in another process
    return None


def _is_informational(line: str, pattern: re.Pattern[str]) -> bool:
    return (
        "NCCL INFO" in line
        or line.startswith("raise ")
        or (pattern is _ERROR_LIKE and _INFORMATIONAL.search(line) is not None)
    )


def without_prefix(line: str) -> str:
    return _PREFIX.sub("", line, count=1)


def shorten(line: str) -> str:
    plain = line.strip()
    return plain if len(plain) <= _MAX_SHOWN else f"{plain[:_MAX_SHOWN]}…"


def _end_of_traceback(
    text: str, begin: int, position: int, number: int, *, is_escaped: bool
) -> ErrorLine | None:
    """Return the line that follows a traceback and contains the exception. `number` is the line number of the traceback.

    In a notebook, the first line of the traceback contains the exception class.
    """
    here = number
    before = text[begin:position]
    margin = before[: len(before) - len(before.lstrip())]
    head = _NOTEBOOK_HEAD.match(without_prefix(before))
    named = head[1] if head is not None else ""
    process = _PROCESS.match(before)
    shape = _DIGIT.sub("0", before)
    frames: list[str] = []
    end = position
    for offset, line in enumerate(_lines(text, position, position + _MAX_TRACEBACK)):
        end += len(line) + 1
        seen = line.rstrip("\r\v").rpartition("\r")[2]  # a progress bar overwrites its line
        if offset and process is not None and not seen.startswith(process[0]):
            here += 1
            continue  # another process printed this line
        if offset and shape and _DIGIT.sub("0", seen[: len(before)]) == shape:
            seen = seen[len(before) :]  # a logger repeats the prefix with another time
        elif offset:
            seen = seen.removeprefix(margin)
        plain = without_prefix(seen)
        if offset and plain and not plain.startswith(_DECORATION):
            match = _RAISED.match(plain)
            if match is not None and match[1].endswith(named):
                after = text[end : end + _AFTER]
                message = _message(match[1], [plain, *after.split("\n", 3)[:3]])
                inner = inner_breaks(text, end - 1) if is_escaped else 0
                return ErrorLine(
                    line=here,
                    kind=match[1],
                    text=message,
                    frames=_join_frames(frames),
                    place=_user_place(frames),
                    after=after,
                    inner=inner,
                )
            if not named and not plain.startswith(_REMOTE):
                return None
        frames.append(plain)
        here += 1
    return ErrorLine(line=number, kind=named, text=named, frames=_join_frames(frames)) if named else None


def _lines(text: str, begin: int, end: int) -> Iterator[str]:
    """Yield the lines between two positions one at a time, because a traceback usually ends after a few lines."""
    while begin < end:
        newline = text.find("\n", begin, end)
        stop = newline if newline >= 0 else min(end, len(text))
        yield text[begin:stop]
        begin = stop + 1 if newline >= 0 else end


def _message(kind: str, lines: list[str]) -> str:
    """Return the first line of an error message. If this line contains only the class, the next two lines are added."""
    first = lines[0].strip()
    if not (kind and first.endswith(f"{kind}:")):
        return shorten(first)
    following = [line for each in lines[1:] if (line := without_prefix(each.strip()))]
    return shorten(" ".join([first, *following[:2]]))


def _join_frames(frames: list[str]) -> str:
    return "\n".join(frames[-40:]).lower()


def _user_place(frames: list[str]) -> str:
    """Return the last line of a traceback that is not in an installed package, or "" if there is none."""
    for frame in reversed(frames):
        match = _FRAME.match(frame.strip())
        if match is not None and _INSTALLED.search(match["file"] or "") is None:
            return (
                f"{match['file']}:{match['line']}"
                if match["file"]
                else f"cell [{match['cell']}], line {match['number']}"
            )
    return ""


_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+)|Cell In ?\[(?P<cell>\d+)\], line (?P<number>\d+)'
)
"""Matches the line of a traceback that names a file, or a cell of a notebook."""
_INSTALLED = re.compile(
    r"(?:site|dist)-packages[\\/]|[\\/]lib[\\/]python\d|[\\/]Lib[\\/]|[\\/]torch[\\/]|^<", re.IGNORECASE
)
"""Matches the files of installed packages and of Python itself."""

_WRAPPERS = {
    "ActorDiedError",
    "CalledProcessError",
    "ChildFailedError",
    "EngineDeadError",
    "KilledWorker",
    "ProcessRaisedException",
    "ProcessExitedException",
    "RayActorError",
    "WorkerCrashedError",
}
"""Exception classes that only report an error in another process."""
_REMOTE = "ray.exceptions.RayTaskError("
"""The line that Ray prints before the traceback of a remote task."""
_REFERS_TO_CAUSE = re.compile(
    r"root cause above|for (?:the )?root cause|inspect the previous error messages|exception in a background process"
    r"|statements above for the actual error|in the log before the first|Trials did not complete|\bShard(?:CannotStart|Failed)\b",
    re.IGNORECASE,
)
"""Matches errors that refer to an error of another process, which is logged before."""
_IGNORED = re.compile(
    r"^[^\n]*exception ignored in[^\n]*\n(?:traceback[^\n]*\n)?(?:[ \t][^\n]*\n)*[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
"""Matches the report about an error in a finalizer, with its traceback."""
_CONSEQUENCE = re.compile(
    r"exception ignored in[^\n]*\n?[^\n]*$|error in atexit[^\n]*\n?[^\n]*$|(?P<thread>exception in thread )[^\n]*\n?[^\n]*$"
)
"""The text that Python prints before the traceback of an error in a finalizer, an exit handler or a thread."""

_TIME = r"\d{1,4}[-/:]\d\d(?:[-/:]\d\d){0,2}(?:[T ]\d\d:\d\d:\d\d)?(?:[.,]\d+)?Z?"
_LEVEL = r"(?:INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|DEBUG)"
_PREFIX = re.compile(
    r"^(?:(?:"
    r"\[?(?i:rank)\s?\d+\]?:"  # [rank0]:
    r"|\[\d+(?:,\d+)?\](?:<std\w+>)?:?"  # [1]<stderr>:
    r"|\([\w .-]+ (?:\w+=\S+ )*pid=\d+[^)]{0,40}\)"  # (Worker pid=12)
    r"|\d+:(?=\s|\w)"
    r"|[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \S+ \S+\[\d+\]:"  # systemd journal
    r"|[\w.-]+-\d+\s+\|"  # docker compose
    r"|std(?:err|out) [FP](?=\s)"  # Kubernetes
    rf"|\[?{_TIME}\]?"
    rf"|\[?{_LEVEL}\]?(?: {_TIME}){{0,2}}(?: ?\[[\w.]+:\d+(?::\w+)?\]| \w+\.py:\d+\])"
    r"|\|? ?(?:ERROR|CRITICAL|FATAL) {1,8}(?:\| \S+ )?-(?=\s)"  # ERROR -, or | ERROR | module:function:94 -
    r"|.{0,60}\d%\|.{0,120}?(?:it/s|s/it).{0,80}?\]"  # a progress bar that does not end its line
    r"|\{\"[^{}]{0,200}?\"(?:msg|message|error|exception|log|text)\": ?\""  # JSON
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\](?: \[\d+/\d+\])?"  # glog
    r"|- [\w.]+ -"
    r"|>(?=\s)"
    r"|E(?=\s{2})"  # pytest
    r") ?){1,8}"
)

_DIGIT = re.compile(r"\d")
_PROCESS = re.compile(r"\[rank\d+\]: |\([\w .-]+ (?:\w+=\S+ )*pid=\d+[^)\n]{0,40}\) |\d+: ")
"""Matches the prefix with which a launcher marks each line of one process."""
_NAME = r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Failure|Invalid|NotMet)"
_RAISED = re.compile(r"^((?:\w+\.)*[A-Z]\w*)(?:: ?(.*))?$")
"""Matches the last line of a traceback: a class name, and a message if there is one."""
_RAISED_ANYWHERE = re.compile(
    rf"^(?:\S{{0,40}}\]:?\s*)?((?:{_NAME}|StopIteration))(?:: ?(?:.*))?$|(?!)", re.DOTALL
)
_QUALIFIED = re.compile(r"^((?:[a-z_]\w*\.)+[A-Z][A-Za-z]+): \S")
"""Matches an exception class with its module, such as `zipfile.BadZipFile`."""
_FROM_ERRORS = re.compile(r"^((?:[a-z_]\w*\.)+(?:errors?|exceptions?|exc)\.[A-Z]\w+): \S")
"""Matches an exception class whose module contains exceptions, such as `click.exceptions.NoSuchOption`."""
_WARNING = re.compile(r"\b((?:\w+\.)*\w*Warning): \S")
_NOTEBOOK_HEAD = re.compile(rf"^\s*({_NAME})\s{{4,}}$")
_MARKED = re.compile(
    r"^(?:[\w./:,\[\]()| -]{0,80}?(?:\[| |\|))?(?-i:ERROR|FATAL|CRITICAL|\[E\])(?: ?[\]|:-]|\s)+(?:\d+: )?\s*[A-Za-z'\"\[(<`]|^(?:\S+: )?(?:fatal |runtime )?error:? +[A-Za-z'\"\[(<`]"
    r"|^panic: |panicked at |failed assertion |Check failed: |^terminate called after|^\W*Exception during \w+\W+[A-Za-z'\"]|^(?:unable|failed) to |^(?:could not|cannot) ",
    re.IGNORECASE,
)
"""Matches a line that a program marks as an error, but not a line with a numeric value such as `error: 0.03`."""
_ERROR_LIKE = re.compile(
    r"\b(?:error|exception|fail|failure)\s*:+\s*[A-Za-z'\"\[(<`]|\berror(?:!| <class)|\w(?:Error|Exception)\b|\bnot found\b|\bdoes(?: not|n't) exist\b|\bassertion\b[^\n]{0,200}\bfailed\b"
    r"|\b(?:failed|aborted|unsupported|incompatible)\b|\bnot (?:supported|compatible|implemented)\b|\b(?:could not|cannot|can't|unable to)\b|\bexit(?:s|ed|ing)? (?:with|due)\b|\bKilling subprocess\b",
    re.IGNORECASE,
)
_INFORMATIONAL = re.compile(
    r"\b(?:INFO|DEBUG|WARN|WARNING|WRN|note|hint)\b|\b(?:no|0|without|zero) (?:errors?|failures?|exceptions?)\b|\b0 failed\b|HYDRA_FULL_ERROR|^wandb: (?!ERROR)|\[[IWV]\b|\b(?!User)\w+Warning:|handler|\bif\b|avoid|falling back|fallback|skipp",
    re.IGNORECASE,
)

_DECORATION = (" ", "\t", "|", "+", "│", "╭", "╰", "❱", "┃", "-", "<", "~", "File ", "Cell ", "/", "Input ")
"""Prefixes of traceback lines in Python, rich and notebooks."""
