"""What a name holds after it is given something: assignments, deletions, and what each round of a loop brings.

Putting something under a name, into a place of a container or into an attribute is noted for the rules as it is followed.
"""

from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.call_results import computed_from, element_of
from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.observations import ADDING, FactRecorder, kept_names
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    has_remainder,
    is_false,
    keys_of,
    last_name,
    live_names,
    method_name,
    names_in,
    path_of,
    positional,
    receiver,
    walk,
)
from legroom.diagnose.lint.flow.values import (
    GRAPH,
    MODEL,
    PARAMETER,
    PLAIN,
    UNKNOWN,
    Value,
    ValueKind,
    by_name,
    container,
    with_element,
    with_item,
)

_GRAD_SWITCHES = {"no_grad", "inference_mode", "set_grad_enabled", "enable_grad"}
_ALL_OF_IT = {"parameters", "named_parameters"}


class Assignments(FactRecorder):
    """Follows what names are given. A subclass goes through the statements."""

    def __init__(self, program: Program, function: Function, *, recording: bool) -> None:
        super().__init__(program, function, recording=recording)
        self.trained = _names_that_go_backward(function)
        self.grad_contexts: set[str] = set()

    def assign(
        self, target: cst.BaseExpression, value: Value, expression: cst.BaseExpression, node: cst.CSTNode
    ) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            parts = expression.elements if isinstance(expression, cst.Tuple) else ()
            for index, each in enumerate(target.elements):
                part = value.items[index] if value.items and index < len(value.items) else _part(value)
                source = parts[index].value if len(parts) == len(target.elements) else expression
                self.assign(each.value, part, source, node)
            return
        if isinstance(target, cst.Subscript):
            self.assign_item(target, value, expression, node)
            return
        path = dotted(target)
        if isinstance(target, cst.Attribute) and self._is_set_by_keeper(target, value, expression, node):
            return
        if path is None:
            return
        if value.kind is ValueKind.UNKNOWN and path in self.trained and not self.no_grad:
            value = GRAPH
        if value.kind is ValueKind.UNKNOWN and not value.class_name and not value.function:
            guess = by_name(last_name(path))
            value = guess if guess.kind in (ValueKind.MODEL, ValueKind.LOADER, ValueKind.OPTIMIZER) else value
        read = live_names(expression)
        through = {each for name in read for each in self.made_from.get(name, ())}
        uses_itself = path in names_in(expression) or path in through
        self.made_from[path] = read | through
        given = [self.comes_from[name] for name in kept_names(expression) if name in self.comes_from]
        if given:
            self.comes_from[path] = given[0]
        elif path not in read:  # value = value.item()
            self.comes_from.pop(path, None)
        if any(name in _GRAD_SWITCHES for name in map(last_name, names_in(expression))):
            self.grad_contexts.add(path)
        self._freeze(path, expression)
        self.note_store(node, path, "assign", expression, value, uses_itself=uses_itself)
        adder = _adding_method(expression)
        if adder is not None:
            self.adders[path] = adder
        self.forget_below(path)
        self.names[path] = value

    def _is_set_by_keeper(
        self, target: cst.Attribute, value: Value, expression: cst.BaseExpression, node: cst.CSTNode
    ) -> bool:
        """Whether a property's setter puts what it is given into a container."""
        of = self.value_of(target.value)
        setter = self.program.method(of.class_name, f"{target.attr.value}.setter")
        path = dotted(target)
        if setter is None or path is None or not _appends(setter):
            return False
        self.note_store(node, path, "append", expression, value, uses_itself=False)
        self.names[path] = value
        return True

    def _freeze(self, path: str, expression: cst.BaseExpression) -> None:
        """`p.requires_grad = False` for all parameters of a model freezes it; a new part thaws it."""
        if path.endswith(".requires_grad") and isinstance(expression, cst.Name):
            if expression.value == "True":
                self.names[path.removesuffix(".requires_grad")] = PARAMETER
            self._freeze_iterated(frozen=expression.value == "False")
            return
        for outer in [each for each in self.names if path.startswith(f"{each}.")]:
            if self.names[outer].frozen:
                self.names[outer] = replace(self.names[outer], frozen=False)

    def _freeze_iterated(self, *, frozen: bool) -> None:
        """Freeze or thaw the model over whose parameters the innermost loop goes."""
        around = self.loops[-1].node if self.loops else None
        over = around.iter if isinstance(around, cst.For) else None
        of = receiver(over) if isinstance(over, cst.Call) and method_name(over) in _ALL_OF_IT else None
        model = dotted(of) if of is not None else None
        if model is not None:
            known = self.names.get(model, MODEL)
            self.names[model] = replace(known, frozen=known.kind is ValueKind.MODEL and frozen)

    def note_call(self, call: CallFact) -> None:
        super().note_call(call)
        if call.method == "requires_grad_" and call.receiver.kind is ValueKind.PARAMETER and call.node.args:
            self._freeze_iterated(frozen=is_false(call.node.args[0]))

    def assign_item(
        self, target: cst.Subscript, value: Value, expression: cst.BaseExpression, node: cst.CSTNode
    ) -> None:
        self.value_of(target.value)
        path = path_of(target)
        if path is None:
            return
        if any(_is_from_the_end(each.slice, path) for each in target.slice):  # curve[len(curve):] = [loss]
            self.note_store(node, path, "append", expression, value, uses_itself=False)
            return
        taker = self.program.method(self.names.get(path, UNKNOWN).class_name, "__setitem__")
        if taker is not None and not _appends(taker):
            return
        varying = any(not _is_constant(each.slice) for each in target.slice)
        if any(_is_from_the_start(each.slice) for each in target.slice) and value.kind is not ValueKind.GRAPH:
            self.note_release(target, path, "shrink")  # losses[:] = losses[-10:]
        through = {each for name in live_names(expression) for each in self.made_from.get(name, ())}
        for each in target.slice:
            if isinstance(each.slice, cst.Index):
                self.value_of(each.slice.value)
        self.note_store(
            node,
            path,
            "item",
            expression,
            value,
            uses_itself=path in names_in(expression) or path in through,
            varying_key=varying,
        )
        known = self.names.get(path)
        if known is not None and known.kind is ValueKind.CONTAINER:
            self.names[path] = _with_item_at(known, keys_of(target), value)

    def augment(self, node: cst.AugAssign) -> None:
        value = self.value_of(node.value)
        if isinstance(node.target, cst.Subscript):
            path = path_of(node.target)
            self.value_of(node.target.value)
        else:
            path = dotted(node.target)
            if isinstance(node.target, cst.Attribute):
                self.value_of(node.target.value)
        if path is None:
            return
        taker = self.program.method(self.names.get(path, UNKNOWN).class_name, "__iadd__")
        if taker is not None and not taker.keeps:
            return
        adds_items = isinstance(node.value, (cst.List, cst.ListComp)) or (
            value.kind is ValueKind.CONTAINER and isinstance(node.operator, (cst.AddAssign, cst.BitOrAssign))
        )
        added = value if adds_items else computed_from([value], no_grad=self.no_grad)
        self.note_store(
            node, path, "append" if adds_items else "augment", node.value, added, uses_itself=True
        )
        known = self.names.get(path, UNKNOWN)
        keys = keys_of(node.target)
        if adds_items:
            self.names[path] = with_element(known, element_of(value), keys)
        elif known.kind is ValueKind.CONTAINER and keys:
            sum_of = [self.quietly(node.target), value]
            self.names[path] = _with_item_at(known, keys, computed_from(sum_of, no_grad=self.no_grad))
        elif known.kind is ValueKind.CONTAINER:
            self.names[path] = with_element(known, value)
        else:
            self.names[path] = computed_from([known, value], no_grad=self.no_grad)

    def delete(self, target: cst.BaseExpression | cst.Tuple) -> None:
        targets = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
        for each in targets:
            path = path_of(each)
            if path is not None:
                self.note_release(target, path, "delete")
                if dotted(each) is not None:
                    self.forget_below(path)
                    self.names.pop(path, None)

    def bind_iteration(self, target: cst.BaseExpression, source: cst.BaseExpression, iterated: Value) -> None:
        """Give the loop's names what one round brings."""
        of = (
            receiver(source)
            if isinstance(source, cst.Call) and method_name(source) in {"items", "values"}
            else source
        )
        held = dotted(of) if of is not None else None
        if held is not None:
            self.part_of.update(dict.fromkeys(names_in(target), held))
        if of is not None and (path := dotted(of)) in self.comes_from:
            for bound in names_in(target):
                self.comes_from[bound] = self.comes_from[path or ""]
        name = dotted(source.func) if isinstance(source, cst.Call) else None
        if isinstance(source, cst.Call) and name in {"zip", "enumerate"}:
            self._follow_parts(target, source)
        if isinstance(source, cst.Call) and name == "enumerate" and isinstance(target, cst.Tuple):
            self.bind(target.elements[0].value, PLAIN)
            for each in target.elements[1:]:
                self.bind(each.value, element_of(iterated))
            return
        if isinstance(source, cst.Call) and name == "zip" and isinstance(target, cst.Tuple):
            arguments = positional(source)
            if len(arguments) == len(target.elements):
                for each, argument in zip(target.elements, arguments, strict=True):
                    self.bind(each.value, element_of(self.quietly(argument.value)))
                return
        self.bind(target, element_of(iterated))

    def _follow_parts(self, target: cst.BaseExpression, source: cst.Call) -> None:
        """`for index, feature in zip(indices, features)`: a part of a parameter comes from it as well."""
        parts = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
        if dotted(source.func) == "enumerate":
            parts = parts[1:]
        for part, argument in zip(parts, positional(source), strict=False):
            if (path := dotted(argument.value)) in self.comes_from:
                for bound in names_in(part):
                    self.comes_from[bound] = self.comes_from[path or ""]

    def bind(self, target: cst.BaseExpression, value: Value) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for index, each in enumerate(target.elements):
                part = value.items[index] if value.items and index < len(value.items) else _part(value)
                self.bind(each.value, part)
            return
        path = dotted(target)
        if path is not None:
            self.forget_below(path)
            self.names[path] = value

    def forget_below(self, path: str) -> None:
        """A new object under a name has none of the old one's attributes."""
        prefix = f"{path}."
        for each in [each for each in self.names if each.startswith(prefix)]:
            del self.names[each]


