"""Matches of known messages in a log, and how they relate to each other.

The functions decide whether a match reports an error, whether another error may have caused it, and whether the
program continued after it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from legroom.diagnose.explain.consequences import HANDLED, is_recovered, lost_peer, made_progress
from legroom.diagnose.explain.error_lines import ErrorLine, shorten, without_prefix
from legroom.diagnose.explain.python_errors import classify_python_error, is_raised_by_program
from legroom.diagnose.oom.known_messages import MESSAGE_PATTERNS, Certainty, MessagePattern


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
    inner: int = 0
    """The number of preceding line breaks that are escaped in the file."""

    @property
    def file_line(self) -> int:
        return self.line - self.inner


def cause_searches(error: LogMatch) -> list[tuple[Callable[[LogMatch], bool], int]]:
    """Return functions that recognize the cause of an error, each with the maximum number of lines between cause and
    error.
    """
    searches: list[tuple[Callable[[LogMatch], bool], int]] = []
    if waits_for_rank(error):
        searches += [(is_killed_rank, _ALL_LINES), (failed_rank, _ALL_LINES)]
    searches += [_CAUSES[error.code]] if error.code in _CAUSES else []
    if error.pattern is not None and _may_follow_fault(error.pattern):
        searches += [(_is_fault, _ALL_LINES)]
        searches += [(_is_failed_call, _NCCL_LINES)] if error.code == _NCCL_CALL else []
    return searches


def _may_follow_fault(pattern: MessagePattern) -> bool:
    """Return True if the message may be a consequence of a kernel failure.

    After a kernel failure, the allocations of libraries also fail.
    """
    return pattern.certainty in (Certainty.DISGUISED, Certainty.LIKELY) or pattern.source in _LIBRARIES


def was_pinning(found: LogMatch) -> bool:
    """Return True if CUDA reports `out of memory` or `invalid argument` for a call that pins host memory.

    CUDA's message does not distinguish page-locked memory from device memory. PyTorch's message about device memory
    contains the requested size.
    """
    is_oom = found.pattern is not None and found.pattern.certainty is Certainty.SURE
    if "allocate" in found.text or not (is_oom or "CUDA error: invalid argument" in found.text):
        return False
    before = found.around[: max(found.around.rfind(found.text[:200]), 0)]
    return _PIN_CALL.search(before[max(before.rfind('File "'), 0) :]) is not None


def error_of_the_operation(found: LogMatch) -> LogMatch:
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
PINNING = next(each for each in MESSAGE_PATTERNS if each.certainty is Certainty.PINNED)


def is_memory(found: LogMatch) -> bool:
    """Return True if memory certainly ran out and no line of the log reports that the error was handled."""
    return (
        ran_out(found)
        and HANDLED.search(found.around[found.around.find(found.text) :][:600]) is None
        and not is_recovered(after(found))
    )


def ran_out(found: LogMatch) -> bool:
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


def waits_for_rank(found: LogMatch) -> bool:
    """Return True if the failure of another process may have caused the error."""
    if "Ran out of input" in found.text:
        return "from_parent" in found.around
    if found.code == _PICKLE:
        return "Broken pipe" in found.text
    message = found.text if "NCCL WARN" in found.text else _message_of(found)
    return found.code == _TIMEOUT or (found.code in (_NCCL, _RENDEZVOUS) and lost_peer(message))


def failed_rank(found: LogMatch) -> bool:
    if not is_strong(found) or waits_for_rank(found) or is_recovered(after(found)):
        return False
    is_error = _EXCEPTION.search(found.text) is not None
    if ran_out(found):
        return is_error
    return is_error or found.code in _FATAL or (found.code == _NCCL and "NCCL WARN" in found.text)


def is_killed_rank(found: LogMatch) -> bool:
    """Return True if a rank was killed or crashed, unless the launcher killed it after another rank had failed."""
    is_crash = found.code in (_CRASH, _BUS_ERROR) and _CRASHED.search(found.text) is not None
    return (
        (found.code == _KILLED or is_crash)
        and ("Root Cause (first" not in after(found) or _KILLED_BY_SYSTEM.search(found.text) is not None)
        and "forcefully" not in found.text
        and _GUESS.search(found.text) is None
    )


def is_independent(found: LogMatch) -> bool:
    """Return True if the error cannot be a consequence of another process's failure, and was not handled."""
    if found.weak and not is_killed_rank(found):
        return False
    return not waits_for_rank(found) and not is_recovered(after(found))


