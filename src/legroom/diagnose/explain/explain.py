"""Explains an error: its kind, its possible causes, and a check and a fix for each cause.

    explanation = explain(error)        # an exception or a string
    explanation = explain_file(path)    # a log of any length, or a capture

`oom.recognize` decides whether an error is about memory, and `log_reader` finds the error in a log. The explanation
comes from the code's page. If the message contains memory sizes, the causes that these sizes indicate come first.
`machine_checks` adds the facts about this machine that are relevant to the causes, such as free memory and versions.
"""

import builtins
import codecs
import errno
import gzip
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from legroom import schemas
from legroom.diagnose.codes import CodePage, find_page
from legroom.diagnose.explain.error_lines import ErrorLine
from legroom.diagnose.explain.log_matches import LogMatch, ends_while_loading, is_remark, is_source, is_typed
from legroom.diagnose.explain.log_reader import LogResult, chunks_of, search_log
from legroom.diagnose.explain.plain_text import printed_chunks
from legroom.diagnose.explain.python_errors import classify_python_error, is_raised_by_program
from legroom.diagnose.explain.rules import CAUSE_PATTERNS, memory_code
from legroom.diagnose.explain.sizes import causes_from_sizes, summarize_shapes, summarize_sizes
from legroom.diagnose.oom.known_messages import Certainty
from legroom.diagnose.oom.recognize import ErrorClassification, classify, is_low_on_memory
from legroom.diagnose.oom.sizes import ReportedSizes, parse_sizes
from legroom.errors import UsageError

if TYPE_CHECKING:
    from legroom.memory.annotations import RunEnded
    from legroom.memory.capture.capture import Capture

