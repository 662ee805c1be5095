"""Writes rendered text: colored and up to 100 columns wide on a terminal, plain and 80 columns wide in a pipe."""

import io
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from legroom.errors import OutputError
from legroom.show.common.formatting import clean
from legroom.show.common.live_line import can_repaint

PLAIN_WIDTH = 80
MAX_WIDTH = 100


def print_to(stream: TextIO, *parts: RenderableType) -> None:
    """Write `parts` one below the other in a single write, so that no other output is printed between them.

    Raises OutputError if standard output cannot be written. Errors from other streams are ignored.
    """
    text = render_to_string(
        *parts, width=width_of(stream), color=can_repaint(stream), ascii_only=not supports_unicode(stream)
    )
    try:
        stream.write(text)
        stream.flush()
    except (AttributeError, OSError, ValueError) as error:  # a full disk, or a closed pipe or stream
        if stream is sys.stdout:
            raise OutputError.from_error(error) from None


def render_to_string(
    *parts: RenderableType, width: int = PLAIN_WIDTH, color: bool = False, ascii_only: bool = False
) -> str:
    """Return the rendered text as a string, without trailing blanks and without control characters from the content."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        no_color=True if not color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        force_jupyter=False,  # in a notebook, rich would display the text instead of writing it
    )
    for part in parts:
        segments = console.render(Group(part))  # Group: a bare Text is wrapped even with no_wrap
        console.print(Segments(_printable(segments)), crop=False, end="")
    text = buffer.getvalue()
    if not color:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    return _to_ascii(text) if ascii_only else text


def _printable(segments: Iterable[Segment]) -> Iterator[Segment]:
    for segment in segments:
        yield segment if segment.control else Segment(clean(segment.text), segment.style)


def verbatim(text: str, style: str = "") -> Text:
    """Return text that is never wrapped, for example a command or a traceback."""
    return Text(clean(text), style=style, no_wrap=True, overflow="ignore")


_ASCII = str.maketrans("█░│❱→×·▏▁▂▃▄▅▆▇", "#.|>>x-|_..--=+")


def _to_ascii(text: str) -> str:
    return text.replace("…", "...").translate(_ASCII).encode("ascii", "replace").decode()


def supports_unicode(stream: TextIO) -> bool:
    return (
        (getattr(stream, "encoding", None) or sys.getdefaultencoding())
        .lower()
        .replace("-", "")
        .startswith("utf")
    )


def width_of(stream: TextIO) -> int:
    if not can_repaint(stream):
        return PLAIN_WIDTH
    try:
        # Some terminals report a width of 0.
        columns = os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH
        return max(40, min(columns, MAX_WIDTH))
    except (OSError, ValueError):
        return PLAIN_WIDTH
