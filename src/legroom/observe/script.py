"""Runs a script in this process exactly as `python` would, and says how it ended.

The script must not notice: `sys.argv`, `sys.path[0]`, the current folder, stdin and above all `__main__` are what
`python script.py` gives it. `__main__` is really replaced in `sys.modules`, since pickling, `multiprocessing` (fork and
spawn) and data loader workers look classes up there. That is why `runpy` is not used: it takes the module away again
when the code ends, while threads and exit handlers still need it.

An exception is rendered by the caller while it is being handled and then dropped: a stored exception keeps its
frames alive, and through them the tensors whose memory the run is about.
"""

import builtins
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from legroom.errors import UsageError
from legroom.memory.annotations import ExitReason
from legroom.observe.warned_lines import user_line_warnings


@dataclass(frozen=True, slots=True)
class Script:
    """What to run: a file, a folder or zip with a `__main__.py` in it, or (`is_module`) a module as with `-m`."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def stem(self) -> str:
        """A short name for files made on this script's behalf."""
        if self.is_module:
            return self.name.rpartition(".")[2]
        return Path(self.name).resolve().stem

    @property
    def words(self) -> list[str]:
        """As a person types it after `python`."""
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]

    def check(self) -> None:
        """Raise `UsageError` for what can be known to be wrong before anything runs."""
        if self.is_module:
            _check_module(self.name)
        else:
            _check_file(self.name)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script ended, in plain data."""

    exit_code: int
    reason: ExitReason
    error: str = ""
    """The uncaught exception as its one-line text; "" for none."""
    traceback: str = ""
    """The same with its frames, as rendered for people."""


Describe = Callable[[BaseException, bool], tuple[str, str]]
"""`(exception, hooked)`: shows an uncaught exception while it is handled, and returns its one-line text and the whole
with its frames. `hooked`: the script has a `sys.excepthook` of its own, which will show it too."""


def execute(script: Script, *, uncaught: Describe) -> Outcome:
    """Run `script` as `__main__` (see `installed`) to its end.

    `uncaught` is called with an exception that leaves the script, before it is dropped. A hook that the script itself
    put into `sys.excepthook` is called after it. Raises `UsageError` for a module that turns out not to be runnable.
    """
    hook = sys.excepthook
    try:
        code = _load(script)
        exec(code, sys.modules["__main__"].__dict__)
    except SystemExit as exit_request:
        return Outcome(_exit_code(exit_request.code), ExitReason.EXITED)
    except UsageError as error:
        if error.__traceback__ is not None and not _reached_script(error.__traceback__):
            raise
        return _raised(error, uncaught, hook)
    except BaseException as error:
        return _raised(error, uncaught, hook)
    return Outcome(0, ExitReason.FINISHED)


@contextmanager
def installed(script: Script) -> Iterator[None]:
    """`sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` are the script's while this is open, and warnings name its lines."""
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.argv = [script.name, *script.arguments]
    sys.modules["__main__"] = module
    if not sys.flags.safe_path:
        # Whatever started us (a console script, -m) put its own folder first; the script's takes its place.
        sys.path[0:1] = [_first_path(script)]
    elif not script.is_module and not _is_plain_file(script.name):
        sys.path.insert(0, os.path.abspath(script.name))  # a folder or zip is always importable from itself
    try:
        with user_line_warnings():
            yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main


@contextmanager
def before_os_exit(closing: Callable[[int], None]) -> Iterator[None]:
    """`os._exit(status)` in this process calls `closing(status)` first; in a forked child it is the real one."""
    real, owner = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() == owner:
            os._exit = real
            try:
                closing(status)
            finally:
                real(status)
        real(status)

    os._exit = leave
    try:
        yield
    finally:
        if os._exit is leave:
            os._exit = real


# --- what the exception handlers share --------------------------------------------------------------------------


def _raised(error: BaseException, uncaught: Describe, original_hook: Callable[..., object]) -> Outcome:
    interrupted = isinstance(error, KeyboardInterrupt)
    error.__traceback__ = _without_ours(error.__traceback__)
    hooked = sys.excepthook is not original_hook and sys.excepthook is not sys.__excepthook__
    text, traceback = uncaught(error, hooked)
    if hooked:
        _call_hook(error)
    if interrupted:
        return Outcome(130, ExitReason.INTERRUPTED, text, traceback)
    return Outcome(1, ExitReason.RAISED, text, traceback)


def _call_hook(error: BaseException) -> None:
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        pass
    except BaseException as broken:
        sys.__excepthook__(type(broken), broken, broken.__traceback__)


