"""Finds the errors in a log of any length: it is read once, in pieces, and never held whole.

Of each known spelling the first and the last place are kept, and of Python's own tracebacks the last headline. From these it is
decided which error the log is about: the last one, unless that is only a consequence (`weak`), or wraps one that is known.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from legroom.diagnose.explain.headlines import TRACEBACK, Headline, last_of_tracebacks, lone_headline, shown
from legroom.diagnose.explain.plain_text import lines_before, strip_log_formatting
from legroom.diagnose.explain.python_errors import classify_python_error, is_uninformative
from legroom.diagnose.explain.rules import RULES, memory_code
from legroom.diagnose.oom.messages import SPELLINGS, Certainty, Spelling

_PIECE, _OVERLAP = 1 << 20, 1 << 14
"""Characters of a piece, and how many of them are looked at again with the next: an error may lie across the border."""
_BEFORE, _BEHIND = 500, 5000
_TRIES = 25
_CHAINS = ("during handling of the above exception", "direct cause of the following exception")
_CHAIN_REACH = 400
"""Lines before the words of a chain in which the error that it speaks of may stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatch:
    """A known spelling at one place of a log."""

    code: str
    line: int
    """Its number, from 1."""
    text: str
    around: str
    """What stands around it: the figures of an error may be on the next lines."""
    order: int
    """Its place in the tables: of several on one line the lowest counts."""
    weak: bool
    spelling: Spelling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult:
    """What a log is about."""

    error: LogMatch | None
    unknown: Headline | None
    """An error of Python that no table knows, where that is the last one."""
    first: LogMatch | None
    """The first error of another kind, where there was one earlier."""
    lines: int
    is_cut: bool = False
    """Nothing was found, and it ends inside a traceback."""


def search_log(pieces: Iterable[str]) -> LogResult:
    """Look through a log, piece by piece."""
    search = _Search()
    for piece in pieces:
        search.feed(piece)
    return search.found()


