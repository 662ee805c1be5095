"""Delivers Ctrl+C if Python discards it in one of Legroom's callbacks.

A signal handler can run at the first instruction of any Python function. If this function is a callback of the garbage
collector or of a weak reference, Python prints the exception of the handler and continues. A program that Legroom
observes has such callbacks all the time, so Ctrl+C would often have no effect.
"""

import _thread
import sys
import time
from typing import Any

_DELAY_SECONDS = 0.01


def deliver_interrupts() -> None:
    """Repeat a `KeyboardInterrupt` that one of Legroom's callbacks discards, as soon as the callback has ended."""
    if getattr(sys.unraisablehook, "__module__", None) == __name__:
        return
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        module = getattr(unraisable.object, "__module__", None) or ""
        if unraisable.exc_type is KeyboardInterrupt and module.partition(".")[0] == "legroom":
            _thread.start_new_thread(_interrupt_soon, ())
        else:
            previous(unraisable)

    sys.unraisablehook = hook


def _interrupt_soon() -> None:
    time.sleep(_DELAY_SECONDS)
    _thread.interrupt_main()
