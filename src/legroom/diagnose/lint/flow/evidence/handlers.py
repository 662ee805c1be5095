"""Finds functions that are registered as handlers of an event, and the calls that run them.

`@trainer.register("batch_end")` and `signal.connect(function)` add a function to a container.
`trainer.emit("batch_end", loss=loss)` calls every function in the container.
`@trainer.on(Events.ITERATION_COMPLETED)` does the same with an Ignite engine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_call_of,
    last_name,
    method_name,
    path_of,
    receiver,
    string_value,
    walk,
)

_STEP_EVENTS = ("ITERATION", "BATCH", "STEP")


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """A function that a decorator or a call registers."""

    function: Function
    registry: str
    """The last component of the container's name, or the path of an Ignite engine."""
    event: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Handlers:
    """All handlers of a file, and the calls that run them."""

    registered: tuple[Handler, ...]
    running: Mapping[cst.Call, str]
    """Maps a call `handler(...)` in a loop over a registry to the last component of the registry's name."""
    dispatchers: Mapping[Function, tuple[str, cst.Call]]
    """Maps a function with a loop over a registry to the registry's name and the call in the loop."""
    steps: Mapping[Function, Function]
    """Maps a handler that Ignite runs in every iteration to the step function of its engine."""

    def called_by(self, call: cst.Call, local: Function | None) -> list[tuple[Function, dict[str, int]]]:
        """Return the handlers that a call runs.

        For each handler, a dict maps its parameters to the indices of the arguments in the call.
        """
        if not self.registered:
            return []
        given = list(enumerate(call.args))
        if call in self.running:
            registry, events = self.running[call], set[str]()
        elif local is not None and local in self.dispatchers:
            registry, inner = self.dispatchers[local]
            if not any(each.star for each in inner.args):
                return []
            explicit = [name for name in local.parameters if name not in {"self", "cls", *_stars(local)}]
            positional = [each for each in given if each[1].keyword is None][len(explicit) :]
            given = positional + [
                each
                for each in given
                if each[1].keyword is not None and each[1].keyword.value not in explicit
            ]
            events = {name for each in call.args if (name := _event(each.value)) is not None}
        else:
            return []
        return [
            (each.function, _bound(each.function, given))
            for each in self.registered
            if each.registry == registry and (each.event is None or not events or each.event in events)
        ]


def find_handlers(
    functions: Iterable[Function], calls: Iterable[cst.Call], assignments: Iterable[cst.Assign]
) -> Handlers:
    functions = [each for each in functions if isinstance(each.node, cst.FunctionDef)]
    by_name: dict[str, list[Function]] = {}
    for function in functions:
        by_name.setdefault(function.name, []).append(function)
    registered = tuple(
        handler
        for function in functions
        if isinstance(function.node, cst.FunctionDef)
        for decorator in function.node.decorators
        if (handler := _registered(function, decorator.decorator, by_name)) is not None
    )
    registered += tuple(_passed_to_register(calls, by_name))
    if not registered:
        return Handlers((), {}, {}, {})
    registries = {each.registry for each in registered}
    running: dict[cst.Call, str] = {}
    dispatchers: dict[Function, tuple[str, cst.Call]] = {}
    for function in functions:
        for loop in walk(function.body, into_functions=False):
            if not isinstance(loop, cst.For) or (registry := _iterated(loop.iter)) not in registries:
                continue
            for node in walk(loop.body):
                if isinstance(node, cst.Call) and dotted(node.func) == dotted(loop.target):
                    running[node] = registry
                    dispatchers[function] = (registry, node)
    engines = _engines(assignments, by_name)
    steps = {
        each.function: engines[each.registry]
        for each in registered
        if each.registry in engines and any(word in (each.event or "").upper() for word in _STEP_EVENTS)
    }
    return Handlers(registered, running, dispatchers, steps)