def chunks_of(text: str) -> Iterator[str]:
    for begin in range(0, len(text), _PIECE):
        yield text[begin : begin + _PIECE]


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of one kind of error, and where it stands in the order in which they count."""

    order: int
    code: str
    weak: bool
    spelling: Spelling | None


_Way = tuple[_Entry, str, re.Pattern[str]]
_DIGITS = b"0123456789"


@cache
def _known() -> tuple[tuple[_Way, bytes], ...]:
    """Everything that is known, each with its plain part as `_shapes` would leave it."""
    return tuple((way, way[1].encode().translate(None, _DIGITS)) for way in _ways())


def _shapes(lowered: str) -> bytes:
    """The different lines of a text, digits left out: of a training log, next to nothing remains to be looked through."""
    lines = lowered.encode("utf-8", "replace").translate(None, _DIGITS).split(b"\n")
    return b"\n".join(dict.fromkeys(lines))


def _ways() -> Iterator[_Way]:
    """Words that speak of memory without saying of which count last."""
    known = [spelling for spelling in SPELLINGS if spelling.certainty is not Certainty.NOT_MEMORY]
    table = [
        *(
            (memory_code(each), memory_code(each) == "LG705", each, each.ways)
            for each in known
            if not each.in_words
        ),
        *((rule.code, rule.weak, None, rule.ways) for rule in RULES),
        *((memory_code(each), True, each, each.ways) for each in known if each.in_words),
    ]
    for order, (code, weak, spelling, ways) in enumerate(table):
        for plain, pattern in ways:
            yield _Entry(order, code, weak, spelling), plain, pattern


class _Search:
    def __init__(self) -> None:
        self._carried = ""
        self._before = 0
        """Lines before the carried text."""
        self._first: dict[int, LogMatch] = {}
        self._last: dict[int, LogMatch] = {}
        self._headline: Headline | None = None
        self._chain = -1
        self._lines = 0

    def feed(self, piece: str) -> None:
        text = (self._carried + strip_log_formatting(piece)).replace("\r\n", "\n")
        lowered = text.lower()
        if len(lowered) != len(text):  # a few letters are longer in lower case; positions must agree
            text = lowered
        window = _Window(text, lowered, self._before)
        shapes = _shapes(lowered)
        for (entry, plain, pattern), shape in _known():
            if shape in shapes and plain in lowered:
                self._look(window, entry, plain, pattern)
        self._headline = window.headline() or self._headline
        for words in _CHAINS:
            position = lowered.rfind(words)
            if position >= 0:
                self._chain = max(self._chain, window.number(position))
        cut = text.rfind("\n", 0, max(len(text) - _OVERLAP, 0)) + 1
        self._carried = text[max(cut, len(text) - 4 * _OVERLAP) :]
        self._before += lines_before(text, len(text) - len(self._carried))
        self._lines = self._before + lines_before(self._carried, len(self._carried)) + 1

    def _look(self, window: "_Window", entry: "_Entry", plain: str, pattern: re.Pattern[str]) -> None:
        order = entry.order
        if order not in self._first and (match := window.first(plain, pattern)):
            self._first[order] = window.sighting(match, entry)
        if match := window.last(plain, pattern):
            seen = window.sighting(match, entry)
            if order not in self._last or self._last[order].line <= seen.line:
                self._last[order] = seen

    def found(self) -> LogResult:
        latest = [seen for seen in self._last.values() if _counts(seen, self._lines)]
        strong = [seen for seen in latest if not seen.weak or _is_said_as_an_error(seen)]
        if self._headline is None and self._lines < 2000 and not strong:
            self._headline = lone_headline(self._carried, self._before + 1)
        error = max(
            strong or latest, key=lambda seen: (_says_more(seen), seen.line, -seen.order), default=None
        )
        error = self._cause_of(error) or error
        unknown = self._unknown(error, latest)
        if unknown is not None and error is not None and not error.weak:
            return LogResult(error=None, unknown=unknown, first=self._earliest(None), lines=self._lines)
        if unknown is not None:
            return LogResult(error=None, unknown=unknown, first=None, lines=self._lines)
        is_cut = error is None and TRACEBACK in self._carried.lower()
        return LogResult(
            error=error, unknown=None, first=self._earliest(error), lines=self._lines, is_cut=is_cut
        )

    def _cause_of(self, error: LogMatch | None) -> LogMatch | None:
        """What a library's failure is the consequence of: after a kernel has failed, every call of CUDA fails, in words that hide the
        cause; and where NCCL says that a call of CUDA failed, or only that it failed, it has said shortly before why."""
        if error is not None and error.code == _NCCL:
            full = [
                seen
                for seen in self._last.values()
                if seen.code == "LG700"
                and "NCCL" in seen.text
                and error.line - _NCCL_REACH < seen.line <= error.line
            ]
            return max(full, key=lambda seen: seen.line, default=None)
        if error is None or error.spelling is None or not _hides_a_fault(error.spelling):
            return None
        faults = [seen for seen in self._last.values() if seen.code in _FAULTS and seen.line <= error.line]
        if not faults and error.code == _NCCL_CALL:
            faults = [
                seen
                for seen in self._last.values()
                if "Cuda failure" in seen.text and error.line - _NCCL_REACH < seen.line <= error.line
            ]
        return max(faults, key=lambda seen: (seen.line, -seen.order), default=None)

    def _unknown(self, error: LogMatch | None, latest: list[LogMatch]) -> Headline | None:
        """The last headline, where nothing that is known explains it."""
        last = self._headline
        if last is None:
            return None
        if any(last.line <= seen.line for seen in latest if not seen.weak):
            return None
        if error is None or (error.weak and not _is_said_as_an_error(error)):
            if latest and last.kind.endswith("Warning"):
                return None
            if error is not None and error.code == _IN_A_WORKER and not classify_python_error(last)[1]:
                return None  # the error of a worker, and where it was is all that is known of it
            if any(seen.line >= last.line and not _counts_the_dead(seen, last) for seen in latest):
                return None  # a wrapper and nothing more: that is what the log tells
            return last
        if _is_memory(error) and last.line - error.line <= _SOON and is_uninformative(last):
            return None
        chained = error.line < self._chain <= last.line and self._chain - error.line < _CHAIN_REACH
        wraps = any(seen.weak and seen.line >= last.line for seen in latest)
        return None if chained or wraps else last

    def _earliest(self, error: LogMatch | None) -> LogMatch | None:
        others = [
            seen
            for seen in self._first.values()
            if not seen.weak
            and _counts(seen, self._lines)
            and (error is None or (seen.code != error.code and seen.line < error.line))
        ]
        return min(others, key=lambda seen: (seen.line, seen.order), default=None)


def _hides_a_fault(spelling: Spelling) -> bool:
    """Whether a library says this when a kernel has failed before: it gets no memory either then."""
    return spelling.certainty is Certainty.DISGUISED or spelling.source in _LIBRARIES


def _is_memory(seen: LogMatch) -> bool:
    """Whether memory ran out beyond doubt, and nobody says that it was dealt with."""
    if seen.spelling is None or seen.spelling.certainty is Certainty.DISGUISED:
        return False
    return _DEALT_WITH.search(seen.around[seen.around.find(seen.text) :][:600]) is None


def _counts(seen: LogMatch, lines: int) -> bool:
    """Whether words that only mention memory are those of an error."""
    if any(words in seen.text for words in _NO_ERROR):
        return False
    if seen.spelling is None or not seen.spelling.in_words:
        return True
    if _LOOKS_BAD.search(seen.text) is not None:
        return True
    return lines <= 3 and _IN_PASSING.search(seen.text) is None


def _is_said_as_an_error(seen: LogMatch) -> bool:
    """Whether words name the memory that is short, on a line that looks bad."""
    spelling = seen.spelling
    if spelling is None or not spelling.in_words or spelling.certainty is Certainty.DISGUISED:
        return False
    return _LOOKS_BAD.search(seen.text) is not None


def _counts_the_dead(seen: LogMatch, error: Headline) -> bool:
    """Whether a launcher only says that the process ended whose traceback stands above."""
    return seen.code == _ENDED[0] and seen.line > error.line and bool(error.frames)


def _says_more(seen: LogMatch) -> int:
    return _ENDED.index(seen.code) if seen.code in _ENDED else len(_ENDED)


_NO_ERROR = ("NCCL INFO", "could not destroy")
"""Words of lines that tell how things are, or that clear up after an error."""
_IN_A_WORKER = "LG741"
_ENDED = ("LG734", "LG729")
"""Only say that a process ended, that it crashed: whatever else is known tells more."""


_FAULTS = ("LG710", "LG711")
_LIBRARIES = frozenset({"cuBLAS", "cuDNN", "cuSOLVER", "cuFFT", "cuSPARSE", "cuRAND"})
_NCCL, _NCCL_CALL = "LG731", "LG706"
_NCCL_REACH = 200
"""Lines before NCCL's failure in which it names the call that failed."""
_SOON = 60
"""Lines after an error in which another, that says nothing of its own, is its consequence."""
_LOOKS_BAD = re.compile(
    r"error|exception|fatal|abort|kill|crash|cannot|could not|unable|\bfail(?:ed|ure)\b|[✗❌⚠]", re.IGNORECASE
)
_DEALT_WITH = re.compile(
    r"retry|retries|trying again|try again|skipping|skipped|caught|recover|reducing|halving|fall(?:ing)? back|lowering|instead",
    re.IGNORECASE,
)
_IN_PASSING = re.compile(
    r"handler|\[W\]|\bwarning\b|skipping|avoid|prevent|in case|\bif\b|without|never|no longer|instead of|\bmay\b|\bmight\b|\bwould\b|risk",
    re.IGNORECASE,
)


