"""Finds the error in a log of any length.

The log is read once, in chunks.

The reader keeps the first and the last match of each known message, and the error lines of tracebacks. The result is
the last error, unless this error is only a consequence of another error, wraps a known error, or was handled.
`log_matches` and `consequences` decide this.
"""

import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from legroom.diagnose.explain.consequences import (
    background_lines,
    is_consequence,
    is_recovered,
    made_progress,
    root_traceback,
    says_only_failed,
)
from legroom.diagnose.explain.error_lines import (
    TRACEBACK,
    ErrorLine,
    find_error_line,
    shorten,
    traceback_errors,
)
from legroom.diagnose.explain.log_matches import (
    AT_EXIT,
    COMPILER,
    CONSEQUENCES,
    FOLLOWUP_LINES,
    IN_WORKER,
    NO_RESULT,
    PINNING,
    LogMatch,
    after,
    cause_searches,
    counts,
    error_of_the_operation,
    failed_rank,
    informativeness,
    is_independent,
    is_informal,
    is_killed_rank,
    is_memory,
    is_printed_before,
    is_remark,
    is_reported_as_error,
    is_source_line,
    is_strong,
    is_summary,
    only_reports_exit,
    ran_out,
    waits_for_rank,
    was_caught,
    was_pinning,
    without_handled,
    without_warnings,
)
from legroom.diagnose.explain.plain_text import inner_breaks, strip_log_formatting
from legroom.diagnose.explain.python_errors import (
    classify_python_error,
    is_uninformative,
)
from legroom.diagnose.explain.rules import RULES, SIZE_RULES, memory_code
from legroom.diagnose.explain.translations import has_translations, translate_system_messages
from legroom.diagnose.oom.known_messages import MESSAGE_PATTERNS, Certainty, MessagePattern

_CHUNK, _OVERLAP = 1 << 20, 1 << 14
"""The size of a chunk in characters, and the number of characters that are searched again with the next chunk.

An error may span two chunks.
"""
_BEFORE, _AFTER = 500, 5000
_MAX_TRIES = 25
_MAX_CAUSES = 3
_FIRST_TRACEBACKS, _LAST_TRACEBACKS = 20, 40
_CHAIN_MESSAGES = ("during handling of the above exception", "direct cause of the following exception")
_MESSAGE_LINES = 5
_CHAIN_LINES = 400
"""The number of lines before `During handling of the above exception` that are searched for the original error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult:
    """The error that was found in a log."""

    error: LogMatch | None
    unknown: ErrorLine | None
    """A Python error that matches no pattern, if it is the last error."""
    first: LogMatch | None
    """The first error of a different kind that precedes `error` in the log."""
    lines: int
    is_first_handled: bool = False
    """True if the program continued after `first`."""
    place: str = ""
    """The last line of the user's code in the traceback of the error, or "" if it is unknown."""
    is_cut: bool = False
    """True if nothing was found and the log ends inside a traceback."""


def search_log(chunks: Iterable[str]) -> LogResult:
    search = _Search()
    for chunk in chunks:
        search.feed(chunk)
    return search.result()


