"""Describes a training function in a form that another process can load.

A function at the top level of a file is identified by the file and its name, and the file is imported where it is needed. As with
`multiprocessing`, code under `if __name__ == "__main__":` does not run. If the file calls `legroom.tune` at the top
level, the import ends at that call. Other functions (lambdas, nested functions, functions of a notebook) are pickled
with cloudpickle.
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
"""The module name of a script that is imported for its training function."""


class CannotLoad(LegroomError):  # noqa: N818
    """Raised if the file of the training function could not be imported."""


class SearchReached(BaseException):
    """Raised when the import of a training file reaches its call to `legroom.tune`. The class is derived from
    BaseException, so `except Exception` does not catch it.
    """


def stop_if_imported() -> None:
    """Raise `SearchReached` if the calling file is being imported for its training function."""
    if _imported:
        raise SearchReached


_imported: list[str] = []
"""The files that are being imported for their functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFunction:
    """The location of a training function, as plain data that can be serialized."""

    name: str
    file: str = ""
    module: str = ""
    """The module, if the function is part of a package. Otherwise, the function is imported from its file."""
    pickled: str = ""
    """The pickled function, if it cannot be imported by name."""

    @classmethod
    def of(cls, function: Any) -> "TrainFunction":
        """Create a `TrainFunction` from a function or from text such as `train.py:train`."""
        if isinstance(function, TrainFunction):
            return function
        if isinstance(function, str):
            return _named(function)
        if not callable(function):
            raise UsageError(
                f"The first argument must be the training function, not a {type(function).__name__}."
            )
        _check_signature(function)
        name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
        file = _file_of(function)
        has_name = bool(name and file) and "<" not in name and not isinstance(function, functools.partial)
        if not has_name or (module == "__main__" and not _is_module_level(file, name)):
            return cls(name=name or "train", file=file, pickled=_pickle(function))
        if module == "__main__" or "." not in module:
            return cls(name=name, file=file)
        return cls(name=name, file=file, module=module)

    def load(self) -> Train:
        """Import the function in this process, and return it."""
        if self.pickled:
            cloudpickle = importlib.import_module("cloudpickle")
            loaded: Train = cloudpickle.loads(base64.b64decode(self.pickled))
            return loaded
        _imported.append(self.file)
        try:
            module = importlib.import_module(self.module) if self.module else _import_file(self.file)
        except SearchReached:
            raise CannotLoad(
                f'{Path(self.file).name} calls `legroom.tune` when it is imported. Move the call under `if __name__ == "__main__":`.'
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
            raise CannotLoad(f"{Path(self.file).name} has no function `{self.name}`.")
        train: Train = found
        return train

    @property
    def imports(self) -> list[str]:
        """The packages outside the folder of the file that the file imports. These packages can be imported before the
        file is imported."""
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
        folder = Path(self.file).parent
        local = {path.stem for path in folder.iterdir()}
        return [name for name in names if name.partition(".")[0] not in local]

    @property
    def takes_trial(self) -> bool:
        """True if the file defines the function with a second argument for the trial. A function that takes only the
        configuration reports to Ray itself."""
        if self.pickled:
            return False
        try:
            tree = ast.parse(Path(self.file).read_bytes())
        except (OSError, SyntaxError, ValueError):
            return False
        defined = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == self.name]
        return bool(defined) and _positional_count(defined[-1]) >= 2


def _named(text: str) -> TrainFunction:
    file, separator, name = text.rpartition(":")
    if not separator or not file or not name:
        raise UsageError(
            f"`{text}` is not the name of a function. Write the file and the function as `train.py:train`."
        )
    path = Path(file)
    if not path.is_file():
        suggestion = f"{file}.py"
        hint = f"Did you mean `{suggestion}:{name}`?" if Path(suggestion).is_file() else "Check the path."
        raise UsageError(f"The script `{file}` does not exist. {hint}")
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise UsageError(f"{file} is not valid Python: line {error.lineno}: {error.msg}") from None
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name.partition(".")[0] not in defined and not _defines_name(tree, name.partition(".")[0]):
        hint = (
            f"The file defines these functions: {', '.join(defined)}."
            if defined
            else "The file defines no functions."
        )
        raise UsageError(f"{file} has no function `{name}`. {hint}")
    if name in defined and not (_positional_count(defined[name]) or defined[name].args.vararg):
        raise UsageError(
            f"`{name}()` in {file} takes no configuration. Define the function as `def {name}(config, "
            "trial)`."
        )
    return TrainFunction(name=name, file=str(path.resolve()))


def _is_module_level(file: str, name: str) -> bool:
    """Return True if the file defines `name` at module level. Definitions under `if __name__ == "__main__":` are
    ignored."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    first = name.partition(".")[0]
    return first in [n.name for n in tree.body if isinstance(n, ast.FunctionDef)] or _defines_name(
        tree, first
    )


def _positional_count(function: ast.FunctionDef) -> int:
    """Return the number of positional arguments, without `*args`."""
    return len(function.args.posonlyargs + function.args.args)


def _check_signature(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it has no readable signature
        return
    for arguments in ((None, None), (None,)):
        try:
            signature.bind(*arguments)
            return
        except TypeError:
            continue
    raise UsageError(
        f"The training function has the signature {signature}. Define the function as `def train(config, "
        "trial)`, or as `train(config)` with `ray.tune.report`."
    )


def _defines_name(tree: ast.Module, name: str) -> bool:
    """Return True if a module-level import, assignment or class statement defines `name`."""
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
            "The training function cannot be imported by name in another process. Define the function at "
            "the top level of a file, or run `pip install cloudpickle`."
        ) from None
    try:
        return base64.b64encode(cloudpickle.dumps(function)).decode()
    except Exception as error:
        raise UsageError(
            f"The training function cannot be pickled ({type(error).__name__}). Define the function at the "
            "top level of a file."
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
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except SearchReached:  # the function does not need the rest of the file
        return module
    except BaseException:
        del sys.modules[MODULE]
        raise
    return module