def after(found: LogMatch) -> str:
    """Return the text after the line of a match."""
    line = found.text.removesuffix("…")  # a long line is shortened
    return found.around[max(found.around.find(line), 0) + len(line) :].partition("\n")[2]


def _message_of(found: LogMatch) -> str:
    """Return the line of a match and the lines that follow, up to the next traceback."""
    return found.text + after(found)[:600].partition("Traceback")[0]


def without_handled(
    strong: list[LogMatch], latest: list[LogMatch], error: ErrorLine | None = None
) -> list[LogMatch]:
    """Omit errors after which the program continued, if another error or the traceback of `error` follows."""
    active = [found for found in strong if not is_recovered(after(found)) and not was_caught(found)]
    if active or not strong:
        return active
    handled = max(found.line for found in strong)
    if not any(made_progress(after(found)) for found in strong):
        latest = [found for found in latest if not (found.code == _EXIT_CODES[0] and is_summary(found))]
    is_last = all(found.line <= handled for found in latest) and (
        error is None
        or error.line <= handled
        or NO_RESULT.search(error.text) is not None
        or CONSEQUENCES.search(error.text) is not None
    )
    return strong if is_last else []


def was_caught(found: LogMatch) -> bool:
    """Return True if the line itself states that the program handled the error."""
    return _HANDLED_HERE.search(found.text) is not None


def is_remark(line: str) -> bool:
    """Return True if the user wrote the line, for example `batch 512: ok, batch 1024: CUDA out of memory`."""
    return _REMARK.search(line) is not None and _EXCEPTION.search(line) is None


def without_warnings(found: list[LogMatch]) -> list[LogMatch]:
    """Omit warnings about memory if there is another error."""
    return [each for each in found if not (is_informal(each) and _WARNS.search(each.text))] or found


def ends_while_loading(text: str) -> bool:
    """Return True if the process seems to have been stopped while it filled host memory.

    A progress bar for the parts of a checkpoint is incomplete, and only prompts and comments follow. Or a notebook's kernel
    was restarted after very large allocations.
    """
    if _RESTARTED.search(text) is not None:
        return True
    found = [*_LOADING.finditer(text)][-1:]
    return any(
        int(match[1]) < int(match[2])
        and all(_PROMPT.match(line) for line in text[match.end() :].splitlines()[1:])
        for match in found
    )


_RESTARTED = re.compile(
    r"kernel \S+ restarted.{0,2000}large alloc \d{10,}|large alloc \d{10,}.{0,2000}kernel \S+ restarted",
    re.DOTALL,
)
_LOADING = re.compile(r"Loading checkpoint shards: [^\n]*?(\d+)/(\d+)[^\n]*")
_PROMPT = re.compile(r"\s*(?:$|#|(?:\([\w.-]+\) )?(?:(?:PS )?[A-Z]:\\[^>]*>|[\w.@~:/\[ -]{0,60}\]?[$#%] ?))")
"""Matches an empty line, a comment, and the prompt of a shell."""
_REMARK = re.compile(
    r"\b(?:ok|works|runs|fine)\b.*\bout of memory|\bout of memory\b.*\b(?:ok|works|runs|fine)\b|^\s*#+ [^\n]*\bout of memory"
    r"|(?-i:\bI) (?:am|was|have|had|get|got|only|don't|did|didn't|can|can't|could|use|used|tried|think|thought|guess|still"
    r"|also|run|ran|set|see|saw|found|need|want|would|will|increased?|decreased?|reduced?|changed?|never|always|just)\b"
    r"|(?-i:\bI)'(?:m|ve|d|ll)\b|\bmy (?:GPU|machine|RAM|code|script|card|computer|laptop|server)\b",
    re.IGNORECASE,
)
"""Matches remarks about other runs, and sentences in the first person."""


