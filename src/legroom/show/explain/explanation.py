"""An explanation as text: what happened in a sentence, then each cause with the check that decides it and the fix."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from legroom.diagnose.codes import CodePage
from legroom.diagnose.explain import explain as explaining
from legroom.diagnose.explain.explain import Explanation
from legroom.show.common.formatting import clean
from legroom.show.common.sections import section
from legroom.show.common.terminal import render_to_string, verbatim

_STYLES = {
    "oom": "bold red",
    "disguised-oom": "bold yellow",
    "host-oom": "bold red",
    "not-memory": "bold",
    "unknown": "bold",
}
_KINDS = {
    "oom": "GPU memory",
    "disguised-oom": "perhaps GPU memory",
    "host-oom": "host memory",
    "not-memory": "not memory",
    "unknown": "not known",
}


def explain(error: BaseException | str) -> "ShownExplanation":
    """What an exception or the text of an error means: its kind, its causes, the check that decides and the fix.

    Ask inside `except`: whether a library failed for want of memory is judged by what is free at that moment. Nothing of the
    exception is kept.
    """
    from legroom.diagnose.explain.machine_checks import check_machine

    told = explaining.explain(error, here=check_machine)
    return ShownExplanation(**{part.name: getattr(told, part.name) for part in fields(told)})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownExplanation(Explanation):
    """An explanation that reads well wherever Python shows it."""

    def __repr__(self) -> str:
        return render_to_string(render_explanation(self)).rstrip()


def render_explanation(told: Explanation) -> RenderableType:
    return Group(*_parts(told))


def render_page(page: CodePage) -> RenderableType:
    """A code's page."""
    return Group(Text(f"{page.code}: {page.title}", style="bold"), Text(""), Markdown(_narrowed(page.body)))


_WIDEST_CODE = 78


def _narrowed(body: str) -> str:
    """A page whose code fits a terminal: a comment that makes its line too long goes onto a line of its own, before it."""
    lines, in_code = [], False
    for line in body.split("\n"):
        in_code ^= line.startswith("```")
        code, mark, comment = line.partition("  # ")
        if in_code and mark and len(line) > _WIDEST_CODE:
            margin = code[: len(code) - len(code.lstrip())]
            lines += [f"{margin}# {comment.strip()}", code.rstrip()]
        else:
            lines.append(line)
    return "\n".join(lines)


def _parts(told: Explanation) -> Iterator[RenderableType]:
    head = Text(clean(told.sentence), style=_STYLES[told.kind])
    yield head
    if told.code or told.message:
        about = Text(f"{told.code}  " if told.code else "", style="bold")
        about.append(f"{_KINDS[told.kind]}, {told.certainty}", style="not bold dim")
        yield about
    if told.message:
        where = f"line {told.line:,}: " if told.line is not None else ""
        yield Padding(Text(f"{where}{clean(told.message)}", style="italic"), (1, 0, 0, 2))
    if told.meaning:
        yield Padding(Text(clean(told.meaning)), (1, 0, 0, 0))
    if told.earlier is not None:
        yield from section("Earlier in the log", "if nothing handled it, it may be the first cause")
        yield Padding(
            Text(f"{told.earlier.code}  {told.earlier.title}, line {told.earlier.line:,}:", style="bold"),
            (0, 0, 0, 2),
        )
        yield Padding(Text(clean(told.earlier.message), style="italic"), (0, 0, 0, 2))
    if told.causes:
        yield from section("Causes", "likeliest first")
        for number, cause in enumerate(told.causes, 1):
            table = Table.grid(padding=(0, 1))
            table.add_column(no_wrap=True)
            table.add_column()
            table.add_row(Text(f"  {number}."), Text(cause.cause, style="bold"))
            table.add_row("", _labelled("Check", cause.check))
            table.add_row("", _labelled("Fix", cause.fix))
            yield table
    if told.here:
        yield from section("On this machine", "if it is the one that failed")
        for sentence in told.here:
            yield Padding(Text(clean(sentence)), (0, 0, 0, 2))
    if told.code:
        yield Text("\nNext:")
        yield verbatim(f"  legroom explain {told.code}", style="bold cyan")


def _labelled(label: str, text: str) -> Text:
    words = Text(f"{label}: ", style="dim")
    words.append(text[:1].upper() + text[1:], style="not dim")
    return words
