"""Finds and parses the files that a file imports from its own project."""

import ast
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from legroom.diagnose.lint.document import Unreadable, read_document

_MAX_PARENTS = 4
"""The number of parent folders in which imported modules are searched."""
LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "torchvision", "numpy", "transformers"}
_INNER_IMPORT = re.compile(r"^[ \t]+(?:import|from)\b", re.M)
_IMPORTS = (ast.Import, ast.ImportFrom)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Target:
    """What an imported name refers to: a module, or a name in a module."""

    module: str
    level: int
    """The number of leading dots of a relative import."""
    name: str | None = None

    @property
    def as_module(self) -> "Target":
        """The same target if the imported name is a module, as in `from lib import utils`."""
        return Target(f"{self.module}.{self.name or ''}".strip("."), self.level)


@dataclass(slots=True, eq=False)
class Module:
    """A parsed file of the project."""

    file: Path
    text: str
    tree: ast.Module
    is_checked: bool = False
    """True for the checked file, whose functions may import other files too."""
    definitions: dict[str, Definition] = field(default_factory=dict)
    assignments: dict[str, ast.stmt] = field(default_factory=dict)
    """Statements at module level that assign one name."""
    imports: dict[str, Target] = field(default_factory=dict)
    import_lines: dict[str, str] = field(default_factory=dict)
    """An import statement for each imported name."""
    star_imports: list[Target] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    resolved: dict[str, "tuple[Module, str] | None"] = field(default_factory=dict)
    """The results of `resolve`."""

    def __post_init__(self) -> None:
        has_inner_imports = self.is_checked and _INNER_IMPORT.search(self.text) is not None
        pending: list[ast.stmt] = list(self.tree.body)
        for node in pending:
            if isinstance(node, Definition):
                self.definitions[node.name] = node
                if has_inner_imports:
                    pending.extend(each for each in ast.walk(node) if isinstance(each, _IMPORTS))
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                if isinstance(node.targets[0], ast.Name):
                    self.assignments[node.targets[0].id] = node
            elif isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
            elif isinstance(node, ast.If):
                pending += node.body + node.orelse
            elif isinstance(node, ast.Try):
                pending += node.body + [each for handler in node.handlers for each in handler.body]

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name
            self.imports.setdefault(bound, Target(alias.name, 0))
            renamed = f" as {alias.asname}" if alias.asname else ""
            self.import_lines.setdefault(bound.partition(".")[0], f"import {alias.name}{renamed}")

    def _import_from(self, node: ast.ImportFrom) -> None:
        source = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.star_imports.append(Target(node.module or "", node.level))
                continue
            bound = alias.asname or alias.name
            self.imports.setdefault(bound, Target(node.module or "", node.level, alias.name))
            renamed = f" as {alias.asname}" if alias.asname else ""
            self.import_lines.setdefault(bound, f"from {source} import {alias.name}{renamed}")

    def source_of(self, node: ast.stmt) -> tuple[str, int]:
        """Return the source of a statement at module level, and its first line."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        self.lines = self.lines or self.text.split("\n")
        return "\n".join(line.rstrip("\r") for line in self.lines[first - 1 : node.end_lineno]), first


@cache
def read_text(file: Path) -> str | None:
    """Return the text of a file, or None if it cannot be read."""
    try:
        return read_document(file).text
    except Unreadable:
        return None


@cache
def parse_module(file: Path) -> Module | None:
    """Parse a file. Return None if it cannot be read or parsed."""
    text = read_text(file)
    if text is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Module(file, text, ast.parse(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


@cache
def content_hash(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    except OSError:
        return None


def find_module(file: Path, target: Target) -> Path | None:
    """Return the file of a module that another file imports, or None if the project does not contain the module."""
    parts = [part for part in target.module.split(".") if part]
    if target.level:
        folder = file.parent
        for _ in range(target.level - 1):
            folder = folder.parent
        return _module_in(folder, parts)
    if not parts or parts[0] in LIBRARIES:
        return None
    found = (_module_in(folder, parts) for folder in _roots(file.parent))
    return next(filter(None, found), None)


def _roots(folder: Path) -> Iterator[Path]:
    for _ in range(_MAX_PARENTS + 1):
        yield folder
        if folder.parent == folder or ".git" in _entries(folder):
            return
        folder = folder.parent


def _module_in(folder: Path, parts: list[str]) -> Path | None:
    for part in parts[:-1]:
        if part not in _entries(folder):
            return None
        folder = folder / part
    if parts:
        entries = _entries(folder)
        if f"{parts[-1]}.py" in entries:
            return folder / f"{parts[-1]}.py"
        if parts[-1] not in entries:
            return None
        folder = folder / parts[-1]
    return folder / "__init__.py" if "__init__.py" in _entries(folder) else None


@cache
def _entries(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def resolve(module: Module, name: str) -> tuple[Module, str] | None:
    """Return the module that defines a name, and the name there.

    The name may be imported into `module` from other files.
    """
    if name in module.definitions or name in module.assignments:
        return module, name
    if name not in module.resolved:
        module.resolved[name] = None  # ends the search in a cycle of imports
        module.resolved[name] = _resolve_imported(module, name)
    return module.resolved[name]


def _resolve_imported(module: Module, name: str) -> tuple[Module, str] | None:
    target = module.imports.get(name)
    if target is not None:
        source = imported_module(module, target) if target.name is not None else None
        return resolve(source, target.name or "") if source is not None else None
    sources = (imported_module(module, each) for each in module.star_imports)
    return next(filter(None, (resolve(each, name) for each in sources if each is not None)), None)


def imported_module(module: Module, target: Target) -> Module | None:
    file = find_module(module.file, target)
    return parse_module(file) if file is not None and file != module.file else None


def submodule(module: Module, name: str) -> Module | None:
    """Return the module to which an imported name refers, as in `import utils` and `from lib import utils`."""
    target = module.imports.get(name)
    return imported_module(module, target.as_module) if target is not None else None


CACHES = (read_text, parse_module, content_hash, _entries)
"""The functions that remember files."""
