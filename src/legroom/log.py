"""Prints one-line messages.

The logger `legroom` reports messages during the user's program, and `say` prints command-line messages.

Without logging configuration, Python prints a warning without its source. If none of the program's handlers processes
a message, Legroom therefore prints it with the prefix `legroom: `. With a logging configuration, the program's own
handlers format the message.
"""

import contextlib
import logging
import os
import re
import sys
import textwrap

MAX_COLUMNS = 100
"""The maximum width of wrapped messages."""


def say(message: str, *, lines: bool = False) -> None:
    """Print `legroom: MESSAGE` to stderr: wrapped on a terminal, in one line elsewhere. Line breaks are printed only with
    `lines`, because a line break in a file name could imitate a second message.
    """
    text = printable(message) if lines else one_line(message)
    with contextlib.suppress(OSError, ValueError):  # stderr is closed
        print(_wrapped(f"legroom: {text}"), file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """Replace control characters, line breaks and tabs, for example in a file name."""
    return printable(_BREAKS.sub(" ", text))


_BREAKS = re.compile(r"\r\n|[\n\t]")


def printable(text: str) -> str:
    """Remove colors, and replace control characters except tabs and line breaks.

    A terminal would execute control characters in a file name or an error message.
    """
    return re.sub(_CONTROL, "�", re.sub(_COLOR, "", text))


_COLOR = r"\x1b\[[0-9;]*m"
"""The escape sequences of colors and bold text, which torch uses in error messages."""
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
"""Control characters, marks that change the direction of text, invisible characters, and bytes that are not valid UTF-8.

The joiners U+200C and U+200D are printed, because emoji and several languages need them.
"""


def _wrapped(text: str) -> str:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (AttributeError, OSError, ValueError):  # not a terminal
        return text
    if not columns:  # a terminal of unknown width
        return text
    return "\n".join(
        textwrap.fill(line, min(columns, MAX_COLUMNS), break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


class _LastResort(logging.Handler):
    """Prints messages that no other handler processes."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or log.handlers != [self]:
            return
        say(record.getMessage())


log = logging.getLogger("legroom")
log.addHandler(_LastResort(logging.WARNING))
