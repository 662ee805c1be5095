"""Determines whether a backward pass may use the graph of a result.

A result is followed through names, containers, tensor operations, functions in this file and their callers. An
unknown use counts as `ESCAPES`, because a backward pass may need the graph.
"""

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

import libcst as cst

from legroom.diagnose.lint.flow.call_results import names_a_loss
from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    bound_paths,
    dotted,
    keys_of,
    last_name,
    method_name,
    path_of,
    receiver,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import (
    GRAPHLESS_ATTRIBUTES,
    GRAPHLESS_FUNCTIONS,
    GRAPHLESS_METHODS,
    NUMBER_ATTRIBUTES,
    ValueKind,
    split_words,
)

Position = int | str | None
Path = tuple[Position, ...]
Visit = tuple[set[tuple[cst.CSTNode, Path, cst.Call | None]], int]
"""The nodes that the search has visited, and the depth of the search. Each node has the position of the result inside
its value, and the call through which the search entered the function.
"""


class Use(IntEnum):
    """How a program uses a result. If a result has several uses, the highest value applies."""

    UNUSED = 0
    """The result is discarded, or only its shape is read."""
    DETACHED = 1
    """The program uses the result only without its graph."""
    READ = 2
    """The result is converted to numbers, printed, compared or saved."""
    EVALUATED = 3
    """The program reads a loss or an accuracy that is computed from the result, or saves the result as an image."""
    ESCAPES = 4
    """Other code receives the result, and may run a backward pass."""


_MAX_DEPTH = 40
_WITHOUT_GRAPH = (ValueKind.TENSOR, ValueKind.PLAIN)
_SAME_ITEMS = split_words("copy")
_SHAPES = NUMBER_ATTRIBUTES | split_words("size dim numel nelement stride ndimension")
_NUMBERS = split_words("item tolist numpy __format__ __float__ __int__")
_DIFFERENTIATING = split_words("backward retain_grad register_hook requires_grad_ grad")
_READING = split_words(
    "print float int str round bool repr format len isinstance save add_scalar "
    "add_scalars set_postfix set_postfix_str set_description info debug warning write"
)
"""Functions and methods that read a result without keeping its graph."""
_READING_LIBRARIES = (
    "math.", "numpy.", "sklearn.", "scipy.", "matplotlib.", "pandas.", "PIL.", "cv2.", "imageio.", "json.", "pickle.", "wandb.",
    "torchvision.utils.",
)  # fmt: skip
"""Libraries that do not compute gradients."""
_TO_ARRAY = split_words(
    "torch.from_numpy numpy.array numpy.asarray numpy.concatenate numpy.stack numpy.vstack numpy.hstack numpy.split"
)
"""Functions that raise an error for a tensor with a graph."""
_PASSING = split_words(
    "sum max min abs list tuple zip enumerate sorted dict reversed map filter next iter set"
)
_ADDING = split_words("append extend insert add appendleft")
_TRANSPARENT = (
    cst.BinaryOperation, cst.UnaryOperation, cst.BooleanOperation, cst.Tuple, cst.List, cst.Dict, cst.Element,
    cst.DictElement, cst.StarredElement, cst.StarredDictElement, cst.Await, cst.ListComp, cst.GeneratorExp, cst.SetComp,
    cst.DictComp,
)  # fmt: skip
_IMAGES = split_words("save_image imshow make_grid add_image add_images imsave")
_READERS = (
    cst.FormattedStringExpression,
    cst.ComparisonTarget,
    cst.Comparison,
    cst.Assert,
    cst.If,
    cst.While,
    cst.Index,
)


