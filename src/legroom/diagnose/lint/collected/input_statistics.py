"""Recognizes modules that normalize the inputs of a model, which have no graph."""

from collections.abc import Sequence

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import is_forward
from legroom.diagnose.lint.flow.syntax import dotted, names_with_graph
from legroom.diagnose.lint.flow.values import UNKNOWN, ValueKind


def is_input_statistic(program: Program, store: StoreFact) -> bool:
    """Return True if a module normalizes its inputs with statistics that it updates.

    Such inputs have no graph. Otherwise, the second backward pass would fail, because the result of `forward` depends
    on the graph of all earlier inputs.
    """
    function = store.function
    forward = program.method(function.class_name, "forward")
    if forward is None or not is_forward(program, forward) or not _receives_inputs(forward):
        return False
    updates = [program.order[site.call] for site in function.call_sites if site.caller is forward]
    update = store.order if function is forward else min(updates, default=None)
    if update is None:
        return False
    later = [
        each
        for each in program.stores
        if each.function is forward and each.order > update and not _excludes(program, each.node, store.node)
    ]
    returned = [each for each in forward.returned_nodes if not _excludes(program, each, store.node)]
    read = _sources(later, [each for each in returned if program.order[each] > update])
    computed = [each for each in program.stores if each.function in (function, forward)]
    attributes = {
        function.environment.get(name, UNKNOWN)
        for name in _sources(computed, [store.expression]) - {store.target}
        if name.startswith("self.")
    }
    return store.target in read and not any(
        each.has_graph or each.kind in (ValueKind.MODEL, ValueKind.PARAMETER) for each in attributes
    )


def _receives_inputs(forward: Function) -> bool:
    """Return True if no known call passes a computed tensor. The parameters of another `forward` may be inputs."""
    return all(
        dotted(each.value) in site.caller.parameters for site in forward.call_sites for each in site.call.args
    )


def _sources(stores: list[StoreFact], nodes: Sequence[cst.CSTNode]) -> set[str]:
    names = {name for each in nodes for name in names_with_graph(each)}
    for each in reversed(stores):
        if each.target in names and each.how == "assign":
            names |= names_with_graph(each.expression)
    return names


def _excludes(program: Program, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return True if two nodes are in different branches of an `if` statement."""
    return any(
        isinstance(each, cst.If)
        and program.inside(one, each)
        and program.inside(one, each.body) != program.inside(other, each.body)
        for each in program.ancestors(other)
    )
