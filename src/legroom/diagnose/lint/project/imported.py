"""Collects the definitions that a file imports from its project, so that the flow analysis can follow them.

The definitions are appended to the text of the file, as if the file itself contained them. Only definitions that can
affect a finding are collected, because each line makes the analysis slower.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from legroom.diagnose.lint.flow.program import Foreign
from legroom.diagnose.lint.project.modules import (
    Definition,
    Module,
    find_module,
    resolve,
    submodule,
)
from legroom.diagnose.lint.relevance import Names, runs_model, stores_beyond_call, walk_ast

_MAX_LINES = 300
"""The maximum number of collected lines for one file."""
_MAX_FUNCTION_LINES = 80
_MAX_CLASS_LINES = 200
_MAX_SMALL_LINES = 20
"""Smaller functions are collected even if they neither store values nor change gradients."""
_BUILTINS = frozenset(dir(builtins))
_CHANGES_GRADIENTS = re.compile(
    r"detach|no_grad|inference_mode|set_grad_enabled|requires_grad|\.item\(|backward|lru_cache|\.data\b|\.cpu\("
)
"""Matches functions that disable gradients, run the backward pass, or remove the graph of a value."""
_MODULE_METHODS = frozenset(["forward", "train", "eval", "parameters", "state_dict", "load_state_dict", "to"])
_HOOK = re.compile(
    r"^(?:training|validation|test|predict)_step$|^on_(?:train|validation|test|predict)_|^configure_optimizers$"
)
_MODULE = re.compile(r"(?:^|\.)(?:\w*Module|Sequential|ModuleList)$")


@dataclass(slots=True, eq=False)
class Imported:
    """The definitions that a file imports from its project."""

    aliases: dict[str, str] = field(default_factory=dict)
    """Maps a path in the file, such as `utils.Meter`, to the name of the collected definition."""
    names: set[str] = field(default_factory=set)
    files: set[Path] = field(default_factory=set)
    """The files that were read."""
    parts: list[tuple[str, Path, int]] = field(default_factory=list)
    """The source of each definition, with its file and first line."""
    import_lines: dict[str, str] = field(default_factory=dict)
    definitions: list[ast.stmt] = field(default_factory=list)
    """The collected definitions, except models that are reduced to one layer."""
    stubbed_methods: set[str] = field(default_factory=set)
    """The methods of the models that are reduced to one layer."""

    @property
    def text(self) -> str:
        return "".join(
            f"{part}\n" for part in (*self.import_lines.values(), *(each[0] for each in self.parts))
        )

    def as_foreign(self) -> Foreign:
        return Foreign(
            self.text, len(self.import_lines) + len(self.parts), frozenset(self.names), self.aliases
        )

    def place(self, line: int) -> tuple[Path, int] | None:
        """Return the file and line from which a line of `text` was collected."""
        start = 1 + len(self.import_lines)
        for source, file, first in self.parts:
            count = source.count("\n") + 1
            if start <= line < start + count:
                return file, first + line - start
            start += count
        return None


def imported_definitions(module: Module) -> Imported:
    """Return the definitions of other files that a file uses. A file that only defines models needs none."""
    if not (module.imports or module.star_imports):
        return Imported()
    nodes = list(walk_ast(module.tree))
    if _only_defines_models(module.tree, Names(nodes)):
        return Imported()
    own = {*module.definitions, *module.assignments, *_bound_names(nodes)}
    attributes = _attributes(nodes)
    found = _collect(module, nodes, own, attributes)
    used = attributes.union(*(_attributes(walk_ast(each)) for each in found.definitions))
    # A runner in another file may call a method of the model, such as `select_action`.
    return _collect(module, nodes, own, used) if found.stubbed_methods & (used - attributes) else found


def _attributes(nodes: Iterable[ast.AST]) -> frozenset[str]:
    return frozenset(each.attr for each in nodes if isinstance(each, ast.Attribute)) - _MODULE_METHODS


def _collect(module: Module, nodes: list[ast.AST], own: set[str], attributes: frozenset[str]) -> Imported:
    found = Imported()
    taken: dict[str, tuple[Module, str]] = {}
    lines = 0
    for path, source, name in _used_imports(module, nodes, own):
        found.files.add(source.file)
        bound = path if "." not in path else name
        if bound in own or taken.get(bound, (source, name)) != (source, name):
            continue
        definition = source.definitions.get(name)
        if definition is None or not _can_matter(source, definition, attributes):
            continue
        needed = _needed(source, name, attributes)
        names = [bound if (each, inner) == (source, name) else inner for each, inner, _ in needed]
        if any(
            taken.get(used, pair[:2]) != pair[:2] or (used in own and used != bound)
            for used, pair in zip(names, needed, strict=True)
        ):
            continue
        parts = [
            (used, each, inner, text, first)
            for used, (each, inner, node) in zip(names, needed, strict=True)
            if used not in taken
            for text, first in [_shortened(each, node, attributes)]
        ]
        size = sum(text.count("\n") + 1 for *_, text, _ in parts)
        if lines + size > _MAX_LINES:
            continue
        lines += size
        for used, each, inner, text, first in parts:
            taken[used] = each, inner
            if used != inner:
                text = re.sub(rf"\b{re.escape(inner)}\b", used, text)
            found.parts.append((text, each.file, first))
            found.files.add(each.file)
            _add_imports(found, module, each, text)
        for each, _, node in needed:
            if isinstance(node, ast.ClassDef) and _is_stub(each, node, attributes):
                found.stubbed_methods.update(_methods(node))
            else:
                found.definitions.append(node)
        found.names.add(bound)
        if bound != path:
            found.aliases[path] = bound
    return found


def _only_defines_models(tree: ast.Module, names: Names) -> bool:
    """Return True if a file defines a model, and contains no loop outside models that may run one and no class that may
    be a trainer, such as a Lightning module.
    """
    models: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop(0)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            over_parts = isinstance(node, ast.For) and _MODEL_PARTS.search(ast.unparse(node.iter))
            if not over_parts and runs_model(node, names):
                return False
        if isinstance(node, ast.ClassDef):
            if _has_hooks(node):
                return False
            if _is_model(node) or any(ast.unparse(base) in models for base in node.bases):
                models.add(node.name)
                continue
            if node.bases and any(_methods(node)):
                return False
        pending.extend(
            each for each in ast.iter_child_nodes(node) if isinstance(each, (ast.stmt, ast.ExceptHandler))
        )
    return bool(models)


_MODEL_PARTS = re.compile(r"\.(?:named_)?(?:modules|children|parameters|buffers)\(|state_dict")
"""Matches the iterables of loops over the parts of a model."""


def _has_hooks(node: ast.ClassDef) -> bool:
    """Return True if a class has methods that Lightning calls in training or evaluation."""
    return any(map(_HOOK.search, _methods(node)))


def _is_model(node: ast.ClassDef) -> bool:
    return _is_module(node) or "forward" in _methods(node)


def _is_module(node: ast.ClassDef) -> bool:
    return any(_MODULE.search(ast.unparse(base)) for base in node.bases)


def _used_imports(module: Module, nodes: list[ast.AST], own: set[str]) -> Iterator[tuple[str, Module, str]]:
    """Yield the path in the file, the defining module and the name there for each used definition."""
    seen: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from _imports_in(module, own, [node.func], seen)
        elif isinstance(node, ast.ClassDef):
            yield from _imports_in(module, own, node.bases, seen)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _imports_in(module, own, node.decorator_list, seen)


def _imports_in(
    module: Module, own: set[str], used: Iterable[ast.expr], seen: set[str]
) -> Iterator[tuple[str, Module, str]]:
    for node in used:
        path = _path(node)
        if path is None or path in seen:
            continue
        seen.add(path)
        if "." not in path:
            is_foreign = path in module.imports or (
                module.star_imports and path not in own and path not in _BUILTINS
            )
            source = resolve(module, path) if is_foreign else None
            if source is not None and source[0] is not module:
                yield path, *source
            continue
        owner, _, name = path.rpartition(".")
        inner = submodule(module, owner)
        source = resolve(inner, name) if inner is not None else None
        if source is not None and source[0] is not module:
            yield path, *source


def _path(node: ast.AST) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return None
    return ".".join([node.id, *reversed(parts)])


def _bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that any statement of a file assigns or defines."""
    for node in nodes:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, Definition):
            yield node.name


