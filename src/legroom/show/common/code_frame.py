"""Lines of the user's code, from the source that was saved in the capture."""

from rich.text import Text

from legroom.diagnose.report.source_lines import CONTEXT_LINES, Sources
from legroom.show.common.formatting import clean


def source_line(sources: Sources, file: str | None, line: int | None) -> str:
    """Return the line without its indentation, or "" if the capture does not contain it."""
    if not file or not line:
        return ""
    return clean(sources.get(file, {}).get(line, "")).strip()


def code_frame(sources: Sources, file: str, line: int) -> Text | None:
    """Return the marked line with the lines around it, or None if the capture does not contain it."""
    lines = sources.get(file, {})
    if line not in lines:
        return None
    numbers = [number for number in range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1) if number in lines]
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
