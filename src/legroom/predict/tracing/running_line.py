"""Determines which line a script in another process is running, for reports about a long wait.

The process writes its stack to a file when it receives a signal. `faulthandler` writes the stack in C, so it works
even while the script runs C code. `faulthandler` needs no additional thread, which would not exist in a fork.
"""

import faulthandler
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from legroom.observe.source.user_files import is_user_file

REPLY_SECONDS = 0.5
_FILE = "stack"
_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 11 if hasattr(signal, "SIGRTMIN") else None
"""A signal that scripts are unlikely to use. Systems without real-time signals do not report lines."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in ', re.MULTILINE)
_open_files: list[Any] = []


def report_running_line(folder: str) -> None:
    """Make this process and its forks write their stack to a file in `folder` whenever `running_line` requests it."""
    if _SIGNAL is None:
        return
    file = open(os.path.join(folder, _FILE), "ab", buffering=0)  # noqa: SIM115  (open as long as the process runs)
    _open_files.append(file)
    faulthandler.register(_SIGNAL, file=file, all_threads=False)
    file.write(b"\n")  # without this, the signal would end the process


def running_line(process: int, folder: str) -> str:
    """Return the line of user code that a process is executing, as `file.py:12`, or "" if the line is unknown."""
    path = Path(folder) / _FILE
    try:
        before = path.stat().st_size
        if not before or _SIGNAL is None:
            return ""
        os.kill(process, _SIGNAL)
        deadline = time.monotonic() + REPLY_SECONDS
        while path.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.01)
        with path.open("rb") as file:
            file.seek(before)
            stack = file.read().decode(errors="replace")
    except OSError:
        return ""
    for frame in _FRAME.finditer(stack):  # the innermost first
        if is_user_file(frame["file"]):
            return f"{os.path.basename(frame['file'])}:{frame['line']}"
    return ""
