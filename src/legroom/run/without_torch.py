"""Runs a script that does not import torch itself. The recording starts when torch is imported, for example through
another module.

Importing torch takes seconds and uses hundreds of megabytes, so Legroom does not import torch for a script that does
not use it.
"""

import ast
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from legroom.log import say
from legroom.observe.import_hook import ImportHook
from legroom.observe.script import Script, execute, installed, read_source
from legroom.show.report.tracebacks import format_error_line, format_traceback

if TYPE_CHECKING:
    from legroom.run.recording import AtExit, Recording


def may_use_torch(script: Script) -> bool:
    """Return False if the script does not use torch, or if its recording can start when torch is imported.

    A script whose text does not contain the word `torch` may import it through another module. The recording of
    such a script starts at this import. If the text contains the word, or if the script is a module, a folder or a pipe,
    the result is False only if its syntax tree shows that it cannot import torch.
    """
    files = script.source_files()
    if files is None:
        return True
    sources = [read_source(file) for file in files]
    if not script.is_module and os.path.isfile(script.name) and b"torch" not in sources[0]:
        return False
    return not all(
        _cannot_import_torch(source, os.path.dirname(file))
        for source, file in zip(sources, files, strict=True)
    )


def _cannot_import_torch(source: bytes, folder: str) -> bool:
    """Return True if it is certain that this code does not import torch, start processes or run other code."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(level=0, module=str(module)):
                names = [f"{module}.{alias.name}" for alias in node.names]
            case ast.ImportFrom():  # a local module
                return False
            case ast.Name(id=name) | ast.Attribute(attr=name):
                if "torch" in name or _RUNS_CODE.fullmatch(name):
                    return False
                continue
            case _:
                continue
        if not all(_is_safe_module(name, folder) for name in names):
            return False
    return True


def _is_safe_module(name: str, folder: str) -> bool:
    top, *rest = name.split(".")
    return (
        top in _SAFE_MODULES
        and not (rest and (_RUNS_CODE.fullmatch(rest[0]) or rest[0] in ("config", "*")))
        and not any(os.path.exists(os.path.join(folder, top + ending)) for ending in ("", ".py"))
    )


_RUNS_CODE = re.compile(
    r"__(?!(?:name|file|doc|class|init|str|repr|len)__)\w+__|exec\w*|eval|system|popen|posix_spawnp?|spawn\w*|fork\w*|startfile|modules"
)
"""Functions that run other code or start processes, and attributes that give access to them."""
_SAFE_MODULES = frozenset(
    "__future__ abc argparse array atexit base64 bisect calendar collections contextlib copy csv dataclasses datetime "  # noqa: SIM905
    "decimal enum errno fnmatch fractions functools gc getopt getpass glob gzip hashlib heapq html io itertools json "
    "locale logging math numbers operator os pathlib platform pprint queue random re secrets shutil signal socket stat "
    "statistics string struct sys tempfile textwrap threading time tomllib types typing unicodedata uuid warnings "
    "weakref zlib".split()
)
"""Modules of the standard library that import neither torch nor modules whose names are given as strings."""


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
