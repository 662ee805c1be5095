"""What Legroom says in a sentence: the logger `legroom`, for what it says while somebody's program runs, and `say`.

Python prints a warning that nobody handles bare, and among a training script's own lines one cannot tell who said it. So there the sentence says
whose it is, as the command line's do. A program that has arranged its logging gets the plain sentence, in its own form.
"""

import contextlib
import logging
import os
import sys
import textwrap

WIDEST = 100
"""Columns: longer lines are hard to read."""


def say(sentence: str) -> None:
    """`legroom: ...` on stderr: folded to the width of a terminal, and one line in a pipe or a log, where it is searched for."""
    with contextlib.suppress(OSError, ValueError):  # a closed pipe: there is no one to tell
        print(_folded(f"legroom: {sentence}"), file=sys.stderr, flush=True)


def _folded(text: str) -> str:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (AttributeError, OSError, ValueError):  # no terminal
        return text
    if not columns:  # one that does not know
        return text
    return "\n".join(
        textwrap.fill(line, min(columns, WIDEST), break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


class _LastResort(logging.Handler):
    """Speaks where nobody else would."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or log.handlers != [self]:
            return
        say(record.getMessage())


log = logging.getLogger("legroom")
log.addHandler(_LastResort(logging.WARNING))