def _registered(
    function: Function, decorator: cst.BaseExpression, by_name: Mapping[str, list[Function]]
) -> Handler | None:
    called = decorator.func if isinstance(decorator, cst.Call) else decorator
    path = dotted(called)
    arguments = decorator.args if isinstance(decorator, cst.Call) else ()
    event = _event(arguments[0].value) if arguments else None
    if path is None:
        return None
    if isinstance(called, cst.Attribute) and called.attr.value == "on" and "on" not in by_name:
        return Handler(function, dotted(called.value) or "", event)
    registry = _registry_of(by_name.get(last_name(path), ()))
    return Handler(function, registry, event) if registry is not None else None


def _passed_to_register(
    calls: Iterable[cst.Call], by_name: Mapping[str, list[Function]]
) -> Iterator[Handler]:
    for node in calls:
        if not node.args:
            continue
        register = by_name.get(last_name(dotted(node.func) or ""))
        given = [name for each in node.args if (name := dotted(each.value) or "") in by_name]
        registry = _registry_of(register) if register and given else None
        if registry is not None:
            yield Handler(by_name[given[0]][0], registry, _event(node.args[0].value))


def _registry_of(functions: Iterable[Function]) -> str | None:
    return next((found for each in functions if (found := _registry(each)) is not None), None)


def _registry(register: Function) -> str | None:
    """Return the last component of the name of the container to which a function adds its argument."""
    given = {each.name.value for each in walk(register.node) if isinstance(each, cst.Param)}
    for node in walk(register.body):
        if isinstance(node, cst.Call) and method_name(node) in {"append", "add", "insert"}:
            if any(dotted(each.value) in given for each in node.args):
                return last_name(path_of(receiver(node)) or "") or None
        elif isinstance(node, cst.Assign) and dotted(node.value) in given:
            target = node.targets[0].target
            if isinstance(target, cst.Subscript):
                return last_name(path_of(target) or "") or None
    return None


def _iterated(node: cst.BaseExpression) -> str:
    """Return the name of the container that a loop iterates over, such as `hooks` for `self.hooks.get(event, [])`."""
    if isinstance(node, cst.Call) and method_name(node) is None and node.args:  # list(hooks)
        node = node.args[0].value
    if isinstance(node, cst.Call) and method_name(node) in {"get", "values", "copy"}:
        node = receiver(node) or node
    return last_name(path_of(node) or "")


def _engines(assignments: Iterable[cst.Assign], by_name: Mapping[str, list[Function]]) -> dict[str, Function]:
    """Map each Ignite engine to its step function: `trainer` to `update` for `trainer = Engine(update)`."""
    found: dict[str, Function] = {}
    for node in assignments:
        if not is_call_of(node.value, "Engine"):
            continue
        path = dotted(node.targets[0].target)
        step = (
            dotted(node.value.args[0].value) if isinstance(node.value, cst.Call) and node.value.args else ""
        )
        known = by_name.get(last_name(step or ""), [])
        if path is not None and len(known) == 1:
            found[path] = known[0]
    return found


def _event(node: cst.BaseExpression) -> str | None:
    """Return the name of an event: `batch_end` for `"batch_end"`, and `STARTED` for `Events.STARTED` and
    `Events.STARTED(every=10)`.
    """
    if isinstance(node, cst.Call):
        node = node.func
    return string_value(node) or (node.attr.value if isinstance(node, cst.Attribute) else None)


def _stars(function: Function) -> set[str]:
    assert isinstance(function.node, cst.FunctionDef)
    stars = (function.node.params.star_arg, function.node.params.star_kwarg)
    return {each.name.value for each in stars if isinstance(each, cst.Param)}


def _bound(function: Function, given: Sequence[tuple[int, cst.Arg]]) -> dict[str, int]:
    names = [name for name in function.parameters if name not in {"self", "cls"}]
    positional = [index for index, each in given if each.keyword is None and not each.star]
    bound = dict(zip(names, positional, strict=False))
    bound.update(
        {each.keyword.value: index for index, each in given if each.keyword and each.keyword.value in names}
    )
    return bound
