"""A line of the user's code with its neighbours, from what the capture kept of it."""

from rich.text import Text

from legroom.diagnose.report.source_lines import AROUND, Sources
from legroom.show.common.formatting import clean


def source_line(sources: Sources, file: str | None, line: int | None) -> str:
    """The line itself without its indentation; "" where it was not kept."""
    if not file or not line:
        return ""
    return clean(sources.get(file, {}).get(line, "")).strip()


def code_frame(sources: Sources, file: str, line: int) -> Text | None:
    """The line marked, two before and two after it; None where it was not kept."""
    lines = sources.get(file, {})
    if line not in lines:
        return None
    numbers = [number for number in range(line - AROUND, line + AROUND + 1) if number in lines]
    texts = {number: clean(lines[number].replace("\t", "    ")).rstrip() for number in numbers}
    indent = min((len(text) - len(text.lstrip()) for text in texts.values() if text.strip()), default=0)
    digits = len(str(numbers[-1]))
    frame = Text(no_wrap=True, overflow="ellipsis")
    for number in numbers:
        marked = number == line
        head = f"  {'❱' if marked else ' '} {number:>{digits}} │ "
        frame.append(f"{head}{texts[number][indent:]}".rstrip(), style="bold" if marked else "dim")
        if number != numbers[-1]:
            frame.append("\n")
    return frame