def _needed(module: Module, name: str, attributes: frozenset[str]) -> list[tuple[Module, str, ast.stmt]]:
    """Return a definition, and the definitions of the project on which it depends."""
    found: dict[tuple[Module, str], ast.stmt] = {}
    pending = [(module, name)]
    while pending:
        source, current = pending.pop(0)
        if (source, current) in found or len(found) > 12:
            continue
        node = source.definitions.get(current) or source.assignments.get(current)
        if node is None:
            continue
        found[source, current] = node
        if isinstance(node, ast.ClassDef) and _is_stub(source, node, attributes):
            continue
        for each in walk_ast(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id not in _BUILTINS:
                inner = resolve(source, each.id)
                if inner is not None:
                    pending.append(inner)
    return [(source, current, node) for (source, current), node in found.items()]


def _shortened(module: Module, node: ast.stmt, attributes: frozenset[str]) -> tuple[str, int]:
    """Return the source of a definition. A model that does not change gradients is reduced to one layer."""
    text, first = module.source_of(node)
    if isinstance(node, ast.ClassDef) and _is_stub(module, node, attributes):
        return (
            f"class {node.name}(torch.nn.Module):\n    def __init__(self, *args, **kwargs):\n        self.layer = torch.nn.Linear(1, 1)",
            first,
        )
    return text, first


def _is_stub(module: Module, node: ast.ClassDef, attributes: frozenset[str]) -> bool:
    """Return True for a model whose methods do not matter. `attributes` are the attributes that the file uses."""
    if not _is_module(node) or _has_hooks(node) or (_LOSS.search(node.name) and _returns_record(node)):
        return False
    if _line_count(node) > _MAX_CLASS_LINES:
        return True
    return attributes.isdisjoint(_methods(node)) and not _changes_memory(module, node)


def _line_count(node: Definition) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _methods(node: ast.ClassDef) -> set[str]:
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef)}


