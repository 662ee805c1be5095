"""Determines the values of expressions."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from legroom.diagnose.lint.flow.call_results import (
    computed_from,
)
from legroom.diagnose.lint.flow.evidence.narrowing import narrowed_names
from legroom.diagnose.lint.flow.facts import CallFact, FactContext, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    children,
    detaches_other,
    dotted,
    literal_key,
    names_in,
    root,
    string_value,
)
from legroom.diagnose.lint.flow.values import (
    GRAPH,
    GRAPHLESS_ATTRIBUTES,
    MODEL,
    NUMBER_ATTRIBUTES,
    PARAMETER,
    PLAIN,
    TENSOR,
    UNKNOWN,
    Value,
    ValueKind,
    container,
    guess_from_name,
    join_values,
    prune,
    with_element,
    with_item,
    without_graph,
)


class Expressions:
    recording: bool
    no_grad: bool

    def __init__(self, program: Program, function: Function) -> None:
        self.program = program
        self.function = function
        self.names: dict[str, Value] = {}

    def record_call(self, call: CallFact) -> None:
        raise NotImplementedError

    def context_at(self, node: cst.CSTNode) -> FactContext:
        raise NotImplementedError

    def call(self, node: cst.Call) -> Value:
        raise NotImplementedError

    def bind_iteration(
        self, target: cst.BaseExpression, source: cst.BaseExpression, iterable_path: Value
    ) -> None:
        raise NotImplementedError

    def kept_by(self, node: cst.Lambda | cst.FunctionDef) -> tuple[Value, ...]:
        raise NotImplementedError

    def evaluate_silently(self, node: cst.BaseExpression) -> Value:
        recording, self.recording = self.recording, False
        try:
            return self.value_of(node)
        finally:
            self.recording = recording

    def value_of(self, node: cst.CSTNode) -> Value:
        value = self._value_of(node)
        if self.recording:
            self.program.values[node] = value
        return value

    def _value_of(self, node: Any) -> Value:
        kind = type(node)  # isinstance is slow for libcst's abstract classes
        if kind is cst.Name:
            return self._name(node.value)
        if kind is cst.Attribute:
            return self._attribute(node)
        if kind is cst.Call:
            return self.call(node)
        if kind in _CONSTANTS:
            self._record_nested(node)
            return PLAIN
        if kind is cst.BinaryOperation:
            result = self._computed([node.left, node.right])
            return PLAIN if self._formats_string(node) else result
        if kind is cst.UnaryOperation:
            return PLAIN if type(node.operator) is cst.Not else self._computed([node.expression])
        if kind is cst.Subscript:
            return self._subscript(node)
        if kind is cst.Tuple or kind is cst.List or kind is cst.Set:
            items = tuple(prune(self.value_of(each.value)) for each in node.elements)
            return Value(ValueKind.CONTAINER, items=items) if items else container()
        if kind is cst.Dict:
            return self._dict(node)
        if kind in _COMPREHENSIONS:
            return self._comprehension(node)
        if kind is cst.IfExp:
            self.value_of(node.test)
            value = join_values(
                self._value_in_branch(node.body, narrowed_names(node.test, self.names, holds=True)),
                self._value_in_branch(node.orelse, narrowed_names(node.test, self.names, holds=False)),
            )
            is_option = not names_in(node.test).isdisjoint(self.function.parameters)
            if is_option and detaches_other(node.body, node.orelse):
                return without_graph(value, UNKNOWN)
            return value
        if kind is cst.BooleanOperation:
            return join_values(self.value_of(node.left), self.value_of(node.right))
        if kind is cst.Comparison:
            values = [
                self.value_of(node.left),
                *(self.value_of(each.comparator) for each in node.comparisons),
            ]
            return TENSOR if any(each.is_tensor for each in values) else PLAIN
        if kind is cst.NamedExpr:
            value = self.value_of(node.value)
            path = dotted(node.target)
            if path is not None:
                self.names[path] = value
            return value
        if kind is cst.Await:
            return self.value_of(node.expression)
        if kind is cst.Lambda:
            kept = self.kept_by(node)
            return Value(ValueKind.CONTAINER, items=kept) if kept else UNKNOWN
        if kind is cst.Yield and isinstance(node.value, cst.From):
            return self.value_of(node.value.item).get(None) or UNKNOWN
        if kind is cst.Yield:
            return self.value_of(node.value) if node.value is not None else UNKNOWN
        self._record_nested(node)
        return UNKNOWN

    def _formats_string(self, node: cst.BinaryOperation) -> bool:
        """Return True if `%` formats a string (`"%.3f" % loss`) instead of computing the remainder of a tensor."""
        return isinstance(node.operator, cst.Modulo) and not self.value_of(node.left).is_tensor

    def _value_in_branch(self, node: cst.BaseExpression, known: dict[str, Value]) -> Value:
        before = self.names
        self.names = {**before, **known}
        try:
            return self.value_of(node)
        finally:
            self.names = before

    def _record_nested(self, node: cst.CSTNode) -> None:
        for child in children(node):
            if type(child) in _RECORDED:
                self.value_of(child)
            else:
                self._record_nested(child)

    def _name(self, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        if name in {"True", "False", "None"}:
            return PLAIN
        local = self.program.function_named(name, self.function)
        if local is not None:
            return Value(ValueKind.UNKNOWN, function=local.qualified_name)
        is_imported = name in self.program.imports.full_names and name not in self.program.objects
        return UNKNOWN if is_imported or self._is_class(name) else self.program.guess(name)

    def _is_class(self, name: str) -> bool:
        """Return True for a class in this file, and for a capitalized name that is imported or never assigned. Short
        names such as `G` and `D` usually refer to models, not to classes."""
        if name in self.program.classes:
            return True
        if not name[:1].isupper():
            return False
        return name in self.program.imports.full_names or (
            len(name) > 2 and name not in self.program.assigned_names
        )

    def _attribute(self, node: cst.Attribute) -> Value:
        path = dotted(node)
        if path is not None and path in self.names:
            return self.names[path]
        owner = self.value_of(node.value)
        return self._bound_method(owner, node.attr.value) or self._attribute_of(
            owner, node.attr.value, of_library=self._is_library(path)
        )

    def _bound_method(self, owner: Value, name: str) -> Value | None:
        """Return the method that an attribute refers to, such as `curve.add` in `train(on_step=curve.add)`."""
        if owner.class_name is None or owner.kind is not ValueKind.UNKNOWN:
            return None
        method = self.program.method(owner.class_name, name)
        if method is None or not isinstance(method.node, cst.FunctionDef) or method.node.decorators:
            return None
        return Value(ValueKind.UNKNOWN, function=method.qualified_name)

    def _is_library(self, path: str | None) -> bool:
        """Return True if a path starts with an imported module, such as `requests.head`, which is not a model."""
        first = root(path or "")
        known = self.names.get(first, UNKNOWN) if first in self.names else guess_from_name(first)
        return first in self.program.imports.full_names and known.kind is ValueKind.UNKNOWN

    def _attribute_of(self, owner: Value, name: str, *, of_library: bool = False) -> Value:
        if owner.kind is ValueKind.EXCEPTION:
            return owner if name in _FRAMES else UNKNOWN
        if owner.kind in (ValueKind.GRAPH, ValueKind.PARAMETER, ValueKind.TENSOR):
            if name in NUMBER_ATTRIBUTES:
                return PLAIN
            return TENSOR if name in GRAPHLESS_ATTRIBUTES else owner
        if owner.items is not None and len(owner.items) == 2 and name in _VALUES_AND_INDICES:
            return owner.items[_VALUES_AND_INDICES.index(name)]  # q.max(1).values
        if owner.items_by_key and not owner.mapping:  # SimpleNamespace(loss=loss).loss
            return owner.get(name) or UNKNOWN
        if owner.kind is ValueKind.OPTIMIZER and name == "param_groups":
            return container(container(PLAIN, mapping=True, items_by_key=(("params", container(PARAMETER)),)))
        if owner.class_name is not None:
            known = self.program.classes[owner.class_name].attributes.get(f"self.{name}")
            if known is not None:
                return known
        if owner.kind is ValueKind.MODEL:
            if name in {"weight", "bias"}:
                return PARAMETER
            if _METHOD.match(name):
                return UNKNOWN
            if name in {"device", "dtype", "config", "training"}:
                return PLAIN
            return replace(MODEL, frozen=owner.frozen, trainable=owner.trainable)
        return owner if owner.output else UNKNOWN if of_library else guess_from_name(name)

    def _subscript(self, node: cst.Subscript) -> Value:
        owner = self.value_of(node.value)
        for each in node.slice:
            if isinstance(each.slice, cst.Index):
                self.value_of(each.slice.value)
        keys = [string_value(getattr(each.slice, "value", None)) for each in node.slice]
        if owner.kind is ValueKind.UNKNOWN and "params" in keys:
            return container(PARAMETER)  # an optimizer's parameter group
        if owner.kind is ValueKind.CONTAINER:
            if (
                owner.items is not None
                and len(node.slice) == 1
                and isinstance(node.slice[0].slice, cst.Index)
            ):
                index = node.slice[0].slice.value
                if isinstance(index, cst.Integer) and int(index.value) < len(owner.items):
                    return owner.items[int(index.value)]
            if any(isinstance(each.slice, cst.Slice) for each in node.slice):
                return owner
            return owner.get(literal_key(node)) or UNKNOWN
        if owner.kind is ValueKind.PARAMETER:
            return TENSOR if self.no_grad else GRAPH
        if owner.is_tensor or owner.kind is ValueKind.MODEL or owner.output:
            return owner
        return UNKNOWN

    def _dict(self, node: cst.Dict) -> Value:
        made = container(mapping=True)
        for each in node.elements:
            value = self.value_of(each.value)
            if isinstance(each, cst.DictElement):
                self.value_of(each.key)
                made = with_item(made, string_value(each.key), value)
            else:
                made = (
                    join_values(made, value)
                    if value.kind is ValueKind.CONTAINER
                    else with_element(made, value)
                )
        return made

    def _comprehension(self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp) -> Value:
        names = dict(self.names)
        part: cst.CompFor | None = node.for_in
        while part is not None:
            self.bind_iteration(part.target, part.iter, self.value_of(part.iter))
            for condition in part.ifs:
                self.value_of(condition.test)
            part = part.inner_for_in
        if isinstance(node, cst.DictComp):
            self.value_of(node.key)
            element = self.value_of(node.value)
        else:
            element = self.value_of(node.elt)
        self.names = names
        return container(element, mapping=isinstance(node, cst.DictComp))

    def _computed(self, parts: Sequence[cst.BaseExpression]) -> Value:
        values = [self.value_of(each) for each in parts]
        lists = [each for each in values if each.kind is ValueKind.CONTAINER]
        if lists and len(parts) > 1:  # concatenated lists
            return join_values(values[0], values[1]) if len(lists) > 1 else lists[0]
        return computed_from(values, no_grad=self.no_grad)


_CONSTANTS = {
    kind
    for kind in vars(cst).values()
    if isinstance(kind, type) and issubclass(kind, (cst.BaseNumber, cst.BaseString, cst.Ellipsis))
}
_COMPREHENSIONS = {cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp}
_RECORDED = {cst.Call, cst.BinaryOperation, cst.Attribute, cst.Subscript, cst.IfExp}
_FRAMES = {"__traceback__", "__context__", "__cause__", "tb_frame", "tb_next"}
"""Attributes through which an exception keeps the variables of its frames alive."""
_METHOD = re.compile(
    r"(?:encode|decode|embed|forward|generate|get|has|is|predict|set|transform)(?:_|$)|\w*(?:_fn|_function|similarity|tokenizer|processor)$"
)
"""Matches methods of a model. `model.encoder` is a submodule, not a method."""
_VALUES_AND_INDICES = ("values", "indices")