def _part(value: Value) -> Value:
    """What unpacking gives where the places are not known apart."""
    if value.kind in (ValueKind.GRAPH, ValueKind.TENSOR, ValueKind.CONTAINER):
        return element_of(value)
    return MODEL if value.kind is ValueKind.MODEL else UNKNOWN


def _with_item_at(known: Value, keys: list[str | None], value: Value) -> Value:
    """The same container, where this is now under the last of the keys that lead to it."""
    *way, last = keys
    if not way:
        return with_item(known, last, value)
    inner = known.under(way[0]) or container(mapping=True)
    return with_item(known, way[0], _with_item_at(inner, keys[1:], value))


def _is_constant(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Index):
        node = node.value
        if isinstance(node, cst.UnaryOperation):
            node = node.expression
        return isinstance(node, (cst.SimpleString, cst.Integer, cst.ConcatenatedString))
    return isinstance(node, cst.Slice)


def _adding_method(expression: cst.BaseExpression) -> cst.Attribute | None:
    """`losses.append` of `record = losses.append` and of `record = lambda loss: losses.append(loss)`."""
    if isinstance(expression, cst.Lambda) and isinstance(expression.body, cst.Call):
        given = [each.name.value for each in expression.params.params]
        if [dotted(each.value) for each in expression.body.args] == given[:1]:
            expression = expression.body.func
    is_adding = isinstance(expression, cst.Attribute) and expression.attr.value in ADDING
    return expression if is_adding and isinstance(expression, cst.Attribute) else None


