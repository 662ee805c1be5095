"""Describes a training function in a form that another process can load.

A function at the top level of a file is identified by its file and its name, and every process imports the file. As
with `multiprocessing`, code under `if __name__ == "__main__":` does not run. If the file calls `legroom.tune` at the
top level, the import ends at that call. Other functions (lambdas, nested functions, functions in a notebook) are
pickled with cloudpickle.
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


class CannotLoad(LegroomError):  # noqa: N818
    pass


class SearchReached(BaseException):
    """Raised when the import of a training file reaches its call to `legroom.tune`. `SearchReached` is derived from
    BaseException, so that `except Exception` in the file does not catch it.
    """


def stop_if_imported() -> None:
    if _imported:
        raise SearchReached


_imported: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFunction:
    """The location of a training function, as plain data that can be serialized."""

    name: str
    file: str = ""
    module: str = ""
    """The module, if the function is part of a package. A function outside a package is imported from its file."""
    pickled: str = ""

    @classmethod
    def of(cls, function: Any, *, by_value: bool = False) -> "TrainFunction":
        """Create a `TrainFunction` from a function or from text such as `train.py:train`. With `by_value`, the function
        is pickled, so its file is not imported again."""
        if isinstance(function, TrainFunction):
            return function
        if isinstance(function, str):
            return _named(function)
        if not callable(function):
            raise UsageError(
                f"The first argument must be the training function, not {type(function).__name__}."
            )
        parameters_of(function)
        function = unwrap_parameters(function)
        inside = function
        while isinstance(inside, functools.partial):
            inside = inside.func
        name, module = getattr(inside, "__qualname__", ""), getattr(inside, "__module__", "")
        file = _file_of(inside)
        has_name = bool(name and file) and "<" not in name and inside is function
        if by_value or not has_name or (module == "__main__" and not _is_module_level(file, name)):
            short = name.rpartition(".")[2].strip("<>")
            return cls(name=short or "train", file=file, pickled=_pickle(function))
        if module == "__main__" or "." not in module:
            return cls(name=name, file=file)
        return cls(name=name, file=file, module=module)

    def load(self) -> Train:
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
        try:
            parameters_of(train)
        except UsageError as error:
            raise CannotLoad(str(error)) from None
        return train

    @property
    def imports(self) -> list[str]:
        """The modules that the file imports from outside its own folder, which can be imported before the file. In
        `from ray import tune`, `tune` may be a module, so `ray.tune` is included.
        """
        try:
            tree = ast.parse(Path(self.file).read_bytes())
        except (OSError, SyntaxError, ValueError):
            return []
        names: list[str] = []
        for node in tree.body:
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                # An imported name may be a module, such as `tune` in `from ray import tune`.
                names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        folder = Path(self.file).parent
        local = {path.stem for path in folder.iterdir()}
        return [name for name in names if name.partition(".")[0] not in local]


def unwrap_parameters(function: Any) -> Any:
    """Convert `ray.tune.with_parameters(function, ...)` to a `functools.partial`. Ray keeps the arguments in its object
    store, which a trial's process cannot read.
    """
    if getattr(function, "__module__", "") != "ray.tune.trainable.util" or not inspect.isfunction(function):
        return function
    variables = inspect.getclosurevars(function).nonlocals
    if not {"trainable", "keys", "prefix", "parameter_registry"} <= variables.keys():
        return function
    registry, prefix = variables["parameter_registry"], variables["prefix"]
    arguments = {name: registry.get(prefix + name) for name in variables["keys"]}
    return functools.partial(variables["trainable"], **arguments)


def _named(text: str) -> TrainFunction:
    file, separator, name = text.rpartition(":")
    if not separator or not file or not name:
        raise UsageError(
            f"`{text}` is not the name of a function. Specify the file and the function as `train.py:train`."
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
            f"Functions in this file: {', '.join(defined)}." if defined else "The file defines no functions."
        )
        raise UsageError(f"{file} has no function `{name}`. {hint}")
    if name in defined and not (_positional_count(defined[name]) or defined[name].args.vararg):
        raise UsageError(
            f"`{name}()` in {file} takes no configuration. Define the function as `def {name}(config, "
            "trial)`."
        )
    return TrainFunction(name=name, file=str(path.resolve()))


def _is_module_level(file: str, name: str) -> bool:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    first = name.partition(".")[0]
    return first in [n.name for n in tree.body if isinstance(n, ast.FunctionDef)] or _defines_name(
        tree, first
    )


def _positional_count(function: ast.FunctionDef) -> int:
    return len(function.args.posonlyargs + function.args.args)


@dataclass(frozen=True, slots=True)
class TrainParameters:
    """The names of a training function's parameters. A name is None if the function has no such parameter."""

    config: str | None = None
    trial: str | None = None
    checkpoint_dir: str | None = None
    """The parameter for the checkpoint folder, as in early versions of Ray Tune."""
    is_unknown: bool = False
    """True if the signature cannot be read, or if the configuration can only be passed by position."""


def reject_class(function: Any) -> None:
    if isinstance(function, type):
        raise UsageError(
            f"The class {function.__name__} cannot run as a trial. Pass a function `train(config, trial)` that runs the "
            "training loop and calls `trial.report(...)` in each iteration."
        )


def parameters_of(function: Callable[..., Any]) -> TrainParameters:
    """Return the parameters of a training function. Raises `UsageError` if the function needs further arguments.

    The trial is a parameter that is named `trial` or annotated as `Trial`. The configuration is the first of the other
    parameters.
    """
    reject_class(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return TrainParameters(is_unknown=True)
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    trial = next((p.name for p in by_name if _is_trial(p)), None)
    others = [p for p in parameters if p.name != trial]
    first = next((p for p in others if p.kind is not p.VAR_KEYWORD), None)
    folder = next((p.name for p in by_name if p.name == "checkpoint_dir" and p is not first), None)
    needed = [p.name for p in others if p is not first and p.default is p.empty and _is_single(p)]
    if needed:
        raise UsageError(
            f"The training function needs a value for `{needed[0]}`. Name the parameter `trial` to receive the trial, "
            f"or pass a value with `functools.partial(train, {needed[0]}=...)`."
        )
    if first is None and trial is None:
        raise UsageError(
            "The training function takes no configuration. Define the function as `def train(config, trial)`, or as "
            "`train(config)` with `ray.tune.report`."
        )
    if first is None:
        return TrainParameters(trial=trial)
    if first.kind in (first.POSITIONAL_ONLY, first.VAR_POSITIONAL):
        return TrainParameters(is_unknown=True)
    is_config = trial is None or first.name == "config" or first.default is first.empty
    return TrainParameters(first.name if is_config else None, trial, folder)


def _is_trial(parameter: inspect.Parameter) -> bool:
    written = getattr(parameter.annotation, "__name__", parameter.annotation)
    return parameter.name == "trial" or (isinstance(written, str) and written.split(".")[-1] == "Trial")


def _is_single(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _defines_name(tree: ast.Module, name: str) -> bool:
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
