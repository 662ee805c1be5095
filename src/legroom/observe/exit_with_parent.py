"""Ends a helper process when its parent process exits."""

import contextlib
import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def exit_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Make this process receive a signal when its parent exits for any reason. The signal is sent only on Linux. On
    other systems, the process keeps running.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
