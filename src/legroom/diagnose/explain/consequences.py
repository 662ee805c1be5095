"""Distinguishes the error that ended a program from its consequences, and from errors that the program handled.

If one rank fails, the other ranks time out or lose their connections, and the launcher reports the exit of every
process. These messages come last in the log, but the error of the first rank is the cause. An error after which the
program made progress is not the cause of a later failure.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from legroom.diagnose.explain.error_lines import TRACEBACK, ErrorLine, without_prefix


def root_traceback(tracebacks: Sequence[ErrorLine]) -> ErrorLine | None:
    """Return the traceback that explains the failure, or None if there are no tracebacks.

    The last traceback is the result, unless it is a consequence and an earlier error was not handled.
    """
    if not tracebacks:
        return None
    last = tracebacks[-1]
    causes = [error for error in tracebacks if not is_consequence(error) and not is_recovered(error.after)]
    found = causes[-1] if is_consequence(last) and causes else last
    raised = next(error for error in tracebacks if error.text == found.text)
    return replace(found, frames=raised.frames)  # a pool raises the error of a worker again


def background_lines(tracebacks: Sequence[ErrorLine]) -> set[int]:
    """Return the lines of errors in threads that occurred after the main thread had raised an error."""
    main = [error.line for error in tracebacks if not is_consequence(error) and not is_recovered(error.after)]
    return {error.line for error in tracebacks if error.is_background and main and main[0] < error.line}


def is_consequence(error: ErrorLine) -> bool:
    """Return True if an error of another process or thread may have caused the error."""
    name = error.kind.rpartition(".")[2]
    if error.is_background or lost_peer(error.text) or name in _LOST_CHILD or says_only_failed(error):
        return True
    if name == "DistBackendError":
        return lost_peer(error.after[:_REASON_CHARACTERS])  # NCCL reports the reason on the next lines
    return name == "EOFError" and _PIPE_READER.search(error.frames) is not None


def says_only_failed(error: ErrorLine) -> bool:
    """Return True if the message only states that something failed, without a reason."""
    return _NO_REASON.fullmatch(error.text) is not None


def lost_peer(text: str) -> bool:
    """Return True if a process lost the connection to another process, or waited for it in vain."""
    return _LOST_PEER.search(text) is not None or _TIMED_OUT.search(text) is not None


def is_recovered(after: str) -> bool:
    """Return True if the program continued after an error, given the text after the error.

    A message states that the error was handled, or the steps of several iterations follow.
    """
    following = after[: (after.lower().find(TRACEBACK) + 1 or len(after) + 1) - 1]
    if any(HANDLED.search(line) for line in following[:_HANDLED_CHARACTERS].split("\n") if _is_message(line)):
        return True
    return made_progress(following)


def made_progress(after: str) -> bool:
    """Return True if several steps follow."""
    return len({match[0] for match in _PROGRESS.finditer(after)}) >= _MIN_PROGRESS


def _is_message(line: str) -> bool:
    plain = without_prefix(line)
    return not (line.startswith("[rank") or plain.startswith(_NOT_MESSAGES) or _ADVICE.search(plain))


_NO_REASON = re.compile(
    r"(?:(?:\w+\.)*(?:RuntimeError|Exception)|SystemExit): ?(?:\d|(?:[A-Za-z]+ ){1,3}(?:failed|crashed|aborted)[.!]?)"
)
_PIPE_READER = re.compile(r"multiprocessing[/\\](?:connection|spawn)")
"""Matches the frames of a process that reads from a process that has failed."""
_REASON_CHARACTERS = 400
_LOST_CHILD = ("Empty", "BrokenPipeError")
"""Classes of errors that a process raises if one of its child processes does not respond any more."""
_LOST_PEER = re.compile(
    r"remote process exited|ncclRemoteError|Connection (?:was )?(?:closed|reset|refused)|Broken ?pipe|recvBytes|sendBytes"
    r"|failed to recv, got 0 bytes|SockClientClosedError|communicator was aborted|connection to the C10d store has failed",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(
    r"collective operation timeout|Timed out (?:waiting|after)|wait timeout|Socket Timeout|socket has timed out|waiting for clients",
    re.IGNORECASE,
)
HANDLED = re.compile(
    r"retry|retries|trying again|try again|skipping|skipped|(?<!Watchdog )caught|recover|reducing|halving|fall(?:ing)? back|lowering|instead|\bhandled\b",
    re.IGNORECASE,
)
"""Matches messages of a program that handled an error."""
_NOT_MESSAGES = (" ", "\t", "wandb:")
_ADVICE = re.compile(r"\b(?:consider|refer to|please|you (?:can|could|may)|try to)\b", re.IGNORECASE)
_HANDLED_CHARACTERS = 600
_MIN_PROGRESS = 3
_PROGRESS = re.compile(
    r"\b(?:step|epoch|iter|iteration|update|batch|trial|num_updates|it)s?\b['\"]?[ :=#\[(]{1,3}\d+|\b\d+/\d+ \[[\d:]+<",
    re.IGNORECASE,
)
"""Matches the number of a step in a line about progress."""
