"""Determines whether a stored value outlives its step, which makes memory grow with each step."""

import libcst as cst

from legroom.diagnose.lint.flow.backward_uses import feeds_backward
from legroom.diagnose.lint.flow.facts import CallFact, CallSite, Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.limits import is_unlimited
from legroom.diagnose.lint.flow.retention.releases import (
    encloses,
    is_length_limited,
    is_monitored,
    is_released_elsewhere,
    survives,
)
from legroom.diagnose.lint.flow.steps import (
    is_step_loop,
    iterates_data,
    iterates_data_set,
    runs_every_step,
)
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    method_name,
    names_in,
    names_with_graph,
    path_of,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import NUMBER_ATTRIBUTES, ValueKind


def outlives_its_step(
    program: Program, store: StoreFact, *, every_step: bool = False
) -> LoopFact | Function | None:
    """Return the loop in which stored values accumulate, or the function that stores a value in every step.

    The result is None if the values are released. With `every_step`, a release by another function counts only if it
    runs in every step.
    """
    unlimited = is_unlimited(program, store)
    if (store.bounded or is_length_limited(program, store)) and not unlimited:
        return None
    monitored = is_monitored(program, store)
    for loop in reversed(store.loops):
        if (
            is_step_loop(loop)
            and survives(program, store.target, loop, unlimited=unlimited, monitored=monitored)
            and not feeds_backward(program, store.target, store.function, loop)
            and not _is_within_a_step(program, store, loop)
            and not _is_returned_with_graph(program, store.target, store.function, loop)
        ):
            return loop
    if (
        is_local(store)
        or not runs_every_step(program, store.function)
        or is_released_elsewhere(program, store, every_step=every_step)
        or ends_with_enclosing_call(program, store)
    ):
        return None
    return store.function if survives_in_callers(program, store) else None


def outlives_call(program: Program, call: CallFact, store: StoreFact, *, every_step: bool = False) -> bool:
    """Return True if a value that a call passes to a storing function is still stored in the next step.

    `store` is the statement that stores the value. With `every_step`, a release by another function counts only if it
    runs in every step.
    """
    if (
        is_released_elsewhere(program, store, every_step=every_step)
        or (is_length_limited(program, store) and not is_unlimited(program, store))
        or ends_with_enclosing_call(program, store)
        or call.local is None
    ):
        return False
    site = next((each for each in call.local.call_sites if each.call is call.node), None)
    if site is None or (root(store.target) == "self" and not object_survives(program, site)):
        return False
    return (
        not store.is_in_argument
        or store.function is not call.local
        or container_survives(program, site, store)
    )


def ends_with_enclosing_call(program: Program, store: StoreFact) -> bool:
    """Return True if the container is a local variable of the enclosing function, which creates a new one in each
    call.

    The container lives longer if the inner function is returned, passed to other code or called in a loop over steps.
    """
    inner, owner = store.function, store.function.outer
    while owner is not None and not owner.owns(store.target):
        owner = owner.outer
    if owner is None or isinstance(owner.node, cst.Module):
        return False
    if any(each.function is inner for each in program.handlers.registered):
        return False
    made_in = {loop for site in owner.call_sites for loop in site.loops}
    if inner.call_sites and all(site.loops and site.loops[-1] in made_in for site in inner.call_sites):
        return True  # each step creates a new container
    called = {id(site.call.func) for site in inner.call_sites}
    uses = [
        each
        for each in walk(owner.body)
        if isinstance(each, cst.Name)
        and each.value == inner.name
        and id(each) not in called
        and not isinstance(program.parent.get(each), cst.FunctionDef)
    ]
    if uses:
        return all(_is_called_only(program, each) for each in uses) and not any(
            is_step_loop(loop) for loop in _loops_within(program, owner, inner)
        )
    return not any(
        is_step_loop(loop) and encloses(owner, loop.function)
        for site in inner.call_sites
        for loop in site.loops
        if site.caller is not inner
    )


