"""Runs a script whose source does not contain the word `torch`. The recording starts when torch is imported, for
example through another module.

Importing torch takes seconds and uses hundreds of megabytes, so Legroom does not import torch for a script that does
not use it.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from legroom.log import say
from legroom.observe.import_hook import ImportHook
from legroom.observe.script import Script, execute, installed
from legroom.show.report.tracebacks import format_error_line, format_traceback

if TYPE_CHECKING:
    from legroom.run.recording import AtExit, Recording


def names_torch(script: Script) -> bool:
    """Return whether the source of the script contains the word `torch`. For a module (`-m`), a folder or a pipe, the
    result is always True.
    """
    if script.is_module or not os.path.isfile(script.name):
        return True
    with open(script.name, "rb") as file:
        return b"torch" in file.read()


def run_until_torch(
    script: Script, start: "Callable[[], Recording]", *, at_exit: "AtExit | None" = None
) -> int:
    """Run the script and return its exit code. `start` starts the recording after the script has imported torch.
    `at_exit` is called with a callback that prints the report.
    """
    after = _RecordingAfterImport(start)
    as_main = ExitStack()
    as_main.enter_context(installed(script))

    def close() -> None:
        after.hook.remove()
        if after.recording is not None:
            after.recording.close()
        elif after.reason and os.getpid() == after.process:
            say(after.reason)

    def uncaught(error: BaseException, hooked: bool) -> tuple[str, str]:
        if after.recording is not None:
            return after.recording.show_error(error, hooked)
        if isinstance(error, KeyboardInterrupt):
            return "KeyboardInterrupt", ""
        traceback = format_traceback(error)
        if not hooked:
            sys.stderr.write(traceback)
        return format_error_line(error), traceback

    after.hook.install()
    if at_exit is not None:
        at_exit(close)
    outcome = execute(script, uncaught=uncaught)
    if after.recording is not None:
        after.recording.end(outcome)
    elif outcome.exit_code or not _can_flush_stdout():
        after.reason = ""  # the error is printed
    if at_exit is None:
        close()
        as_main.close()
    return outcome.exit_code


def _can_flush_stdout() -> bool:
    try:
        if sys.stdout is not None and not getattr(sys.stdout, "closed", False):
            sys.stdout.flush()
    except OSError:
        return False
    return True


class _RecordingAfterImport:
    def __init__(self, start: "Callable[[], Recording]") -> None:
        self._start = start
        self.hook = ImportHook("torch", self._loaded)
        self.process = os.getpid()
        self.recording: Recording | None = None
        self.reason = "The script did not import torch, so there is no memory to report."

    def _loaded(self) -> None:
        if os.getpid() != self.process:
            return
        if threading.current_thread() is not threading.main_thread():
            self.reason = "Memory was not recorded, because torch was imported in a thread. Import torch in the main thread."
            return
        try:
            self.recording = self._start()
        except Exception as error:  # the script must run as without Legroom
            self.reason = f"Memory was not recorded ({type(error).__name__}: {error})."
