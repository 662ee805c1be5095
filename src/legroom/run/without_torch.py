"""Runs a script that does not name torch. Torch is imported only if the script imports it, for example through another
module. The recording starts at that moment.

Importing torch takes seconds and hundreds of megabytes, which a script without torch does not need.
"""

import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from legroom.log import say
from legroom.observe.script import Script, execute, installed
from legroom.show.report.tracebacks import format_error_line, format_traceback

if TYPE_CHECKING:
    from legroom.run.recording import AtExit, Recording


def names_torch(script: Script) -> bool:
    """Return whether the script may import torch itself. A module (`-m`), a folder or a pipe may."""
    if script.is_module or not os.path.isfile(script.name):
        return True
    with open(script.name, "rb") as file:
        return b"torch" in file.read()


def run_until_torch(
    script: Script, start: "Callable[[], Recording]", *, at_exit: "AtExit | None" = None
) -> int:
    """Run the script and return its exit code. `start` starts the recording and is called after the script has imported
    torch. With `at_exit`, the report is printed by a callback that is registered with `at_exit`."""
    hook = _TorchImport(start)
    as_main = ExitStack()
    as_main.enter_context(installed(script))

    def close() -> None:
        hook.remove()
        if hook.recording is not None:
            hook.recording.close()
        elif hook.reason and os.getpid() == hook.process:
            say(hook.reason)

    def uncaught(error: BaseException, hooked: bool) -> tuple[str, str]:
        if hook.recording is not None:
            return hook.recording.show_error(error, hooked)
        if isinstance(error, KeyboardInterrupt):
            return "KeyboardInterrupt", ""
        traceback = format_traceback(error)
        if not hooked:
            sys.stderr.write(traceback)
        return format_error_line(error), traceback

    sys.meta_path.insert(0, hook)
    if at_exit is not None:
        at_exit(close)
    outcome = execute(script, uncaught=uncaught)
    if hook.recording is not None:
        hook.recording.end(outcome)
    elif outcome.exit_code:
        hook.reason = ""  # the error was printed
    if at_exit is None:
        close()
        as_main.close()
    return outcome.exit_code


class _TorchImport:
    """An import hook that finds torch as usual, and starts the recording when torch is loaded."""

    def __init__(self, start: "Callable[[], Recording]") -> None:
        self._start = start
        self._searching = False
        self.process = os.getpid()
        self.recording: Recording | None = None
        self.reason = "The script did not import torch, so there is no memory to report."

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch" or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            self.remove()  # only now: a library may look for torch without importing it
            load(module)
            if os.getpid() != self.process:
                return
            if threading.current_thread() is threading.main_thread():
                self._record()
            else:
                self.reason = "The memory was not recorded, because a thread imported torch. Import torch in the script."

        loader.exec_module = exec_module
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _record(self) -> None:
        try:
            self.recording = self._start()
        except Exception as error:  # the script must run as without Legroom
            self.reason = f"The memory was not recorded ({type(error).__name__}: {error})."
