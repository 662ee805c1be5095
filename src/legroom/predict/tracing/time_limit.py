"""Calls a function in the main thread after a given time, even if the main thread is busy.

On systems with interval timers, a signal interrupts the main thread, even while it sleeps. On Windows, a thread raises
an interrupt, which the main thread handles at its next Python instruction.
"""

import _thread
import signal
import threading
import time
from collections.abc import Callable
from typing import Any


class TimeLimit:
    def __init__(self) -> None:
        self._limits = 0
        """The number of limits that were set so far. A thread that waits for an earlier limit exits if this number has
        increased.
        """

    def set(
        self, action: Callable[[], Any], seconds: float, *, processor_seconds: float | None = None
    ) -> None:
        """Call `action()` after `seconds`, or after the process has used `processor_seconds` of processor time."""
        self._limits += 1
        if _HAS_TIMERS:
            signal.signal(signal.SIGALRM, lambda *_: action())
            signal.setitimer(signal.ITIMER_REAL, seconds)
            if processor_seconds is not None:
                signal.signal(signal.SIGPROF, lambda *_: action())
            signal.setitimer(signal.ITIMER_PROF, processor_seconds or 0)
            return
        number: signal.Signals = getattr(signal, "SIGBREAK", signal.SIGTERM)
        signal.signal(number, lambda *_: action())
        used = None if processor_seconds is None else time.process_time() + processor_seconds
        arguments = (self._limits, number, time.monotonic() + seconds, used)
        threading.Thread(target=self._wait, args=arguments, daemon=True).start()

    def cancel(self) -> None:
        self._limits += 1
        if _HAS_TIMERS:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _wait(self, limit: int, number: signal.Signals, end: float, used: float | None) -> None:
        while time.monotonic() < end and (used is None or time.process_time() < used):
            if limit != self._limits:
                return
            time.sleep(_CHECK_SECONDS)
        if limit == self._limits:
            _thread.interrupt_main(number)


_HAS_TIMERS = hasattr(signal, "setitimer")
_CHECK_SECONDS = 0.1