_WARNS = re.compile(r"^.{0,160}?(?:\[W\]|\bwarn(?:ing)?\b)", re.IGNORECASE)
"""Matches a line that a program marks as a warning."""


def is_typed(line: str) -> bool:
    """Return True if the line is a command that the user typed."""
    return _TYPED.match(line) is not None and _EXCEPTION.search(line) is None


def counts(found: LogMatch, lines: int) -> bool:
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
    return found.line >= lines - _END_LINES and _MENTIONED.search(found.text) is None


def is_source_line(found: LogMatch) -> bool:
    """Return True if the line is the source code that a traceback shows. Its strings and comments are not messages."""
    before = found.around[: max(found.around.find(found.text.removesuffix("…")), 0)]
    return is_source(before.rpartition("\n")[0].rpartition("\n")[2], found.text)


def is_source(previous: str, line: str) -> bool:
    """Return True if a traceback shows the line as source code, given the previous line."""
    return _FRAME.search(previous.rstrip(" |│")) is not None and _EXCEPTION.search(line) is None


def is_strong(found: LogMatch) -> bool:
    return not found.weak or is_reported_as_error(found)


def is_printed_before(found: LogMatch, error: ErrorLine) -> bool:
    """Return True if native code printed the message directly before the traceback of an exception.

    Such a message is the reason for the exception. The message of another exception is not, because the program may have
    handled this exception.
    """
    between = after(found).split("\n")[: max(error.line - error.frames.count("\n") - 2 - found.line, 0)]
    return (
        0 < error.line - found.line - error.frames.count("\n") <= _PRINTED_LINES
        and _EXCEPTION.search(found.text) is None
        and HANDLED.search(found.text) is None
        and all(_ERROR_WORDS.search(line) for line in between if line.strip())
    )


def is_summary(found: LogMatch) -> bool:
    """Return True if the message only reports that a process failed."""
    return found.weak and found.code in _EXIT_CODES


def is_informal(found: LogMatch) -> bool:
    return found.pattern is not None and found.pattern.informal


def is_reported_as_error(found: LogMatch) -> bool:
    pattern = found.pattern
    if pattern is None or not pattern.informal or pattern.certainty is Certainty.DISGUISED:
        return False
    return _ERROR_WORDS.search(found.text) is not None


def only_reports_exit(found: LogMatch, error: ErrorLine) -> bool:
    """Return True if the message only reports the exit of a process whose traceback comes earlier."""
    reports = (
        found.code == _EXIT_CODES[0]
        or (found.code == _KILLED and _KILLED_ALONE.search(found.text) is not None)
        or (found.code == _KILLED and not is_killed_rank(found))
        or (
            found.code == _EXIT_CODES[1]
            and found.weak
            and error.kind not in _STOPPED
            and not is_recovered(error.after)
        )
        or (found.code == _NCCL and found.weak)
        or (found.code in _EXIT_CODES and "received by PID" in found.text)
        or (found.code == _CRASH and found.line - error.line <= _EXIT_LINES and 'file "' in error.frames)
        or (AT_EXIT in found.text and not is_recovered(error.after))
    )
    is_raised = bool(error.frames) or (bool(error.kind) and not is_recovered(error.after))
    return reports and found.line > error.line and is_raised


