"""What an error really means: its kind, its causes, the check that decides between them, and the fix.

    explanation = explain(error)        # an exception or a text
    explanation = explain_file(path)    # a log of any length, or a capture

Whether it is about memory is `oom`'s judgement; which error a log is about, `explain_log`'s. The words are those of the code's page,
so that they are written once. Where the error tells figures, causes that follow from them come first. What this machine can say about
the causes (free memory, versions, limits) is looked up by the same checks that `legroom doctor` makes.
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
from typing import Any, Literal, Protocol

from legroom import schemas
from legroom.diagnose.codes import find_page
from legroom.diagnose.explain.headlines import Headline
from legroom.diagnose.explain.log_reader import LogMatch, LogResult, chunks_of, search_log
from legroom.diagnose.explain.plain_text import printed_chunks
from legroom.diagnose.explain.python_errors import classify_python_error
from legroom.diagnose.explain.rules import CAUSES_SAID
from legroom.diagnose.explain.sizes import causes_from_figures, sentence_of_figures, sentence_of_sizes
from legroom.diagnose.oom.messages import Certainty
from legroom.diagnose.oom.recognize import ErrorClassification, classify
from legroom.diagnose.oom.sizes import ReportedSizes, parse_sizes
from legroom.errors import UsageError

Kind = Literal["oom", "disguised-oom", "host-oom", "not-memory", "unknown"]
Sureness = Literal["sure", "likely", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that may have led to the error."""

    cause: str
    check: str
    """What to look at: it decides whether this is the cause."""
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """An error that stands further up in the same log."""

    code: str
    title: str
    line: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What an error means."""

    kind: Kind
    certainty: Sureness
    code: str = ""
    """Of its page; "" where there is none."""
    sentence: str
    """What happened, in a sentence."""
    meaning: str = ""
    message: str = ""
    """The line that was recognised."""
    line: int | None = None
    """Its number in the log; None where there is no log."""
    causes: tuple[Cause, ...] = ()
    """The likeliest first."""
    figures: dict[str, int] = field(default_factory=dict)
    """What the error itself tells, in bytes (and the device's number)."""
    here: tuple[str, ...] = ()
    """What the checks say that could be made on this machine."""
    earlier: Earlier | None = None
    """Often the first cause."""

    def as_json(self) -> dict[str, Any]:
        return {"schema": schemas.EXPLAIN, **asdict(self), "causes": [asdict(cause) for cause in self.causes]}


def explain(
    error: BaseException | str, *, here: Callable[[str], tuple[str, ...]] | None = None
) -> Explanation:
    """What an exception or a text means. `here`: what this machine says about a code."""
    if isinstance(error, BaseException):
        return _with_checks(_of_exception(error), here)
    if not isinstance(error, str):
        raise UsageError(f"give an exception or a text to explain, not a {type(error).__name__}")
    return _with_checks(_of_pieces(chunks_of(error), is_log=error.count("\n") > 3), here)


def explain_file(
    path: str,
    *,
    here: Callable[[str], tuple[str, ...]] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Explanation:
    """What a log, a capture of `legroom run`, or `-` (standard input) tells; or the text itself, where there is no such file."""
    if path == "-":
        return _with_checks(_of_pieces(_decoded(sys.stdin.buffer, "standard input", progress)), here)
    file = Path(path)
    try:
        if file.is_dir():
            raise UsageError(f"{path} is a folder: name the log in it")
        with file.open("rb") as stream:
            start = stream.read(4)
            stream.seek(0)
            if start[:2] == b"\x1f\x8b":
                if file.suffix == ".legroom":
                    text = _error_of_capture(file)
                    return _with_checks(_of_log(search_log(chunks_of(text)), is_log=False), here)
                with gzip.open(stream) as unpacked:
                    return _with_checks(_of_pieces(_decoded(unpacked, path, progress)), here)
            return _with_checks(_of_pieces(_decoded(stream, path, progress)), here)
    except FileNotFoundError:
        if " " in path.strip():  # the error itself, as one tries first
            return explain(path, here=here)
        raise UsageError(
            f"{path} does not exist: name a log, a code such as LG710, or - for standard input"
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return explain(path, here=here)
        raise UsageError(f"{path} cannot be read ({error.strerror or error}): check the file") from None


# --- a log


def _of_pieces(pieces: Iterable[str], *, is_log: bool = True) -> Explanation:
    """What a log tells; lines of what a notebook's cells put out have no number in its file."""
    printed, is_notebook = printed_chunks(pieces)
    rest = iter(printed)
    first = next(rest, "")
    found = search_log(chain([first], rest))
    if found.error is None and found.first is None and len(first) <= _A_PASTE:
        joined = search_log([" ".join(first.split())])  # words may be broken where a window ended
        if joined.error is not None and not joined.error.weak:
            return _of_log(joined, is_log=False)
    return _of_log(found, is_log=is_log and not is_notebook)


_A_PASTE = 4000
"""Characters of a text that someone pasted."""


def _of_log(found: LogResult, *, is_log: bool = True) -> Explanation:
    earlier = _earlier(found.first)
    if found.error is not None:
        return _of_sighting(found.error, found.error.line if is_log else None, earlier)
    if found.unknown is not None:
        return _of_headline(found.unknown, found.unknown.line if is_log else None, earlier)
    return Explanation(
        kind="unknown",
        certainty="unsure",
        sentence="It ends inside a traceback, before the line that says what went wrong: give the rest of it."
        if found.is_cut
        else "No error was found in it: give the whole output of the program, with its last traceback.",
        earlier=earlier,
    )


def _of_headline(last: Headline, line: int | None, earlier: Earlier | None) -> Explanation:
    """An error that no table knows: its family, if its words tell that."""
    kind, code = classify_python_error(last)
    name = last.kind.rpartition(".")[2]
    if code:
        return _built(code, kind, "likely", last.text, ReportedSizes(), line=line, earlier=earlier)
    if kind == "not-memory" and earlier is not None and earlier.code in _OF_MEMORY:
        kind = "unknown"  # it may have come of that
    if kind == "unknown":
        sentence = "This error is not known: its traceback says where it was raised."
    elif isinstance(getattr(builtins, name, None), type):
        sentence = f"{name}: {_OF_PROGRAM}"
    else:
        sentence = (
            "This error is not known, but nothing in it speaks of memory: its traceback says where to look."
        )
    return Explanation(
        kind=kind,
        certainty="likely" if kind == "not-memory" else "unsure",
        sentence=sentence,
        message=last.text,
        line=line,
        earlier=earlier,
    )


_OF_PROGRAM = (
    "an error of the program, not of memory. The traceback's last line of your own code is where to look."
)
_OF_MEMORY = frozenset(f"LG70{number}" for number in range(7))


def _earlier(seen: LogMatch | None) -> Earlier | None:
    if seen is None:
        return None
    return Earlier(code=seen.code, title=find_page(seen.code).title, line=seen.line, message=seen.text)


def _of_sighting(seen: LogMatch, line: int | None, earlier: Earlier | None) -> Explanation:
    figures = parse_sizes(seen.around) if seen.spelling is not None else ReportedSizes()
    certainty = seen.spelling.certainty if seen.spelling is not None else Certainty.NOT_MEMORY
    sure: Sureness = "likely" if seen.weak else "sure"
    return _built(
        seen.code,
        _KINDS[certainty],
        "unsure" if certainty is Certainty.DISGUISED else sure,
        seen.text,
        figures,
        line=line,
        earlier=earlier,
    )


_KINDS: dict[Certainty, Kind] = {
    Certainty.SURE: "oom",
    Certainty.DISGUISED: "disguised-oom",
    Certainty.HOST: "host-oom",
    Certainty.PINNED: "host-oom",
    Certainty.NOT_MEMORY: "not-memory",
}


def _built(
    code: str,
    kind: Kind,
    certainty: Sureness,
    message: str,
    figures: ReportedSizes,
    *,
    reason: str = "",
    line: int | None = None,
    earlier: Earlier | None = None,
) -> Explanation:
    page = find_page(code)
    meaning, causes = page_parts(code)
    causes = _said_first(code, causes, message)
    sentence = sentence_of_figures(figures) if kind == "oom" else sentence_of_sizes(message)
    more = [Cause(**each) for each in causes_from_figures(figures)] if kind == "oom" else []
    return Explanation(
        kind=kind,
        certainty=certainty,
        code=code,
        sentence=sentence or f"{page.title}.",
        meaning=" ".join(part for part in (meaning, reason) if part),
        message=message,
        line=line,
        causes=(*more, *(_undecided(causes, more) if more else causes)),
        figures={name: value for name, value in asdict(figures).items() if value is not None},
        earlier=earlier,
    )


def _said_first(code: str, causes: tuple[Cause, ...], message: str) -> tuple[Cause, ...]:
    """A page's causes, the one first that the error's own words name."""
    said = {number for page, number, pattern in CAUSES_SAID if page == code and pattern.search(message)}
    return tuple(cause for _, cause in sorted(enumerate(causes, 1), key=lambda each: each[0] not in said))


def _undecided(causes: tuple[Cause, ...], more: list[Cause]) -> tuple[Cause, ...]:
    """Of the page's causes, what figures cannot tell: whether tensors are kept from step to step."""
    if len(more) == 1 and "the whole GPU" in more[0].cause:
        return ()
    return tuple(cause for cause in causes if "from step to step" in cause.cause)


@cache
def page_parts(code: str) -> tuple[str, tuple[Cause, ...]]:
    """What a page says the error means, and its causes."""
    meaning, _, listed = find_page(code).body.partition("## Causes")
    causes = []
    for item in re.split(r"(?m)^\d+\. ", listed)[1:]:
        cause, check, fix = re.split(r"\n\s+- (?:Check|Fix): ", item.strip())
        causes.append(Cause(cause=_joined(cause), check=_joined(check), fix=_joined(fix)))
    return _joined(meaning), tuple(causes)


def _joined(text: str) -> str:
    return " ".join(text.split())


# --- an exception


def _of_exception(error: BaseException) -> Explanation:
    failure = classify(error)
    if failure.certainty is not Certainty.NOT_MEMORY:
        return _of_failure(failure)
    text = "\n".join(_headlines(error))
    found = search_log(chunks_of(text))
    # `oom` judged the exception, not only its words.
    if found.error is not None and found.error.spelling is not None:
        found = LogResult(error=None, unknown=None, first=None, lines=found.lines)
    told = _of_log(found, is_log=False)
    if told.kind == "unknown" and isinstance(error, _PROGRAM):
        name = type(error).__name__
        return Explanation(
            kind="not-memory",
            certainty="likely",
            sentence=f"{name}: {_OF_PROGRAM}",
            message=text.splitlines()[0] if text else name,
        )
    return told


_PROGRAM = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError, ValueError,
    KeyboardInterrupt,
)  # fmt: skip


def _of_failure(failure: ErrorClassification) -> Explanation:
    figures = ReportedSizes(**{each.name: getattr(failure, each.name) for each in fields(ReportedSizes)})
    code = _code_of(failure)
    kind = _KINDS[failure.certainty]
    certainty: Sureness = "sure"
    if failure.certainty is Certainty.DISGUISED:
        certainty = "likely" if failure.capacity is not None else "unsure"
    return _built(code, kind, certainty, failure.message, figures, reason=failure.reason)


def _code_of(failure: ErrorClassification) -> str:
    if failure.certainty is Certainty.DISGUISED:
        return "LG706" if failure.source == "NCCL" else "LG701"
    if failure.certainty is Certainty.HOST:
        if failure.source == "shared memory":
            return "LG703"
        return "LG705" if "killed" in failure.reason else "LG702"
    return "LG704" if failure.certainty is Certainty.PINNED else "LG700"


def _headlines(error: BaseException) -> Iterator[str]:
    """The headline of an exception and of those that it came from; nothing of them is kept."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        try:
            yield "".join(traceback.format_exception_only(link)).strip()
        except Exception:  # a broken `__str__` is the user's
            yield type(link).__name__
        if link.__cause__ is not None:
            link = link.__cause__
        else:
            link = None if link.__suppress_context__ else link.__context__


# --- files


def _error_of_capture(file: Path) -> str:
    from legroom.memory.annotations import Annotation, find_ending
    from legroom.memory.capture.capture import read_capture

    ending = find_ending([event for event in read_capture(file).events if isinstance(event, Annotation)])
    if not ending.error:
        raise UsageError(f"the run in {file} ended without an error: legroom report {file} says what it held")
    return f"{ending.traceback}\n{ending.error}"


_PIECE = 1 << 20


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _decoded(stream: _Readable, name: str, progress: Callable[[int], None]) -> Iterator[str]:
    """The text of a file in pieces; refuses what is no text."""
    piece = stream.read(_PIECE)
    encoding = "utf-16" if piece[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    if encoding == "utf-8" and b"\0" in piece[:8192]:
        raise UsageError(f"{name} is a binary file: give the text that the program printed")
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)("replace")
    done = 0
    while piece:
        done += len(piece)
        progress(done)
        yield decoder.decode(piece)
        piece = stream.read(_PIECE)
    yield decoder.decode(b"", final=True)


def _with_checks(told: Explanation, here: Callable[[str], tuple[str, ...]] | None) -> Explanation:
    if here is None or not told.code:
        return told
    return replace(told, here=here(told.code))
