"""What Legroom says while somebody's program runs: the logger `legroom`.

Python prints a warning that nobody handles bare, and among a training script's own lines one cannot tell who said it. So there the sentence says
whose it is, as the command line's do. A program that has arranged its logging gets the plain sentence, in its own form.
"""

import contextlib
import logging
import sys


class _LastResort(logging.Handler):
    """Speaks where nobody else would."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or log.handlers != [self]:
            return
        with contextlib.suppress(OSError, ValueError):  # a closed pipe: there is no one to tell
            print(f"legroom: {record.getMessage()}", file=sys.stderr, flush=True)


log = logging.getLogger("legroom")
log.addHandler(_LastResort(logging.WARNING))
