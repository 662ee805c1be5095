"""What the flow analysis notes down as it goes: stores, releases and calls, each with its surroundings."""

from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.call_results import element_of
from legroom.diagnose.lint.flow.expressions import Expressions
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
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    held_parts,
    keys_of,
    last_name,
    live_names,
    method_name,
    names_in,
    path_of,
    positional,
    receiver,
    root,
)
from legroom.diagnose.lint.flow.values import (
    GRAPH,
    UNKNOWN,
    Value,
    ValueKind,
    joined,
    with_element,
    with_item,
)

ADDING = {"append", "appendleft", "extend", "insert", "add", "put", "put_nowait"}
_ADDING_IN_PLACE = {
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
_GIVING_ITSELF = {
    "cat", "clone", "concat", "contiguous", "copy", "cpu", "cuda", "double", "flatten", "float", "half", "hstack",
    "mean", "reshape", "squeeze", "stack", "sum", "to", "unsqueeze", "view", "vstack",
}  # fmt: skip
"""Methods and functions whose result has the graph of what they are given."""
_TAKING = {"get", "get_nowait"}
_REMOVING = {"clear": "empty", "pop": "shrink", "popleft": "shrink", "popitem": "shrink", "remove": "shrink"}


class FactRecorder(Expressions):
    """Notes facts into the program while `recording`. A subclass goes through the statements."""

    def __init__(self, program: Program, function: Function, *, recording: bool) -> None:
        super().__init__(program, function)
        self.recording = recording
        self.loops: tuple[LoopFact, ...] = ()
        self.handler: cst.ExceptHandler | None = None
        self.contexts: tuple[str, ...] = ()
        self.no_grad = function.no_grad
        self.adders: dict[str, cst.Attribute] = {}
        """Names of bound methods that add to a container."""
        self.comes_from: dict[str, str] = {name: name for name in function.parameters}
        """Names that hold a parameter, or a part of one."""
        self.made_from: dict[str, set[str]] = {}
        """What each name was last computed from, without what was detached."""
        self.part_of: dict[str, str] = {}
        """Names that a loop gives the parts of a container, which they may empty."""

    def grad_after(self, name: str, expression: cst.CSTNode) -> bool:
        raise NotImplementedError

    def note_store(
        self,
        node: cst.CSTNode,
        target: str,
        how: str,
        expression: cst.BaseExpression,
        value: Value,
        *,
        uses_itself: bool,
        varying_key: bool = False,
        mapping: bool = False,
    ) -> None:
        value = self._with_attributes(expression, value)
        store = StoreFact(
            node=node,
            at=self.around(node),
            target=target,
            how=how,
            expression=expression,
            value=value,
            uses_itself=uses_itself,
            varying_key=varying_key,
            bounded=self.names.get(target, UNKNOWN).bounded,
            mapping=mapping or self.names.get(target, UNKNOWN).mapping,
            into=self.names.get(target, UNKNOWN),
        )
        if self.recording:
            self.program.stores.append(store)
        if store.bounded:
            return
        grows = (
            how == "append"
            or (
                how == "item"
                and varying_key
                and (store.mapping or store.into.kind is not ValueKind.CONTAINER)
            )
            or (how in {"augment", "assign"} and uses_itself)
        )
        rebound = how in {"assign", "augment"} and "." not in target
        if rebound and target not in self.function.declared_outside:
            return  # a name of the call's own
        if grows and not self.function.owns(target):
            for name in kept_names(expression, no_grad=self.no_grad):
                parameter = self.comes_from.get(name)
                if parameter is not None and parameter != target.partition(".")[0]:
                    self.function.keeps.setdefault(parameter, store)

    def _with_attributes(self, expression: cst.BaseExpression, value: Value) -> Value:
        """An object holds what its attributes hold: `episodes.append(episode)` after `episode.log_probs.append(...)`."""
        path = dotted(expression)
        if (
            path is None
            or value.kind is not ValueKind.UNKNOWN
            or value.carries_graph
            or path in {"self", "cls"}
        ):
            return value
        below = [known for name, known in self.names.items() if name.startswith(f"{path}.")]
        return replace(value, kind=ValueKind.CONTAINER, items=tuple(below)) if below else value

    def note_release(self, node: cst.CSTNode, target: str, how: str) -> None:
        if not self.recording:
            return
        for path in {target, self.part_of.get(target, target)}:
            self.program.releases.append(ReleaseFact(node=node, at=self.around(node), target=path, how=how))

    def note_call(self, call: CallFact) -> None:
        node, name, method, of, arguments, local = (
            call.node, call.name, call.method, call.receiver, call.arguments, call.local,
        )  # fmt: skip
        if self.recording:
            self.program.calls.append(call)
        if last_name(name or "") == "set_grad_enabled" and not self.contexts:
            self.no_grad = self.grad_after(name or "", node)
        if local is not None:
            local.sites.append(
                CallSite(self.function, self.loops, self.no_grad, node, self.given(local, node, arguments))
            )
        target = path_of(receiver(node)) if method else None
        if local is not None:
            self._note_keeping_by(local, node, target)
        adder = self.adders.get(dotted(node.func) or "")
        if adder is not None and (path := path_of(adder.value)) is not None:
            self._note_adding(node, adder.attr.value, path, self.names.get(path, UNKNOWN), arguments)
        adds_module = bool(arguments) and arguments[0].kind is ValueKind.MODEL  # nn.ModuleList.append
        of_library = target is not None and root(target) in self.program.imports.meaning  # torch.add
        if method in ADDING and target is not None and not (adds_module or of_library) and local is None:
            self._note_adding(node, method, target, of, arguments)
        elif method in _REMOVING and target is not None:
            self.note_release(node, target, _REMOVING[method])
        elif (
            method in _ADDING_IN_PLACE
            and target is not None
            and any(each.carries_graph for each in arguments)
        ):
            given = next(
                each.value for each, value in zip(node.args, arguments, strict=True) if value.carries_graph
            )
            self.note_store(node, target, "augment", given, GRAPH, uses_itself=True)
            self.names[target] = GRAPH
        elif (
            name == "heapq.heappush"
            and len(arguments) > 1
            and (heap := path_of(node.args[0].value)) is not None
        ):
            self.note_store(node, heap, "append", node.args[1].value, arguments[1], uses_itself=False)
        elif method == "update" and target is not None and of.sums and arguments:
            self.note_store(node, target, "append", node.args[0].value, arguments[0], uses_itself=True)
        elif method == "update" and target is not None and of.mapping and arguments:
            if _has_new_keys(node.args[0].value):
                self.note_store(node, target, "append", node.args[0].value, arguments[0], uses_itself=False)
            self._merge(node, target, of, arguments)
        elif method == "detach_" and target is not None:
            self.note_release(node, target, "detach")
        elif method in _TAKING and target is not None and not positional(node):  # of a queue
            self.note_release(node, target, "shrink")
        elif name == "atexit.register" and len(arguments) > 1:
            self.note_store(node, "atexit", "append", node.args[1].value, arguments[1], uses_itself=False)
        elif method == "register_buffer" and len(arguments) > 1 and target is not None:
            self._note_named(node, target, 0, arguments)
        elif name == "setattr" and len(arguments) > 2 and (path := path_of(node.args[0].value)) is not None:
            self._note_named(node, path, 1, arguments)

    def _note_named(self, node: cst.Call, target: str, name: int, arguments: tuple[Value, ...]) -> None:
        """What a call stores under the name that is its argument number `name`; the value is the one after that."""
        self.note_store(
            node,
            target,
            "item",
            node.args[name + 1].value,
            arguments[name + 1],
            uses_itself=False,
            varying_key=not isinstance(node.args[name].value, cst.SimpleString),
            mapping=True,
        )

    def _merge(self, node: cst.Call, target: str, into: Value, arguments: tuple[Value, ...]) -> None:
        """`row.update({"loss": loss})`, `row.update(loss=loss)`."""
        for argument, value in zip(node.args, arguments, strict=True):
            if argument.keyword is not None:
                into = with_item(into, argument.keyword.value, value)
            elif value.kind is ValueKind.CONTAINER:
                into = joined(into, value)
        if dotted(receiver(node)) == target:
            self.names[target] = into

    def _note_keeping_by(self, local: Function, node: cst.Call, target: str | None) -> None:
        """`self.meters[name].update(value)`: who gives a parameter to one that keeps it keeps it as well."""
        target = "self" if target is None and _is_super(receiver(node)) else target
        if target is None or self.function.owns(target):
            return
        for name, argument in local.receives(node):
            for kept in kept_names(argument.value) if name in local.keeps else ():
                parameter = self.comes_from.get(kept)
                if parameter is not None and parameter != root(target):
                    self.function.keeps.setdefault(parameter, local.keeps[name])

    def _note_adding(
        self, node: cst.Call, method: str | None, target: str, of: Value, arguments: tuple[Value, ...]
    ) -> None:
        given = positional(node)
        index = 1 if method == "insert" else 0
        if index >= len(given) or index >= len(arguments):
            return
        if method in {"add", "append"} and len(given) > 1:  # an operation: functional.add(x, y)
            return
        value = element_of(arguments[index]) if method == "extend" else arguments[index]
        stored = given[index].value
        read = live_names(stored)
        uses_itself = target in read or any(target in self.made_from.get(name, ()) for name in read)
        self.note_store(node, target, "append", stored, value, uses_itself=uses_itself)
        known = self.names.get(target, of)
        self.names[target] = with_element(known, value, keys_of(receiver(node)))

    def given(self, local: Function, call: cst.Call, arguments: tuple[Value, ...]) -> dict[str, Value]:
        """What each parameter of a function gets by this call."""
        known = {id(argument): value for argument, value in zip(call.args, arguments, strict=False)}
        values: dict[str, Value] = {}
        for name, argument in local.receives(call):
            value = known[id(argument)]
            values[name] = joined(values[name], value) if name in values else value
        return values

    def around(self, node: cst.CSTNode) -> FactContext:
        order = self.program.order.get(node, 0)
        return FactContext(order, self.function, self.loops, self.no_grad, self.handler, self.contexts)


def _has_new_keys(node: cst.BaseExpression) -> bool:
    """Whether a dict that is merged into another has keys that may be new each time."""
    if isinstance(node, cst.DictComp):
        return bool(names_in(node.key) - names_in(node.for_in.target))
    if isinstance(node, cst.Call) and dotted(node.func) == "zip":
        return True
    return isinstance(node, cst.Dict) and not all(
        isinstance(each, cst.DictElement) and isinstance(each.key, cst.SimpleString) for each in node.elements
    )


def kept_names(expression: cst.BaseExpression, *, no_grad: bool = False) -> set[str]:
    """Names whose value, or whose graph, is stored: alone, in something that holds it, or as a part of a sum."""
    path = dotted(expression)
    if path is not None:
        return {path}
    parts = held_parts(expression)
    if isinstance(expression, cst.Subscript):
        parts = [expression.value]
    elif isinstance(expression, cst.BinaryOperation) and not no_grad:
        # `template % values` is text.
        parts = [] if isinstance(expression.operator, cst.Modulo) else [expression.left, expression.right]
    elif isinstance(expression, cst.Call) and method_name(expression) in _GIVING_ITSELF and not no_grad:
        of = receiver(expression)  # loss.cpu(), torch.cat([queue, keys])
        parts = [*([of] if of is not None else []), *(each.value for each in positional(expression))]
    return {name for each in parts for name in kept_names(each, no_grad=no_grad)}


def _is_super(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "super"
