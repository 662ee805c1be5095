"""Tracks the values of names through assignments, deletions and loop iterations."""

import re
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.call_results import computed_from, element_of, names_a_loss
from legroom.diagnose.lint.flow.evidence.differentiated import differentiated_names
from legroom.diagnose.lint.flow.evidence.object_classes import record_paths
from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.observations import FactRecorder, stored_names
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    append_method,
    contained_parts,
    dotted,
    has_modulo,
    is_false,
    keys_of,
    last_name,
    literal_key,
    method_name,
    names_in,
    names_with_graph,
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
    container,
    with_element,
    with_item,
)

_GRAD_SWITCHES = {"no_grad", "inference_mode", "set_grad_enabled", "enable_grad"}
_PARAMETER_METHODS = {"parameters", "named_parameters"}


class Assignments(FactRecorder):
    def __init__(self, program: Program, function: Function) -> None:
        super().__init__(program, function)
        if function.names_in_backward is None:
            runs_backward = program.mentions("backward", "manual_backward", "grad")
            function.names_in_backward = differentiated_names(function) if runs_backward else frozenset()
        self.names_in_backward = function.names_in_backward
        self.grad_mode_names: set[str] = set()

    def assign(
        self, target: cst.BaseExpression, value: Value, expression: cst.BaseExpression, node: cst.CSTNode
    ) -> None:
        if type(target) is cst.Tuple or type(target) is cst.List:
            parts = expression.elements if isinstance(expression, cst.Tuple) else ()
            trained = self._loss_next_to_metrics(target, value, expression)
            for index, each in enumerate(target.elements):
                part = value.items[index] if value.items and index < len(value.items) else _unpacked(value)
                part = part if trained is None or dotted(each.value) == trained else UNKNOWN
                source = parts[index].value if len(parts) == len(target.elements) else expression
                self.assign(each.value, part, source, node)
            return
        if type(target) is cst.Subscript:
            self.assign_item(target, value, expression, node)
            return
        path = dotted(target)
        if type(target) is cst.Attribute and self._is_stored_by_setter(target, value, expression, node):
            return
        if path is None:
            return
        if value == GRAPH and self._names_only_a_loss(expression) and self._may_be_record(path):
            value = UNKNOWN
        if value.kind is ValueKind.UNKNOWN and path in self.names_in_backward and not self.no_grad:
            value = GRAPH
        elif value.element == UNKNOWN and path in self.names_in_backward and not self.no_grad:
            value = replace(value, element=GRAPH)  # losses = {name: f(output) for name, f in functions}
        if value.kind is ValueKind.UNKNOWN and not value.class_name and not value.function:
            guess = self.program.guess(path)
            value = guess if guess.kind in (ValueKind.MODEL, ValueKind.LOADER, ValueKind.OPTIMIZER) else value
            if guess.kind is ValueKind.MODEL and _creates_frozen(expression):
                value = replace(guess, frozen=True)
        if path.startswith("self.") and value in (UNKNOWN, MODEL):
            used_as = self.program.object_used_as(path, self.function, is_model=value == MODEL)
            value = (
                used_as if used_as is not None and value.kind in (ValueKind.UNKNOWN, used_as.kind) else value
            )
        read = names_with_graph(expression)
        through = {each for name in read for each in self.depends_on.get(name, ())}
        uses_old_value = path in names_in(expression) or path in through
        self.depends_on[path] = read | through
        given = [
            self.parameter_of[name] for name in sorted(stored_names(expression)) if name in self.parameter_of
        ]
        self.parameters_in.pop(path, None)
        if given:
            self.parameter_of[path] = given[0]
            if contained_parts(expression):
                self.parameters_in[path] = given
        elif path not in read:  # value = value.item()
            self.parameter_of.pop(path, None)
        if any(name in _GRAD_SWITCHES for name in map(last_name, names_in(expression))):
            self.grad_mode_names.add(path)
        self._freeze(path, expression)
        self.record_store(node, path, "assign", expression, value, uses_old_value=uses_old_value)
        adder = append_method(expression)
        if (
            type(expression) is cst.List or type(expression) is cst.Tuple
        ):  # callbacks = [losses.append, print]
            listed = (append_method(each.value) for each in expression.elements)
            adder = next(filter(None, listed), None)
        if adder is not None:
            self.append_methods[path] = adder
        self._alias(path, value, expression)
        self.forget_attributes(path)
        self.names[path] = value

    def _loss_next_to_metrics(
        self, target: cst.Tuple | cst.List, value: Value, expression: cst.BaseExpression
    ) -> str | None:
        """Return `loss` for `loss, parts = compute_loss(output)`, if only `loss` has a backward pass.

        The other results of a function from another file are often detached.
        """
        if value.items or not isinstance(expression, cst.Call):
            return None
        trained = {dotted(each.value) for each in target.elements} & {"loss", *self.names_in_backward}
        called = self.value_of(expression.func)
        is_loss = called.kind is ValueKind.CRITERION or "loss" in (dotted(expression.func) or "").lower()
        return trained.pop() if is_loss and called.function is None and len(trained) == 1 else None

    def _names_only_a_loss(self, expression: cst.BaseExpression) -> bool:
        """Return True for a call such as `self.train_loss.compute_loss(batch)` to an unknown function. It may return an
        object with numbers.
        """
        if not isinstance(expression, cst.Call) or self.called_function(expression) is not None:
            return False
        name = self.program.imports.qualified(expression.func) or ""
        return not name.startswith("torch.") and names_a_loss(method_name(expression) or name)

    def _may_be_record(self, path: str) -> bool:
        """Return True if the code uses a result as an object with numbers, or steps an optimizer without a backward
        pass. In this case, the unknown function runs the backward pass, and probably returns statistics.
        """
        body = self.function.body
        if path in record_paths(body):
            return True
        return not self.program.mentions("backward", "manual_backward") and any(
            isinstance(each, cst.Call) and method_name(each) == "step" for each in walk(body)
        )

    def _alias(self, path: str, value: Value, expression: cst.BaseExpression) -> None:
        """Track a local name for a container that is an attribute or an item, such as `rows` in
        `rows = self.tables[name]`.
        """
        source = None if dotted(expression) is None and not _reads_item(expression) else path_of(expression)
        is_container = value.kind in (ValueKind.CONTAINER, ValueKind.UNKNOWN) and not value.class_name
        if source is not None and "." in source and "." not in path and is_container:
            self.alias_of[path] = source
        else:
            self.alias_of.pop(path, None)

    def _is_stored_by_setter(
        self, target: cst.Attribute, value: Value, expression: cst.BaseExpression, node: cst.CSTNode
    ) -> bool:
        owner = self.value_of(target.value)
        setter = self.program.method(owner.class_name, f"{target.attr.value}.setter")
        path = dotted(target)
        if setter is None or path is None or not _appends(setter):
            return False
        self.record_store(node, path, "append", expression, value, uses_old_value=False)
        self.names[path] = value
        return True

    def _freeze(self, path: str, expression: cst.BaseExpression) -> None:
        """Track `requires_grad`.

        Setting `requires_grad` to False for all parameters freezes a model, and adding a submodule unfreezes the
        model.
        """
        if path.endswith(".requires_grad") and isinstance(expression, cst.Name):
            if expression.value == "True":
                self.names[path.removesuffix(".requires_grad")] = PARAMETER
            self._freeze_iterated(frozen=expression.value == "False")
            return
        outer = path
        while "." in outer:
            outer = outer.rpartition(".")[0]
            if outer in self.names and self.names[outer].frozen:
                self.names[outer] = replace(self.names[outer], frozen=False)

    def _freeze_iterated(self, *, frozen: bool) -> None:
        """Freeze or unfreeze the model whose parameters the innermost loop iterates over."""
        loop = self.loops[-1].node if self.loops else None
        iterable = loop.iter if isinstance(loop, cst.For) else None
        owner = (
            receiver(iterable)
            if isinstance(iterable, cst.Call) and method_name(iterable) in _PARAMETER_METHODS
            else None
        )
        model = dotted(owner) if owner is not None else None
        if model is not None:
            known = self.names.get(model, MODEL)
            self.names[model] = replace(
                known, frozen=known.kind is ValueKind.MODEL and frozen, trainable=False
            )

    def record_call(self, call: CallFact) -> None:
        super().record_call(call)
        frozen = call.local.frozen_parameters if call.local is not None else frozenset[str]()
        if call.local is not None and frozen:
            given = {name: dotted(argument.value) for name, argument in call.local.receives(call.node)}
            given["self"] = dotted(receiver(call.node))
            for path in filter(None, (given.get(name) for name in frozen)):
                self.names[path] = replace(self.names.get(path, MODEL), frozen=True, trainable=False)
        if call.receiver.kind is not ValueKind.PARAMETER:
            return
        if call.method == "requires_grad_" and call.node.args:
            self._freeze_iterated(frozen=is_false(call.node.args[0]))
        elif call.method == "detach_":
            self._freeze_iterated(frozen=True)

    def assign_item(
        self, target: cst.Subscript, value: Value, expression: cst.BaseExpression, node: cst.CSTNode
    ) -> None:
        self.value_of(target.value)
        path = path_of(target)
        if path is None:
            return
        if any(_starts_at_end(each.slice, path) for each in target.slice):  # curve[len(curve):] = [loss]
            self.record_store(node, path, "append", expression, value, uses_old_value=False)
            return
        method = self.program.method(self.names.get(path, UNKNOWN).class_name, "__setitem__")
        if method is not None:
            if _appends(method):
                self.record_store(node, path, "append", expression, value, uses_old_value=False)
            return
        varying = any(not _is_constant(each.slice) for each in target.slice)
        if (
            any(_starts_at_beginning(each.slice) for each in target.slice)
            and value.kind is not ValueKind.GRAPH
        ):
            self.record_release(target, path, "shrink")  # losses[:] = losses[-10:]
        through = {each for name in names_with_graph(expression) for each in self.depends_on.get(name, ())}
        for each in target.slice:
            if isinstance(each.slice, cst.Index):
                self.value_of(each.slice.value)
        self.record_store(
            node,
            path,
            "item",
            expression,
            value,
            uses_old_value=path in names_in(expression) or path in through,
            varying_key=varying,
        )
        known = self.names.get(path)
        if known is not None and known.kind is ValueKind.CONTAINER:
            self.names[path] = _with_item_at(known, keys_of(target), value)
        elif known is not None and known.kind is ValueKind.TENSOR and value.kind is ValueKind.GRAPH:
            self.names[path] = value  # outputs[i] = model(x): the whole tensor has a graph

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
        method = self.program.method(self.names.get(path, UNKNOWN).class_name, "__iadd__")
        if method is not None and not method.stored_parameters:
            return
        adds_items = isinstance(node.value, (cst.List, cst.ListComp)) or (
            value.kind is ValueKind.CONTAINER and isinstance(node.operator, (cst.AddAssign, cst.BitOrAssign))
        )
        added = value if adds_items else computed_from([value], no_grad=self.no_grad)
        self.record_store(
            node, path, "append" if adds_items else "augment", node.value, added, uses_old_value=True
        )
        known = self.names.get(path, UNKNOWN)
        keys = keys_of(node.target)
        if adds_items:
            self.names[path] = with_element(known, element_of(value), keys)
        elif known.kind is ValueKind.CONTAINER and keys:
            operands = [self.evaluate_silently(node.target), value]
            self.names[path] = _with_item_at(known, keys, computed_from(operands, no_grad=self.no_grad))
        elif known.kind is ValueKind.CONTAINER:
            self.names[path] = with_element(known, value)
        else:
            self.names[path] = computed_from([known, value], no_grad=self.no_grad)

    def delete(self, target: cst.BaseExpression | cst.Tuple) -> None:
        targets = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
        for each in targets:
            path = path_of(each)
            if path is not None:
                self.record_release(target, path, "delete")
                if dotted(each) is not None:
                    self.forget_attributes(path)
                    self.names.pop(path, None)

    def bind_iteration(
        self, target: cst.BaseExpression, source: cst.BaseExpression, iterable_path: Value
    ) -> None:
        owner = (
            receiver(source)
            if isinstance(source, cst.Call) and method_name(source) in {"items", "values"}
            else source
        )
        container_path = dotted(owner) if owner is not None else None
        adder = self.append_methods.get(container_path or "")
        if adder is not None and isinstance(target, cst.Name):
            self.append_methods[target.value] = adder
        if container_path is not None:
            self.container_of.update(dict.fromkeys(names_in(target), container_path))
        if owner is not None and (path := dotted(owner)) in self.parameter_of:
            for bound in names_in(target):
                self.parameter_of[bound] = self.parameter_of[path or ""]
        name = dotted(source.func) if isinstance(source, cst.Call) else None
        if isinstance(source, cst.Call) and name in {"zip", "enumerate"}:
            self._bind_elements(target, source)
        if isinstance(source, cst.Call) and name == "enumerate" and isinstance(target, cst.Tuple):
            self.bind(target.elements[0].value, PLAIN)
            inner = source.args[0].value if source.args else source
            for each in target.elements[1:]:
                if isinstance(inner, cst.Call) and dotted(inner.func) == "zip":
                    self.bind_iteration(each.value, inner, iterable_path)
                else:
                    self.bind(each.value, element_of(iterable_path))
            return
        if isinstance(source, cst.Call) and name == "zip" and isinstance(target, cst.Tuple):
            arguments = positional(source)
            if len(arguments) == len(target.elements):
                for each, argument in zip(target.elements, arguments, strict=True):
                    self.bind(each.value, element_of(self.evaluate_silently(argument.value)))
                return
        self.bind(target, element_of(iterable_path))

    def _bind_elements(self, target: cst.BaseExpression, source: cst.Call) -> None:
        """Treat a loop variable like the function parameter whose elements it refers to, as in
        `for index, feature in zip(indices, features)`.
        """
        parts = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
        if dotted(source.func) == "enumerate":
            parts = parts[1:]
        for part, argument in zip(parts, positional(source), strict=False):
            if (path := dotted(argument.value)) in self.parameter_of:
                for bound in names_in(part):
                    self.parameter_of[bound] = self.parameter_of[path or ""]

    def bind(self, target: cst.BaseExpression, value: Value) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for index, each in enumerate(target.elements):
                part = value.items[index] if value.items and index < len(value.items) else _unpacked(value)
                self.bind(each.value, part)
            return
        path = dotted(target)
        if path is not None:
            self.forget_attributes(path)
            if value.kind is ValueKind.UNKNOWN and not value.class_name and not value.function:
                is_layer = self.program.is_module_class(self.function.class_name)
                value = UNKNOWN if is_layer else self.program.guess_called(path)
            self.names[path] = value

    def forget_attributes(self, path: str) -> None:
        if path not in self.program.objects:
            return
        prefix = f"{path}."
        for each in [each for each in self.names if each.startswith(prefix)]:
            del self.names[each]


