"""Finds the error in a log of any length.

The log is read once, in chunks.

The reader keeps the first and the last match of each known message, and the error line of the last traceback. The
result is the last error, unless this error is only a consequence of another error (`weak`) or wraps a known error.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from legroom.diagnose.explain.consequences import (
    HANDLED,
    is_consequence,
    is_recovered,
    lost_peer,
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
    without_prefix,
)
from legroom.diagnose.explain.plain_text import lines_before, strip_log_formatting
from legroom.diagnose.explain.python_errors import (
    classify_python_error,
    is_raised_by_program,
    is_uninformative,
)
from legroom.diagnose.explain.rules import RULES, SIZE_RULES, memory_code
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
_CHAIN_LINES = 400
"""The number of lines before `During handling of the above exception` that are searched for the original error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatch:
    """A known error message at one position in a log."""

    code: str
    line: int
    text: str
    around: str
    """The text around the match. Memory sizes may be on the following lines."""
    priority: int
    """The position of the entry in the tables. If several entries match one line, the first entry is used."""
    weak: bool
    pattern: MessagePattern | None = None


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
        if len(lowered) != len(text):  # some letters are longer in lower case, but positions must agree
            text = lowered
        window = _Window(text, lowered, self._lines_before)
        distinct = _distinct_lines(lowered)
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
        self._lines_before += lines_before(text, len(text) - len(self._carried))
        self._lines = self._lines_before + lines_before(self._carried, len(self._carried)) + 1

    def _search(self, window: "_Window", entry: "_Entry", literal: str, pattern: re.Pattern[str]) -> None:
        key = entry.priority
        if key not in self._first and (match := window.first(literal, pattern)):
            self._first[key] = window.log_match(match, entry)
        if match := window.last(literal, pattern):
            found = window.log_match(match, entry)
            if key not in self._last or self._last[key].line <= found.line:
                self._last[key] = found

    def result(self) -> LogResult:
        latest = [found for found in self._last.values() if _counts(found, self._lines)]
        strong = [found for found in latest if _is_strong(found)]
        active = _without_handled(strong, latest)
        was_handled = bool(strong and not active)
        if was_handled:
            latest = [found for found in latest if not _is_strong(found)]
        strong = active
        self._error_line = root_traceback([self._tracebacks[line] for line in sorted(self._tracebacks)])
        if self._error_line is None and self._lines < 2000 and not strong:
            self._error_line = find_error_line(self._carried, self._lines_before + 1)
        error = max(
            strong or latest,
            key=lambda found: (_informativeness(found), found.line, -found.priority),
            default=None,
        )
        error = self._root_of(self._at_traceback(error, latest))
        if error is not None and error.code == _COMPILER:
            error = _error_of_the_operation(error)
        if error is not None and _was_pinning(error):
            error = replace(error, code=memory_code(_PINNING), pattern=_PINNING)
        unknown = self._unknown(error, latest)
        if unknown is not None:
            has_earlier = was_handled or (error is not None and not error.weak)
            first = self._earliest(None) if has_earlier else None
            return LogResult(
                error=None,
                unknown=unknown,
                first=first,
                is_first_handled=first is not None and made_progress(_after(first)),
                lines=self._lines,
            )
        is_cut = error is None and TRACEBACK in self._carried.lower()
        return LogResult(
            error=error, unknown=None, first=self._earliest(error), lines=self._lines, is_cut=is_cut
        )

    def _at_traceback(self, error: LogMatch | None, latest: list[LogMatch]) -> LogMatch | None:
        """Return the match at the error line of the root traceback, if a consequence of this traceback was selected."""
        root = self._error_line
        if root is None or error is None or error.line <= root.line or is_consequence(root):
            return error
        if is_recovered(root.after) or not (_waits_for_rank(error) or _only_reports_exit(error, root)):
            return error
        here = [found for found in latest if found.line == root.line and not _waits_for_rank(found)]
        return min(here, key=lambda found: found.priority, default=error)

    def _root_of(self, error: LogMatch | None) -> LogMatch | None:
        """Follow the causes of an error, for example from a timeout to a failed library to the kernel that failed."""
        for _ in range(_MAX_CAUSES):
            cause = self._cause_of(error)
            if error is None or cause is None or cause.code == error.code:
                return cause or error
            error = cause
        return error

    def _cause_of(self, error: LogMatch | None) -> LogMatch | None:
        """Return the original error if the last error only reports that a library failed.

        After a kernel failure, every CUDA call fails with a message that hides the cause. NCCL logs the reason a few
        lines before it reports the failed call. If a rank fails, the collectives of the other ranks time out.
        """
        if error is None:
            return None
        searches: list[tuple[Callable[[LogMatch], bool], int]] = []
        if _waits_for_rank(error):
            searches += [(_is_killed_rank, _ALL_LINES), (_failed_rank, _ALL_LINES)]
        searches += [_CAUSES[error.code]] if error.code in _CAUSES else []
        if error.pattern is not None and _may_follow_fault(error.pattern):
            searches += [(_is_fault, _ALL_LINES)]
            searches += [(_is_failed_call, _NCCL_LINES)] if error.code == _NCCL_CALL else []
        for is_cause, lines in searches:
            causes = [
                found
                for found in self._last.values()
                if error.line - lines < found.line
                and (found.line <= error.line or is_cause is _is_killed_rank)
                and found is not error
                and is_cause(found)
                and not (is_cause is _failed_rank and self._is_shadowed(found))
            ]
            if causes:
                return max(causes, key=lambda found: (found.line, -found.priority))
        return None

    def _is_shadowed(self, found: LogMatch) -> bool:
        """Return True if an entry with precedence matches the same line."""
        return any(
            other.line == found.line and other.priority < found.priority for other in self._last.values()
        )

    def _unknown(self, error: LogMatch | None, latest: list[LogMatch]) -> ErrorLine | None:
        last = self._error_line
        if last is None:
            return None
        is_root = not is_consequence(last) and not is_recovered(last.after)
        if any(
            last.line <= found.line
            for found in latest
            if not found.weak and not (is_root and last.line < found.line and _waits_for_rank(found))
        ):
            return None
        if is_root and error is not None and last.line < error.line and _waits_for_rank(error):
            return last
        if error is not None and is_consequence(last) and _is_independent(error):
            return None
        if error is None or (error.weak and not _is_reported_as_error(error)):
            if latest and last.kind.endswith("Warning"):
                return None
            if error is not None and error.code == _IN_WORKER and not classify_python_error(last)[1]:
                return None  # raised in a worker; nothing more is known
            if any(found.line >= last.line and not _only_reports_exit(found, last) for found in latest):
                return None  # the last error is only a wrapper
            return last
        if last.line - error.line <= _FOLLOWUP_LINES and (
            (_is_memory(error) and is_uninformative(last))
            or (_ran_out(error) and _NO_RESULT.search(last.text) is not None)
            or (not error.weak and _CONSEQUENCES.search(last.text) is not None)
            or (_is_independent(error) and says_only_failed(last))
        ):
            return None
        if last.kind == "KeyboardInterrupt" and last.line - error.line <= _FOLLOWUP_LINES:
            return None  # the user stopped a program that had failed
        chained = error.line < self._chain <= last.line and self._chain - error.line < _CHAIN_LINES
        wraps = any(
            found.weak
            and found.line >= last.line
            and not (_only_reports_exit(found, last) and is_recovered(_after(error)))
            for found in latest
        )
        return None if chained or wraps else last

    def _earliest(self, error: LogMatch | None) -> LogMatch | None:
        others = [
            found
            for found in self._first.values()
            if not found.weak
            and _counts(found, self._lines)
            and (error is None or (found.code != error.code and found.line < error.line))
        ]
        return min(others, key=lambda found: (found.line, found.priority), default=None)


