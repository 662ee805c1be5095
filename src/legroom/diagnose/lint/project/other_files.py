"""What a file depends on in the other files of its project."""

import ast
import os
from pathlib import Path
from typing import Any

from legroom.diagnose.lint.project import callers, modules
from legroom.diagnose.lint.project.imported import Imported, imported_definitions
from legroom.diagnose.lint.project.modules import Module, Target


class OtherFiles:
    """Answers questions about the other files of the project, and records the answers.

    The report of a file is valid as long as the answers stay the same.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._imports: list[list[Any]] = []
        self._read: dict[str, str | None] = {}
        self._callers: dict[str, bool] = {}

    def imported(self, text: str, tree: ast.Module) -> Imported:
        module = Module(self._file, text, tree, is_checked=True)
        found = imported_definitions(module)
        self._imports = [[*each, _found(self._file, each)] for each in _targets(module)]
        self._read = {
            os.path.relpath(each, self._file.parent): modules.content_hash(each) for each in found.files
        }
        return found

    def call_without_gradients(self, function: str) -> bool:
        """Return True if all calls to a function in other files run with gradients disabled, and there is one."""
        self._callers[function] = callers.is_called_without_gradients(self._file, function)
        return self._callers[function]

    def as_json(self) -> dict[str, Any]:
        return {"imports": self._imports, "read": self._read, "callers": self._callers}


def are_unchanged(file: Path, recorded: dict[str, Any]) -> bool:
    """Return True if the other files still give the recorded answers."""
    return (
        all(_found(file, (module, level)) == found for module, level, found in recorded["imports"])
        and all(
            modules.content_hash(Path(os.path.normpath(file.parent / path))) == content
            for path, content in recorded["read"].items()
        )
        and all(
            callers.is_called_without_gradients(file, function) == answer
            for function, answer in recorded["callers"].items()
        )
    )


def forget_other_files() -> None:
    """Forget all files that were read, because they may have changed."""
    for each in (*modules.CACHES, *callers.CACHES):
        each.cache_clear()


def _targets(module: Module) -> list[tuple[str, int]]:
    imported = [*module.imports.values(), *module.star_imports]
    targets = [*imported, *(each.as_module for each in imported)]
    paths = {(each.module, each.level) for each in targets}
    return sorted(each for each in paths if each[1] or each[0].partition(".")[0] not in modules.LIBRARIES)


def _found(file: Path, target: tuple[str, int]) -> str | None:
    found = modules.find_module(file, Target(*target))
    return os.path.relpath(found, file.parent) if found is not None else None
