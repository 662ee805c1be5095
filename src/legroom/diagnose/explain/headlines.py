"""The line that says what went wrong: what ends a traceback, or, where there is none, a line that reads like an error.

Python prints a traceback and then one line with the exception. Around that, launchers, loggers and notebooks put their own: a rank, a
time, a level, a frame of lines, colours. `without_prefix` takes off what stands before a line, so that the rest is judged as Python printed it.
"""

import re
from dataclasses import dataclass
from itertools import accumulate

from legroom.diagnose.explain.plain_text import lines_before

TRACEBACK = "traceback (most recent call last)"
_FARTHEST = 1 << 16
"""Characters after a traceback's first line in which its last is looked for."""
_LONGEST_SHOWN = 400
_FEW = 3
"""Lines of a text that someone pasted for what it says, not a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What a log says went wrong, in its own words."""

    line: int
    """Its number, from 1."""
    kind: str
    """`KeyError`, `torch.OutOfMemoryError`; "" where the line has no class."""
    text: str
    frames: str = ""
    """The traceback above it, in lower case: which library raised it can be read off its files."""


def last_of_tracebacks(text: str, lowered: str) -> Headline | None:
    """The line that ends the last traceback which is neither a consequence nor only speaks of another process."""
    position = lowered.rfind(TRACEBACK)
    for _ in range(4):
        if position < 0:
            return None
        begin = lowered.rfind("\n", 0, position) + 1
        if not _IS_CONSEQUENCE.search(lowered, max(begin - 200, 0), position):
            found = _end_of_traceback(text, begin, position)
            if found is not None and found.kind.rpartition(".")[2] not in _WRAPPERS:
                return found
        position = lowered.rfind(TRACEBACK, 0, position)
    return None


def lone_headline(text: str, first_line: int = 1) -> Headline | None:
    """In a short text without a traceback's end: the last line that reads like an error of Python, is marked as one, or complains."""
    lines = [without_prefix(line.rpartition("\r")[2].strip()) for line in text.split("\n")]
    ends = list(accumulate(not line.endswith("\v") for line in text.split("\n")))
    warned = () if sum(map(bool, lines)) > _FEW else (_WARNED,)  # in a log, a warning is no error
    for pattern in (_RAISED_SOMEWHERE, *warned, _MARKED, _COMPLAINS):
        for offset in reversed(range(len(lines))):
            match = pattern.search(lines[offset])
            if match is not None and not _is_calm(lines[offset], pattern):
                kind = match[1] if pattern.groups else ""
                line = first_line + (ends[offset - 1] if offset else 0)
                return Headline(line=line, kind=kind, text=shown(lines[offset]))
    return None


def _is_calm(line: str, pattern: re.Pattern[str]) -> bool:
    return "NCCL INFO" in line or (pattern is _COMPLAINS and _IS_CALM.search(line) is not None)


def without_prefix(line: str) -> str:
    """A line without what launchers, loggers and containers wrote before it."""
    return _PREFIX.sub("", line, count=1)


def shown(line: str) -> str:
    plain = line.strip()
    return plain if len(plain) <= _LONGEST_SHOWN else f"{plain[:_LONGEST_SHOWN]}…"


def _end_of_traceback(text: str, begin: int, position: int) -> Headline | None:
    """The first line after a traceback's head that is neither indented nor decoration; a notebook names the class in the head."""
    number = here = lines_before(text, position) + 1
    before = text[begin:position]
    margin = before[: len(before) - len(before.lstrip())]
    head = _NOTEBOOK_HEAD.match(without_prefix(before))
    named = head[1] if head is not None else ""
    frames: list[str] = []
    for offset, line in enumerate(text[position : position + _FARTHEST].split("\n")):
        seen = line.rstrip("\r\v").rpartition("\r")[2]  # what a bar has drawn is drawn over
        plain = without_prefix(seen.removeprefix(margin) if offset else seen)
        if offset and plain and not plain.startswith(_DECORATION):
            match = _RAISED.match(plain)
            if match is not None and match[1].endswith(named):
                return Headline(line=here, kind=match[1], text=shown(plain), frames=_told(frames))
            if not named:
                return None
        frames.append(plain)
        here += not line.endswith("\v")
    return Headline(line=number, kind=named, text=named, frames=_told(frames)) if named else None


def _told(frames: list[str]) -> str:
    return "\n".join(frames[-40:]).lower()


