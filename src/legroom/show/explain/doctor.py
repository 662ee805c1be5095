"""The result of `legroom doctor` as text: a summary, the problems with their fixes, and all checks."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from legroom.diagnose.doctor.doctor import Diagnosis
from legroom.show.common.formatting import clean, format_count
from legroom.show.common.sections import section
from legroom.show.common.terminal import verbatim


def render_diagnosis(diagnosis: Diagnosis) -> RenderableType:
    return Group(*_parts(diagnosis))


def _parts(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    if diagnosis.is_ok:
        yield Text("No problems found.", style="bold green")
    else:
        yield Text(f"{format_count(len(diagnosis.findings), 'problem')} found.", style="bold yellow")
    for finding in diagnosis.findings:
        head = Text("\n")
        head.append(f"{finding.code}  ", style="bold")
        head.append(clean(finding.message), style="bold")
        yield head
        yield Padding(Text(finding.fix), (0, 0, 0, 2))
    yield from section("Checks")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for check in diagnosis.checks:
        table.add_row(
            Text(f"  {check.name}", style="dim"),
            Text(clean(check.value), style="yellow" if check.findings else ""),
        )
    yield table
    if diagnosis.findings:
        yield Text("\nNext:")
        yield verbatim(f"  legroom explain {diagnosis.findings[0].code}", style="bold cyan")
