import re
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.call_results import element_of
from legroom.diagnose.lint.flow.calls import Calls
from legroom.diagnose.lint.flow.evidence.captured import captured_names, defaults_of
from legroom.diagnose.lint.flow.evidence.loop_elements import looped_over, named_attributes
from legroom.diagnose.lint.flow.facts import (
    CallFact,
    CallSite,
    FactContext,
    Function,
    LoopFact,
    ReleaseFact,
    StoreFact,
)
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.limits import is_replayed
from legroom.diagnose.lint.flow.syntax import (
    ADDING_METHODS,
    contained_parts,
    dotted,
    keys_of,
    last_name,
    method_name,
    names_in,
    names_with_graph,
    path_of,
    per_node,
    positional,
    receiver,
    root,
    string_value,
)
from legroom.diagnose.lint.flow.values import (
    GRAPH,
    UNKNOWN,
    Value,
    ValueKind,
    join_values,
    with_element,
    with_item,
)

_IN_PLACE_METHODS = {
    "add_",
    "sub_",
    "lerp_",
    "addcmul_",
    "index_add_",
    "index_copy_",
    "index_put_",
    "scatter_",
    "scatter_add_",
    "masked_scatter_",
}
_RESCALING_METHODS = {"mul_", "div_", "add_", "sub_", "neg_", "clamp_", "clamp_min_", "clamp_max_"}
"""In-place methods whose result is the changed tensor, with its old graph."""
_PRESERVING_METHODS = {
    "cat", "clone", "concat", "contiguous", "copy", "cpu", "cuda", "double", "flatten", "float", "half", "hstack",
    "mean", "reshape", "squeeze", "stack", "sum", "to", "unsqueeze", "view", "vstack",
}  # fmt: skip
"""Functions whose result has a graph if their arguments have one."""
_CALLBACK = re.compile(r"^(?:on|after|before)_|_end$|_callback$")
"""Names of methods that a trainer calls on its callbacks."""
_SORTED_INSERTS = {"heapq.heappush", "bisect.insort", "bisect.insort_left", "bisect.insort_right"}
_QUEUE_GETTERS = {"get", "get_nowait"}
_REMOVING_METHODS = {
    "clear": "empty",
    "pop": "shrink",
    "popleft": "shrink",
    "popitem": "shrink",
    "remove": "shrink",
}


