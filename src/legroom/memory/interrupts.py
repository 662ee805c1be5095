"""Ctrl-C, kept out of the few lines that must not be left half done."""

from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT, getsignal, raise_signal, signal
from threading import current_thread, main_thread


@contextmanager
def later_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: a script may catch it and go on, and then our record must too.

    Only the main thread ever sees it; in others this does nothing.
    """
    handler = getsignal(SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield
        return
    came = False

    def remember(*_: object) -> None:
        nonlocal came
        came = True

    signal(SIGINT, remember)
    try:
        yield
    finally:
        signal(SIGINT, handler)
        if came:
            raise_signal(SIGINT)
