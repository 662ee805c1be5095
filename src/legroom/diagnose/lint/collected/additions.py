"""Finds statements that add to a container indirectly: calls to functions that store their arguments, and new
containers that include the old one. The rules about collections treat each of these statements as an `append` to the
container.
"""

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.added_parts import added_parts
from legroom.diagnose.lint.flow.retention.lifetimes import outlives_call
from legroom.diagnose.lint.flow.syntax import is_call_of, method_name, path_of, receiver, root


def additions_by_calls(program: Program) -> Iterator[tuple[CallFact, StoreFact, StoreFact]]:
    """Find calls to functions in this file that store an argument. Yield each call with two facts: one describes the
    call as if the caller itself stored the value, and the other describes the statement in the function that stores it.
    """
    for call in program.calls:
        local = call.local
        if local is None or not local.stored_parameters or local.name == "__init__":
            continue
        for name, store in local.stored_parameters.items():
            given = [argument.value for parameter, argument in local.receives(call.node) if parameter == name]
            if not given or store.value.host or not outlives_call(program, call, store):
                continue
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
    """Return the path by which the caller refers to a container: `log.items` for `self.items`, if the call is
    `log.add(x)`."""
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
    """Yield a store for each new element of `history = history + [x]`, `history = [*history, x]`, `history = {**history,
    key: x}` and `head = (x, head)`."""
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
    """Return True if this file contains all code that may empty a container. A class in another file may clear the
    attributes of its subclasses, and a caller may clear its own list."""
    first = root(store.target)
    function = store.function
    if first in {"self", "cls"}:
        known = program.classes.get(function.class_name or "")
        return known is not None and all(
            base in program.classes or base == "object" or base.startswith("torch.") for base in known.bases
        )
    return first not in function.parameters