class _Window:
    """A piece of the log with what was carried over from the one before."""

    def __init__(self, text: str, lowered: str, before: int) -> None:
        self._text, self._lowered, self._before = text, lowered, before

    def first(self, plain: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
        position = -1
        for _ in range(_TRIES):
            position = self._lowered.find(plain, position + 1)
            if position < 0:
                return None
            if match := self._match(pattern, position):
                return match
        return None

    def last(self, plain: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
        position = len(self._lowered)
        for _ in range(_TRIES):
            position = self._lowered.rfind(plain, 0, position + len(plain) - 1)
            if position < 0:
                return None
            if match := self._match(pattern, position):
                return match
        return None

    def _match(self, pattern: re.Pattern[str], position: int) -> re.Match[str] | None:
        """The match that holds this very place: another may stand shortly before it."""
        for match in pattern.finditer(self._lowered, max(position - _BEFORE, 0), position + _BEHIND):
            if match.start() > position:
                return None
            if position < match.end():
                return match
        return None

    def number(self, position: int) -> int:
        return self._before + lines_before(self._text, position) + 1

    def sighting(self, match: re.Match[str], entry: _Entry) -> LogMatch:
        begin, end = self._line_at(max(match.end() - 1, match.start()))
        opening, _ = self._line_at(match.start())
        return LogMatch(
            code=entry.code,
            line=self.number(match.end() - 1),
            text=shown(self._text[begin:end]),
            around=self._text[max(opening - _BEFORE, 0) : match.end() + _BEHIND],
            order=entry.order,
            weak=entry.weak,
            spelling=entry.spelling,
        )

    def _line_at(self, position: int) -> tuple[int, int]:
        begin = max(self._text.rfind("\n", 0, position), self._text.rfind("\r", 0, position)) + 1
        ends = [end for sign in "\n\r" if (end := self._text.find(sign, position)) >= 0]
        return begin, min(ends, default=len(self._text))

    def headline(self) -> Headline | None:
        """The line that ends the last traceback."""
        found = last_of_tracebacks(self._text, self._lowered)
        return replace(found, line=self._before + found.line) if found is not None else None
