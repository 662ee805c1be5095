"""An explanation as text: one sentence that describes the error, then each possible cause with a check and a fix."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from legroom import shell
from legroom.diagnose.codes import CodePage
from legroom.diagnose.explain import explain as explaining
from legroom.diagnose.explain.explain import Explanation
from legroom.show.common import notebook_html as html
from legroom.show.common.formatting import clean, format_location
from legroom.show.common.language import Words
from legroom.show.common.one_screen import Commands, Cropped, FirstThatFits, count_lines
from legroom.show.common.sections import section
from legroom.show.common.terminal import render_to_string, verbatim
from legroom.show.explain.translation import page_to_show, translate_explanation

_STYLES = {
    "oom": "bold red",
    "disguised-oom": "bold yellow",
    "host-oom": "bold red",
    "not-memory": "bold",
    "unknown": "bold",
}
_KINDS = {
    "oom": "GPU memory",
    "disguised-oom": "possibly GPU memory",
    "host-oom": "host memory",
    "not-memory": "not memory",
    "unknown": "unknown",
}


def explain(error: BaseException | str) -> "ShownExplanation":
    """Explain an exception or the text of an error: its kind, its possible causes, and a check and a fix for each
    cause.

    Call this function inside `except`, because for ambiguous library errors the result depends on the memory that is
    free at that moment. The result keeps no reference to the exception.
    """
    from legroom.diagnose.explain.machine_checks import check_machine

    explanation = explaining.explain(error, here=check_machine)
    return ShownExplanation(**{each.name: getattr(explanation, each.name) for each in fields(explanation)})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownExplanation(Explanation):
    """An explanation whose `repr` is the rendered text."""

    def __repr__(self) -> str:
        return render_to_string(render_explanation(self)).rstrip()

    def _repr_html_(self) -> str:
        return html.block(*_html_parts(self))


def _html_parts(explanation: Explanation) -> Iterator[str]:
    explanation, words = translate_explanation(explanation)
    yield html.sentence(explanation.sentence, bold=True)
    if explanation.code or explanation.message:
        about = f"{explanation.code}  {_about(explanation, words)}"
        yield html.sentence(about.strip(), muted=True)
    if explanation.message:
        where = f"{words(f'line {explanation.line:,}:')} " if explanation.line is not None else ""
        yield html.pre(f"{where}{explanation.message}")
    yield html.sentence(explanation.meaning)
    if explanation.earlier is not None:
        earlier = explanation.earlier
        yield html.heading(words("Earlier in the log"), words("possibly the original cause"))
        yield html.sentence(f"{earlier.code}  {earlier.title}, {words(f'line {earlier.line:,}:')}")
        yield html.pre(earlier.message)
    if explanation.causes:
        yield html.heading(words("Possible causes"), words("most likely first"))
        for number, cause in enumerate(explanation.causes, 1):
            yield html.sentence(f"{number}. {cause.cause}", bold=True)
            yield html.sentence(f"{words('Check')}: {cause.check}")
            yield html.sentence(f"{words('Fix')}: {cause.fix}")
    if explanation.here:
        yield html.heading(words("Checks on this machine"))
        yield from map(html.sentence, explanation.here)


def render_explanation(explanation: Explanation) -> RenderableType:
    return Group(*_parts(explanation))


def render_short_explanation(explanation: Explanation, source: str = "") -> RenderableType:
    """Render what happened, where, the most likely cause with its check and fix, and the other causes in one line each.

    `source` is the file that was explained, or "" if the input cannot be read again. An explanation that fits on the
    first screen is shown completely.
    """
    return ShortExplanation(explanation, source)


def render_page(page: CodePage) -> RenderableType:
    page = page_to_show(page.code)
    return Group(
        Text(f"{page.code}: {page.title}", style="bold"), Text(""), Markdown(_wrap_comments(page.body))
    )


_MAX_CODE_WIDTH = 78


def _wrap_comments(body: str) -> str:
    """Move a comment to a separate line above the code if the line is too long for a terminal."""
    lines, in_code = [], False
    for line in body.split("\n"):
        in_code ^= line.startswith("```")
        code, mark, comment = line.partition("  # ")
        if in_code and mark and cell_len(line) > _MAX_CODE_WIDTH:
            margin = code[: len(code) - len(code.lstrip())]
            lines += [f"{margin}# {comment.strip()}", code.rstrip()]
        else:
            lines.append(line)
    return "\n".join(lines)


SHORT_LINES = 20
"""The maximum number of lines of a short explanation."""


class _Level(NamedTuple):
    """The maximum number of lines of the parts of a short explanation."""

    message: int
    meaning: int
    here: int
    others: int
    cause: int = 8
    """The cause, its check and its fix have at most this number of lines each."""


_LEVELS = (
    _Level(message=3, meaning=4, here=3, others=5),
    _Level(message=3, meaning=3, here=3, others=5),
    _Level(message=3, meaning=2, here=2, others=5),
    _Level(message=3, meaning=2, here=0, others=5),
    _Level(message=2, meaning=2, here=0, others=4),
    _Level(message=2, meaning=0, here=0, others=4),
    _Level(message=2, meaning=0, here=0, others=3),
    _Level(message=2, meaning=0, here=0, others=2),
    _Level(message=1, meaning=0, here=0, others=2),
    _Level(message=2, meaning=0, here=0, others=0, cause=3),
    _Level(message=1, meaning=0, here=0, others=0, cause=2),
)


class ShortExplanation:
    def __init__(self, explanation: Explanation, source: str = "") -> None:
        self._explanation, self._source = explanation, source

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        explanation, words = translate_explanation(self._explanation)
        complete = Group(*_parts(self._explanation))
        footer = Commands([self._next_command(words)] if explanation.code else [])
        used = count_lines(footer, console, options) + 2 if explanation.code else 0
        versions = (Group(*self._short_parts(explanation, words, level)) for level in _LEVELS)
        if not explanation.code or count_lines(complete, console, options) <= SHORT_LINES:
            yield complete
            return
        yield FirstThatFits(versions, SHORT_LINES - used)
        yield Text(f"\n{words('Next:')}")
        yield footer

    def _next_command(self, words: Words) -> tuple[str, str]:
        if self._source:
            command = shell.join(["legroom", "explain", "--verbose", self._source])
            return command, words("all causes, checks and fixes")
        return f"legroom explain {self._explanation.code}", words("all causes, checks and fixes")

    def _short_parts(self, explanation: Explanation, words: Words, level: _Level) -> Iterator[RenderableType]:
        yield from _head_parts(explanation, words, level.message)
        if explanation.meaning and level.meaning:
            yield Text("")
            yield _FirstSentences(explanation.meaning, level.meaning)
        if explanation.earlier is not None:
            earlier = explanation.earlier
            heading = Text(f"\n{words('Earlier in the log')}", style="bold")
            heading.append(f"  {words('possibly the original cause')}", style="not bold dim")
            yield heading
            where = words(f"line {earlier.line:,}:")
            yield _one_line(f"  {where} {earlier.code}  {earlier.title}")
        first, *others = explanation.causes
        yield from section(words("Most likely cause" if others else "Cause"))
        for label, text in (("", first.cause), ("Check", first.check), ("Fix", first.fix)):
            line = _labeled(words(label), text) if label else Text(text, style="bold")
            yield Cropped(Padding(line, (0, 0, 0, 2)), level.cause)
        if others and level.others:
            yield Text(words("Other possible causes"), style="bold")
            shown = others if len(others) <= level.others else others[: level.others - 1]
            for cause in shown:
                yield _one_line(f"  {cause.cause}")
            if len(shown) < len(others):
                yield Text(f"  {words(f'and {len(others) - len(shown)} more')}", style="dim")
        if explanation.here and len(explanation.here) <= level.here:
            yield from (_one_line(clean(f"{words('This machine')}: {each}")) for each in explanation.here)


def _one_line(text: str) -> Text:
    return Text(clean(text), no_wrap=True, overflow="ellipsis")


class _FirstSentences:
    """As many complete sentences of a text as fit in a number of lines, but at least the first sentence."""

    def __init__(self, text: str, lines: int) -> None:
        self._sentences, self._limit = _SENTENCE_END.split(clean(text)), lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [" ".join(self._sentences[:number]) for number in range(len(self._sentences), 0, -1)]
        fitting = (each for each in texts if count_lines(Text(each), console, options) <= self._limit)
        yield Text(next(fitting, texts[-1]))


_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[^a-z])")


def _head_parts(
    explanation: Explanation, words: Words, message_lines: int | None = None
) -> Iterator[RenderableType]:
    """Yield what happened, the error message, and where the error was raised."""
    yield Text(clean(explanation.sentence), style=_STYLES[explanation.kind])
    if explanation.code or explanation.message:
        about = Text(f"{explanation.code}  " if explanation.code else "", style="bold")
        about.append(_about(explanation, words), style="not bold dim")
        yield about
    if explanation.message:
        where = f"{words(f'line {explanation.line:,}:')} " if explanation.line is not None else ""
        message = Padding(Text(f"{where}{clean(explanation.message)}", style="italic"), (0, 0, 0, 2))
        yield Text("")
        yield message if message_lines is None else Cropped(message, message_lines)
    if explanation.place:
        file, _, line = explanation.place.rpartition(":")
        place = format_location(file, int(line), max_length=60) if file else explanation.place
        yield Text(f"  {words('Your code')}: {clean(place)}")


def _parts(explanation: Explanation) -> Iterator[RenderableType]:
    explanation, words = translate_explanation(explanation)
    yield from _head_parts(explanation, words)
    if explanation.meaning:
        yield Padding(Text(clean(explanation.meaning)), (1, 0, 0, 0))
    if explanation.earlier is not None:
        yield from section(words("Earlier in the log"), words("possibly the original cause"))
        yield Padding(
            Text(
                f"{explanation.earlier.code}  {explanation.earlier.title}, "
                f"{words(f'line {explanation.earlier.line:,}:')}",
                style="bold",
            ),
            (0, 0, 0, 2),
        )
        yield Padding(Text(clean(explanation.earlier.message), style="italic"), (0, 0, 0, 2))
    if explanation.causes:
        yield from section(words("Possible causes"), words("most likely first"))
        for number, cause in enumerate(explanation.causes, 1):
            table = Table.grid(padding=(0, 1))
            table.add_column(no_wrap=True)
            table.add_column()
            table.add_row(Text(f"  {number}."), Text(cause.cause, style="bold"))
            table.add_row("", _labeled(words("Check"), cause.check))
            table.add_row("", _labeled(words("Fix"), cause.fix))
            yield table
    if explanation.here:
        yield from section(words("Checks on this machine"))
        for sentence in explanation.here:
            yield Padding(Text(clean(sentence)), (0, 0, 0, 2))
    if explanation.code:
        yield Text(f"\n{words('Next:')}")
        yield verbatim(f"  legroom explain {explanation.code}", style="bold cyan")


def _about(explanation: Explanation, words: Words) -> str:
    return f"{words(_KINDS[explanation.kind])}, {words(explanation.certainty)}"


def _labeled(label: str, text: str) -> Text:
    line = Text(f"{label}: ", style="dim")
    line.append(text, style="not dim")
    return line