def _may_follow_fault(pattern: MessagePattern) -> bool:
    """Return True if the message may be a consequence of a kernel failure.

    After a kernel failure, the allocations of libraries also fail.
    """
    return pattern.certainty in (Certainty.DISGUISED, Certainty.LIKELY) or pattern.source in _LIBRARIES


def _was_pinning(found: LogMatch) -> bool:
    """Return True if CUDA reports `out of memory` or `invalid argument` for a call that pins host memory.

    CUDA's message does not distinguish page-locked memory from device memory. PyTorch's message about device memory
    contains the requested size.
    """
    is_oom = found.pattern is not None and found.pattern.certainty is Certainty.SURE
    if "allocate" in found.text or not (is_oom or "CUDA error: invalid argument" in found.text):
        return False
    before = found.around[: max(found.around.rfind(found.text[:200]), 0)]
    return _PIN_CALL.search(before[max(before.rfind('File "'), 0) :]) is not None


def _error_of_the_operation(found: LogMatch) -> LogMatch:
    """Return the error of the operation that torch.compile could not trace.

    The same operation also fails without torch.compile, for example because of its shapes.
    """
    match = _FAILED_OPERATION.search(found.around[found.around.find(found.text) :])
    if match is None:
        return found
    message = shorten(match[1] or match[2])
    _, code = classify_python_error(ErrorLine(line=found.line, kind="RuntimeError", text=message))
    return replace(found, code=code, text=message, weak=True) if code else found


