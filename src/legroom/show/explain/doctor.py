"""A diagnosis as text: sound or not in a sentence, what to mend, and all that was looked at."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from legroom.diagnose.doctor.doctor import Diagnosis
from legroom.show.common.formatting import clean, format_count
from legroom.show.common.sections import section
from legroom.show.common.terminal import verbatim


def render_diagnosis(told: Diagnosis) -> RenderableType:
    return Group(*_parts(told))


def _parts(told: Diagnosis) -> Iterator[RenderableType]:
    if told.is_sound:
        yield Text("This set-up is sound.", style="bold green")
    else:
        yield Text(f"{format_count(len(told.findings), 'thing')} to look at.", style="bold yellow")
    for finding in told.findings:
        head = Text("\n")
        head.append(f"{finding.code}  ", style="bold")
        head.append(f"{clean(finding.message)[:1].upper()}{clean(finding.message)[1:]}.", style="bold")
        yield head
        yield Padding(
            Text(
                f"{finding.fix[:1].upper()}{finding.fix[1:].rstrip('.?')}{'?' if finding.fix.endswith('?') else '.'}"
            ),
            (0, 0, 0, 2),
        )
    yield from section("Looked at")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for check in told.checks:
        table.add_row(
            Text(f"  {check.name}", style="dim"),
            Text(clean(check.value), style="yellow" if check.findings else ""),
        )
    yield table
    if told.findings:
        yield Text("\nNext:")
        yield verbatim(f"  legroom explain {told.findings[0].code}", style="bold cyan")
