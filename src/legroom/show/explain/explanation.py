"""An explanation as text: one sentence that describes the error, then each possible cause with a check and a fix."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from legroom.diagnose.codes import CodePage
from legroom.diagnose.explain import explain as explaining
from legroom.diagnose.explain.explain import Explanation
from legroom.show.common import notebook_html as html
from legroom.show.common.formatting import clean
from legroom.show.common.language import Words
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


def _parts(explanation: Explanation) -> Iterator[RenderableType]:
    explanation, words = translate_explanation(explanation)
    head = Text(clean(explanation.sentence), style=_STYLES[explanation.kind])
    yield head
    if explanation.code or explanation.message:
        about = Text(f"{explanation.code}  " if explanation.code else "", style="bold")
        about.append(_about(explanation, words), style="not bold dim")
        yield about
    if explanation.message:
        where = f"{words(f'line {explanation.line:,}:')} " if explanation.line is not None else ""
        yield Padding(Text(f"{where}{clean(explanation.message)}", style="italic"), (1, 0, 0, 2))
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