_WRAPPERS = {"ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException"}
"""Errors that only say that another process had one."""
_IS_CONSEQUENCE = re.compile(r"exception ignored in[^\n]*\n?[^\n]*$|error in atexit[^\n]*\n?[^\n]*$")
"""What stands before a traceback of the clearing up after an error."""

_TIME = r"\d{1,4}[-/:]\d\d(?:[-/:]\d\d){0,2}(?:[T ]\d\d:\d\d:\d\d)?(?:[.,]\d+)?Z?"
_LEVEL = r"(?:INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|DEBUG)"
_PREFIX = re.compile(
    r"^(?:(?:"
    r"\[?(?i:rank)\s?\d+\]?:"  # [rank0]:
    r"|\[\d+(?:,\d+)?\](?:<std\w+>)?:?"  # [1]<stderr>:
    r"|\([\w .-]+ (?:\w+=\S+ )*pid=\d+[^)]{0,40}\)"  # (Worker pid=12)
    r"|\d+:(?=\s|\w)"
    r"|[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \S+ \S+\[\d+\]:"  # the journal of a service
    r"|[\w.-]+-\d+\s+\|"  # a container
    r"|std(?:err|out) [FP](?=\s)"  # a pod
    rf"|\[?{_TIME}\]?"
    rf"|\[?{_LEVEL}\]?(?: {_TIME}){{0,2}}(?: ?\[[\w.]+:\d+\]| \w+\.py:\d+\])"
    r"|- [\w.]+ -"
    r"|>(?=\s)"
    r"|E(?=\s{2})"  # pytest
    r") ?){1,8}"
)
"""What may stand before each line, several of them and in any order."""

_NAME = r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Failure|Invalid|NotMet)"
_RAISED = re.compile(r"^((?:\w+\.)*[A-Z]\w*)(?:: ?(.*))?$")
"""What ends a traceback, whatever the exception is called."""
_RAISED_SOMEWHERE = re.compile(
    rf"^(?:\S{{0,40}}\]:?\s*)?((?:{_NAME}|StopIteration))(?:: ?(?:.*))?$|(?!)", re.DOTALL
)
_WARNED = re.compile(r"\b((?:\w+\.)*\w*Warning): \S")
_NOTEBOOK_HEAD = re.compile(rf"^\s*({_NAME})\s{{4,}}$")
_MARKED = re.compile(
    r"^(?:[\w./:,\[\]()| -]{0,80}?(?:\[| |\|))?(?-i:ERROR|FATAL|CRITICAL)(?: ?[\]|:-]|\s)+\s*[A-Za-z'\"\[(<`]|^(?:\S+: )?(?:fatal |runtime )?error:? +[A-Za-z'\"\[(<`]"
    r"|^panic: |panicked at |failed assertion |Check failed: |^terminate called after|^(?:unable|failed) to |^(?:could not|cannot) ",
    re.IGNORECASE,
)
"""A line that a program marks as an error; not one that tells an error of so much."""
_COMPLAINS = re.compile(
    r"\b(?:error|exception|fail|failure)\s*:+\s*[A-Za-z'\"\[(<`]|\berror <class|\w(?:Error|Exception)\b|\bnot found\b|\bdoes(?: not|n't) exist\b|\bassertion\b[^\n]{0,200}\bfailed\b"
    r"|\b(?:failed|aborted|unsupported|incompatible)\b|\bnot (?:supported|compatible|implemented)\b|\b(?:could not|cannot|can't|unable to)\b|\bexit(?:s|ed|ing)? (?:with|due)\b|\bKilling subprocess\b",
    re.IGNORECASE,
)
"""A line that complains, in whatever form."""
_IS_CALM = re.compile(
    r"\b(?:INFO|DEBUG|WARN|WARNING|WRN|note|hint)\b|\b(?:no|0|without|zero) (?:errors?|failures?|exceptions?)\b|\b0 failed\b|\[[IWV]\b|handler|\bif\b|avoid|falling back|fallback|skipp",
    re.IGNORECASE,
)
"""Words of lines that tell how things are, and of those that give advice."""

_DECORATION = (" ", "\t", "|", "+", "│", "╭", "╰", "❱", "┃", "-", "<", "~", "File ", "Cell ", "/", "Input ")
"""How lines of a traceback begin: Python's, rich's, and a notebook's."""
