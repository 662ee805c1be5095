"""One line on a terminal that says what long work is at; gone when it is done, and silent in a pipe."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def progress_line(stream: TextIO, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a sentence in the place of the one before, or with "" nothing."""
    shows = not quiet and stream.isatty()

    def say(sentence: str) -> None:
        if shows:
            stream.write(f"\r\x1b[2Klegroom: {sentence} …" if sentence else "\r\x1b[2K")
            stream.flush()

    try:
        yield say
    finally:
        if shows:
            stream.write("\r\x1b[2K")
            stream.flush()