def informativeness(found: LogMatch) -> float:
    if found.code == _KILLED and not is_killed_rank(found):
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
    r"SIGSEGV|Segmentation|SIGFPE|Floating point exception|SIGILL|Illegal instruction|SIGBUS|: -(?:7|11)\b|signal (?:4|11)\b"
)
_KILLED_ALONE = re.compile(r"\bKilled\W*$")
"""Matches the end of a process that the launcher or the user stopped after an error, if a traceback comes before."""
_KILLED_BY_SYSTEM = re.compile(r"oom[-_ ]kill|out of memory|OOMKilled", re.IGNORECASE)
"""Matches messages of the kernel or the scheduler about a process that they killed."""
_GUESS = re.compile(r"potential root causes|common causes include")
"""Matches Ray's list of reasons why a worker may have died."""
_STOPPED = ("KeyboardInterrupt", "SystemExit")
IN_WORKER = "LG741"
COMPILER = "LG752"
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
_RENDEZVOUS, _PICKLE = "LG733", "LG743"
_NCCL_LINES = 200
"""The maximum number of lines between NCCL's message about a failed call and the error that follows."""
_ALL_LINES = 1 << 60
_CAUSES: dict[str, tuple[Callable[[LogMatch], bool], int]] = {
    # NCCL logs the reason some lines before it reports the failed call.
    _NCCL: (_is_reported_by_nccl, _NCCL_LINES),
    # A kernel fails because the GPU has failed.
    "LG711": (lambda found: found.code == "LG725" and "fallen off the bus" in found.text, _NCCL_LINES),
    # A size is read from a tensor that another rank did not send.
    "LG719": (lambda found: found.code == _TIMEOUT and "restart" not in after(found), 12),
    # A program checks the result of a CUDA call in an assertion.
    "LG710": (lambda found: found.code == "LG725", 6),
    # The driver rejects the CUDA version, so later calls find no GPU.
    "LG724": (lambda found: found.code == "LG723", 6),
    # The reason for a worker's exit is logged before the loop that reads batches reports the exit.
    _WORKER_DIED: (_is_killed_worker, _ALL_LINES),
    # Another rank did not build the extension.
    "LG726": (lambda found: found.code == "LG751" and "Error building extension" in found.text, _NCCL_LINES),
    # pip finds no package without a connection.
    "LG790": (lambda found: found.code == "LG782" and "new connection" in found.text, 12),
    # A build fails because the compiler was killed or the disk is full.
    "LG751": (lambda found: found.code in ("LG705", "LG780"), 30),
}
"""Maps the code of an error to a function that recognizes its cause, and to the maximum number of lines between cause
and error.
"""
AT_EXIT = "driver shutting down"
"""The message of CUDA calls while the process exits."""
_END_LINES = 3
"""The number of lines at the end of a log in which a statement about memory counts without words such as `error`."""
_FRAME = re.compile(r'File "[^"\n]+", line \d+(?:, in \S+)?$')
"""Matches the line of a traceback before a source line."""
_PRINTED_LINES = 5
"""The maximum number of lines between a message of native code and the traceback of the exception that follows from it."""
_EXIT_LINES = 30
"""The maximum number of lines between an exception and a crash while the process exits because of this exception."""
FOLLOWUP_LINES = 60
"""The maximum number of lines between an error and a later, uninformative error that is treated as its consequence."""
NO_RESULT = re.compile(r"'NoneType' object (?:has no attribute|is not (?:callable|iterable|subscriptable))")
"""Matches the error of a program that uses None because a library logged an error and returned no result."""
_HANDLED_HERE = re.compile(
    r"\bretrying|Retry attempt|will retry|\bskipping|falling back|\bignoring|(?<!un)caught exception",
    re.IGNORECASE,
)
"""Matches an error message that states that the error was handled."""
CONSEQUENCES = re.compile(r"UnboundLocalError|ZeroDivisionError|the errors above for more details")
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
    r"handler|(?-i:\bI\b)|\b(?:thought|probably|maybe|guess|suspect)\b|\[W\]|\bwarning\b|skipping|avoid|prevent|in case|\bif\b|without|never|no longer|instead of|\bmay\b|\bmight\b|\bwould\b|risk",
    re.IGNORECASE,
)
