"""A progress line, which is shown only on a terminal and is removed at the end."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO

from legroom.log import printable


@contextlib.contextmanager
def progress_line(stream: TextIO, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that replaces the progress line. An empty string clears the line."""
    enabled = not quiet and stream.isatty()

    def show(text: str) -> None:
        if enabled:
            stream.write(f"\r\x1b[2Klegroom: {printable(text)} …" if text else "\r\x1b[2K")
            stream.flush()

    try:
        yield show
    finally:
        if enabled:
            stream.write("\r\x1b[2K")
            stream.flush()