_FAILED_OPERATION = re.compile(
    r"Failed running call_\w+ [^\n]*:\s*\n(?:\w*Error: )?([^\n]+)|with fake tensors: call_\w+ [^\n]*: got \w+\(([^\n]+)\)"
)
_PIN_CALL = re.compile(r"\bin \w*pin_memory\b|\.pin_memory\(|torch\.\w+\([^\n]*\bpin_memory=True")
_PINNING = next(each for each in MESSAGE_PATTERNS if each.certainty is Certainty.PINNED)


def _is_memory(found: LogMatch) -> bool:
    """Return True if memory certainly ran out and no line of the log reports that the error was handled."""
    return (
        _ran_out(found)
        and HANDLED.search(found.around[found.around.find(found.text) :][:600]) is None
        and not is_recovered(_after(found))
    )


def _ran_out(found: LogMatch) -> bool:
    return found.pattern is not None and found.pattern.certainty is not Certainty.DISGUISED


def _is_fault(found: LogMatch) -> bool:
    return found.code in _FAULTS


def _is_failed_call(found: LogMatch) -> bool:
    return "Cuda failure" in found.text


def _is_killed_worker(found: LogMatch) -> bool:
    return found.code != "LG729" and "is killed by signal" in found.text


def _is_reported_by_nccl(found: LogMatch) -> bool:
    is_rejected = found.code == _NCCL and "shared memory segment" in found.text  # has priority over LG703
    return (found.code in ("LG700", "LG702", "LG703", "LG704") or is_rejected) and "NCCL" in found.text


def _waits_for_rank(found: LogMatch) -> bool:
    """Return True if the failure of another rank may have caused the error."""
    return found.code == _TIMEOUT or (found.code in (_NCCL, _RENDEZVOUS) and lost_peer(_message_of(found)))


def _failed_rank(found: LogMatch) -> bool:
    if not _is_strong(found) or _waits_for_rank(found) or is_recovered(_after(found)):
        return False
    is_error = _EXCEPTION.search(found.text) is not None
    return is_error if _ran_out(found) else is_error or found.code in _FATAL


def _is_killed_rank(found: LogMatch) -> bool:
    """Return True if a rank was killed or crashed, unless the launcher killed it after another rank had failed."""
    is_crash = found.code in (_CRASH, _BUS_ERROR) and _CRASHED.search(found.text) is not None
    return (
        (found.code == _KILLED or is_crash)
        and "Root Cause (first" not in _after(found)
        and "forcefully" not in found.text
        and _GUESS.search(found.text) is None
    )


def _is_independent(found: LogMatch) -> bool:
    """Return True if the error cannot be a consequence of another process's failure, and was not handled."""
    if found.weak and not _is_killed_rank(found):
        return False
    return not _waits_for_rank(found) and not is_recovered(_after(found))


def _after(found: LogMatch) -> str:
    """Return the text after the line of a match."""
    return found.around[found.around.find(found.text) + len(found.text) :]


def _message_of(found: LogMatch) -> str:
    return found.text + _after(found)[:600]


def _without_handled(strong: list[LogMatch], latest: list[LogMatch]) -> list[LogMatch]:
    """Omit errors after which the program continued, if another error follows."""
    active = [
        found
        for found in strong
        if not is_recovered(_after(found)) and _HANDLED_HERE.search(found.text) is None
    ]
    if active or not strong:
        return active
    handled = max(found.line for found in strong)
    return strong if all(found.line <= handled for found in latest) else []