def _exit_code(code: object) -> int:
    """As the interpreter reads `SystemExit.code`; a text goes to stderr."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF  # what the operating system keeps of it
    print(code, file=sys.stderr)
    return 1


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Python's own traceback begins at the script: drop the frames of this file above it."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _reached_script(traceback: TracebackType) -> bool:
    innermost = traceback
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost.tb_frame.f_code.co_filename != __file__


# --- finding the code, and dressing __main__ as python does ------------------------------------------------------


def _load(script: Script) -> CodeType:
    if script.is_module:
        return _load_module(script.name)
    if _is_plain_file(script.name):
        return _load_file(script.name)
    return _load_folder(script.name)


def _load_file(name: str) -> CodeType:
    path = os.path.abspath(name)
    with open(path, "rb") as file:
        source = file.read()
    compiled = source.startswith(importlib.util.MAGIC_NUMBER)
    loader: importlib.machinery.SourcelessFileLoader | importlib.machinery.SourceFileLoader
    if compiled:
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", path)
    _dress(path, None, loader, package=None)
    if compiled:
        code = loader.get_code("__main__")
        assert code is not None, "a file with the magic number holds code"
        return code
    return compile(source, path, "exec", dont_inherit=True)  # from bytes: a BOM or coding line is obeyed


def _load_folder(name: str) -> CodeType:
    spec = _spec_in_folder(name)
    if spec is None or spec.loader is None:
        raise UsageError(f"{name} holds no __main__.py: name the script in it to run")
    return _from_spec(spec, package="")


def _load_module(name: str) -> CodeType:
    spec = importlib.util.find_spec(name)  # imports the packages above it, as -m does
    if spec is not None and spec.submodule_search_locations is not None:
        package, spec = name, importlib.util.find_spec(f"{name}.__main__")
        if spec is None:
            raise UsageError(
                f"'{package}' is a package without a __main__.py: name a module in it, as in -m {package}.train"
            )
    if spec is None:
        raise UsageError(f"no module named '{name}': check the name, and the folder you are in")
    code = _from_spec(spec, package=spec.name.rpartition(".")[0])
    sys.argv[0] = sys.modules["__main__"].__file__ or name
    return code


def _from_spec(spec: importlib.machinery.ModuleSpec, *, package: str) -> CodeType:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        raise UsageError(f"'{spec.name}' holds no Python code to run: name a module written in Python")
    _dress(spec.origin or code.co_filename, spec, spec.loader, package=package)
    return code  # type: ignore[no-any-return]


def _dress(
    path: str, spec: importlib.machinery.ModuleSpec | None, loader: object, *, package: str | None
) -> None:
    module = sys.modules["__main__"]
    module.__file__ = path
    module.__spec__ = spec
    module.__dict__["__loader__"] = loader
    module.__package__ = package
    module.__dict__["__cached__"] = spec.cached if spec is not None else None


def _first_path(script: Script) -> str:
    if script.is_module:
        return os.getcwd()
    if _is_plain_file(script.name):
        return os.path.dirname(os.path.realpath(script.name))
    return os.path.abspath(script.name)


def _is_plain_file(name: str) -> bool:
    """Source or byte code (in a file or a pipe), as opposed to a folder or zip that the import system looks into."""
    return pkgutil.get_importer(name) is None


def _spec_in_folder(name: str) -> importlib.machinery.ModuleSpec | None:
    importer = pkgutil.get_importer(os.path.abspath(name))
    return importer.find_spec("__main__") if importer is not None else None


# --- what can be known beforehand --------------------------------------------------------------------------------


def _check_file(name: str) -> None:
    path = Path(name)
    if not path.exists():
        hint = (
            f"did you mean {name}.py?"
            if Path(f"{name}.py").is_file()
            else "check the path, or name a module with -m"
        )
        raise UsageError(f"there is no script '{name}': {hint}")
    if path.suffix == ".ipynb":
        raise UsageError(
            f"'{name}' is a notebook: run what `jupyter nbconvert --to script` makes of it, or train under legroom.VirtualGPU(...) in a cell"
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"'{name}' cannot be read: give yourself read permission on it")
    if not _is_plain_file(name) and _spec_in_folder(name) is None:
        raise UsageError(f"'{name}' is a folder without a __main__.py: name the script in it to run")


def _check_module(name: str) -> None:
    if not name or any(not part for part in name.split(".")):
        raise UsageError(f"'{name}' is no module name: write -m package.module")
    top = name.partition(".")[0]
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found = top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):
        found = False
    finally:
        sys.path.remove(here)
    if not found:
        raise UsageError(f"no module named '{top}' in {here} or the installed packages: check the name")