class ResultUses:
    """Follows the results of one program.

    `path` is the position of a result in nested containers, with the innermost container last. `path` contains the
    index in a tuple, the key in a dict, and None for any element of a list.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calls: dict[cst.CSTNode, CallFact] = {each.node: each for each in program.calls}
        self.functions: dict[cst.CSTNode, Function] = {each.node: each for each in program.functions.values()}
        self.positions: dict[cst.CSTNode, Position] = {}
        self.entered: dict[Function, cst.Call] = {}
        """The calls that passed the result to a function, which returns to these calls only."""
        self.is_evaluated = False
        self.is_collected = False
        self.is_array = False
        """True if the program converts a result to an array without detaching it, so the result has no graph."""

    def use_of(self, node: cst.CSTNode, function: Function) -> Use:
        self.is_evaluated = self.is_collected = self.is_array = False
        found = self._use(node, function, (set(), 0), ())
        return Use.EVALUATED if found is Use.READ and self.is_evaluated else found

    def _use(self, node: cst.CSTNode, function: Function, visit: Visit, path: Path) -> Use:
        seen, depth = visit
        while True:
            visited = node, path, self.entered.get(function)
            if visited in seen:
                return Use.UNUSED
            if depth > _MAX_DEPTH:
                return Use.ESCAPES
            seen.add(visited)
            depth += 1
            if isinstance(node, cst.Name) and self.program.value(node).kind in _WITHOUT_GRAPH:
                return Use.DETACHED
            parent: Any = self.program.parent.get(node)
            if isinstance(parent, (cst.Expr, cst.Del)):
                return Use.UNUSED
            if isinstance(parent, cst.Attribute):
                found = self._attribute(parent)
                if isinstance(found, Use):
                    return found
                node, path = found, path if parent.attr.value in _SAME_ITEMS else ()
            elif isinstance(parent, cst.Subscript) and parent.value is node:
                node = parent
                outer = self.program.parent.get(node)
                if isinstance(outer, cst.AssignTarget) or (
                    isinstance(outer, cst.AugAssign) and outer.target is node
                ):
                    return Use.UNUSED  # logits[mask] = 0
                read = _position(parent)
                if path and read is not _SLICE:
                    if path[-1] is not None and read is not None and read != path[-1]:
                        return Use.UNUSED  # another item
                    path = path[:-1]
            elif isinstance(parent, _READERS):
                self.is_evaluated |= isinstance(parent, (cst.Comparison, cst.ComparisonTarget))
                return Use.READ
            elif isinstance(parent, cst.IfExp):
                if parent.test is node:
                    return Use.READ
                node = parent
            elif isinstance(parent, cst.CompFor):
                made = self.program.parent.get(parent)
                if made is not None and path:
                    self.positions[made] = path[-1]
                return self._bound(parent.target, made, function, (seen, depth), path[:-1])
            elif isinstance(parent, cst.DictComp) and node is parent.key:
                return Use.ESCAPES
            elif isinstance(parent, (cst.ListComp, cst.GeneratorExp, cst.DictComp)):
                node, path = parent, (*path, self.positions.get(parent))
            elif isinstance(parent, cst.Element):
                node, path = parent, (*path, self._index(parent))
            elif isinstance(parent, cst.DictElement):
                node, path = parent, (*path, string_value(parent.key))
            elif isinstance(parent, (cst.Tuple, cst.List, cst.Dict)):
                node = parent
            elif isinstance(parent, _TRANSPARENT):
                is_error = isinstance(parent, cst.BinaryOperation) and isinstance(
                    parent.operator, cst.Subtract
                )
                self.is_evaluated |= is_error
                node, path = parent, ()
            elif isinstance(parent, cst.Arg):
                argument = self._argument(parent, function, (seen, depth), path)
                if isinstance(argument, Use):
                    return argument
                node, path = argument, _passed(parent, argument, path)
            else:
                return self._statement(node, parent, function, (seen, depth), path)

    def _index(self, element: cst.Element) -> int | None:
        """Return the index of an item in a tuple or list, or None after an item such as `*items`."""
        made: Any = self.program.parent.get(element)
        before = made.elements[: list(made.elements).index(element)]
        return None if any(isinstance(each, cst.StarredElement) for each in before) else len(before)

    def _attribute(self, attribute: cst.Attribute) -> Use | cst.CSTNode:
        """Return how the program uses an object when it reads one of the object's attributes.

        If the attribute is a method that returns a tensor with the same graph, the result is the expression for that
        tensor.
        """
        name = attribute.attr.value
        if name in _SHAPES:
            return Use.UNUSED
        if name in _DIFFERENTIATING:
            return Use.ESCAPES
        if name in GRAPHLESS_ATTRIBUTES or name in {"detach", "detach_"}:
            return Use.DETACHED
        if name in GRAPHLESS_METHODS:
            self.is_evaluated |= self._is_compared(attribute)
            return Use.READ
        if name in _NUMBERS:
            self.is_array |= name == "numpy" and self.program.value(attribute.value).has_graph
            return Use.READ
        call = self.program.parent.get(attribute)
        if isinstance(call, cst.Call) and call.func is attribute:
            if name in {"to", "type"} and any(_names_integers(each.value) for each in call.args):
                return Use.READ
            return Use.UNUSED if name in _ADDING else call
        return attribute

    def _is_compared(self, attribute: cst.Attribute) -> bool:
        """Return True for an accuracy such as `(output.argmax(1) == y).sum()`."""
        call = self.program.parent.get(attribute)
        outer = self.program.parent.get(call) if call is not None else None
        return isinstance(outer, (cst.Comparison, cst.ComparisonTarget, cst.Assign))

    def _argument(self, argument: cst.Arg, function: Function, visit: Visit, path: Path) -> Use | cst.CSTNode:
        """Return how a call uses one of its arguments.

        If the call returns a tensor with the graph of the argument, return the call instead.
        """
        call = self.program.parent.get(argument)
        if not isinstance(call, cst.Call):
            return Use.ESCAPES
        name = self.program.imports.qualified(call.func) or ""
        last = last_name(name) or method_name(call) or ""
        fact = self.calls.get(call)
        if fact is not None and fact.local is not None and fact.receiver.kind is not ValueKind.MODEL:
            return self._parameter(fact.local, call, argument, visit, path)
        if last in _DIFFERENTIATING or ".autograd" in name or ".checkpoint" in name:
            return Use.ESCAPES
        self.is_array |= name in _TO_ARRAY
        self.is_evaluated |= last in _IMAGES or names_a_loss(last)
        if last in _READING or last in _IMAGES or name.startswith(_READING_LIBRARIES):
            return Use.READ
        owner = receiver(call)
        if last in _ADDING and owner is not None:
            self.is_collected = True
            inner = path if last == "extend" else (*path, None)
            return self._name_reads(
                path_of(owner), call, function, visit, (*inner, *reversed(keys_of(owner)))
            )
        if name.startswith(("torch.", "torchvision.ops.", "einops.")):
            return Use.READ if last in GRAPHLESS_FUNCTIONS else call
        if name in _PASSING or names_a_loss(last) or self._is_computed_by_lambda(name):
            return call
        if fact is not None and fact.receiver.kind in (ValueKind.MODEL, ValueKind.CRITERION):
            self.is_evaluated |= fact.receiver.kind is ValueKind.CRITERION
            return call
        if owner is not None and self.program.value(owner).is_tensor:
            return call
        return Use.ESCAPES

    def _is_computed_by_lambda(self, name: str) -> bool:
        made = self.program.definitions.lambdas.get(name)
        return made is not None and not any(
            isinstance(each, cst.Call) and method_name(each) in _ADDING for each in walk(made.body)
        )

    def _parameter(self, local: Function, call: cst.Call, argument: cst.Arg, visit: Visit, path: Path) -> Use:
        names = {name for name, given in local.receives(call) if given is argument}
        if not names or local.name == "__init__" or argument.star:
            return Use.ESCAPES
        reads = [node for node in walk(local.body) if isinstance(node, cst.Name) and node.value in names]
        outer, self.entered = self.entered, {**self.entered, local: call}
        found = self._all(reads, local, visit, path)
        self.entered = outer
        return found

    def _all(self, nodes: Iterable[cst.CSTNode], function: Function, visit: Visit, path: Path) -> Use:
        found = Use.UNUSED
        for node in nodes:
            found = max(found, self._use(node, function, visit, path))
            if found is Use.ESCAPES:
                break
        return found

    def _bound(
        self,
        target: cst.BaseExpression,
        scope: cst.CSTNode | None,
        function: Function,
        visit: Visit,
        path: Path,
    ) -> Use:
        inside = set(walk(target))
        found = Use.UNUSED
        for name, inner in _assigned(target, path):
            reads = [
                node
                for node in (walk(scope) if scope is not None else ())
                if isinstance(node, cst.Name) and node.value == name and node not in inside
            ]
            found = max(found, self._all(reads, function, visit, inner))
        return found

    def _statement(self, node: cst.CSTNode, parent: Any, function: Function, visit: Visit, path: Path) -> Use:
        if isinstance(parent, cst.Return):
            entered = self.entered.get(function)
            sites = [each for each in function.call_sites if entered in (None, each.call)]
            if not sites or function.name in self.program.passed_names or function.name.startswith("__"):
                return Use.ESCAPES
            return max(
                (self._use(each.call, each.caller, visit, path) for each in sites), default=Use.ESCAPES
            )
        if isinstance(parent, cst.Assign):
            return max(
                (
                    self._name_reads(name, parent, function, visit, inner)
                    for target in parent.targets
                    for name, inner in _assigned(target.target, path)
                ),
                default=Use.ESCAPES,
            )
        if isinstance(parent, cst.AugAssign):
            return max(
                self._name_reads(name, parent, function, visit, inner)
                for name, inner in _assigned(parent.target, path)
            )
        if isinstance(parent, cst.NamedExpr):
            reads = self._name_reads(dotted(parent.target), parent, function, visit, path)
            return max(reads, self._use(parent, function, visit, path))
        if isinstance(parent, cst.For) and parent.iter is node:
            return self._bound(parent.target, parent.body, function, visit, path[:-1])
        return Use.ESCAPES

    def _name_reads(
        self, name: str | None, stored: cst.CSTNode, function: Function, visit: Visit, path: Path
    ) -> Use:
        """Return how the program uses a variable, or a list in an attribute, after a result is stored in it."""
        if name is None:
            return Use.ESCAPES
        if name.startswith("self.") and path:
            return self._attribute_reads(name, stored, visit, path)
        if "." in name or not function.owns(name) or name in function.nonlocal_names:
            return Use.ESCAPES
        reads = list(self._reached(name, stored, function))
        if any(self._is_in_other_function(each, function) for each in reads):
            return Use.ESCAPES
        return self._all(reads, function, visit, path)

    def _attribute_reads(self, name: str, stored: cst.CSTNode, visit: Visit, path: Path) -> Use:
        """Return how the program uses an attribute to which a result is added.

        All attributes in the file with the same name are included.
        """
        attribute = name.removeprefix("self.")
        found = Use.UNUSED
        for node in self.program.nodes_of(cst.Attribute):
            if node.attr.value != attribute or self._is_target(node):
                continue
            scope = next((each for each in self.program.ancestors(node) if each in self.functions), None)
            if scope is None or self.program.inside(node, stored):
                continue
            found = max(found, self._use(node, self.functions[scope], visit, path))
        return found if found is not Use.UNUSED else Use.ESCAPES  # other files read the attribute

    def _reached(self, path: str, stored: cst.CSTNode, function: Function) -> Iterator[cst.CSTNode]:
        """Yield the nodes that read a name while it may still have the value that the statement `stored` assigned."""
        order = self.program.order
        position = order[stored]
        own = set(walk(stored)) if isinstance(stored, (cst.Assign, cst.AugAssign)) else set()
        again = [
            each
            for each in walk(function.body, into_functions=False)
            if isinstance(each, cst.Assign)
            and each is not stored
            and any(path in bound_paths(target.target) for target in each.targets)
            and not any(isinstance(inner, cst.Name) and inner.value == path for inner in walk(each.value))
        ]
        blocks = [each for each in self.program.ancestors(stored) if _is_block(each)]
        later = [order[each] for each in again if order[each] > position and self._block(each) in blocks]
        end = min(later, default=len(self.program.nodes))
        loop = next(
            (each for each in self.program.ancestors(stored) if isinstance(each, (cst.For, cst.While))), None
        )
        first = order[loop] if loop is not None and end == len(self.program.nodes) else position
        for node in walk(function.body):
            if not isinstance(node, cst.Name) or node.value != path or node in own or self._is_target(node):
                continue
            at = order[node]
            if position < at < end and not self._is_assigned_before(node, position, again):
                yield node
            elif first < at < position and not any(first < order[each] < at for each in again):
                yield node  # in the next iteration

    def _is_assigned_before(self, node: cst.CSTNode, position: int, again: list[cst.Assign]) -> bool:
        """Return True if a block around a read assigns the name again, between the position and the read."""
        order, around = self.program.order, set(self.program.ancestors(node))
        return any(position < order[each] < order[node] and self._block(each) in around for each in again)

    def _block(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return next((each for each in self.program.ancestors(node) if _is_block(each)), None)

    def _is_target(self, node: cst.CSTNode) -> bool:
        parent = self.program.parent.get(node)
        while isinstance(parent, (cst.Tuple, cst.List, cst.Element)):
            node, parent = parent, self.program.parent.get(parent)
        return isinstance(parent, (cst.AssignTarget, cst.Param, cst.NameItem)) or (
            isinstance(parent, (cst.AugAssign, cst.For, cst.CompFor)) and parent.target is node
        )

    def _is_in_other_function(self, node: cst.CSTNode, function: Function) -> bool:
        for each in self.program.ancestors(node):
            if each is function.node:
                return False
            if isinstance(each, (cst.FunctionDef, cst.Lambda)):
                return True
        return False


def _names_integers(node: cst.BaseExpression) -> bool:
    """Return True for a data type that has no gradients, such as `torch.uint8`."""
    return re.match(r"(?:torch\.)?(?:u?int\d+|long|bool)$", dotted(node) or "") is not None


def _is_block(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.IndentedBlock, cst.Module))


def _assigned(target: cst.BaseExpression, path: Path) -> list[tuple[str | None, Path]]:
    """Return the names to which a statement assigns a result, each with the position of the result inside the
    assigned value.

    An item of a container has the name of the container.
    """
    if isinstance(target, (cst.Tuple, cst.List)):
        parts = [each.value for each in target.elements]
        starred = any(isinstance(each, cst.StarredElement) for each in target.elements)
        if path and isinstance(path[-1], int) and not starred:
            parts = parts[path[-1] : path[-1] + 1]
        return [found for each in parts for found in _assigned(each, path[:-1])]
    keys = keys_of(target)
    return [(path_of(target) if keys else dotted(target), (*path, *reversed(keys)))]


def _passed(argument: cst.Arg, call: cst.CSTNode, path: Path) -> Path:
    """Return the position of a result inside the value that a call returns, if an argument of the call contains the
    result.

    For example, `zip(*rows)` exchanges rows and columns.
    """
    called = dotted(call.func) if isinstance(call, cst.Call) else None
    if called == "zip" and argument.star and len(path) > 1:
        return (*path[:-2], path[-1], path[-2])
    return path if called in {"list", "tuple", "reversed", "sorted"} else ()


_SLICE = "slice"


def _position(node: cst.Subscript) -> Position:
    """Return the index or key of a subscript: None if it is not a literal, and `_SLICE` for a slice."""
    part = node.slice[0].slice
    if not isinstance(part, cst.Index):
        return _SLICE
    return int(part.value.value, 0) if isinstance(part.value, cst.Integer) else string_value(part.value)