class FactRecorder(Calls):
    """Records facts while statements are analyzed.

    Evaluating an expression again does not record its facts twice.
    """

    def __init__(self, program: Program, function: Function) -> None:
        super().__init__(program, function)
        self.recording = True
        self.loops: tuple[LoopFact, ...] = ()
        self.handler: cst.ExceptHandler | None = None
        self.contexts: tuple[str, ...] = ()
        self.no_grad = function.no_grad
        self.append_methods: dict[str, cst.Attribute] = {}
        """Maps a name to the bound method that it refers to, if this method adds to a container.

        A list of callbacks is mapped to the method that it contains.
        """
        self.parameter_of: dict[str, str] = {name: name for name in function.parameters}
        """Maps a name to the function parameter that it refers to, or to the parameter that contains it as an
        element.
        """
        self.parameters_in: dict[str, list[str]] = {}
        """Maps a new tuple, list or object to the parameters that it contains."""
        self.depends_on: dict[str, frozenset[str]] = {}
        """Maps a name to the names from which it was last computed. Detached names are omitted."""
        self.alias_of: dict[str, str] = {}
        """Maps a name to the container that it refers to: `row` to `self.rows` after `row = self.rows[0]`."""
        self.container_of: dict[str, str] = {}
        """Maps a loop variable to the container over which it iterates."""

    def is_grad_disabled_after(self, name: str, expression: cst.CSTNode) -> bool:
        raise NotImplementedError

    def enter(self, modes: set[bool]) -> None:
        raise NotImplementedError

    def kept_by(self, node: cst.Lambda | cst.FunctionDef) -> tuple[Value, ...]:
        """Return the values that a closure keeps alive: its defaults, and the local variables that it reads.

        Variables of a loop are omitted, because all closures share them and keep only the last value.
        """
        defaults = [self.value_of(each) for each in defaults_of(node)]
        if self.loops or isinstance(self.function.node, cst.Module):
            return tuple(defaults)
        captured = (self.names.get(name, UNKNOWN) for name in sorted(captured_names(node, self.function)))
        return (*defaults, *(each for each in captured if each.has_graph))

    def record_store(
        self,
        node: cst.CSTNode,
        target: str,
        how: str,
        expression: cst.BaseExpression,
        value: Value,
        *,
        uses_old_value: bool,
        varying_key: bool = False,
        mapping: bool = False,
    ) -> None:
        value = self._with_attributes(expression, value)
        known = self.names.get(target, UNKNOWN)
        if how in {"append", "item"}:
            target = self.alias_of.get(target, target)
        store = StoreFact(
            node=node,
            at=self.context_at(node),
            target=target,
            how=how,
            expression=expression,
            value=value,
            uses_old_value=uses_old_value,
            varying_key=varying_key,
            bounded=known.bounded or self.names.get(target, UNKNOWN).bounded,
            mapping=mapping or known.mapping or self.names.get(target, UNKNOWN).mapping,
            previous=known,
        )
        if self.recording:
            self.program.stores.append(store)
        replayed = is_replayed(self.program, target)
        if store.bounded and not replayed:
            return
        grows = (
            how == "append"
            or (
                how == "item"
                and varying_key
                and (store.mapping or store.previous.kind is not ValueKind.CONTAINER or replayed)
            )
            or (how in {"augment", "assign"} and uses_old_value)
        )
        rebound = how in {"assign", "augment"} and "." not in target
        if rebound and target not in self.function.nonlocal_names:
            return  # a local name
        if grows and not self.function.owns(target):
            for name in sorted(stored_names(expression, no_grad=self.no_grad)):
                for parameter in self.parameters_in.get(name, self.parameters_of(name)):
                    if parameter != target.partition(".")[0]:
                        self.function.stored_parameters.setdefault(parameter, store)

    def parameters_of(self, name: str) -> list[str]:
        return [self.parameter_of[name]] if name in self.parameter_of else []

    def _with_attributes(self, expression: cst.BaseExpression, value: Value) -> Value:
        """Return a container with the known attributes of an object as its items.

        For example, after `episode.log_probs.append(...)`, `episodes.append(episode)` also stores the log
        probabilities.
        """
        path = dotted(expression)
        if path is None or value.kind is not ValueKind.UNKNOWN or value.has_graph or path in {"self", "cls"}:
            return value
        below = [known for name, known in self.names.items() if name.startswith(f"{path}.")]
        return replace(value, kind=ValueKind.CONTAINER, items=tuple(below)) if below else value

    def record_release(self, node: cst.CSTNode, target: str, how: str) -> None:
        if not self.recording:
            return
        paths = {target, self.container_of.get(target, target), self.alias_of.get(target, target)}
        for path in paths | looped_over(self.program, node, target, self.function):
            self.program.releases.append(
                ReleaseFact(node=node, at=self.context_at(node), target=path, how=how)
            )

    def _entered_name(self, entered: cst.BaseExpression | None) -> str | None:
        """Return the name of the context manager in `torch.no_grad().__enter__()` and `self.guard.__enter__()`."""
        made = [entered] if isinstance(entered, cst.Call) else self.program.assigned(dotted(entered))
        calls = [each for each in made if isinstance(each, cst.Call)]
        return self.program.imports.qualified(calls[0].func) if len(calls) == 1 else None

    def record_call(self, call: CallFact) -> None:
        node, name, method, owner, arguments, local = (
            call.node, call.name, call.method, call.receiver, call.arguments, call.local,
        )  # fmt: skip
        if self.recording:
            self.program.calls.append(call)
        if last_name(name or "") == "set_grad_enabled" and not self.contexts:
            self.no_grad = self.is_grad_disabled_after(name or "", node)
        if method == "enter_context" and node.args and isinstance(entered := node.args[0].value, cst.Call):
            entered_name = self.program.imports.qualified(entered.func) or ""
            self.no_grad = self.is_grad_disabled_after(entered_name, entered)
            self.enter(self.program.modes_in(arguments[0].class_name, self.called_function(entered)))
        if method == "__enter__" and (guard := self._entered_name(receiver(node))):
            self.no_grad = self.is_grad_disabled_after(guard, node)
        if local is not None and local.modes_left == {True} and not self.contexts and not local.is_generator:
            self.no_grad = True
        if local is not None:
            local.call_sites.append(
                CallSite(
                    self.function,
                    self.loops,
                    self.no_grad,
                    node,
                    self.argument_values(local, node, arguments),
                )
            )
        for other in (*self._overriding(node, method, owner, local), *self._named_methods(node)):
            other.is_dispatched = True
            values = self.argument_values(other, node, arguments)
            other.call_sites.append(CallSite(self.function, self.loops, self.no_grad, node, values))
        for handler, indices in self.program.handlers.called_by(node, local):
            handler.is_dispatched = True
            values = {name: arguments[index] for name, index in indices.items()}
            handler.call_sites.append(CallSite(self.function, self.loops, self.no_grad, node, values))
        if method in {"submit", "map"} and (run := self._passed_function(arguments)) is not None:
            run.is_dispatched = True
            passed = arguments[1:] if method == "submit" else tuple(map(element_of, arguments[1:]))
            values = dict(zip(run.own_parameters, passed, strict=False))
            run.call_sites.append(CallSite(self.function, self.loops, False, node, values))
        target = path_of(receiver(node)) if method else None
        if local is not None:
            self._record_stored_parameters(local, node, target)
            self._add_graph_to_object(local, node, arguments)
            if _CALLBACK.search(method or "") and any(
                root(target or "") in loop.bound for loop in self.loops
            ):
                local.is_dispatched = True
        adder = self.append_methods.get(dotted(node.func) or "")
        if adder is not None and (path := path_of(adder.value)) is not None:
            self._record_append(node, adder.attr.value, path, self.names.get(path, UNKNOWN), arguments)
        of_library = target is not None and root(target) in self.program.imports.full_names  # torch.add
        if method == "add":  # x.add(y) computes with tensors; a set returns nothing
            of_library |= not isinstance(self.program.parent.get(node), cst.Expr)
        if method in ADDING_METHODS and target is not None and not of_library and local is None:
            self._record_append(node, method, target, owner, arguments)
        elif method in _REMOVING_METHODS and target is not None and local is None:
            self.record_release(node, target, _REMOVING_METHODS[method])
        elif method in _REMOVING_METHODS:  # getattr(self, name).clear()
            for each in named_attributes(self.program, receiver(node)):
                self.record_release(node, each, _REMOVING_METHODS[method])
        elif (
            method in _IN_PLACE_METHODS
            and not self.no_grad
            and any(each.has_graph for each in arguments)
            and (target := path_of(_changed_in_place(node))) is not None
        ):
            added = next(
                each.value for each, value in zip(node.args, arguments, strict=True) if value.has_graph
            )
            self.record_store(node, target, "augment", added, GRAPH, uses_old_value=True)
            self.names[target] = GRAPH
        elif (
            method == "copy_"
            and not self.no_grad
            and target is not None
            and _copies_sum(node, target, arguments)
        ):
            self.record_store(node, target, "assign", node.args[0].value, arguments[0], uses_old_value=True)
            self.names[target] = GRAPH
        elif (
            name in _SORTED_INSERTS
            and len(arguments) > 1
            and (heap := path_of(node.args[0].value)) is not None
        ):
            self.record_store(node, heap, "append", node.args[1].value, arguments[1], uses_old_value=False)
        elif method == "update" and target is not None and owner.is_counter and arguments:
            self.record_store(node, target, "append", node.args[0].value, arguments[0], uses_old_value=True)
        elif method == "update" and target is not None and owner.mapping and arguments:
            if _has_new_keys(node.args[0].value):
                self.record_store(
                    node, target, "append", node.args[0].value, arguments[0], uses_old_value=False
                )
            self._merge(node, target, owner, arguments)
        elif method == "detach_" and target is not None:
            self.depends_on.pop(target, None)
            self.record_release(node, target, "detach")
        elif method in _QUEUE_GETTERS and target is not None and local is None and not positional(node):
            # queue.get()
            self.record_release(node, target, "shrink")
        elif name == "atexit.register" and arguments:
            given = next((i for i, each in enumerate(arguments) if each.has_graph), len(arguments) - 1)
            self.record_store(
                node, "atexit", "append", node.args[given].value, arguments[given], uses_old_value=False
            )
        elif method == "register_buffer" and len(arguments) > 1 and target is not None:
            self._record_named_item(node, target, 0, arguments)
            buffer = string_value(node.args[0].value)
            if buffer is not None and arguments[1].is_tensor:
                self.names[f"{target}.{buffer}"] = arguments[1]
        elif name == "setattr" and len(arguments) > 2 and (path := path_of(node.args[0].value)) is not None:
            self._record_named_item(node, path, 1, arguments)
            if self.function.name != "__init__" and not arguments[2].has_graph:
                for each in named_attributes(self.program, node):
                    self.record_release(node, each, "assign")

    def _passed_function(self, arguments: tuple[Value, ...]) -> Function | None:
        """Return the function in `executor.submit(function, x)`, which runs in another thread."""
        return self.program.functions.get(arguments[0].function or "") if len(arguments) > 1 else None

    def _overriding(
        self, node: cst.Call, method: str | None, owner: Value, local: Function | None
    ) -> list[Function]:
        """Return the other methods that a call may run.

        The result contains the methods of the same name in related classes, or in all classes for a callback of an
        unknown object.
        """
        known = self.program.methods.get(method or "", [])
        if not known or (len(known) == 1 and known[0] is local) or method in {"__init__", "forward"}:
            return []
        if owner.kind is not ValueKind.UNKNOWN or owner.function is not None:
            return []
        if owner.class_name is None:
            return known if local is None and _CALLBACK.search(method or "") else []
        path = path_of(receiver(node)) or ""
        first = root(path)
        if path == "self":
            return [each for each in known if self.program.inherits(each.class_name or "", owner.class_name)]
        if first not in self.function.parameters and all(first not in loop.bound for loop in self.loops):
            return []  # the class is known
        return [
            each
            for each in known
            if each is not local and self.program.are_related(each.class_name or "", owner.class_name)
        ]

    def _named_methods(self, node: cst.Call) -> list[Function]:
        """Return the methods that `getattr(callback, name)(state)` may run, if the name is a literal or a parameter
        that receives literals.
        """
        got = node.func
        if type(got) is not cst.Call or dotted(got.func) != "getattr" or len(got.args) < 2:
            return []
        name = got.args[1].value
        names = {string_value(name)}
        if (path := dotted(name)) in self.function.parameters:
            names = {
                string_value(argument.value)
                for each in self.program.nodes_of(cst.Call)
                if last_name(dotted(each.func) or "") == self.function.name
                for parameter, argument in self.function.receives(each)
                if parameter == path
            }
        return [method for each in names if each for method in self.program.methods.get(each, [])]

    def _record_named_item(
        self, node: cst.Call, target: str, name: int, arguments: tuple[Value, ...]
    ) -> None:
        """Record a call that stores a value under a name.

        The parameter `name` is the index of the argument that contains the name. The next argument contains the
        value.
        """
        self.record_store(
            node,
            target,
            "item",
            node.args[name + 1].value,
            arguments[name + 1],
            uses_old_value=False,
            varying_key=not isinstance(node.args[name].value, cst.SimpleString),
            mapping=True,
        )

    def _merge(self, node: cst.Call, target: str, merged: Value, arguments: tuple[Value, ...]) -> None:
        """Record the values that `row.update({"loss": loss})` and `row.update(loss=loss)` store."""
        for argument, value in zip(node.args, arguments, strict=True):
            if argument.keyword is not None:
                merged = with_item(merged, argument.keyword.value, value)
            elif value.kind is ValueKind.CONTAINER:
                merged = join_values(merged, value)
        if dotted(receiver(node)) == target:
            self.names[target] = merged

    def _record_stored_parameters(self, local: Function, node: cst.Call, target: str | None) -> None:
        """Record a parameter that is passed to a function that stores it, as in `self.meters[name].update(value)`."""
        target = "self" if target is None and _is_super(receiver(node)) else target
        target = self.alias_of.get(target or "", target)
        if receiver(node) is not None and (target is None or self.function.owns(target)):
            return
        if root(dotted(node.func) or "") in self.function.parameters and target is None:
            return  # other callers pass other functions
        for name, argument in local.receives(node):
            store = local.stored_parameters.get(name)
            if store is None:
                continue
            if target is None and (store.is_in_argument or self.function.owns(store.target)):
                continue  # a container of the caller
            for stored in sorted(stored_names(argument.value)):
                parameter = self.parameter_of.get(stored)
                if parameter is not None and parameter != root(target or ""):
                    self.function.stored_parameters.setdefault(parameter, store)

    def _add_graph_to_object(self, local: Function, node: cst.Call, arguments: tuple[Value, ...]) -> None:
        """Record that an object keeps a graph alive after a call such as `episode.add(observation, q)`."""
        path = dotted(receiver(node))
        known = self.names.get(path or "", UNKNOWN)
        if path is None or "." in path or path == "self" or known.has_graph:
            return
        if known.kind is not ValueKind.UNKNOWN or known.class_name is None:
            return
        values = self.argument_values(local, node, arguments)
        if any(
            values[name].has_graph and store.target.startswith("self.")
            for name, store in local.stored_parameters.items()
            if name in values
        ):
            self.names[path] = replace(known, items=(*(known.items or ()), GRAPH))

    def _record_append(
        self, node: cst.Call, method: str | None, target: str, owner: Value, arguments: tuple[Value, ...]
    ) -> None:
        given = positional(node)
        index = 1 if method == "insert" else 0
        if index >= len(given) or index >= len(arguments):
            return
        if method in {"add", "append"} and len(given) > 1:  # an operation: functional.add(x, y)
            return
        value = element_of(arguments[index]) if method == "extend" else arguments[index]
        stored = given[index].value
        read = names_with_graph(stored)
        uses_old_value = target in read or any(target in self.depends_on.get(name, ()) for name in read)
        self.record_store(node, target, "append", stored, value, uses_old_value=uses_old_value)
        known = self.names.get(target, owner)
        self.names[target] = with_element(known, value, keys_of(receiver(node)))

    def argument_values(
        self, local: Function, call: cst.Call, arguments: tuple[Value, ...]
    ) -> dict[str, Value]:
        known = {id(argument): value for argument, value in zip(call.args, arguments, strict=False)}
        values: dict[str, Value] = {}
        for name, argument in local.receives(call):
            value = known[id(argument)]
            values[name] = join_values(values[name], value) if name in values else value
        return values

    def context_at(self, node: cst.CSTNode) -> FactContext:
        order = self.program.order.get(node, 0)
        return FactContext(order, self.function, self.loops, self.no_grad, self.handler, self.contexts)