def chunks_of(text: str) -> Iterator[str]:
    for begin in range(0, len(text), _CHUNK):
        yield text[begin : begin + _CHUNK]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One kind of error, and its priority."""

    priority: int
    code: str
    weak: bool
    pattern: MessagePattern | None


_Variant = tuple[_Entry, str, re.Pattern[str]]
_DIGITS = b"0123456789"


@cache
def _known_variants() -> tuple[tuple[_Variant, bytes], ...]:
    """Return all variants of known messages, each with a literal that every match contains.

    Digits are removed from the literal, because `_distinct_lines` removes the digits of the log.
    """
    return tuple((variant, variant[1].encode().translate(None, _DIGITS)) for variant in _variants())


def _distinct_lines(lowered: str) -> bytes:
    """Return the distinct lines of a text after removing all digits.

    Most lines of a training log differ only in digits, so few lines remain to be searched.
    """
    lines = lowered.encode("utf-8", "replace").translate(None, _DIGITS).split(b"\n")
    return b"\n".join(dict.fromkeys(lines))


def _variants() -> Iterator[_Variant]:
    """Yield all variants by priority, with informal messages about memory last."""
    known = [each for each in MESSAGE_PATTERNS if each.certainty is not Certainty.NOT_MEMORY]
    table = [
        *((rule.code, rule.weak, None, rule.variants) for rule in SIZE_RULES),
        *(
            (memory_code(each), memory_code(each) == "LG705", each, each.variants)
            for each in known
            if not each.informal
        ),
        *((rule.code, rule.weak, None, rule.variants) for rule in RULES),
        *((memory_code(each), True, each, each.variants) for each in known if each.informal),
    ]
    for priority, (code, weak, message, variants) in enumerate(table):
        for literal, pattern in variants:
            yield _Entry(priority, code, weak, message), literal, pattern


class _Search:
    def __init__(self) -> None:
        self._carried = ""
        self._lines_before = 0
        """The number of lines of the log that come before the text in `_carried`."""
        self._inner_before = 0
        """The number of line breaks before `_carried` that are escaped in the file."""
        self._first: dict[int, LogMatch] = {}
        self._last: dict[int, LogMatch] = {}
        self._tracebacks: dict[int, ErrorLine] = {}
        """The error lines of the first and the last tracebacks, by line number."""
        self._error_line: ErrorLine | None = None
        self._chain = -1
        self._lines = 0

    def feed(self, chunk: str) -> None:
        text = (self._carried + strip_log_formatting(chunk)).replace("\r\n", "\n")
        lowered = text.lower()
        distinct = _distinct_lines(lowered)
        if has_translations(distinct):
            text = translate_system_messages(text)
            lowered = text.lower()
            distinct = _distinct_lines(lowered)
        if len(lowered) != len(text):  # some letters are longer in lower case, but positions must agree
            text = lowered
        window = _Window(text, lowered, self._lines_before, self._inner_before)
        for (entry, literal, pattern), stripped in _known_variants():
            if stripped in distinct and literal in lowered:
                self._search(window, entry, literal, pattern)
        self._tracebacks |= {error.line: error for error in window.tracebacks()}
        for line in sorted(self._tracebacks)[_FIRST_TRACEBACKS:-_LAST_TRACEBACKS]:
            del self._tracebacks[line]
        for message in _CHAIN_MESSAGES:
            position = lowered.rfind(message)
            if position >= 0:
                self._chain = max(self._chain, window.number(position))
        cut = text.rfind("\n", 0, max(len(text) - _OVERLAP, 0)) + 1
        self._carried = text[max(cut, len(text) - 4 * _OVERLAP) :]
        self._lines_before += text.count("\n", 0, len(text) - len(self._carried))
        self._inner_before += inner_breaks(text, len(text) - len(self._carried))
        inner = self._inner_before + inner_breaks(self._carried, len(self._carried))
        self._lines = self._lines_before + self._carried.count("\n") + 1 - inner

    def _search(self, window: "_Window", entry: "_Entry", literal: str, pattern: re.Pattern[str]) -> None:
        key = entry.priority
        if key not in self._first and (match := window.first(literal, pattern)):
            self._first[key] = window.log_match(match, entry)
        if match := window.last(literal, pattern):
            found = window.log_match(match, entry)
            if key not in self._last or self._last[key].line <= found.line:
                self._last[key] = found

    def result(self) -> LogResult:
        tracebacks = [self._tracebacks[line] for line in sorted(self._tracebacks)]
        ignored = background_lines(tracebacks)
        matches = [
            found
            for key, last in self._last.items()
            for found in ([self._first[key], last] if is_remark(last.text) else [last])
            if found.line not in ignored and counts(found, self._lines)
            if not (tracebacks and found.line < tracebacks[-1].line and is_source_line(found))
        ]
        latest = without_warnings([found for found in matches if not is_remark(found.text)])
        latest = [found for found in latest if not (is_informal(found) and _is_formal(found.text))]
        strong = [found for found in latest if is_strong(found)]
        self._error_line = root_traceback(tracebacks)
        active = without_handled(strong, latest, self._error_line)
        was_handled = bool(strong and not active)
        if was_handled:
            latest = [found for found in latest if not is_strong(found)]
        strong = active
        if self._error_line is None and self._lines < 2000 and all(was_caught(found) for found in strong):
            summaries = [found.line for found in self._first.values() if is_summary(found)]
            end = min(summaries, default=None)
            found_line = find_error_line(self._carried, self._lines_before + 1, end)
            self._error_line = found_line and replace(found_line, inner=self._inner_before + found_line.inner)
        if not latest and self._error_line is None:
            latest = [found for found in matches if is_remark(found.text)]
            strong = [found for found in latest if is_strong(found)]
        error: LogMatch | None = max(
            strong or latest,
            key=lambda found: (informativeness(found), found.line, -found.priority),
            default=None,
        )
        error = self._root_of(self._at_traceback(error, latest))
        if error is not None and error.code == COMPILER:
            error = error_of_the_operation(error)
        if error is not None and was_pinning(error):
            error = replace(error, code=memory_code(PINNING), pattern=PINNING)
        unknown = self._unknown(error, latest)
        if unknown is not None:
            has_earlier = was_handled or (error is not None and is_strong(error))
            first = self._earliest(None) if has_earlier else None
            return LogResult(
                error=None,
                unknown=unknown,
                first=first,
                is_first_handled=first is not None and made_progress(after(first)),
                lines=self._lines,
                place=unknown.place,
            )
        is_cut = error is None and TRACEBACK in self._carried.lower()
        return LogResult(
            error=error,
            unknown=None,
            first=self._earliest(error),
            lines=self._lines,
            place="" if error is None else _place(error, tracebacks),
            is_cut=is_cut,
        )

    def _at_traceback(self, error: LogMatch | None, latest: list[LogMatch]) -> LogMatch | None:
        """Return the match at the error line of the root traceback, if a consequence of this traceback was selected."""
        root = self._error_line
        if root is None or error is None or error.line <= root.line or is_consequence(root):
            return error
        if is_recovered(root.after) or not (waits_for_rank(error) or only_reports_exit(error, root)):
            return error
        here = [
            found
            for found in latest
            if found.line == root.line and not waits_for_rank(found)
            if informativeness(found) >= min(informativeness(error), 1)  # more than a launcher's summary
        ]
        return min(here, key=lambda found: found.priority) if here else error

    def _root_of(self, error: LogMatch | None) -> LogMatch | None:
        """Follow the causes of an error, for example from a timeout to a failed library to the kernel that failed."""
        for _ in range(_MAX_CAUSES):
            cause = self._cause_of(error)
            if cause is None or error is None:
                break
            is_same, error = cause.code == error.code, cause
            if is_same:
                break
        return error

    def _cause_of(self, error: LogMatch | None) -> LogMatch | None:
        """Return the original error if the last error only reports that a library failed.

        After a kernel failure, every CUDA call fails with a message that hides the cause. NCCL logs the reason a few
        lines before it reports the failed call. If a rank fails, the collectives of the other ranks time out.
        """
        if error is None:
            return None
        for is_cause, lines in cause_searches(error):
            matches = [*self._last.values(), *(self._first.values() if is_cause is failed_rank else [])]
            causes = [
                found
                for found in matches
                if error.line - lines < found.line
                and (found.line <= error.line or is_cause is is_killed_rank)
                and found is not error
                and is_cause(found)
                and (is_cause is not failed_rank or self._is_own_error(found))
            ]
            if causes:
                return max(causes, key=lambda found: (found.line, -found.priority))
        return None

    def _is_own_error(self, found: LogMatch) -> bool:
        """Return True if the match reports an error, and no entry with precedence matches the same line."""
        matches = (*self._last.values(), *self._first.values())
        is_shadowed = any(other.line == found.line and other.priority < found.priority for other in matches)
        return not is_shadowed and counts(found, self._lines)

    def _unknown(self, error: LogMatch | None, latest: list[LogMatch]) -> ErrorLine | None:
        last = self._error_line
        if last is None:
            return None
        is_root = not is_consequence(last) and not is_recovered(last.after)
        if any(
            last.line <= found.line
            for found in latest
            if not found.weak and not (is_root and last.line < found.line and waits_for_rank(found))
        ):
            return None
        if is_root and error is not None and last.line < error.line and waits_for_rank(error):
            return last
        if error is not None and is_consequence(last) and is_independent(error):
            return None
        if error is None or (error.weak and not is_reported_as_error(error)):
            if latest and last.kind.endswith("Warning"):
                return None
            if error is not None and error.code == IN_WORKER and not classify_python_error(last)[1]:
                return None  # raised in a worker; nothing more is known
            if any(found.line >= last.line and not only_reports_exit(found, last) for found in latest):
                return None  # the last error is only a wrapper
            is_python_error = 'file "' in last.frames or hasattr(builtins, last.kind)
            is_known = error is not None and not (is_summary(error) and last.kind)
            if is_known and not is_python_error and not classify_python_error(last)[1]:
                return None  # a line without a traceback says less than a known message
            return last
        if last.line - error.line <= FOLLOWUP_LINES and (
            (is_memory(error) and is_uninformative(last))
            or (ran_out(error) and NO_RESULT.search(last.text) is not None)
            or (not error.weak and CONSEQUENCES.search(last.text) is not None)
            or (is_independent(error) and says_only_failed(last))
            or (is_strong(error) and is_printed_before(error, last))
        ):
            return None
        if last.kind == "KeyboardInterrupt" and last.line - error.line <= FOLLOWUP_LINES:
            return None  # the user stopped a program that had failed
        chained = error.line < self._chain <= last.line and self._chain - error.line < _CHAIN_LINES
        wraps = any(
            found.weak
            and found.line >= last.line
            and not (only_reports_exit(found, last) and is_recovered(after(error)))
            for found in latest
        )
        return None if chained or wraps else last

    def _earliest(self, error: LogMatch | None) -> LogMatch | None:
        others = [
            found
            for found in self._first.values()
            if not found.weak
            and counts(found, self._lines)
            and (error is None or (found.code != error.code and found.line < error.line))
        ]
        return min(others, key=lambda found: (found.line, found.priority), default=None)


def _place(error: LogMatch, tracebacks: list[ErrorLine]) -> str:
    """Return the place of the traceback whose message contains the match. A message may have several lines."""
    return next(
        (each.place for each in reversed(tracebacks) if 0 <= error.line - each.line <= _MESSAGE_LINES), ""
    )


def _is_formal(text: str) -> bool:
    """Return True if a line contains a message about memory whose wording is known exactly."""
    lowered = text.lower()
    return any(
        literal in lowered and pattern.search(lowered) is not None
        for (entry, literal, pattern), _ in _known_variants()
        if entry.pattern is not None and not entry.pattern.informal
    )


@cache
def _is_single_line(pattern: re.Pattern[str]) -> bool:
    """Return True if no match can contain a line break. Matching single lines is faster."""
    return _LINE_BREAK.search(_NO_LINE_BREAK.sub("", pattern.pattern)) is None


_NO_LINE_BREAK = re.compile(r"\[\^[^\]]*\\n[^\]]*\]")
_LINE_BREAK = re.compile(r"\\[sWDn]|(?<!\\)[.$^]")
"""Matches any element of a pattern that can match a line break, or the start or end of the text."""


class _Window:
    """A chunk of the log, preceded by the end of the previous chunk."""

    def __init__(self, text: str, lowered: str, lines_before: int, inner_before: int) -> None:
        self._text, self._lowered = text, lowered
        self._lines_before, self._inner_before = lines_before, inner_before

    def first(self, literal: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
        position = -1
        for _ in range(_MAX_TRIES):
            position = self._lowered.find(literal, position + 1)
            if position < 0:
                return None
            if match := self._match(pattern, position):
                return match
        return None

    def last(self, literal: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
        position = len(self._lowered)
        for _ in range(_MAX_TRIES):
            position = self._lowered.rfind(literal, 0, position + len(literal) - 1)
            if position < 0:
                return None
            if match := self._match(pattern, position):
                return match
        return None

    def _match(self, pattern: re.Pattern[str], position: int) -> re.Match[str] | None:
        begin, end = max(position - _BEFORE, 0), position + _AFTER
        if _is_single_line(pattern):
            begin = max(self._lowered.rfind("\n", begin, position), begin)
            end = (self._lowered.find("\n", position, end) + 1 or end + 1) - 1
        for match in pattern.finditer(self._lowered, begin, end):
            if match.start() > position:
                return None
            if position < match.end():
                return match
        return None

    def number(self, position: int) -> int:
        return self._lines_before + self._text.count("\n", 0, position) + 1

    def log_match(self, match: re.Match[str], entry: _Entry) -> LogMatch:
        begin, end = self._line_at(max(match.end() - 1, match.start()))
        opening, _ = self._line_at(match.start())
        return LogMatch(
            code=entry.code,
            line=self.number(match.end() - 1),
            text=shorten(self._text[begin:end]),
            around=self._text[max(opening - _BEFORE, 0) : match.end() + _AFTER],
            inner=self._inner_before + inner_breaks(self._text, match.end() - 1),
            priority=entry.priority,
            weak=entry.weak or AT_EXIT in self._lowered[begin:end],
            pattern=entry.pattern,
        )

    def _line_at(self, position: int) -> tuple[int, int]:
        begin = max(self._text.rfind("\n", 0, position), self._text.rfind("\r", 0, position)) + 1
        ends = [end for newline in "\n\r" if (end := self._text.find(newline, position)) >= 0]
        return begin, min(ends, default=len(self._text))

    def tracebacks(self) -> list[ErrorLine]:
        found = traceback_errors(self._text, self._lowered)
        return [
            replace(error, line=self._lines_before + error.line, inner=self._inner_before + error.inner)
            for error in found
        ]
