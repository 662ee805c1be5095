"""LG110: A hook stores module outputs

## What it detects
The rule checks for hooks that store their arguments, or tensors computed from them, in a container that is never
cleared. An example is a hook that is passed to `register_forward_hook`. The finding is reported at the statement that
stores the tensor. A hook that stores only shapes or numbers is not reported, nor is a container that only other files
pass to the function with the hook. The rule also checks for hooks that are never removed and are registered again in
every step, or in every call to a function that runs the model.

## Why this is a problem
A hook runs in every forward pass. If the hook appends the output to a list, each pass adds one more output, and each
output keeps the graph of its step alive.

If you need all outputs from one step, clear the list after each step. Call `handle.remove()` to remove a hook
that you no longer need.

## Example
```python
def hook(module, inputs, output):
    features.append(output)
```

## Use instead
```python
def hook(module, inputs, output):
    features[module] = output.detach()   # keeps only the latest output
```

## Fix safety
The fix is unsafe: it adds `.detach()` (`.detach().clone()` for a view), so the container keeps no graph
alive. A module may return a tuple, which has no `detach` method. The container still grows until you clear
it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.detaching import detaching_call
from legroom.diagnose.lint.edits import append_to
from legroom.diagnose.lint.flow.facts import CallFact, CallSite, Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.lifetimes import is_local
from legroom.diagnose.lint.flow.retention.releases import (
    is_length_limited,
    is_released,
    is_released_elsewhere,
    survives,
)
from legroom.diagnose.lint.flow.steps import is_forward, is_step_loop
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    last_name,
    method_name,
    names_in,
    names_with_graph,
    path_of,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import UNKNOWN, ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG110"
_ADDING = {"append", "add", "appendleft"}
_REGISTERING = {
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_backward_hook",
    "register_module_forward_hook",
    "register_hook",
}


_SUBMODULE = re.compile(r"modules\(|children\(|get_submodule\(|getattr\(|\w\[")
"""Expressions that get a module of a model."""


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.method not in _REGISTERING or not call.node.args:
            continue
        given = call.node.args[0].value
        for each in _lambdas(program, call, given):
            yield from _lambda(program, call, each)
        if isinstance(given, cst.Attribute) and given.attr.value in _ADDING and call.loops:
            yield from _adding_method(program, call, given)
        if not _is_kept(program, call):
            continue
        on_module = call.receiver.kind is ValueKind.MODEL
        if on_module and _is_in_step_loop(program, call):
            yield Problem(
                node=call.node,
                message="A hook is registered in every step and never removed",
                help="Register the hook once before the loop, or remove it with `handle.remove()`",
            )
        elif _is_registered_per_call(program, call):
            yield _registered_again(call)
    for added in program.stores:
        if not is_hook(program, added.function) or not _adds(program, added):
            continue
        store = _in_container(program, added)
        if store.bounded or is_length_limited(program, store):
            continue
        if is_released_elsewhere(program, store) or all(
            _is_cleared(program, *each)
            for each in _containers(store.target, store.function, store.function.outer)
        ):
            continue
        if is_local(store) or not _stores_tensors(program, store):
            continue
        methods = {method_name(each) for each in walk(store.expression) if isinstance(each, cst.Call)}
        detached = not methods.isdisjoint({"detach", "cpu", "item"})
        if "cpu" in methods and any(
            last_name(each.target) == last_name(store.target) for each in program.releases
        ):
            continue  # results that are collected in host memory and written to a file at the end
        removing = {call.function for call in program.calls if call.method == "remove" and not call.node.args}
        owner = store.function.outer
        if owner in removing and (
            "cpu" in methods
            or (
                (owner.owns(store.target) or root(store.target) in store.function.parameters)
                and not _has_steps(program, owner)
            )
        ):
            continue  # results of one function that removes its hook
        registration = _registration_in(program, owner, store.function)
        if registration is not None and owner is not None and owner.owns(store.target):
            if not _is_registered_per_call(program, registration):  # otherwise already reported
                yield _registered_again(registration)
            continue
        begins_later = program.span(store.expression)[0][0] > program.span(store.node)[0][0]
        yield Problem(
            node=store.node if begins_later else store.expression,
            message=f"The hook adds to `{store.target}` in every pass, but the container is never cleared",
            help="Keep only the last value, or clear the container after each step"
            + ("" if detached else ". Detach stored tensors"),
            edits=()
            if detached
            else tuple(append_to(program, store.expression, detaching_call(program, store.expression, store)))
            if _is_plain(store)
            else (),
            safe=False,
        )


def _registered_again(call: CallFact) -> Problem:
    return Problem(
        node=call.node,
        message=f"Each call to `{_called_name(call.function)}` registers another hook, which is never removed",
        help="Register the hook once, or remove it with `handle.remove()` before the function returns",
    )


def _registration_in(program: Program, owner: Function | None, hook: Function) -> CallFact | None:
    """Return the call in `owner` that registers the hook, if `owner` is called to run the model once."""
    if owner is None or not any(site.caller is not program.top for site in owner.call_sites):
        return None
    for call in program.calls:
        given = call.node.args[0].value if call.node.args else None
        if (
            call.method in _REGISTERING
            and call.function is owner
            and given is not None
            and dotted(given) == hook.name
            and _is_kept(program, call)
            and _runs_model_after(program, owner, call.order)
            and not _has_steps(program, owner)
        ):
            return call
    return None


def _in_container(program: Program, store: StoreFact) -> StoreFact:
    """Return the store with the name of the container, such as `rows` for `row = rows.setdefault(name, [])` before
    `row.append(x)`.
    """
    made = [
        each.expression
        for each in program.stores
        if each.target == store.target and each.function is store.function and each.order < store.order
        if each.how == "assign"
    ]
    path = path_of(made[-1]) if made and isinstance(made[-1], (cst.Call, cst.Subscript)) else None
    return replace(store, target=path) if store.how == "append" and path is not None else store


def _containers(
    path: str, function: Function, owner: Function | None, seen: frozenset[Function] = frozenset()
) -> Iterator[tuple[str, Function]]:
    """Yield a container with the function that creates it. If the container is a parameter of `owner`, its callers
    determine both: `features` for `add_hook(layer, features)`. Callers in other files are unknown.
    """
    name = root(path)
    while owner is not None and name not in owner.parameters:
        owner = owner.outer
    if owner is None or name in {"self", "cls"}:
        yield path, function
        return
    for site in owner.call_sites if owner not in seen else ():
        for parameter, argument in owner.receives(site.call):
            given = path_of(argument.value) if parameter == name else None
            if given is not None:
                yield from _containers(given, site.caller, site.caller, seen | {owner})


def _is_cleared(program: Program, path: str, function: Function) -> bool:
    """Return True if a container is released, or passed to a function that clears it, as in `drain(features)`."""
    return is_released(program, path, function) or any(
        path_of(argument.value) == path and release.function is call.local and release.target == name
        for call in program.calls
        if call.local is not None
        for name, argument in call.local.receives(call.node)
        for release in program.releases
    )


def _has_steps(program: Program, function: Function) -> bool:
    return any(loop.function is function and is_step_loop(loop) for loop in program.loops)


def _is_kept(program: Program, call: CallFact) -> bool:
    """Return True if no code removes the hook.

    `with layer.register_forward_hook(hook):` removes the hook. Without `with`, a hook can only be removed with the
    handle that its registration returned.
    """
    parent = program.parent.get(call.node)
    return isinstance(parent, cst.Expr) or (isinstance(parent, cst.Assign) and not program.mentions("remove"))


def _is_in_step_loop(program: Program, call: CallFact) -> bool:
    loops = list(call.loops)
    while loops and isinstance(loops[-1].node, cst.For) and _iterates_modules(loops[-1].node.iter):
        loops.pop()
    if not loops:
        return False
    loop = loops[-1]
    made = {
        each.target
        for each in program.stores
        if each.function is call.function and each.how == "assign" and loop.first <= each.order <= loop.last
    }
    owner = receiver(call.node)
    names = {root(name) for name in names_in(owner)} if owner is not None else set[str]()
    is_step = loop.trains or (loop.iterable.kind is ValueKind.LOADER and names.isdisjoint(made | loop.bound))
    return is_step and not program.is_conditional(call.node, call.function.node)


def _iterates_modules(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and method_name(node) in {"modules", "named_modules", "children"}


def _is_registered_per_call(program: Program, call: CallFact) -> bool:
    """Return True if a loop calls a function that runs the model and registers a hook on the same module in each
    iteration.
    """
    function = call.function
    if isinstance(function.node, cst.Module) or function.name == "__init__" or call.loops:
        return False
    if call.method == "register_hook" or is_forward(program, function):
        return False  # a hook of a tensor is freed with the tensor
    path = _module_path(program, call)
    if path is None or root(path) not in function.parameters:
        return False
    if program.is_conditional(call.node, function.node):
        return False
    if program.mentions("_forward_hooks") or _may_be_skipped(program, call, path):
        return False
    if _runs_model_after(program, function, call.order):
        return any(_repeats(program, site, function, path) for site in function.call_sites)
    return root(path) == "self" and any(  # self._add_hooks()
        not site.loops
        and dotted(receiver(site.call)) == "self"
        and site.caller.name != "__init__"
        and not program.is_conditional(site.call, site.caller.node)
        and _runs_model_after(program, site.caller, program.order[site.call])
        and any(_repeats(program, outer, site.caller, path) for outer in site.caller.call_sites)
        for site in function.call_sites
    )


def _module_path(program: Program, call: CallFact) -> str | None:
    """Return the path of the module with the hook, or of the model from which the function gets this module.

    An example is `model` for `layer = dict(model.named_modules())[name]`.
    """
    path = dotted(receiver(call.node))
    made = [each for each in program.stores if each.target == path and each.function is call.function]
    if path is None or path in call.function.parameters or len(made) != 1 or made[0].how != "assign":
        return path
    source = program.source(made[0].expression)
    if dotted(made[0].expression) is None and not _SUBMODULE.search(source):
        return path
    owners = {root(each) for each in names_in(made[0].expression)}
    models = {each for each in owners if each == "self" or program.guess(each).kind is ValueKind.MODEL}
    return models.pop() if len(models) == 1 else path


def _runs_model_after(program: Program, function: Function, order: int) -> bool:
    return any(
        each.function is function and each.order > order and each.receiver.kind is ValueKind.MODEL
        for each in program.calls
        if each.method not in {"eval", "train", "to", "zero_grad", "parameters"}
    )


def _repeats(program: Program, site: CallSite, function: Function, path: str) -> bool:
    if not site.loops:
        return False
    first = root(path)
    if first == "self":
        given = [receiver(site.call) if method_name(site.call) == function.name else site.call.func]
    else:
        given = [each.value for name, each in function.receives(site.call) if name == first]
    loop = site.loops[-1]
    changed = loop.bound | {
        each.target
        for each in program.stores
        if each.function is site.caller and loop.first <= each.order <= loop.last
    }
    return bool(given) and all(
        each is not None
        and dotted(each) is not None
        and not {root(name) for name in names_in(each)} & {root(name) for name in changed}
        for each in given
    )


def _may_be_skipped(program: Program, call: CallFact, path: str) -> bool:
    """Return True if the function may return before it registers the hook, or registers the hook on a copy."""
    function = call.function
    return any(
        isinstance(each, cst.Return) and program.order[each] < call.order
        for each in walk(function.body, into_functions=False)
    ) or any(
        each.function is function and each.how == "assign" and each.order < call.order
        for each in program.stores
        if path == each.target or path.startswith(f"{each.target}.")
    )


def _called_name(function: Function) -> str:
    return function.class_name or function.name if function.name == "__call__" else function.name


def _is_removed(program: Program, call: CallFact) -> bool:
    """Return True if the function removes the hook before it runs several batches with the hook.

    Copies in host memory are probably the result of the function, so a loop over a loader does not count for them.
    """
    on_host = "cpu()" in program.source(call.node)
    steps = [
        loop
        for loop in program.loops
        if loop.function is call.function
        and (is_step_loop(loop) or (loop.iterable.kind is ValueKind.LOADER and not on_host))
    ]
    return any(
        each.method == "remove"
        and not each.node.args
        and each.function is call.function
        and not any(call.order < loop.first and loop.last < each.order for loop in steps)
        for each in program.calls
    )


def _adds(program: Program, store: StoreFact) -> bool:
    if store.how != "item":
        return store.how in {"append", "augment"} or (store.how == "assign" and store.uses_old_value)
    key = store.node.targets[0].target if isinstance(store.node, cst.Assign) else None
    if not isinstance(key, cst.Subscript):
        return False
    counted = {each.target for each in program.stores if each.how == "augment"}
    return any(
        (isinstance(each, cst.Call) and dotted(each.func) in {"next", "len", "time.time"})
        or dotted(each) in counted
        for part in key.slice
        for each in walk(part)
    )


def is_hook(program: Program, function: Function) -> bool:
    """Return True if a function is a hook, or is returned by a function whose result is registered as a hook.

    A function that only a hook calls also counts.
    """
    callers = {site.caller for site in function.call_sites}
    if len(callers) == 1 and not callers & {function, program.top}:
        return _is_registered(program, function) or _is_registered(program, callers.pop())
    return _is_registered(program, function)


def _is_registered(program: Program, function: Function) -> bool:
    if not isinstance(function.node, cst.FunctionDef) or not program.mentions(*_REGISTERING):
        return False
    for call in program.calls:
        if call.method in _REGISTERING and call.node.args:
            given = call.node.args[0].value
            named = {name.rpartition(".")[2] for name in names_in(given)}
            if function.name in named:
                return True
            if (
                function.name == "__call__"
                and program.value(given).class_name == function.class_name is not None
            ):
                return True
            if isinstance(given, cst.Call) and function.outer is not None and function.outer.name in named:
                return True
    return False


def _lambdas(program: Program, call: CallFact, given: cst.BaseExpression) -> list[cst.Lambda]:
    if isinstance(given, cst.Lambda):
        return [given]
    path = dotted(given.func) if isinstance(given, cst.Call) else None
    made = program.function_named(path, call.function) if path is not None else None
    returned = made.returned_nodes if made is not None else []
    return [each for each in returned if isinstance(each, cst.Lambda)]


def _lambda(program: Program, call: CallFact, given: cst.Lambda) -> Iterator[Problem]:
    for each in walk(given.body):
        if not isinstance(each, cst.Call) or method_name(each) not in {"append", "extend"} or not each.args:
            continue
        target = path_of(receiver(each))
        if target is None or all(
            _is_cleared(program, *each) for each in _containers(target, call.function, call.function)
        ):
            continue
        if call.function.environment.get(target, UNKNOWN).bounded or _is_removed(program, call):
            continue
        if _is_number(each.args[0].value):
            continue
        yield Problem(
            node=each,
            message=f"The hook adds to `{target}` in every pass, but the container is never cleared",
            help="Keep only the last value, or clear the container after each step. Detach stored tensors",
        )


def _adding_method(program: Program, call: CallFact, given: cst.Attribute) -> Iterator[Problem]:
    """Find hooks that are bound methods of a container, as in `output.register_hook(gradients.append)`."""
    target = path_of(given.value)
    if target is None or any(release.target == target for release in program.releases):
        return
    if call.function.environment.get(target, UNKNOWN).bounded or not survives(program, target, call.loops[0]):
        return
    yield Problem(
        node=call.node,
        message=f"The hook adds to `{target}` in every pass, but the container is never cleared",
        help="Keep only the last value, or clear the container after each step",
    )


def _stores_tensors(program: Program, store: StoreFact) -> bool:
    """Return True if a hook stores its arguments, or tensors computed from them, and not only shapes or numbers."""
    tensors = set(store.function.parameters) - {"self", "cls"}
    if store.how in {"assign", "augment"}:
        tensors.discard("module")  # a sum of the module's own numbers
    for each in program.stores:
        if each.function is store.function and each.how == "assign" and each.order < store.order:
            (tensors.add if _reads_tensor(each.expression, tensors) else tensors.discard)(each.target)
    return _reads_tensor(store.expression, tensors)


def _reads_tensor(node: cst.BaseExpression, tensors: set[str]) -> bool:
    if _is_number(node):
        return False
    while isinstance(node, cst.Call) and method_name(node) in {"detach", "cpu", "clone", "to", "half"}:
        node = receiver(node) or node.func
    if isinstance(node, (cst.Tuple, cst.List, cst.Dict)):
        return any(_reads_tensor(each.value, tensors) for each in node.elements)
    return not tensors.isdisjoint(names_with_graph(node)) and not any(
        isinstance(each, cst.Attribute) and each.attr.value in {"__class__", "__name__", "training"}
        for each in walk(node)
    )


def _is_number(expression: cst.BaseExpression) -> bool:
    if isinstance(expression, (cst.Tuple, cst.List, cst.Dict)):
        values = [each.value for each in expression.elements]
        return all(isinstance(each, (cst.BaseString, cst.BaseNumber)) or _is_number(each) for each in values)
    return isinstance(expression, cst.Call) and (
        method_name(expression) in {"item", "tolist", "numpy"} or method_name(expression) is None
    )


def _is_plain(store: StoreFact) -> bool:
    return isinstance(store.expression, (cst.Name, cst.Subscript))
