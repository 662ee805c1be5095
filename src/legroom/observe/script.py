"""Runs a script in this process as `python` would, and returns its outcome.

`sys.argv`, `sys.path[0]`, the current folder, stdin and `__main__` are the same as with `python script.py`. Pickling,
`multiprocessing` (fork and spawn) and data loader workers look up classes in `__main__`. Therefore
`sys.modules["__main__"]` is replaced with the module of the script. `runpy` is not used, because it removes the module
when the code ends, while threads and exit handlers still need the module.

The caller formats an exception while it is being handled. The exception is then dropped, because a stored exception
would keep its frames and their tensors alive.
"""

import builtins
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

from legroom.errors import UsageError
from legroom.memory.annotations import ExitReason


@dataclass(frozen=True, slots=True)
class Script:
    """The program to run: a file, a folder or zip file with a `__main__.py`, or a module as in `python -m`
    (`is_module`).
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def stem(self) -> str:
        if self.is_module:
            return self.name.rpartition(".")[2]
        path = Path(self.name)
        return (
            path.stem if self.is_pipe else path.resolve().stem
        )  # the target of `/dev/stdin` is `pipe:[8386]`

    @property
    def command_line(self) -> list[str]:
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]

    def check(self) -> None:
        """Raise `UsageError` if it is certain that the script cannot run."""
        if self.is_module:
            _check_module(self.name)
        else:
            _check_file(self.name)

    def syntax_error(self) -> SyntaxError | None:
        """Return the syntax error of the source files, or None if the files compile. Zip files are not checked."""
        for path in self.source_files() or ():
            try:
                source = read_source(path)
                if not source.startswith(importlib.util.MAGIC_NUMBER):
                    with warnings.catch_warnings(action="ignore"):
                        compile(source, path, "exec", dont_inherit=True)
            except SyntaxError as error:
                return error.with_traceback(None)
            except (OSError, ValueError):  # reported when the script runs
                return None
        return None

    @property
    def is_pipe(self) -> bool:
        """Whether the script is read from a pipe, such as `/dev/stdin`."""
        return not self.is_module and os.path.exists(self.name) and not _is_file_or_folder(self.name)

    def source_files(self) -> list[str] | None:
        """Return the paths of the files that run: the `__init__.py` files of the packages of a module, and last the
        file that runs as `__main__`. Nothing is imported. Return None if not all files are known, for example in a
        zip file.
        """
        if self.is_module:
            return _module_files(self.name)
        if _is_plain_file(self.name):
            return [os.path.abspath(self.name)]
        return _file_of(_spec_in_folder(self.name))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a script."""

    exit_code: int
    reason: ExitReason
    error: str = ""
    traceback: str = ""


Describe = Callable[[BaseException, bool], tuple[str, str]]
"""A function that describes an uncaught exception. It is called with `(exception, hooked)` while the exception is
handled, and returns a one-line description and the rendered traceback. `hooked` means that the script has set
`sys.excepthook`, which will also show the exception.
"""


