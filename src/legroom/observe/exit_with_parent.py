"""A process that nobody waits for any more goes with whoever started it."""

import contextlib
import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Once the parent is gone, however it went, this process gets a signal. Elsewhere than on Linux it runs on."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