def is_typed(line: str) -> bool:
    """Return True if the line is a command that the user typed."""
    return _TYPED.match(line) is not None and _EXCEPTION.search(line) is None


def _counts(found: LogMatch, lines: int) -> bool:
    """Return True if a match reports an error.

    An informal message counts only on a line that looks like an error.
    """
    if any(marker in found.text for marker in _NOT_ERRORS):
        return False
    if is_typed(found.text):
        return False
    if found.pattern is None:
        return True
    if is_raised_by_program(found.around[: max(found.around.find(found.text), 0)]):
        return False
    if _ADVICE.search(found.text) is not None:
        return False
    if not found.pattern.informal:
        return True
    if _OTHER_ERROR.search(without_prefix(found.text)) is not None:
        return False
    if _ERROR_WORDS.search(found.text) is not None:
        return True
    return lines <= 3 and _MENTIONED.search(found.text) is None


def _is_strong(found: LogMatch) -> bool:
    return not found.weak or _is_reported_as_error(found)


def _is_reported_as_error(found: LogMatch) -> bool:
    pattern = found.pattern
    if pattern is None or not pattern.informal or pattern.certainty is Certainty.DISGUISED:
        return False
    return _ERROR_WORDS.search(found.text) is not None


def _only_reports_exit(found: LogMatch, error: ErrorLine) -> bool:
    """Return True if the message only reports the exit of a process whose traceback comes earlier."""
    reports = (
        found.code == _EXIT_CODES[0]
        or (found.code == _KILLED and _KILLED_ALONE.search(found.text) is not None)
        or (found.code == _KILLED and not _is_killed_rank(found))
        or (
            found.code == _EXIT_CODES[1]
            and found.weak
            and error.kind not in _STOPPED
            and not is_recovered(error.after)
        )
        or (found.code == _NCCL and found.weak)
        or (found.code in _EXIT_CODES and "received by PID" in found.text)
    )
    return reports and found.line > error.line and bool(error.frames)


def _informativeness(found: LogMatch) -> float:
    if found.code == _KILLED and not _is_killed_rank(found):
        return 1.5 if _GUESS.search(found.text) is not None else 0
    return _EXIT_CODES.index(found.code) if found.weak and found.code in _EXIT_CODES else len(_EXIT_CODES)