def _is_called_only(program: Program, node: cst.Name) -> bool:
    """Return True if a function is only passed to a function in this file that calls it and does not store it."""
    argument = program.parent.get(node)
    outer = program.parent.get(argument) if isinstance(argument, cst.Arg) else None
    call = program.call_of(outer)
    if call is None or call.local is None:
        return False
    names = {name for name, each in call.local.receives(call.node) if each is argument}
    return names.isdisjoint(call.local.stored_parameters) and not any(
        each.function is call.local and "." in each.target and not names.isdisjoint(names_in(each.expression))
        for each in program.stores
    )


def _loops_within(program: Program, owner: Function, inner: Function) -> set[LoopFact]:
    """Return the loops in which `inner` is called during one call to `owner`."""
    running, added = {owner}, {owner}
    while added:
        added = {
            call.local for call in program.calls if call.function in added and call.local is not None
        } - running
        running |= added
    found: set[LoopFact] = set()
    pending, seen = [inner], {owner}
    while pending:
        function = pending.pop()
        if function in seen:
            continue
        seen.add(function)
        for site in function.call_sites:
            if site.caller in running:
                found.update(site.loops)
                pending.append(site.caller)
    return found


def survives_in_callers(program: Program, store: StoreFact) -> bool:
    """Return True if a container that callers pass survives the step.

    A list that is created for one episode does not survive the step.
    """
    function, first = store.function, store.target.partition(".")[0]
    if first not in function.parameters or first == "cls":
        return True
    if first == "self":
        return not function.call_sites or any(object_survives(program, site) for site in function.call_sites)
    return _argument_survives(program, function, first, frozenset())


def _argument_survives(
    program: Program, function: Function, parameter: str, seen: frozenset[Function]
) -> bool:
    """Return True if the argument is the same object in each step.

    The result is False for a method of a module without calls in this file, because its callers usually pass new lists.
    """
    if not function.call_sites:
        return not program.is_module_class(function.class_name)
    if shared_default(program, function, parameter) is not None:
        return True
    return any(
        _survives_call(program, site, path_of(argument.value), seen | {function})
        for site in function.call_sites
        for name, argument in function.receives(site.call)
        if name == parameter
    )


def container_survives(program: Program, site: CallSite, store: StoreFact) -> bool:
    """Return True if the container that a call passes to a storing function is still alive in the next step."""
    function, parameter = store.function, root(store.target)
    if function.uses_default(site.call, parameter):
        return shared_default(program, function, parameter) is not None
    given = [each.value for name, each in function.receives(site.call) if name == parameter]
    return not given or _survives_call(program, site, path_of(given[0]))


def shared_default(program: Program, function: Function, parameter: str) -> cst.BaseExpression | None:
    """Return the default list or dict of a parameter if callers use it. Such a default object keeps its entries
    between calls.
    """
    if (
        parameter not in function.mutable_defaults
        or not any(function.uses_default(site.call, parameter) for site in function.call_sites)
        or any(
            each.function is function and each.target == parameter and each.how == "assign"
            for each in program.stores
        )
    ):
        return None
    assert isinstance(function.node, cst.FunctionDef)
    return next(
        each.default
        for each in walk(function.node.params)
        if isinstance(each, cst.Param) and each.name.value == parameter
    )


def object_survives(program: Program, site: CallSite) -> bool:
    """Return True if the object of a method call is still alive in the next step. The rules assume that an unknown
    object survives.
    """
    path = path_of(receiver(site.call))
    if path is None or path in {"self", "cls"}:
        return True
    for loop in site.loops:
        if root(path) in loop.bound:  # for callback in callbacks: callback.log(loss)
            path = loop.iterable_path or "self"
    return _survives_call(program, site, path)


def _survives_call(
    program: Program, site: CallSite, path: str | None, seen: frozenset[Function] = frozenset()
) -> bool:
    if path is None or site.caller in seen:
        return False
    for loop in reversed(site.loops):
        if survives(program, path, loop):
            is_step = is_step_loop(loop) or loop.iterable.kind is ValueKind.LOADER or iterates_data_set(loop)
            if (
                is_step
                and not feeds_backward(program, path, site.caller, loop)
                and not (site.caller.owns(path) and _is_returned_with_graph(program, path, site.caller, loop))
            ):
                return True
        else:
            return False
    first = root(path)
    if first in site.caller.parameters and first not in {"self", "cls"}:
        return _argument_survives(program, site.caller, first, seen)
    return not site.caller.owns(path)


