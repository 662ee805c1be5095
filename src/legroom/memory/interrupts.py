"""Delays Ctrl-C during a block that must not be interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT, getsignal, raise_signal, signal
from threading import current_thread, main_thread


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, so that the recording stays consistent if the script catches Ctrl-C
    and continues.

    Python delivers signals only to the main thread, so this function does nothing in other threads.
    """
    handler = getsignal(SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield
        return
    received = False

    def remember(*_: object) -> None:
        nonlocal received
        received = True

    signal(SIGINT, remember)
    try:
        yield
    finally:
        signal(SIGINT, handler)
        if received:
            raise_signal(SIGINT)
