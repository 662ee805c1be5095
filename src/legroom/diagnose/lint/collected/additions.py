"""Finds statements that add to a container indirectly.

Examples are calls to functions that store their arguments, and new lists that include the old list.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from legroom.diagnose.lint.collected.input_statistics import is_input_statistic
from legroom.diagnose.lint.collected.new_keys import averages_itself, key_of, key_repeats
from legroom.diagnose.lint.detaching import (
    COPY,
    DETACH,
    detaching_call,
    may_be_view,
    parts_with_graph,
)
from legroom.diagnose.lint.edits import Edit, append_to
from legroom.diagnose.lint.flow.backward_uses import is_used_in_backward
from legroom.diagnose.lint.flow.evidence.object_classes import merged_parameters
from legroom.diagnose.lint.flow.facts import CallFact, Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.added_parts import added_parts, is_concatenated_to_itself
from legroom.diagnose.lint.flow.retention.lifetimes import outlives_call, shared_default
from legroom.diagnose.lint.flow.retention.limits import is_replayed
from legroom.diagnose.lint.flow.retention.releases import is_length_limited, survives
from legroom.diagnose.lint.flow.steps import is_forward, is_in_step_code, is_step_loop
from legroom.diagnose.lint.flow.syntax import (
    append_method,
    contained_parts,
    dotted,
    is_call_of,
    last_name,
    method_name,
    names_in,
    path_of,
    receiver,
    root,
)
from legroom.diagnose.lint.flow.values import UNKNOWN, ValueKind
from legroom.diagnose.lint.proofs import frees_graph, may_be_printed
from legroom.diagnose.lint.rule import Problem


@dataclass(frozen=True, slots=True)
class _Passed:
    """A call that passes a value with its graph to a function that stores it, such as `meter.update(loss)`."""

    call: CallFact
    store: StoreFact
    parts: list[cst.BaseExpression]
    argument: cst.BaseExpression


def passed_to_storing_functions(program: Program) -> Iterator[Problem]:
    """Find calls such as `meter.update(loss)`, where `update` is defined in this file and stores its argument.

    The finding is at the statement that stores the value, or at the call if other calls pass values without a graph.
    """
    found: dict[cst.CSTNode, list[_Passed]] = {}
    for call in program.calls:
        passed = _passed_with_graph(program, call)
        if passed is not None:
            found.setdefault(passed.store.node, []).append(passed)
    for each in found.values():
        store = each[0].store
        if (
            is_for_any_value(store)
            or _receives_other_values(store)
            or any(_names_its_value(program, passed) for passed in each)
        ):
            yield from (_reported_at_call(program, passed) for passed in each)
        else:
            yield _reported_at_store(program, each)


def _passed_with_graph(program: Program, call: CallFact) -> _Passed | None:
    if call.local is None or not call.local.stored_parameters or not is_in_step_code(program, call):
        return None
    sites = [each for each in call.local.call_sites if each.call is call.node]
    if not sites:
        return None
    site = sites[-1]  # the values after the first iteration of a loop
    for name, store in call.local.stored_parameters.items():
        value = site.values.get(name)
        if value is None or not value.has_graph or not is_passed_directly(call.local, name):
            continue
        every_step = any(is_closure(program, each.value) for each in call.node.args)
        if is_reported_at_store(store) or not outlives_call(program, call, store, every_step=every_step):
            continue
        if store.value.kind in (ValueKind.PLAIN, ValueKind.TENSOR) or replaces(program, call, store):
            continue
        if name in merged_parameters(call.local.node) and not store.value.has_graph:
            continue  # the numbers of another `Statistics` object
        if _is_passed_on(program, call.function, store):
            continue  # reported at the outer call
        if store.function is not call.local and is_forward(program, call.local):
            continue  # reported in the model
        if is_concatenated_to_itself(program, store) or is_input_statistic(program, store):
            continue
        argument = next((each.value for each in call.node.args if program.value(each.value).has_graph), None)
        if argument is not None:
            return _Passed(call, store, parts_with_graph(program, argument), argument)
    return None


def is_for_any_value(store: StoreFact) -> bool:
    """Return True if a function can store any value. Examples are functions that store `*args`, the fields of a record
    or the values of a meter. In this case, the mistake is in the call, and not in the function.
    """
    function = store.function
    names = [name for name, each in function.stored_parameters.items() if each.node is store.node]
    stored = function.stored_parameters.keys() & set(function.parameters)
    if store.is_in_argument or len(stored) >= _FIELDS_OF_RECORD:
        return True
    if isinstance(function.node, cst.FunctionDef):
        stars = (function.node.params.star_arg, function.node.params.star_kwarg)
        if any(isinstance(each, cst.Param) and each.name.value in names for each in stars):
            return True
    return store.how in {"augment", "assign"} and any(_METER_VALUE.search(name) for name in names)


def _names_its_value(program: Program, passed: _Passed) -> bool:
    """Return True if a call passes a string, a container or a closure, as in `log("loss", loss)`,
    `push((state, log_prob))` and `defer(lambda: log(loss))`.
    """
    return any(
        isinstance(each, cst.BaseString) or bool(contained_parts(each)) or is_closure(program, each)
        for each in (argument.value for argument in passed.call.node.args)
    )


def _receives_other_values(store: StoreFact) -> bool:
    return any(
        not site.values[name].has_graph
        for name, each in store.function.stored_parameters.items()
        if each.node is store.node
        for site in store.function.call_sites
        if name in site.values
    )


_FIELDS_OF_RECORD = 3
_METER_VALUE = re.compile(r"^(?:v|x|n|val|value|number|metric|amount)$")


def _reported_at_call(program: Program, passed: _Passed) -> Problem:
    what, store = describe(program, passed.parts), passed.store
    edits, safe = _detached_arguments(program, passed)
    name = passed.call.local.name if passed.call.local is not None else store.function.name
    return Problem(
        node=passed.parts[0] if passed.parts else passed.argument,
        message=f"`{name}` stores {what} with its autograd graph in `{store.target}` in every step",
        help=detaching_or_clearing(what, store.target)
        if is_used_in_backward(program, store.target)
        else f"Pass {what} without its graph: {detaching_advice(program, passed.parts, store, passed.call.function)}",
        edits=edits,
        safe=safe,
    )


def _reported_at_store(program: Program, passed: list[_Passed]) -> Problem:
    store, first = passed[0].store, passed[0]
    parts = parts_with_graph(program, store.expression, but=store.target if store.uses_old_value else "")
    what, given = describe(program, parts or [store.expression]), describe(program, first.parts)
    caller = first.call.function.qualified_name
    where = f"`{caller}` passes" if caller else "the program passes"
    changes = [_detached_arguments(program, each) for each in passed]
    calls = {
        detaching_call(program, part, store, each.call.function) for each in passed for part in each.parts
    }
    added = COPY if COPY in calls else DETACH
    return Problem(
        node=parts[0] if parts else store.expression,
        message=f"`{store.target}` stores {what} with its autograd graph in every step ({where} {given})",
        help=detaching_or_clearing(what, store.target)
        if is_used_in_backward(program, store.target)
        else f"Store {what} without its graph: add `{added}`, or pass {given} without its graph",
        edits=tuple(edit for edits, _ in changes for edit in edits)
        if all(edits for edits, _ in changes)
        else (),
        safe=all(safe for _, safe in changes),
    )


def _detached_arguments(program: Program, passed: _Passed) -> tuple[tuple[Edit, ...], bool]:
    """Return the edits that detach the arguments of the call, and True if they are safe."""
    call, store = passed.call, passed.store
    if call.result.has_graph or is_used_in_backward(program, store.target):
        return (), False
    edits = tuple(
        edit
        for part in passed.parts
        if program.value(part).kind is ValueKind.GRAPH
        for edit in append_to(program, part, detaching_call(program, part, store, call.function))
    )
    return edits, _can_be_passed_detached(program, passed.parts, call, store)


def passed_to_append(program: Program, call: CallFact) -> Iterator[Problem]:
    """Find calls such as `on_step(loss)` in a function that is called as `train(on_step=losses.append)`."""
    function, name = call.function, dotted(call.node.func)
    if name not in function.parameters or not any(each.has_graph for each in call.arguments[:1]):
        return
    for site in function.call_sites:
        given = next(
            (each.value for parameter, each in function.receives(site.call) if parameter == name), None
        )
        adder = append_method(given) if given is not None else None
        if adder is None or program.value(adder).function is not None:
            continue  # not a container, but an object of this file
        target = path_of(adder.value)
        loops = [loop for loop in (*site.loops, *call.loops) if is_step_loop(loop)]
        if (
            target is None
            or not loops
            or any(each.target == target and each.value.bounded for each in program.stores)
        ):
            continue
        if not all(survives(program, target, loop) for loop in loops):
            continue
        what = describe(program, [call.node.args[0].value])
        is_view = may_be_view(program, call.node.args[0].value, function)
        yield Problem(
            node=call.node.args[0].value,
            message=f"`{name}` stores {what} with its autograd graph in `{target}` in every step",
            help=f"Pass {what} without its graph: {_added_call(COPY if is_view else DETACH)}",
        )
        return


def _can_be_passed_detached(
    program: Program, parts: list[cst.BaseExpression], call: CallFact, store: StoreFact
) -> bool:
    return not may_be_printed(program, store.target) and all(
        frees_graph(program, dotted(part) or "", call.function, call)
        and detaching_call(program, part, store, call.function) == DETACH
        for part in parts
    )


def _is_passed_on(program: Program, function: Function, store: StoreFact) -> bool:
    return not is_forward(program, function) and any(
        each.node is store.node
        and any(site.values.get(name, UNKNOWN).has_graph for site in function.call_sites)
        for name, each in function.stored_parameters.items()
    )


def replaces(program: Program, call: CallFact, store: StoreFact) -> bool:
    """Return True if a call replaces the old value because its key is constant, as in `recorder.record("loss", loss)`."""
    if store.how != "item" or averages_itself(program, store) or call.local is None:
        return False
    if is_replayed(program, store.target):
        return False
    key = key_of(store)
    if any(key_repeats(program, each) for each in key):
        return True
    names = {name for each in key for name in names_in(each)} - {"str", "int", "repr"}
    given = [argument.value for name, argument in call.local.receives(call.node) if name in names]
    return names <= set(call.local.parameters) and all(
        isinstance(each, (cst.SimpleString, cst.Integer)) or key_repeats(program, each) for each in given
    )


def is_reported_at_store(store: StoreFact) -> bool:
    """Return True if the finding is at the statement that stores the value, and not at the call.

    If the function is a callback, its caller cannot control what the callback stores. If only the object calls its own
    method (`self.update_center(x)`), the mistake is in the method.
    """
    function = store.function
    is_called = function.name == "__call__"  # self.average(loss)
    callers = {dotted(site.call.func if is_called else receiver(site.call)) for site in function.call_sites}
    is_own = store.how == "assign" and callers <= {"self"}
    return store.value.has_graph and (function.name == "forward" or function.is_dispatched or is_own)


def is_closure(program: Program, expression: cst.BaseExpression) -> bool:
    """Return True for a function that runs later and keeps a graph alive until then, such as `lambda: log(loss)`."""
    value = program.value(expression)
    return (isinstance(expression, cst.Lambda) or value.function is not None) and value.has_graph


def describe(program: Program, parts: list[cst.BaseExpression]) -> str:
    if len(parts) == 1 and (path := dotted(parts[0])) is not None:
        return f"`{path}`"
    if len(parts) == 1 and is_closure(program, parts[0]):
        return "a closure"
    if len(parts) == 1:
        text = " ".join(program.source(parts[0]).split())
        if len(text) <= 40:
            return f"`{text}`"
    return "a result"


def is_passed_directly(function: Function, name: str) -> bool:
    """Return True if a caller passes a value with an autograd graph.

    A comprehension does not count, because its elements are easier to detach in the statement that stores them.
    """
    new = (cst.DictComp, cst.ListComp, cst.GeneratorExp)
    return any(
        not isinstance(argument.value, new) and site.values.get(name, UNKNOWN).has_graph
        for site in function.call_sites
        for given, argument in function.receives(site.call)
        if given == name
    )


def detaching_advice(
    program: Program, parts: list[cst.BaseExpression], store: StoreFact, function: Function | None = None
) -> str:
    calls = {detaching_call(program, part, store, function) for part in parts}
    return _added_call(COPY if COPY in calls else DETACH)


def detaching_or_clearing(what: str, target: str) -> str:
    """Return the advice for values that a backward pass may use after they are stored."""
    return f"If no later backward pass needs the graph of {what}, add `{DETACH}`. Otherwise, clear `{target}` after each step"


def _added_call(call: str) -> str:
    reason = " (a detached view keeps the whole tensor alive)" if call == COPY else ""
    return f"add `{call}`{reason}, or `.item()` for a number"


def additions_by_calls(program: Program) -> Iterator[tuple[CallFact, StoreFact, StoreFact]]:
    """Find calls to functions in this file that store an argument.

    Yield each call with two facts. The first fact describes the call as if the caller stored the value. The second
    fact describes the statement in the function.
    """
    for call in program.calls:
        local = call.local
        if local is None or not local.stored_parameters or local.name == "__init__":
            continue
        for name, store in local.stored_parameters.items():
            given = [argument.value for parameter, argument in local.receives(call.node) if parameter == name]
            if not given or store.value.host or not outlives_call(program, call, store):
                continue
            if is_length_limited(program, store) and last_name(store.target) in program.pool_names:
                continue  # the limit of a pool is too high only for values with a graph
            for expression in given:
                yield (
                    call,
                    replace(
                        store,
                        node=call.node,
                        at=call.at,
                        target=_seen_by_caller(call, store),
                        expression=expression,
                        value=program.value(expression),
                        uses_old_value=False,
                    ),
                    store,
                )


def _seen_by_caller(call: CallFact, store: StoreFact) -> str:
    """Return the name that the caller uses for a container: `log.items` for `self.items`, if the call is
    `log.add(x)`.
    """
    first, dot, rest = store.target.partition(".")
    local = call.local
    if first in {"self", "cls"}:
        owner = receiver(call.node) if method_name(call.node) else call.node.func
        is_function = local is not None and local.class_name is None
        path = path_of(owner)
        return store.target if path is None or is_function else f"{path}{dot}{rest}"
    if local is not None and first in local.parameters:
        given = [path_of(each.value) for name, each in local.receives(call.node) if name == first]
        return f"{given[0]}{dot}{rest}" if given and given[0] is not None else store.target
    return store.target


def additions_by_assignment(program: Program, store: StoreFact) -> Iterator[StoreFact]:
    """Yield a store for each new element of `history = history + [x]`, `history = [*history, x]` and `head = (x, head)`."""
    if store.how != "assign" or not store.uses_old_value:
        return
    made = store.expression
    if isinstance(made, cst.IfExp):  # outputs = x if outputs is None else torch.cat([outputs, x])
        made = made.orelse if isinstance(made.orelse, cst.Call) else made.body
    if (
        isinstance(made, cst.Call) and is_call_of(made, "cat") and made.args
    ):  # outputs = torch.cat([outputs, x])
        if any(loop.trains for loop in store.loops):
            return  # LG116
        made = made.args[0].value
    for part in added_parts(made, store.target, program.value_classes):
        yield replace(store, how="append", expression=part, value=program.value(part))


def is_visible(program: Program, store: StoreFact) -> bool:
    """Return True if this file contains all code that may empty a container.

    A base class in another file may clear the attributes of `self`, and a caller may clear the list that it passes. All
    calls that omit the argument share the default list.
    """
    first = root(store.target)
    function = store.function
    if first in {"self", "cls"}:
        known = program.classes.get(function.class_name or "")
        return known is not None and all(
            base in program.classes or base == "object" or base.startswith("torch.") for base in known.bases
        )
    return first not in function.parameters or shared_default(program, function, first) is not None
