"""A parsed file and the facts of its flow analysis.

Positions are computed on first use: most files have no findings, and computing positions takes as long as the rest of
the analysis.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from legroom.diagnose.lint.flow.evidence.called_models import called_models
from legroom.diagnose.lint.flow.evidence.definitions import Definitions, find_definitions
from legroom.diagnose.lint.flow.evidence.handlers import Handlers, find_handlers
from legroom.diagnose.lint.flow.evidence.object_classes import (
    annotated_names,
    called_methods,
    identifies_class,
)
from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact, ReleaseFact, StoreFact
from legroom.diagnose.lint.flow.syntax import (
    Imports,
    children,
    disables_gradients,
    dotted,
    forget_file,
    is_call_of,
    is_false,
    last_name,
    names_in,
    walk,
)
from legroom.diagnose.lint.flow.values import MODEL, UNKNOWN, Value, ValueKind, guess_from_name, join_values

_Node = TypeVar("_Node", bound=cst.CSTNode)
NEWLINE = re.compile(r"\r\n|\r|\n")
_MODULE_BASES = re.compile(r"(?:^|\.)(?:\w*Module|Sequential|\w*Net|\w*Model|ModelMixin)$")
_OTHER_BASES = {"object", "ABC", "abc.ABC", "Protocol", "Generic", "typing.Protocol", "typing.Generic"}


@dataclass(slots=True, eq=False)
class ClassInfo:
    """A class that the file defines."""

    name: str
    node: cst.ClassDef
    bases: tuple[str, ...]
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    """The values that the attributes of `self` have at the end of the methods."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Definitions of other files, which follow the statements of the file."""

    text: str = ""
    statements: int = 0
    names: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Maps a path in the file, such as `utils.Meter`, to the name of a definition."""


_NO_DEFINITIONS = Foreign()


class Program:
    def __init__(
        self,
        text: str,
        module: cst.Module,
        *,
        foreign: Foreign = _NO_DEFINITIONS,
        without_gradients: frozenset[str] = frozenset(),
    ) -> None:
        """Create a program from the text of a file.

        `module` contains the statements of the file and then the foreign statements. `without_gradients` are the
        functions that other files call with gradients disabled.
        """
        forget_file()
        self.text = text
        self.aliases = foreign.aliases
        self.lines = NEWLINE.split(text + foreign.text)
        self.own_lines = len(NEWLINE.split(text)) - (foreign.statements > 0)
        self._without_gradients = without_gradients
        self.module = module
        self.nodes = list(walk(module))
        self.order = dict(zip(self.nodes, range(len(self.nodes)), strict=True))
        self.parent = {child: node for node in self.nodes for child in children(node)}
        self.imports = Imports(self.nodes)
        for name in foreign.names:
            self.imports.full_names.pop(name, None)
        first_foreign = module.body[-foreign.statements] if foreign.statements else None
        self._own_nodes = self.order[first_foreign] if first_foreign is not None else len(self.nodes)
        self.top = Function("", "", module, None, None)
        self.functions: dict[str, Function] = {"": self.top}
        self.classes: dict[str, ClassInfo] = {}
        self.calls: list[CallFact] = []
        self.stores: list[StoreFact] = []
        self.releases: list[ReleaseFact] = []
        self.loops: list[LoopFact] = []
        self.values: dict[cst.CSTNode, Value] = {}
        """Maps an expression to its last value in the flow analysis."""
        self._define(module, outer=self.top, class_name=None, prefix="")

    @cached_property
    def newline(self) -> str:
        found = NEWLINE.search(self.text)
        return found[0] if found else "\n"

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        # `MetadataWrapper.resolve` would take twice as long: it also visits every node for providers that are not needed.
        positions = PositionProvider()._gen(MetadataWrapper(self.module, unsafe_skip_copy=True))
        return cast("Mapping[cst.CSTNode, CodeRange]", positions)

    def span(self, node: cst.CSTNode) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the start and end of a node. Lines start at 1, and columns start at 0."""
        span = self._positions[self.definitions.written.get(node, node)]
        return (span.start.line, span.start.column), (span.end.line, span.end.column)

    def is_own(self, node: cst.CSTNode) -> bool:
        """Return True for a node of the file, and False for a node in a definition of another file."""
        return self.order[self.definitions.written.get(node, node)] < self._own_nodes

    def is_foreign(self, class_name: str | None) -> bool:
        """Return True for a class of another file."""
        known = self.classes.get(class_name or "")
        return known is not None and not self.is_own(known.node)

    def defined_path(self, node: cst.CSTNode | None) -> str | None:
        """Return the path of a node, or the name of the imported definition to which the path refers."""
        path = dotted(node)
        return self.aliases.get(path, path) if path is not None else None

    def source(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def is_conditional(self, node: cst.CSTNode, scope: cst.CSTNode | None = None) -> bool:
        """Return True if an `if` or `try` statement in a scope may skip a node.

        The default scope is the innermost loop or function.
        """
        for each in self.ancestors(node):
            if each is scope or (scope is None and isinstance(each, (cst.For, cst.While, cst.FunctionDef))):
                return False
            if isinstance(each, (cst.If, cst.Try, cst.Match)):
                return True
        return scope is not None

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        current: cst.CSTNode | None = node
        while current is not None:
            if current is outer:
                return True
            current = self.parent.get(current)
        return False

    def other_uses(self, store: StoreFact) -> Iterator[tuple[cst.CSTNode, cst.CSTNode | None]]:
        """Yield each node that names the stored variable or attribute, together with the parent of the node. The
        storing statement and assignments to the name are omitted.
        """
        name = last_name(store.target)
        for node in self.nodes:
            if not isinstance(node, (cst.Name, cst.Attribute)) or last_name(dotted(node) or "") != name:
                continue
            parent = self.parent.get(node)
            if not isinstance(parent, (cst.AssignTarget, cst.AnnAssign)) and not self.inside(
                node, store.node
            ):
                yield node, parent

    def nodes_of(self, kind: type[_Node]) -> list[_Node]:
        """Return all nodes of a libcst class such as `cst.Call`, in source order."""
        return cast("list[_Node]", self._by_kind.get(kind, []))

    @cached_property
    def _by_kind(self) -> dict[type[cst.CSTNode], list[cst.CSTNode]]:
        found: dict[type[cst.CSTNode], list[cst.CSTNode]] = {}
        for node in self.nodes:
            found.setdefault(type(node), []).append(node)
        return found

    def call_of(self, node: cst.CSTNode | None) -> CallFact | None:
        """Return the recorded fact of a call. Use it only after the analysis, which replaces the facts in each pass."""
        return self._call_by_node.get(id(node))

    @cached_property
    def _call_by_node(self) -> dict[int, CallFact]:
        found: dict[int, CallFact] = {}
        for call in self.calls:
            found.setdefault(id(call.node), call)
        return found

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        current = self.parent.get(node)
        while current is not None:
            yield current
            current = self.parent.get(current)

    def statement_line(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        for each in (node, *self.ancestors(node)):
            if isinstance(each, cst.SimpleStatementLine):
                return each
            if isinstance(each, cst.BaseCompoundStatement):
                return None
        return None

    def is_module_class(self, name: str | None, seen: frozenset[str] = frozenset()) -> bool:
        """Return True if a class is a module: its base is one, or it defines `forward` and has a base in another file."""
        known = self.classes.get(name or "")
        if known is None or known.name in seen:
            return False
        may_inherit = "forward" in known.methods and not self.is_autograd_function(name)
        return any(
            self.is_module_class(base, seen | {known.name})
            if base in self.classes
            else bool(_MODULE_BASES.search(base)) or (may_inherit and base not in _OTHER_BASES)
            for base in known.bases
        )

    @cached_property
    def class_by_lower_name(self) -> dict[str, str]:
        """Maps the name of each class in lower case to the name. The first class has precedence."""
        return {name.lower(): name for name in reversed(self.classes)}

    @cached_property
    def value_classes(self) -> frozenset[str]:
        return frozenset(name for name in self.classes if not self.is_module_class(name))

    def is_autograd_function(self, name: str | None) -> bool:
        """Return True if a class is a `torch.autograd.Function`, whose methods run with gradients disabled."""
        known = self.classes.get(name or "")
        return known is not None and any(
            base.endswith(("autograd.Function", "autograd.function.Function")) for base in known.bases
        )

    def is_torchmetric(self, name: str | None) -> bool:
        """Return True for a metric of torchmetrics, whose `update` and `compute` run with gradients disabled."""
        known = self.classes.get(name or "")
        return known is not None and any(base.startswith("torchmetrics.") for base in known.bases)

    def inherits(self, name: str, base: str, seen: frozenset[str] = frozenset()) -> bool:
        known = self.classes.get(name)
        if known is None or name in seen:
            return False
        return base in known.bases or any(self.inherits(each, base, seen | {name}) for each in known.bases)

    def are_related(self, one: str, other: str) -> bool:
        """Return True if one class is derived from the other, or if both are derived from the same class in this file."""
        if self.inherits(one, other) or self.inherits(other, one):
            return True
        return any(self.inherits(one, base) and self.inherits(other, base) for base in self.classes)

    def method(self, class_name: str | None, name: str) -> Function | None:
        """Return the method that a class in this file defines or inherits."""
        seen: set[str] = set()
        pending = [class_name] if class_name else []
        while pending:
            known = self.classes.get(pending.pop(0))
            if known is None or known.name in seen:
                continue
            seen.add(known.name)
            if name in known.methods:
                return known.methods[name]
            pending.extend(known.bases)
        return None

    def inherited(self, class_name: str | None, name: str) -> Function | None:
        """Return the method that `super().name` refers to."""
        known = self.classes.get(class_name or "")
        found = (self.method(base, name) for base in known.bases) if known is not None else iter(())
        return next(filter(None, found), None)

    @cached_property
    def decorated(self) -> dict[str, str]:
        """Maps a decorator to the qualified name of a function that it decorates."""
        return {
            name: each.qualified_name
            for each in self.functions.values()
            if isinstance(each.node, cst.FunctionDef)
            for decorator in each.node.decorators
            if (name := dotted(decorator.decorator)) is not None
        }

    def modes_in(self, class_name: str | None, function: Function | None) -> set[bool]:
        """Return the possible gradient modes in the body of a `with` statement: True if gradients are disabled.

        The context manager is an object of a class, or the result of a function. The set is empty if the context
        manager does not change the mode.
        """
        known = self.classes.get(class_name or "")
        if known is not None:
            if any(map(disables_gradients, known.bases)):
                return {True}
            function = self.method(class_name, "__enter__")
        if function is None:
            return set()
        made = {
            disables_gradients(dotted(_called(part)))
            for each in function.returned_nodes
            for part in ((each.body, each.orelse) if isinstance(each, cst.IfExp) else (each,))
        }
        return made if True in made else function.modes_left

    def returned_by(self, function: Function, call: cst.Call) -> Value:
        """Return the result of a call. A call such as `self.step()` may run the method of a subclass."""
        value = function.returns
        if function.class_name is not None and (dotted(call.func) or "").startswith("self."):
            for other in self.methods.get(function.name, ()):
                if self.inherits(other.class_name or "", function.class_name):
                    value = join_values(value, other.returns)
        return value

    def function_named(self, name: str, scope: Function) -> Function | None:
        current: Function | None = scope if name else None
        while current is not None:
            found = self.functions.get(f"{current.qualified_name}.{name}" if current.qualified_name else name)
            if found is not None and found.class_name is None:
                return found
            current = current.outer
        return None

    def assigned(self, path: str | None) -> list[cst.BaseExpression]:
        return [each.expression for each in self.stores if each.target == path]

    def value(self, node: cst.CSTNode) -> Value:
        return self.values.get(node, UNKNOWN)

    def mentions(self, *names: str) -> bool:
        return not self._identifiers.isdisjoint(names)

    def guess(self, path: str) -> Value:
        """Return the value that a name such as `model` usually has.

        If the name suggests no value but the file uses it as a model, return a model.
        """
        guess = guess_from_name(path.rpartition(".")[2])
        return self.guess_called(path) if guess.kind is ValueKind.UNKNOWN else guess

    def guess_called(self, path: str) -> Value:
        return MODEL if path in self._called_models else UNKNOWN

    @cached_property
    def _called_models(self) -> frozenset[str]:
        defined = {function.name for function in self.functions.values()} | self.classes.keys()
        return called_models(self.nodes) - defined

    def instance(self, class_name: str) -> Value:
        is_module = self.is_module_class(class_name)
        return Value(ValueKind.MODEL if is_module else ValueKind.UNKNOWN, class_name=class_name)

    def object_used_as(self, path: str, function: Function, *, is_model: bool) -> Value | None:
        """Return the object to which a path refers, if exactly one class in the file has the methods that are called
        on it.

        `is_model` is True if the name indicates a model.
        """
        scope = function.class_name if path.startswith("self.") else function.name
        methods = self._called_methods.get((scope or "", path))
        if methods is None or not identifies_class(methods, of_model=is_model):
            return None
        found = [
            name
            for name, known in self.classes.items()
            if not methods.isdisjoint(known.methods)
            and all(self.method(name, each) for each in methods)
            and (not is_model or self.is_module_class(name))
        ]
        return self.instance(found[0]) if len(found) == 1 else None

    @cached_property
    def _called_methods(self) -> dict[tuple[str, str], set[str]]:
        return called_methods(self.nodes_of(cst.Call), self.parent, set(self.methods))

    def annotated(self, function: Function, name: str) -> Value | None:
        if not isinstance(function.node, cst.FunctionDef):
            return None
        given = function.node.params
        for each in (*given.posonly_params, *given.params, *given.kwonly_params):
            if each.name.value == name and each.annotation is not None:
                found = [path for path in annotated_names(each.annotation.annotation) if path in self.classes]
                return self.instance(found[0]) if found else None
        return None

    @cached_property
    def objects(self) -> frozenset[str]:
        """The paths of all objects whose attributes the file accesses."""
        return frozenset(path for node in self.nodes_of(cst.Attribute) if (path := dotted(node.value)))

    @cached_property
    def uses_gpu(self) -> bool:
        """True if the file or an imported definition names a GPU, as in `model.cuda()` or `torch.device("cuda")`."""
        return self.mentions("cuda", "device", "mps", "xpu", "Accelerator") or any(
            re.search(r"[\"'](?:cuda|mps|xpu)", line) for line in self.lines
        )

    @cached_property
    def runs_without_gradients(self) -> bool:
        """True if the file disables gradients for the whole program with `torch.set_grad_enabled(False)`."""
        if not self.mentions("set_grad_enabled") or self.mentions("enable_grad", "backward"):
            return False
        switches = [node for node in self.nodes_of(cst.Call) if is_call_of(node, "set_grad_enabled")]
        at_top = [node for node in switches if self.statement_line(node) in self.module.body]
        return bool(at_top) and all(bool(node.args) and is_false(node.args[0]) for node in switches)

    @cached_property
    def assigned_names(self) -> frozenset[str]:
        """The names that any statement in the file assigns, and all parameters."""
        return frozenset(
            name
            for target in (
                *(each.target for each in self.nodes_of(cst.AssignTarget)),
                *(each.target for each in self.nodes_of(cst.AnnAssign)),
                *(each.target for each in self.nodes_of(cst.For)),
                *(each.target for each in self.nodes_of(cst.CompFor)),
                *(each.name for each in self.nodes_of(cst.AsName)),
                *(each.name for each in self.nodes_of(cst.Param)),
            )
            for name in _bound_names(target)
        )

    @cached_property
    def drawn_names(self) -> frozenset[str]:
        """The names of containers from which the program takes random samples, such as `memory` for
        `random.sample(self.memory, n)`.
        """
        return frozenset(
            name
            for node in self.nodes_of(cst.Call)
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in _DRAWING
            for argument in node.args[:2]
            if (name := _drawn(argument.value)) is not None
        ) | frozenset(self._names_at_random_indices())

    def _names_at_random_indices(self) -> Iterator[str]:
        """Yield the names of containers that are indexed with random numbers, such as `data` for
        `[self.data[i] for i in indices]`.
        """
        drawn = {
            path
            for node in self.nodes_of(cst.Assign)
            if isinstance(node.value, cst.Call)
            and isinstance(node.value.func, cst.Attribute)
            and node.value.func.attr.value in _DRAWING
            for each in node.targets
            if (path := dotted(each.target)) is not None
        }
        if not drawn:
            return
        loops: list[cst.For | cst.CompFor] = [*self.nodes_of(cst.For), *self.nodes_of(cst.CompFor)]
        for node in loops:
            if not drawn.isdisjoint(names_in(node.iter)):  # indices, indices.tolist()
                scope = node if isinstance(node, cst.For) else self.parent.get(node, node)
                index = dotted(node.target)
                for each in walk(scope):
                    if isinstance(each, cst.Subscript) and isinstance(each.slice[0].slice, cst.Index):
                        path = dotted(each.value)
                        if path is not None and dotted(each.slice[0].slice.value) == index:
                            yield path.rpartition(".")[2]

    @cached_property
    def pool_names(self) -> frozenset[str]:
        """The names of containers whose entries are replaced at random, such as `images` for
        `self.images[random.randrange(n)] = image`.
        """
        if not any(map(_draws_number, self.nodes_of(cst.Call))):
            return frozenset()
        indices = {
            path
            for node in self.nodes_of(cst.Assign)
            if _is_drawn_number(node.value)
            for each in node.targets
            if (path := dotted(each.target)) is not None
        }
        return frozenset(
            path.rpartition(".")[2]
            for node in self.nodes_of(cst.AssignTarget)
            for each in walk(node.target)
            if isinstance(each, cst.Subscript) and isinstance(index := each.slice[0].slice, cst.Index)
            if (path := dotted(each.value)) is not None
            and (dotted(index.value) in indices or _is_drawn_number(index.value))
        )

    @cached_property
    def methods(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = {}
        for known in self.classes.values():
            for name, method in known.methods.items():
                found.setdefault(name, []).append(method)
        return found

    @cached_property
    def definitions(self) -> Definitions:
        return find_definitions(self.nodes_of(cst.Assign))

    @cached_property
    def handlers(self) -> Handlers:
        return find_handlers(self.functions.values(), self.nodes_of(cst.Call), self.nodes_of(cst.Assign))

    @cached_property
    def passed_names(self) -> frozenset[str]:
        """The names that the file reads without calling them, such as a function that is the target of a thread.

        Only the last component of each name is included.
        """
        return frozenset(
            node.attr.value for node in self.nodes_of(cst.Attribute) if self._is_passed(node)
        ) | frozenset(node.value for node in self.nodes_of(cst.Name) if self._is_passed(node))

    def _is_passed(self, node: cst.CSTNode) -> bool:
        parent = self.parent.get(node)
        return type(parent) not in _NOT_PASSING and not (type(parent) is cst.Call and parent.func is node)

    @cached_property
    def _identifiers(self) -> frozenset[str]:
        return frozenset(node.value for node in self.nodes_of(cst.Name))

    def _define(self, node: cst.CSTNode, *, outer: Function, class_name: str | None, prefix: str) -> None:
        pending = list(children(node)[::-1])
        while pending:
            current = pending.pop()
            if type(current) is cst.ClassDef:
                self._define_class(current, outer, prefix)
            elif type(current) is cst.FunctionDef:
                self._define_function(current, outer, class_name, prefix)
            elif type(current) is not cst.SimpleStatementLine:
                pending.extend(children(current)[::-1])

    def _define_class(self, node: cst.ClassDef, outer: Function, prefix: str) -> None:
        name = node.name.value
        bases = tuple(
            found
            for base in node.bases
            if (found := self.aliases.get(dotted(base.value) or "") or self.imports.qualified(base.value))
        )
        self.classes[name] = ClassInfo(name, node, bases)
        self._define(node.body, outer=outer, class_name=name, prefix=f"{prefix}{name}.")

    def _define_function(
        self, node: cst.FunctionDef, outer: Function, class_name: str | None, prefix: str
    ) -> None:
        name = node.name.value
        parameters = tuple(
            each.name.value
            for group in (node.params.posonly_params, node.params.params, node.params.kwonly_params)
            for each in group
        )
        for star in (node.params.star_arg, node.params.star_kwarg):
            if isinstance(star, cst.Param):
                parameters += (star.name.value,)
        outside: set[str] = set()
        local: set[str] = set()
        each: Any
        for each in walk(node.body, into_functions=False):
            kind = type(each)
            if kind is cst.Global or kind is cst.Nonlocal:
                outside.update(item.name.value for item in each.names)
            elif kind in _BINDING:
                local.update(_bound_names(each.name if kind is cst.AsName else each.target))
        function = Function(
            name=name,
            qualified_name=f"{prefix}{name}",
            node=node,
            class_name=class_name,
            outer=outer,
            parameters=parameters,
            nonlocal_names=frozenset(outside),
            local_names=frozenset(local - set(parameters)),
            mutable_defaults=frozenset(
                each.name.value
                for group in (node.params.posonly_params, node.params.params, node.params.kwonly_params)
                for each in group
                if _is_mutable(each.default)
            ),
            no_grad=f"{prefix}{name}" in self._without_gradients
            or any(
                disables_gradients(self.imports.qualified(_called(each.decorator)))
                for each in node.decorators
            ),
        )
        if any(_is_setter(each.decorator) for each in node.decorators):
            name = function.name = f"{name}.setter"
            function.qualified_name = f"{prefix}{name}"
        self.functions[function.qualified_name] = function
        if class_name is not None and outer.class_name is None:
            self.classes[class_name].methods.setdefault(name, function)
        self._define(node.body, outer=function, class_name=None, prefix=f"{function.qualified_name}.")


_NOT_PASSING = {
    cst.FunctionDef, cst.ClassDef, cst.Param, cst.AssignTarget, cst.ImportAlias, cst.Attribute,
}  # fmt: skip
_BINDING = {
    cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.AsName, cst.CompFor, cst.NamedExpr,
}  # fmt: skip
_DRAWING = frozenset(
    ["sample", "choice", "choices", "randint", "randperm", "permutation", "integers", "randrange"]
)


def _is_drawn_number(node: cst.BaseExpression) -> bool:
    """Return True for `random.randint(0, n)` and `int(random.random() * n)`."""
    return any(map(_draws_number, walk(node)))


def _draws_number(node: cst.CSTNode) -> bool:
    return type(node) is cst.Call and last_name(dotted(node.func) or "") in {
        "randint",
        "randrange",
        "integers",
        "random",
    }


def _drawn(node: cst.CSTNode) -> str | None:
    while isinstance(node, cst.Call) and dotted(node.func) in {"len", "range", "list"} and node.args:
        node = node.args[0].value
    path = dotted(node)
    return path.rpartition(".")[2] if path is not None else None


def _is_mutable(default: cst.BaseExpression | None) -> bool:
    if isinstance(default, cst.Call):
        made = dotted(default.func) or ""
        return made.rpartition(".")[2] in {"list", "dict", "set", "defaultdict", "OrderedDict", "Queue"}
    return isinstance(default, (cst.List, cst.Dict, cst.Set))


def _bound_names(target: cst.CSTNode) -> Iterator[str]:
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List)):
        for each in target.elements:
            yield from _bound_names(each.value)


def _is_setter(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "setter"


def _called(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node