def _unpacked(value: Value) -> Value:
    if value.kind in (ValueKind.GRAPH, ValueKind.TENSOR, ValueKind.CONTAINER):
        return element_of(value)
    return MODEL if value.kind is ValueKind.MODEL else UNKNOWN


def _with_item_at(known: Value, keys: list[str | None], value: Value) -> Value:
    first, *rest = keys
    if not rest:
        return with_item(known, first, value)
    inner = known.get(first) or container(mapping=True)
    return with_item(known, first, _with_item_at(inner, rest, value))


def _is_constant(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Index):
        node = node.value
        if isinstance(node, cst.UnaryOperation):
            node = node.expression
        return isinstance(node, (cst.SimpleString, cst.Integer, cst.ConcatenatedString))
    return isinstance(node, cst.Slice)


def _reads_item(expression: cst.BaseExpression) -> bool:
    """Return True if an expression reads one item, as in `rows[name]` and `rows.setdefault(name, [])`. A slice does
    not count, because it is a new container.
    """
    if type(expression) is cst.Subscript:
        return not any(isinstance(each.slice, cst.Slice) for each in expression.slice)
    if type(expression) is not cst.Call or method_name(expression) != "setdefault":
        return False
    return isinstance(expression.args[-1].value, (cst.List, cst.Dict))  # a deque may have a limit


def _appends(function: Function) -> bool:
    return any(
        store.how == "append" or (store.how == "item" and not has_modulo(store.node))
        for store in function.stored_parameters.values()
    )


def _creates_frozen(node: cst.BaseExpression) -> bool:
    """Return True for a model without gradients, such as `build().requires_grad_(False).to(device)`.

    A moving average in a checkpoint, such as `torch.load(path)["ema"]`, also has no gradients.
    """
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value == "requires_grad_":
            return bool(node.args) and is_false(node.args[0])
        node = node.func.value
    return isinstance(node, cst.Subscript) and _EMA.search(literal_key(node) or "") is not None


_EMA = re.compile(r"(?:^|_)ema(?:$|_)", re.IGNORECASE)


def _starts_at_end(node: cst.CSTNode, path: str) -> bool:
    """Return True if a slice starts at the end of the container, as in `curve[len(curve):]`."""
    lower = node.lower if isinstance(node, cst.Slice) else None
    return (
        isinstance(lower, cst.Call)
        and dotted(lower.func) == "len"
        and bool(lower.args)
        and path_of(lower.args[0].value) == path
    )


def _starts_at_beginning(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Slice) and node.lower is None