_NOT_ERRORS = (
    "NCCL INFO",
    "could not destroy",
    "this is not a failure",
    "setting loss scale to",
)
"""Words of informational lines, and of lines about the cleanup after an error."""
_KILLED, _BUS_ERROR, _CRASH = "LG705", "LG703", "LG729"
_CRASHED = re.compile(
    r"SIGSEGV|Segmentation|SIGILL|Illegal instruction|SIGBUS|: -(?:7|11)\b|signal (?:4|11)\b"
)
_KILLED_ALONE = re.compile(r"\bKilled\W*$")
"""Matches the end of a process that the launcher or the user stopped after an error, if a traceback comes before."""
_GUESS = re.compile(r"potential root causes|common causes include")
"""Matches Ray's list of reasons why a worker may have died."""
_STOPPED = ("KeyboardInterrupt", "SystemExit")
_IN_WORKER = "LG741"
_COMPILER = "LG752"
_TIMEOUT = "LG730"
_WORKER_DIED = "LG740"
_EXCEPTION = re.compile(r"\w(?:Error|Exception)\b: ")
_TYPED = re.compile(r"\s*(?:(?:\([\w.-]{1,30}\) )?[\w.@~:/\[-]{0,60}\]?\$ |>>> |export |setx? )")
"""Matches the start of a command that the user typed, with or without its prompt."""
_EXIT_CODES = ("LG734", "LG735", "LG729")
"""Codes of messages that only report that a process exited, was stopped or crashed.

Any other known error is more informative.
"""
_FAULTS = ("LG710", "LG711")
_FATAL = (*_FAULTS, "LG725", "LG732", "LG780")
"""Codes of errors that end a rank even if the log does not contain the name of the exception."""
_LIBRARIES = frozenset({"cuBLAS", "cuDNN", "cuSOLVER", "cuFFT", "cuSPARSE", "cuRAND"})
_NCCL, _NCCL_CALL = "LG731", "LG706"
_RENDEZVOUS = "LG733"
_NCCL_LINES = 200
"""The maximum number of lines between NCCL's message about a failed call and the error that follows."""
_ALL_LINES = 1 << 60
_CAUSES: dict[str, tuple[Callable[[LogMatch], bool], int]] = {
    # NCCL logs the reason some lines before it reports the failed call.
    _NCCL: (_is_reported_by_nccl, _NCCL_LINES),
    # A kernel fails because the GPU has failed.
    "LG711": (lambda found: found.code == "LG725" and "fallen off the bus" in found.text, _NCCL_LINES),
    # A program checks the result of a CUDA call in an assertion.
    "LG710": (lambda found: found.code == "LG725", 6),
    # The reason for a worker's exit is logged before the loop that reads batches reports the exit.
    _WORKER_DIED: (_is_killed_worker, _ALL_LINES),
    # Another rank did not build the extension.
    "LG726": (lambda found: found.code == "LG751" and "Error building extension" in found.text, _NCCL_LINES),
    # A build fails because the compiler was killed.
    "LG751": (lambda found: found.code == "LG705", 6),
}
"""Maps the code of an error to a function that recognizes its cause, and to the maximum number of lines between cause
and error.
"""
_FOLLOWUP_LINES = 60
"""The maximum number of lines between an error and a later, uninformative error that is treated as its consequence."""
_NO_RESULT = re.compile(r"'NoneType' object (?:has no attribute|is not (?:callable|iterable|subscriptable))")
"""Matches the error of a program that uses None because a library logged an error and returned no result."""
_HANDLED_HERE = re.compile(
    r"\bretrying|Retry attempt|will retry|\bskipping|falling back|\bignoring", re.IGNORECASE
)
"""Matches an error message that states that the error was handled."""
_CONSEQUENCES = re.compile(r"UnboundLocalError|ZeroDivisionError|the errors above for more details")
"""Matches the error of a program that uses a variable or a count that only a successful step sets, and errors that refer
to earlier errors.
"""
_ERROR_WORDS = re.compile(
    r"error|exception|fatal|abort|kill|crash|cannot|could not|unable|\bfail(?:ed|ure)\b|[✗❌⚠]", re.IGNORECASE
)
_ADVICE = re.compile(
    r"^(?!.{0,80}(?:Error|Exception)\b).{0,200}\b(?:avoid\w*|prevent\w*|in case of|if you|when|whenever|retry on)\b[^.]{0,40}\bout of memory",
    re.IGNORECASE | re.DOTALL,
)
"""Matches advice about errors, unless the line names an exception."""
_OTHER_ERROR = re.compile(
    r"^\s*(?:\w+\.)*(?:Assertion|Attribute|FileNotFound|Import|Key|ModuleNotFound|Name|Type)Error\b"
)
"""Matches the error line of a programming error, which may quote the name of a file or a test."""
_MENTIONED = re.compile(
    r"handler|\[W\]|\bwarning\b|skipping|avoid|prevent|in case|\bif\b|without|never|no longer|instead of|\bmay\b|\bmight\b|\bwould\b|risk",
    re.IGNORECASE,
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

    def __init__(self, text: str, lowered: str, lines_before: int) -> None:
        self._text, self._lowered, self._lines_before = text, lowered, lines_before

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
        return self._lines_before + lines_before(self._text, position) + 1

    def log_match(self, match: re.Match[str], entry: _Entry) -> LogMatch:
        begin, end = self._line_at(max(match.end() - 1, match.start()))
        opening, _ = self._line_at(match.start())
        return LogMatch(
            code=entry.code,
            line=self.number(match.end() - 1),
            text=shorten(self._text[begin:end]),
            around=self._text[max(opening - _BEFORE, 0) : match.end() + _AFTER],
            priority=entry.priority,
            weak=entry.weak,
            pattern=entry.pattern,
        )

    def _line_at(self, position: int) -> tuple[int, int]:
        begin = max(self._text.rfind("\n", 0, position), self._text.rfind("\r", 0, position)) + 1
        ends = [end for newline in "\n\r" if (end := self._text.find(newline, position)) >= 0]
        return begin, min(ends, default=len(self._text))

    def tracebacks(self) -> list[ErrorLine]:
        found = traceback_errors(self._text, self._lowered)
        return [replace(error, line=self._lines_before + error.line) for error in found]