ErrorKind = Literal["oom", "disguised-oom", "host-oom", "not-memory", "unknown"]
ExplanationCertainty = Literal["sure", "likely", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A possible cause of the error."""

    cause: str
    check: str
    """A check that shows whether this is the cause."""
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierError:
    """An error that comes earlier in the same log."""

    code: str
    title: str
    line: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of an error, with its possible causes."""

    kind: ErrorKind
    certainty: ExplanationCertainty
    code: str = ""
    """The code whose page explains the error, or ""."""
    sentence: str
    meaning: str = ""
    message: str = ""
    line: int | None = None
    """The line number in the log, or None if the error does not come from a log."""
    place: str = ""
    """The last line of the user's code in the traceback of the error, for example `train.py:42`. Not in the JSON."""
    causes: tuple[Cause, ...] = ()
    """Possible causes, most likely first."""
    figures: dict[str, int] = field(default_factory=dict)
    """The sizes in the error message in bytes, and the device index."""
    here: tuple[str, ...] = ()
    earlier: EarlierError | None = None
    """An earlier error in the log, often the original cause."""

    def as_json(self) -> dict[str, Any]:
        values = {key: value for key, value in asdict(self).items() if key != "place"}
        return {"schema": schemas.EXPLAIN, **values, "causes": [asdict(cause) for cause in self.causes]}


def explain(
    error: BaseException | str, *, here: Callable[[str], tuple[str, ...]] | None = None
) -> Explanation:
    """Explain an exception or a string.

    `here` is a function that returns the results of this machine's checks for a code.
    """
    if isinstance(error, BaseException):
        return _with_checks(_explain_exception(error), here)
    if not isinstance(error, str):
        raise UsageError(f"explain() expects an exception or a string, not {type(error).__name__}.")
    return _with_checks(_explain_log(chunks_of(error), is_log=error.count("\n") > 3), here)


def explain_file(
    path: str,
    *,
    here: Callable[[str], tuple[str, ...]] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Explanation:
    """Explain a log file, a capture file, or the text on standard input (`-`). If no file with this path exists, `path`
    itself is treated as an error message.
    """
    if path == "-":
        return _with_checks(_explain_log(_decoded(sys.stdin.buffer, "standard input", progress)), here)
    file = Path(path)
    try:
        if file.is_dir():
            raise UsageError(f"{path} is a directory. Pass the path to a log file.")
        with file.open("rb") as stream:
            start = stream.read(4)
            stream.seek(0)
            if start[:2] == b"\x1f\x8b":
                if file.suffix == ".legroom":
                    text = _error_of_capture(file)
                    return _with_checks(_explain_result(search_log(chunks_of(text)), is_log=False), here)
                with gzip.open(stream) as unpacked:
                    return _with_checks(_explain_log(_decoded(unpacked, path, progress)), here)
            return _with_checks(_explain_log(_decoded(stream, path, progress)), here)
    except FileNotFoundError:
        if " " in path.strip():  # the error message itself, given as an argument
            return explain(path, here=here)
        raise UsageError(
            f"{path} does not exist. Pass the path to a log, a code such as LG710, or `-` for standard input."
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return explain(path, here=here)
        raise UsageError(f"Cannot read {path}: {error.strerror or error}") from None


# --- logs


def _explain_log(chunks: Iterable[str], *, is_log: bool = True) -> Explanation:
    """Explain a log, given in chunks.

    For a notebook, the line number is omitted, because a cell's output is not a line of the file.
    """
    printed, is_notebook = printed_chunks(chunks)
    rest = iter(printed)
    first = next(rest, "")
    found = search_log(chain([first], rest))
    if found.error is None and found.first is None and len(first) <= _MAX_PASTED:
        joined = search_log([_join_wrapped(first, found.unknown)])
        if joined.error is not None and not joined.error.weak:
            return _explain_result(joined, is_log=False)
        if found.unknown is None and ends_while_loading(first):
            return replace(
                _build("LG702", "host-oom", "unsure", "", ReportedSizes()), sentence=_ENDS_SILENTLY
            )
    return _explain_result(found, is_log=is_log and not is_notebook)


def _join_wrapped(text: str, error: ErrorLine | None) -> str:
    """Join the printed lines of a text, because a terminal may have wrapped them.

    If `error` is the end of a traceback, the lines before it are omitted.
    """
    lines = text.splitlines()
    if error is not None and 'file "' in error.frames and not is_raised_by_program(error.frames):
        lines = lines[error.line - 1 :]
    lines = [line.lstrip("> ") for line in lines if not is_typed(line) and not is_remark(line)]
    shown = zip(["", *lines], lines, strict=False)
    return " ".join(" ".join(line for previous, line in shown if not is_source(previous, line)).split())


_ENDS_SILENTLY = (
    "The output ends without an error while the program fills host memory. The system often stops a process in this way "
    "if host memory runs out."
)
_MAX_PASTED = 4000
"""The maximum length, in characters, of a text that the user may have pasted from a terminal."""


def _explain_result(found: LogResult, *, is_log: bool = True) -> Explanation:
    earlier = _earlier(found.first)
    if found.error is not None:
        explanation = _explain_match(found.error, found.error.file_line if is_log else None, earlier)
        return replace(explanation, place=found.place)
    if found.unknown is not None:
        line = found.unknown.file_line if is_log else None
        explanation = _explain_unknown(found.unknown, line, earlier, is_handled=found.is_first_handled)
        return replace(explanation, place=found.place)
    return Explanation(
        kind="unknown",
        certainty="unsure",
        sentence="The input ends inside a traceback, before the error message. Provide the complete traceback."
        if found.is_cut
        else "No error found. Provide the complete output of the program, including the last traceback.",
        earlier=earlier,
    )


def _explain_unknown(
    last: ErrorLine, line: int | None, earlier: EarlierError | None, *, is_handled: bool = False
) -> Explanation:
    """Explain an error that matches no known message, based on its class and wording.

    `is_handled` states that the program continued after the earlier error.
    """
    kind, code = classify_python_error(last)
    name = last.kind.rpartition(".")[2]
    if code:
        return _build(code, kind, "likely", last.text, ReportedSizes(), line=line, earlier=earlier)
    if kind == "not-memory" and earlier is not None and earlier.code in _MEMORY_CODES and not is_handled:
        kind = "unknown"  # the memory error may have caused it
    if kind == "unknown":
        sentence = "Legroom does not recognize this error. The traceback shows where the error was raised."
    elif name == "KeyboardInterrupt":
        sentence = "The program was interrupted, usually with Ctrl+C."
    elif name.endswith("Warning"):
        sentence = "This is a warning, not an error. It is unrelated to memory."
    elif isinstance(error := getattr(builtins, name, None), type):
        sentence = f"{name} is {_SYSTEM_ERROR if issubclass(error, OSError) else _PROGRAM_ERROR}"
    else:
        sentence = (
            "This error is unrelated to memory, and Legroom has no explanation for it. The traceback shows where the "
            "error was raised."
        )
    return Explanation(
        kind=kind,
        certainty="likely" if kind == "not-memory" else "unsure",
        sentence=sentence,
        message=last.text,
        line=line,
        earlier=earlier,
    )


_PROGRAM_ERROR = (
    "a programming error, not a memory error. Look at the last line of your own code in the traceback."
)
_SYSTEM_ERROR = "an operating system error (files, processes or network), not a memory error."
_MEMORY_CODES = frozenset(f"LG70{number}" for number in range(8))


def _earlier(match: LogMatch | None) -> EarlierError | None:
    if match is None:
        return None
    return EarlierError(
        code=match.code, title=find_page(match.code).title, line=match.file_line, message=match.text
    )


def _explain_match(match: LogMatch, line: int | None, earlier: EarlierError | None) -> Explanation:
    sizes = parse_sizes(match.around) if match.pattern is not None else ReportedSizes()
    certainty = match.pattern.certainty if match.pattern is not None else Certainty.NOT_MEMORY
    sure: ExplanationCertainty = "likely" if match.weak or certainty is Certainty.LIKELY else "sure"
    if certainty in (Certainty.DISGUISED, Certainty.LIKELY) and is_low_on_memory(sizes):
        return _build(
            "LG700", "oom", "likely", match.text, sizes, reason=_LITTLE_FREE, line=line, earlier=earlier
        )
    if certainty is Certainty.DISGUISED and sizes.free is not None and match.code == "LG701":
        code = "LG720" if "dnn" in match.text.lower() else "LG721"  # enough memory was free
        return _build(code, "not-memory", "likely", match.text, sizes, line=line, earlier=earlier)
    return _build(
        match.code,
        _KINDS[certainty],
        "unsure" if certainty is Certainty.DISGUISED else sure,
        match.text,
        sizes,
        reason=match.pattern.reason if match.pattern is not None and match.code == "LG701" else "",
        line=line,
        earlier=earlier,
        context=match.around
        if match.code == "LG710"
        else "",  # the kernel prints the reason before the error
    )


_LITTLE_FREE = "A GPU library failed while almost no GPU memory was free."
_KINDS: dict[Certainty, ErrorKind] = {
    Certainty.SURE: "oom",
    Certainty.LIKELY: "disguised-oom",
    Certainty.DISGUISED: "disguised-oom",
    Certainty.HOST: "host-oom",
    Certainty.PINNED: "host-oom",
    Certainty.NOT_MEMORY: "not-memory",
}


def _build(
    code: str,
    kind: ErrorKind,
    certainty: ExplanationCertainty,
    message: str,
    sizes: ReportedSizes,
    *,
    reason: str = "",
    line: int | None = None,
    earlier: EarlierError | None = None,
    context: str = "",
) -> Explanation:
    """Build the explanation.

    `context` is the part of the log that mentions the cause, or "" if the error message itself mentions the cause.
    """
    page = find_page(code)
    meaning, causes = page_parts(code)
    causes = _named_first(code, causes, context or message)
    sentence = summarize_sizes(sizes) if kind == "oom" else summarize_shapes(message)
    more = [Cause(**each) for each in causes_from_sizes(sizes)] if kind == "oom" else []
    return Explanation(
        kind=kind,
        certainty=certainty,
        code=code,
        sentence=sentence or f"{page.title}.",
        meaning=" ".join(part for part in (meaning, reason) if part),
        message=message,
        line=line,
        causes=(*more, *(_remaining_causes(causes, more) if more else causes)),
        figures={name: value for name, value in asdict(sizes).items() if value is not None},
        earlier=earlier,
    )


def _named_first(code: str, causes: tuple[Cause, ...], message: str) -> tuple[Cause, ...]:
    named = {number for page, number, pattern in CAUSE_PATTERNS if page == code and pattern.search(message)}
    return tuple(cause for _, cause in sorted(enumerate(causes, 1), key=lambda each: each[0] not in named))


def _remaining_causes(causes: tuple[Cause, ...], more: list[Cause]) -> tuple[Cause, ...]:
    """Return the causes that cannot be derived from memory sizes, such as tensors that are retained from step to
    step.
    """
    if len(more) == 1 and "(LG601)" in more[0].cause:
        return ()
    return tuple(cause for cause in causes if "from step to step" in cause.cause)


@cache
def page_parts(code: str) -> tuple[str, tuple[Cause, ...]]:
    return parse_page(find_page(code))


def parse_page(page: CodePage) -> tuple[str, tuple[Cause, ...]]:
    meaning, _, listed = page.body.replace("## 원인", "## Causes").partition("## Causes")
    causes = []
    for item in re.split(r"(?m)^\d+\. ", listed)[1:]:
        cause, check, fix = re.split(r"\n\s+- (?:Check|Fix|확인|해결): ", item.strip())
        causes.append(Cause(cause=_join_lines(cause), check=_join_lines(check), fix=_join_lines(fix)))
    return _join_lines(meaning), tuple(causes)


def _join_lines(text: str) -> str:
    return " ".join(text.split())


# --- exceptions


def _explain_exception(error: BaseException) -> Explanation:
    classified = classify(error)
    if classified.certainty is not Certainty.NOT_MEMORY:
        return _explain_classified(classified)
    text = "\n".join(_headlines(error))
    found = search_log(chunks_of(text))
    # `classify` has examined the exception itself, so memory patterns in its text do not count.
    if found.error is not None and found.error.pattern is not None:
        found = LogResult(error=None, unknown=None, first=None, lines=found.lines)
    explanation = _explain_result(found, is_log=False)
    if explanation.kind == "unknown" and isinstance(error, _PROGRAM_ERRORS):
        name = type(error).__name__
        return Explanation(
            kind="not-memory",
            certainty="likely",
            sentence=f"{name} is {_PROGRAM_ERROR}",
            message=text.splitlines()[0] if text else name,
        )
    return explanation


_PROGRAM_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError, ValueError,
    KeyboardInterrupt,
)  # fmt: skip


def _explain_classified(classified: ErrorClassification) -> Explanation:
    sizes = ReportedSizes(**{each.name: getattr(classified, each.name) for each in fields(ReportedSizes)})
    code = memory_code(classified)
    kind = _KINDS[classified.certainty]
    certainty: ExplanationCertainty = "sure"
    if classified.certainty is Certainty.LIKELY:
        certainty = "likely"
    elif classified.certainty is Certainty.DISGUISED:
        certainty = "likely" if classified.capacity is not None else "unsure"
    return _build(code, kind, certainty, classified.message, sizes, reason=classified.reason)


def _headlines(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        try:
            yield "".join(traceback.format_exception_only(link)).strip()
        except Exception:  # a broken `__str__` in the user's code
            yield type(link).__name__
        if link.__cause__ is not None:
            link = link.__cause__
        else:
            link = None if link.__suppress_context__ else link.__context__


# --- files


def _error_of_capture(file: Path) -> str:
    from legroom.memory.annotations import find_ending
    from legroom.memory.capture.capture import read_capture
    from legroom.memory.event_base import Annotation

    capture = read_capture(file)
    ending = find_ending([event for event in capture.events if isinstance(event, Annotation)])
    if not ending.error:
        raise UsageError(
            f"{_ending_without_error(file, capture, ending)} Show the memory use of the run with `legroom "
            f"report {file}`."
        )
    return f"{ending.traceback}\n{ending.error}"


def _ending_without_error(file: Path, capture: "Capture", ending: "RunEnded") -> str:
    from legroom.memory.annotations import ExitReason
    from legroom.memory.live.folder import is_still_running

    if ending.reason is not ExitReason.UNKNOWN:
        code = f"exited with code {ending.exit_code}" if ending.exit_code else "ended"
        return f"The run in {file} {code} without an error."
    if capture.damaged:
        return f"The capture {file} is damaged. The part before the damage contains no error."
    if not capture.truncated:
        return f"The capture {file} contains no error."
    is_running = is_still_running(capture.run.get("recorder"))
    if is_running:
        return f"The run in {file} is still in progress. It has no error so far."
    ended = "was killed" if is_running is False else "was killed or is still running"
    return (
        f"The capture {file} ends early and contains no error: the file was cut off, or the process {ended}. For a "
        "killed process, see `legroom explain LG705`."
    )


_CHUNK = 1 << 20


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _decoded(stream: _Readable, name: str, progress: Callable[[int], None]) -> Iterator[str]:
    chunk = stream.read(_CHUNK)
    encoding = "utf-16" if chunk[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    if encoding == "utf-8" and b"\0" in chunk[:8192]:
        raise UsageError(f"{name} is a binary file. Pass a text file with the program's output.")
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)("replace")
    done = 0
    while chunk:
        done += len(chunk)
        progress(done)
        yield decoder.decode(chunk)
        chunk = stream.read(_CHUNK)
    yield decoder.decode(b"", final=True)


def _with_checks(explanation: Explanation, here: Callable[[str], tuple[str, ...]] | None) -> Explanation:
    if here is None or not explanation.code:
        return explanation
    return replace(explanation, here=here(explanation.code))
