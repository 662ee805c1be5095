"""Keeps reports on one screen of a terminal: 24 lines of 80 columns."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment, SegmentLines

from legroom.show.common.terminal import verbatim

MAX_LINES = 23
"""The maximum number of lines of a report. The prompt of the shell uses the last line of the screen."""


def count_lines(part: RenderableType, console: Console, options: ConsoleOptions) -> int:
    return _height(_lines(part, console, options), options)


def _lines(part: RenderableType, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
    return list(Segment.split_lines(console.render(Group(part), options.update(height=None))))


def _height(lines: Iterable[list[Segment]], options: ConsoleOptions) -> int:
    """Return the number of lines that the text uses on the terminal. The terminal wraps a long line, such as a
    command."""
    return sum(max(1, -(-Segment.get_line_length(line) // options.max_width)) for line in lines)


class Cropped:
    """The first lines of a text. The last line ends with `…` if lines are missing. Code between backticks is either
    complete or missing."""

    def __init__(self, part: RenderableType, lines: int) -> None:
        self._part = part
        self._limit = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = _lines(self._part, console, options)
        yield SegmentLines(_without_partial_code(_crop(lines, self._limit, options)), new_lines=True)


class FirstThatFits:
    """Shows the first version of a text that has at most `lines` lines. If all versions are longer, the last version is
    cropped."""

    def __init__(self, versions: Iterable[RenderableType], lines: int) -> None:
        self._versions = versions
        self._limit = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines: list[list[Segment]] = []
        for version in self._versions:
            lines = _lines(version, console, options)
            if _height(lines, options) <= self._limit:
                break
        yield SegmentLines(_crop(lines, self._limit, options), new_lines=True)


def _crop(lines: list[list[Segment]], limit: int, options: ConsoleOptions) -> list[list[Segment]]:
    if _height(lines, options) <= limit:
        return lines
    cropped = [Segment.adjust_line_length(line, options.max_width, pad=False) for line in lines[:limit]]
    while len(cropped) > 1 and not "".join(segment.text for segment in cropped[-1]).strip():
        cropped.pop()  # `…` alone on a line would look like a part of the text
    *first, last = cropped
    text = "".join(segment.text for segment in last).rstrip()
    if cell_len(text) >= options.max_width:
        text = set_cell_size(text, options.max_width - 1)
    return [*first, [Segment(f"{text}…", last[0].style if last else None)]]


def _without_partial_code(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Remove the end of a cropped text from the last backtick on, if the crop removed the closing backtick."""
    texts = ["".join(segment.text for segment in line) for line in lines]
    if not (texts and texts[-1].endswith("…") and "".join(texts).count("`") % 2):
        return lines
    last = max(number for number, text in enumerate(texts) if "`" in text)
    kept = texts[last].rpartition("`")[0].rstrip()
    style = lines[last][0].style
    return [*lines[:last], [Segment(f"{kept}…", style)]]


class Commands:
    """Commands, each with an optional comment. A comment that does not fit on the line of its command is printed above
    the command.
    """

    def __init__(self, commands: Sequence[tuple[str, str]]) -> None:
        self._commands = commands

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        short = [each for each in self._commands if fits_line(*each, options.max_width)]
        width = max((cell_len(command) for command, comment in short if comment), default=0)
        if any(width + cell_len(comment) + _MARGIN > options.max_width for _, comment in short):
            width = 0  # the comments cannot be aligned
        for command, comment in self._commands:
            is_short = (command, comment) in short
            if comment and not is_short:
                yield verbatim(f"  # {comment}", style="dim")
            line = verbatim(f"  {command}", style="bold cyan")
            if comment and is_short:
                gap = " " * (width - cell_len(command))
                line.append(f"{gap}   # {comment}", style="not bold dim")
            yield line


_MARGIN = len("     # ")


def fits_line(command: str, comment: str, width: int) -> bool:
    return cell_len(command) + (cell_len(comment) + _MARGIN if comment else 2) <= width