def execute(script: Script, *, uncaught: Describe) -> Outcome:
    """Run `script` as `__main__` (see `installed`) until the script ends.

    `uncaught` is called with an uncaught exception from the script, before the exception is dropped. If the script has
    set `sys.excepthook`, the hook is called afterwards. Raises `UsageError` for a module that cannot be run.
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
    """Within the block, `sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` have the values for the script, and
    warnings show lines in the script.
    """
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.argv = [script.name, *script.arguments]
    sys.modules["__main__"] = module
    if not sys.flags.safe_path:
        # The console script or `-m` that started Legroom put its own folder first. Replace it with the script's folder.
        sys.path[0:1] = [_first_path(script)]
    elif not script.is_module and not _is_plain_file(script.name):
        sys.path.insert(
            0, os.path.abspath(script.name)
        )  # python always adds a folder or zip file that it runs
    try:
        with user_line_warnings():
            yield
    finally:
        if not sys.is_finalizing():  # the interpreter has already cleared `sys.path`
            sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main


@contextmanager
def before_os_exit(closing: Callable[[int], None]) -> Iterator[None]:
    """Within the block, `os._exit(status)` calls `closing(status)` first. Forked children are not affected."""
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


_LEGROOM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_TORCH_DISPATCH = tuple(os.path.join("torch", name) for name in ("_ops.py", "overrides.py"))


@contextmanager
def user_line_warnings() -> Iterator[None]:
    """Within the block, warnings show the user's line, as without Legroom. A program that replaces
    `warnings.showwarning` is not affected.

    Python attributes a warning from C++ to the innermost Python frame. In a recorded program, this frame belongs to
    Legroom or to torch's dispatch code.
    """
    original = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        if _is_internal(filename):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and _is_internal(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
        original(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = original


def _is_internal(filename: str) -> bool:
    return (
        filename.startswith(_LEGROOM) or filename.endswith(_TORCH_DISPATCH) or filename == warnings.__file__
    )


# --- handling exceptions --------------------------------------------------------------------------------------------


def _raised(error: BaseException, uncaught: Describe, original_hook: Callable[..., object]) -> Outcome:
    interrupted = isinstance(error, KeyboardInterrupt)
    error.__traceback__ = _without_own_frames(error.__traceback__)
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
    """Return the exit code that the interpreter derives from `SystemExit.code`. If the code is a string, the string is
    printed to stderr.
    """
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF  # the operating system keeps 8 bits
    print(code, file=sys.stderr)
    return 1


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Drop the frames of this file, so that the traceback starts at the script as with `python`."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _reached_script(traceback: TracebackType) -> bool:
    innermost = traceback
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost.tb_frame.f_code.co_filename != __file__


# --- loading the code and setting up __main__ as python does ------------------------------------------------------


def _load(script: Script) -> CodeType:
    if script.is_module:
        return _load_module(script.name)
    if _is_plain_file(script.name):
        return _load_file(script.name)
    return _load_folder(script.name)


def _load_file(name: str) -> CodeType:
    path = os.path.abspath(name)
    source = read_source(path)
    compiled = source.startswith(importlib.util.MAGIC_NUMBER)
    loader: importlib.machinery.SourcelessFileLoader | importlib.machinery.SourceFileLoader
    if compiled:
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", path)
    _set_up_main(path, None, loader, package=None)
    if compiled:
        code = loader.get_code("__main__")
        assert code is not None, "a byte-code file must contain code"
        return code
    return compile(
        source, path, "exec", dont_inherit=True
    )  # bytes, so that a BOM or coding line is respected


def read_source(path: str) -> bytes:
    """Return the content of a script. A pipe can be read only once, so its content is stored."""
    if path in _piped:
        return _piped[path]
    with open(path, "rb") as file:
        source = file.read()
    if not os.path.isfile(path):
        _piped[path] = source
    return source


_piped: dict[str, bytes] = {}


def _load_folder(name: str) -> CodeType:
    spec = _spec_in_folder(name)
    if spec is None or spec.loader is None:
        raise UsageError(f"`{name}` contains no `__main__.py`. Pass the path to a script.")
    return _from_spec(spec, package="")


def _load_module(name: str) -> CodeType:
    spec = importlib.util.find_spec(name)  # imports the packages above it, as -m does
    if spec is not None and spec.submodule_search_locations is not None:
        package, spec = name, importlib.util.find_spec(f"{name}.__main__")
        if spec is None:
            raise UsageError(
                f"`{package}` is a package without a `__main__.py`. Pass a module in the package, for example `-m {package}.train`."
            )
    if spec is None:
        raise UsageError(f"No module named `{name}`. Check the name and the current folder.")
    code = _from_spec(spec, package=spec.name.rpartition(".")[0])
    sys.argv[0] = sys.modules["__main__"].__file__ or name
    return code


def _from_spec(spec: importlib.machinery.ModuleSpec, *, package: str) -> CodeType:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        raise UsageError(f"`{spec.name}` contains no Python code to run. Pass a module written in Python.")
    _set_up_main(spec.origin or code.co_filename, spec, spec.loader, package=package)
    return code  # type: ignore[no-any-return]


def _set_up_main(
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
    """Return whether the script is a file or a pipe with source or byte code. The import system searches a folder or a
    zip file for `__main__`, so these are not plain files.
    """
    return pkgutil.get_importer(name) is None


def _is_file_or_folder(name: str) -> bool:
    return os.path.isfile(name) or os.path.isdir(name)


def _module_files(name: str) -> list[str] | None:
    """Find a module as the import system does, but without importing its packages."""
    files: list[str] = []
    path, spec = [os.getcwd(), *sys.path], None
    for part in name.split("."):  # without the names of its packages, which are not imported
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
        if spec.origin is not None or not path:  # not a package without an `__init__.py`
            file = _file_of(spec)
            if file is None:
                return None
            files += file
    if path:
        main = _file_of(importlib.machinery.PathFinder.find_spec("__main__", path))
        return None if main is None else files + main
    return files


def _file_of(spec: importlib.machinery.ModuleSpec | None) -> list[str] | None:
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        return None
    return [spec.loader.path]


def _spec_in_folder(name: str) -> importlib.machinery.ModuleSpec | None:
    importer = pkgutil.get_importer(os.path.abspath(name))
    return importer.find_spec("__main__") if importer is not None else None


# --- checks before the run ---------------------------------------------------------------------------------------


def _check_file(name: str) -> None:
    path = Path(name)
    if not path.exists():
        hint = (
            f"Did you mean `{name}.py`?"
            if Path(f"{name}.py").is_file()
            else "Check the path, or run a module with `-m`."
        )
        raise UsageError(f"Script `{name}` not found. {hint}")
    if path.suffix == ".ipynb":
        raise UsageError(
            f"`{name}` is a notebook. Convert the notebook with `jupyter nbconvert --to script`, or use "
            "`legroom.VirtualGPU(...)` in a cell."
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"No permission to read `{name}`.")
    if not _is_plain_file(name) and _spec_in_folder(name) is None:
        raise UsageError(f"`{name}` is a folder without a `__main__.py`. Pass the path to a script.")


def _check_module(name: str) -> None:
    if not name or any(not part for part in name.split(".")):
        raise UsageError(f"`{name}` is not a module name. Example: `-m package.module`.")
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
        raise UsageError(f"No module named `{top}` in {here} or the installed packages. Check the name.")