def _changes_memory(module: Module, node: Definition) -> bool:
    """Return True if a definition stores values or changes their gradients."""
    if _CHANGES_GRADIENTS.search(module.source_of(node)[0]):
        return True
    functions = (each for each in walk_ast(node) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return any(map(stores_beyond_call, functions))


def _can_matter(module: Module, node: ast.stmt, attributes: frozenset[str]) -> bool:
    if not isinstance(node, Definition):
        return False
    is_model, most = False, _MAX_FUNCTION_LINES
    if isinstance(node, ast.ClassDef):
        is_model, most = _is_model(node), _MAX_CLASS_LINES
        if is_model and _is_loss(module, node) and not _returns_record(node):
            return False
        if _is_stub(module, node, attributes):
            return True
    lines = _line_count(node)
    # model.sample() is a method of a model, which is not reduced to one layer.
    return lines <= most and (lines <= _MAX_SMALL_LINES or is_model or _changes_memory(module, node))


def _is_loss(module: Module, node: ast.ClassDef) -> bool:
    """Return True for a loss or a metric: it has no layers, or its name says so."""
    if _LOSS.search(node.name):
        return True
    return "forward" in _methods(node) and not _LAYER.search(module.source_of(node)[0].partition("\n")[2])


def _returns_record(node: ast.ClassDef) -> bool:
    """Return True for a loss that returns a dict for logging next to the loss, as in
    `return loss, {"loss": loss, "count": len(target)}`.
    """
    forward = next(
        (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "forward"), None
    )
    nodes = list(walk_ast(forward)) if forward is not None else []
    made = {
        target.id
        for each in nodes
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Dict) and each.value.keys
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(part, ast.Dict) or (isinstance(part, ast.Name) and part.id in made)
        for each in nodes
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Tuple)
        for part in each.value.elts
    )


_LOSS = re.compile(r"Loss|Criterion|Metric|Penalty|Distance|Regulariz")
_LAYER = re.compile(
    r"\bnn\.[A-Z]\w+\(|Parameter\(|\b[A-Z]\w*(?:Linear|Conv|Embed|Block|Layer|Net|Module|Encoder|Decoder|Model|MLP|RNN|GRU|LSTM)\w*\("
    r"|\bmodels?\.\w+\(|(?:\b|_)(?:model|net|network|encoder|decoder|backbone|module|denoiser|unet|layers?)\b"
)
"""Matches the layers of a model."""


def _add_imports(found: Imported, own: Module, source: Module, text: str) -> None:
    """Add the imports of libraries that a definition uses, unless the file itself binds the names."""
    for name, line in source.import_lines.items():
        target = source.imports.get(name)
        is_library = target is None or find_module(source.file, target) is None
        if name not in own.import_lines and is_library and re.search(rf"\b{re.escape(name)}\b", text):
            found.import_lines.setdefault(name, line)
    if "torch.nn.Module" in text and "torch" not in own.import_lines:
        found.import_lines.setdefault("torch", "import torch")
