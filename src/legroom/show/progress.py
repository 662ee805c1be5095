"""One line on a terminal that says what long work is at; gone when it is done, and silent in a pipe."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def said_on(stream: TextIO, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a sentence in the place of the one before."""
    shows = not quiet and stream.isatty()

    def say(sentence: str) -> None:
        if shows:
            stream.write(f"\r\x1b[2Klegroom: {sentence} …")
            stream.flush()

    try:
        yield say
    finally:
        if shows:
            stream.write("\r\x1b[2K")
            stream.flush()