def _changed_in_place(node: cst.Call) -> cst.BaseExpression | None:
    """Return the tensor that a chain of in-place methods changes: `mean` for `mean.mul_(0.9).add_(x)`.

    Return None for `mean.data.add_(x)`, because `mean.data` is a new tensor, and `mean` gets no graph.
    """
    changed = receiver(node)
    while isinstance(changed, cst.Call) and method_name(changed) in _RESCALING_METHODS:
        changed = receiver(changed)
    is_data = isinstance(changed, cst.Attribute) and changed.attr.value == "data"
    return None if is_data else changed


def _copies_sum(node: cst.Call, target: str, arguments: tuple[Value, ...]) -> bool:
    """Return True for a call such as `mean.copy_(0.9 * mean + 0.1 * x)`, which extends the graph of `mean`."""
    return bool(arguments) and arguments[0].has_graph and target in names_with_graph(node.args[0].value)


def _has_new_keys(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.DictComp):
        return bool(names_in(node.key) - names_in(node.for_in.target))
    if isinstance(node, cst.Call) and dotted(node.func) == "zip":
        return True
    return isinstance(node, cst.Dict) and not all(
        isinstance(each, cst.DictElement) and isinstance(each.key, cst.SimpleString) for each in node.elements
    )


def stored_names(expression: cst.BaseExpression, *, no_grad: bool = False) -> frozenset[str]:
    """Return the names in a stored expression whose values or graphs stay alive, such as the operands of a sum."""
    return _stored_names_without_grad(expression) if no_grad else _stored_names(expression)


@per_node
def _stored_names(expression: cst.BaseExpression) -> frozenset[str]:
    return _find_stored_names(expression, no_grad=False)


@per_node
def _stored_names_without_grad(expression: cst.BaseExpression) -> frozenset[str]:
    return _find_stored_names(expression, no_grad=True)


def _find_stored_names(expression: cst.BaseExpression, *, no_grad: bool) -> frozenset[str]:
    path = dotted(expression)
    if path is not None:
        return frozenset([path])
    parts = contained_parts(expression)
    if isinstance(expression, cst.Subscript):
        parts = [expression.value]
    elif isinstance(expression, cst.BinaryOperation) and not no_grad:
        # `template % values` is text.
        parts = [] if isinstance(expression.operator, cst.Modulo) else [expression.left, expression.right]
    elif isinstance(expression, cst.Call) and method_name(expression) in _PRESERVING_METHODS and not no_grad:
        owner = receiver(expression)  # loss.cpu(), torch.cat([queue, keys])
        parts = [*([owner] if owner is not None else []), *(each.value for each in positional(expression))]
    return frozenset(name for each in parts for name in stored_names(each, no_grad=no_grad))


def _is_super(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "super"