def _appends(function: Function) -> bool:
    """Whether a function puts one of its parameters into a container that grows."""
    return any(
        store.how == "append" or (store.how == "item" and not has_remainder(store.node))
        for store in function.keeps.values()
    )


def _is_from_the_end(node: cst.CSTNode, path: str) -> bool:
    """`[len(curve):]` of `curve`."""
    lower = node.lower if isinstance(node, cst.Slice) else None
    return (
        isinstance(lower, cst.Call)
        and dotted(lower.func) == "len"
        and bool(lower.args)
        and path_of(lower.args[0].value) == path
    )


def _is_from_the_start(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Slice) and node.lower is None


def _names_that_go_backward(function: Function) -> set[str]:
    """Paths that `backward` is called on, or that are given to it."""
    found: set[str] = set()
    for node in walk(function.body, into_functions=False):
        if not isinstance(node, cst.Call):
            continue
        if (dotted(node.func) or "").endswith("autograd.grad") and node.args:
            found.update(filter(None, [dotted(node.args[0].value)]))
        if method_name(node) not in {"backward", "manual_backward"}:
            continue
        of = receiver(node)
        if isinstance(of, cst.Call) and method_name(of) in {"scale", "mean", "sum"}:
            of = of.args[0].value if of.args else receiver(of)
        given = node.args[0].value if node.args and node.args[0].keyword is None else None
        name = dotted(given) or ""
        begins = of if given is None or "grad" in name else given  # accelerator.backward(loss)
        found.update(_summands(begins))
    for _ in range(2):  # loss = reconstruction + divergence
        for node in walk(function.body, into_functions=False):
            if isinstance(node, cst.Assign) and any(dotted(each.target) in found for each in node.targets):
                found.update(_summands(node.value) if isinstance(node.value, cst.BinaryOperation) else ())
    return found


def _summands(node: cst.CSTNode | None) -> set[str]:
    """`reconstruction` and `divergence` of `reconstruction + 0.5 * divergence`."""
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, (cst.Add, cst.Subtract)):
            return _summands(node.left) | _summands(node.right)
        if isinstance(node.operator, (cst.Multiply, cst.Divide)):
            sides = [each for each in (node.left, node.right) if not isinstance(each, cst.BaseNumber)]
            return _summands(sides[0]) if len(sides) == 1 else set()
        return set()
    path = dotted(node)
    return {path} if path is not None else set()