def _is_within_a_step(program: Program, store: StoreFact, loop: LoopFact) -> bool:
    """Return True if all iterations of a loop belong to one step.

    The outer loop runs one backward pass after these iterations, and releases the stored values. If each iteration
    differentiates a graph that is created before the loop, such as `features` for `head(features)`, the graph is alive
    until the end of the loop anyway.
    """
    step = loop.outer
    if is_local(store) and step is None and not isinstance(store.function.node, cst.Module):
        return _differentiates_outer_graph(program, loop, 0)
    if step is None or survives(program, store.target, step):
        return False
    if _differentiates_outer_graph(program, loop, step.first):
        return True
    return not iterates_data(loop) and any(
        call.method in {"backward", "manual_backward"}
        and call.order > loop.last
        and call.loops[-1:] == (step,)
        for call in program.calls
    )


def _differentiates_outer_graph(program: Program, loop: LoopFact, first: int) -> bool:
    """Return True if a backward pass in the loop uses a graph that was created after node `first`, before the loop."""
    read = {
        name
        for call in program.calls
        if call.method in {"backward", "manual_backward"} and call.loops[-1:] == (loop,)
        for name in names_with_graph(call.node)
    }
    for each in reversed(program.stores):
        if (
            each.function is not loop.function
            or not first <= each.order <= loop.last
            or each.target not in read
        ):
            continue
        if each.order < loop.first and each.value.has_graph and each.how == "assign":
            return True
        read |= names_with_graph(each.expression)
    return False


def _is_returned_with_graph(program: Program, target: str, function: Function, loop: LoopFact) -> bool:
    """Return True if a function returns its results with their graph, and its callers may differentiate them."""
    if iterates_data(loop):
        return False
    names = {target, root(target)} - {"self"}
    for each in program.stores:
        if each.function is function and names & names_in(each.expression):
            names |= {each.target, root(each.target)} - {"self"}  # outputs.features = features
    if not any(names & names_with_graph(each) for each in function.returned_nodes):
        return False
    call_sites = function.call_sites
    return not call_sites or not all(
        _is_only_inspected(program, site.caller, site.call) for site in call_sites
    )


def _is_only_inspected(program: Program, function: Function, node: cst.CSTNode, depth: int = 0) -> bool:
    """Return True if a result is only printed, compared or converted to a number, without a backward pass."""
    for parent in program.ancestors(node):
        if isinstance(parent, (cst.FormattedStringExpression, cst.Comparison)):
            return True
        if isinstance(parent, cst.Attribute):
            if parent.attr.value in NUMBER_ATTRIBUTES:
                return True
            continue
        if isinstance(parent, cst.Call):
            if method_name(parent) in {"item", "tolist", "format"} or dotted(parent.func) in _INSPECTING:
                return True
            if program.inside(node, parent.func):  # samples.mean(0).tolist()
                continue
            return False
        if isinstance(parent, cst.Assign) and depth == 0:
            names = {path for each in parent.targets if (path := dotted(each.target)) is not None}
            read = [
                each
                for each in walk(function.body, into_functions=False)
                if dotted(each) in names and not isinstance(program.parent.get(each), cst.AssignTarget)
            ]
            return bool(names) and all(
                _is_only_inspected(program, function, each, depth + 1) for each in read
            )
        if isinstance(parent, cst.SimpleStatementLine):
            return isinstance(parent.body[0], cst.Expr) and parent.body[0].value is node
    return False


_INSPECTING = {"print", "float", "int", "str", "round", "format", "repr"}


def is_local(store: StoreFact) -> bool:
    """Return True if the stored value is released when the function returns."""
    is_item = isinstance(store.node, cst.AugAssign) and isinstance(store.node.target, cst.Subscript)
    adds_to_dict = is_item and store.previous.mapping  # totals["loss"] += loss
    if store.how in {"assign", "augment"} and "." not in store.target and not adds_to_dict:
        return store.target not in store.function.nonlocal_names
    return store.function.owns(store.target)
