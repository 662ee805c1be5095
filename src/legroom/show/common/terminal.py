"""Text for people: coloured and as wide as the terminal (up to a readable width) there, plain and 80 wide in a pipe."""

import io
import os
import sys
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from legroom.show.common.formatting import clean

PLAIN_WIDTH = 80
WIDEST = 100


def print_to(stream: TextIO, *parts: RenderableType) -> None:
    """Write `parts` below one another, in one piece, so that other output cannot come between."""
    text = render_to_string(
        *parts, width=_width(stream), colour=_is_terminal(stream), ascii_only=not _speaks_unicode(stream)
    )
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # a closed pipe or stream: there is no one to tell
        return


def render_to_string(
    *parts: RenderableType, width: int = PLAIN_WIDTH, colour: bool = False, ascii_only: bool = False
) -> str:
    """The same as a string, without blanks at the ends of lines."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=colour,
        no_color=True if not colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(Group(part), crop=False)  # a bare Text would be wrapped whatever it says of itself
    text = buffer.getvalue()
    if not colour:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    return _in_ascii(text) if ascii_only else text


def verbatim(text: str, style: str = "") -> Text:
    """Text whose lines are never broken: a command to copy, a traceback."""
    return Text(clean(text), style=style, no_wrap=True, overflow="ignore")


_ASCII = str.maketrans("█░│❱→×·▏▁▂▃▄▅▆▇", "#.|>>x-|_..--=+")


def _in_ascii(text: str) -> str:
    return text.replace("…", "...").translate(_ASCII).encode("ascii", "replace").decode()


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):
        return False


def _speaks_unicode(stream: TextIO) -> bool:
    return (
        (getattr(stream, "encoding", None) or sys.getdefaultencoding())
        .lower()
        .replace("-", "")
        .startswith("utf")
    )


def _width(stream: TextIO) -> int:
    if not _is_terminal(stream):
        return PLAIN_WIDTH
    try:
        # 0: a terminal that does not know.
        columns = os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH
        return max(40, min(columns, WIDEST))
    except (OSError, ValueError):
        return PLAIN_WIDTH
