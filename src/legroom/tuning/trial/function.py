"""The training function, in a form that another process can load.

A function of a file is named by its file and its name, and the file is imported where it is needed, as `multiprocessing` does it:
what stands under `if __name__ == "__main__":` is left out, and the file is read no further than to its own search, if that stands elsewhere. What has no name there (a lambda, a function in a function, a
notebook's) travels by value, with cloudpickle.
"""

import ast
import base64
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom.errors import LegroomError, UsageError

Train = Callable[..., Any]
MODULE = "__legroom_train__"
"""What a script is called when it is imported for a function in it."""


class CannotLoad(LegroomError):  # noqa: N818
    """The file of the training function could not be imported."""


class SearchReached(BaseException):
    """A file that is imported for its function has come to its search. Not an error: it must pass `except Exception`."""


def leave_if_imported() -> None:
    """A search begins here: not where the file is imported for its function alone."""
    if _imported:
        raise SearchReached


_imported: list[str] = []
"""Files that are being imported for their functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFunction:
    """Where a function is. Plain data: it goes into orders as JSON."""

    name: str
    file: str = ""
    module: str = ""
    """Imported by this name where it is part of a package; else from its file."""
    pickled: str = ""
    """The function itself, where it has no name to import it by."""

    @classmethod
    def of(cls, function: Any) -> "TrainFunction":
        """Of a function, or of `train.py:train`."""
        if isinstance(function, TrainFunction):
            return function
        if isinstance(function, str):
            return _named(function)
        if not callable(function):
            raise UsageError(f"the first argument is the training function, not a {type(function).__name__}")
        _check_signature(function)
        name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
        file = _file_of(function)
        has_name = bool(name and file) and "<" not in name and not isinstance(function, functools.partial)
        if not has_name or (module == "__main__" and not _is_at_top(file, name)):
            return cls(name=name or "train", file=file, pickled=_pickle(function))
        if module == "__main__" or "." not in module:
            return cls(name=name, file=file)
        return cls(name=name, file=file, module=module)

    def load(self) -> Train:
        """Import it here."""
        if self.pickled:
            cloudpickle = importlib.import_module("cloudpickle")
            loaded: Train = cloudpickle.loads(base64.b64decode(self.pickled))
            return loaded
        _imported.append(self.file)
        try:
            module = importlib.import_module(self.module) if self.module else _import_file(self.file)
        except SearchReached:
            raise CannotLoad(
                f'{Path(self.file).name} searches when it is imported: put that under if __name__ == "__main__":'
            ) from None
        except Exception as error:
            raise CannotLoad(
                f"{Path(self.file).name} could not be imported: {type(error).__name__}: {error}"
            ) from error
        finally:
            _imported.pop()
        found: Any = module
        for part in self.name.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            raise CannotLoad(f"{Path(self.file).name} has no function '{self.name}'")
        train: Train = found
        return train

    @property
    def imports(self) -> list[str]:
        """Packages that the file imports and that are not beside it: what may be loaded before the file is."""
        try:
            tree = ast.parse(Path(self.file).read_bytes())
        except (OSError, SyntaxError, ValueError):
            return []
        names: list[str] = []
        for node in tree.body:
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.append(node.module)
        beside = Path(self.file).parent
        local = {path.stem for path in beside.iterdir()}
        return [name for name in names if name.partition(".")[0] not in local]

    @property
    def takes_trial(self) -> bool:
        """Whether it surely is a function of the configuration and the trial, by its file; one of the configuration alone reports to Ray itself."""
        if self.pickled:
            return False
        try:
            tree = ast.parse(Path(self.file).read_bytes())
        except (OSError, SyntaxError, ValueError):
            return False
        defined = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == self.name]
        return bool(defined) and _positions(defined[-1]) >= 2


def _named(text: str) -> TrainFunction:
    file, separator, name = text.rpartition(":")
    if not separator or not file or not name:
        raise UsageError(f"'{text}' names no function: write it as train.py:train")
    path = Path(file)
    if not path.is_file():
        meant = f"{file}.py"
        hint = f"do you mean {meant}:{name}?" if Path(meant).is_file() else "check the path"
        raise UsageError(f"there is no script '{file}': {hint}")
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise UsageError(f"{file} is no Python that can be read: line {error.lineno}: {error.msg}") from None
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name.partition(".")[0] not in defined and not _binds(tree, name.partition(".")[0]):
        hint = f"it has {', '.join(defined)}" if defined else "it has none"
        raise UsageError(f"{file} has no function '{name}': {hint}")
    if name in defined and not (_positions(defined[name]) or defined[name].args.vararg):
        raise UsageError(f"{name}() in {file} takes no configuration: write it as def {name}(config, trial)")
    return TrainFunction(name=name, file=str(path.resolve()))


def _is_at_top(file: str, name: str) -> bool:
    """Whether whoever imports a file finds the name there: not what is made under `if __name__ == "__main__":`."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    first = name.partition(".")[0]
    return first in [n.name for n in tree.body if isinstance(n, ast.FunctionDef)] or _binds(tree, first)


def _positions(function: ast.FunctionDef) -> int:
    """How many arguments it takes by position, a list of any number apart."""
    return len(function.args.posonlyargs + function.args.args)


def _check_signature(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it does not tell
        return
    for arguments in ((None, None), (None,)):
        try:
            signature.bind(*arguments)
            return
        except TypeError:
            continue
    raise UsageError(
        f"the training function takes {signature}: write it as def train(config, trial), or train(config) with ray.tune.report"
    )


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether a file binds a name otherwise than with `def`: an import, an assignment, a class."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if any((alias.asname or alias.name) in (name, "*") for alias in node.names):
                return True
        elif (isinstance(node, ast.ClassDef) and node.name == name) or (
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        ):
            return True
    return False


def _file_of(function: Any) -> str:
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
    except (TypeError, ValueError):
        return ""
    return os.path.abspath(file) if file and os.path.exists(file) else ""


def _pickle(function: Any) -> str:
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ModuleNotFoundError:
        raise UsageError(
            "the training function has no name that another process could import: define it at the top of a file, or pip install cloudpickle"
        ) from None
    try:
        return base64.b64encode(cloudpickle.dumps(function)).decode()
    except Exception as error:
        raise UsageError(
            f"the training function cannot be sent to another process ({type(error).__name__}): define it at the top of a file"
        ) from None


def _import_file(file: str) -> Any:
    known = sys.modules.get(MODULE)
    if known is not None and getattr(known, "__file__", None) == file:
        return known
    folder = os.path.dirname(file)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(MODULE, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except SearchReached:  # what comes after the search, the function does not need
        return module
    except BaseException:
        del sys.modules[MODULE]
        raise
    return module
