"""Finds expressions that collect the results of all steps together with their graphs (LG101)."""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.detaching import COPY, DETACH, may_be_view
from legroom.diagnose.lint.edits import append_to
from legroom.diagnose.lint.flow.backward_uses import is_used_in_backward
from legroom.diagnose.lint.flow.facts import Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, method_name, names_in
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.proofs import can_be_detached
from legroom.diagnose.lint.rule import Problem


def collected_at_once(program: Program, store: StoreFact) -> Iterator[Problem]:
    """Find `losses = [step(batch) for batch in loader]` and `losses = list(steps(loader))`, where each step trains
    and returns its loss.
    """
    expression = store.expression
    yield from _summed_at_once(program, store)
    if isinstance(expression, cst.ListComp):
        result, can_edit = expression.elt, True
    elif (
        isinstance(expression, cst.Call) and dotted(expression.func) in {"list", "tuple"} and expression.args
    ):
        result, can_edit = expression.args[0].value, False
    else:
        return
    if isinstance(expression, cst.ListComp) and dotted(result) in names_in(expression.for_in.target):
        result, can_edit = expression.for_in.iter, False  # [loss for loss in steps(loader)]
    yield from _mapped(program, store, result)
    yield from _submitted(program, store, result)
    for call in program.calls:
        if call.node is not result or call.local is None or not program.value(result).has_graph:
            continue
        if _trains(program, call.local):
            added = COPY if may_be_view(program, result, store.function) else DETACH
            yield Problem(
                node=result,
                message=f"`{store.target}` stores the result of every step with its autograd graph",
                help=f"Add `{added}`" + ("" if can_edit else " in the generator function"),
                edits=tuple(append_to(program, result, added))
                if can_edit and program.value(result).kind is ValueKind.GRAPH
                else (),
                safe=added == DETACH and can_be_detached(program, [result], store),
            )


def _mapped(program: Program, store: StoreFact, made: cst.BaseExpression) -> Iterator[Problem]:
    if isinstance(made, cst.Call) and dotted(made.func) == "map" and made.args:
        step = program.function_named(dotted(made.args[0].value) or "", store.function)
        if step is not None and step.returns.has_graph and _trains(program, step):
            yield Problem(
                node=made,
                message=f"`{store.target}` stores the result of every step with its autograd graph",
                help=f"Return `.item()` or `{COPY}` from `{step.name}`",
            )


def _submitted(program: Program, store: StoreFact, made: cst.BaseExpression) -> Iterator[Problem]:
    """Find lists of futures such as `jobs = [pool.submit(model, x) for x in batches]`, because each future keeps its
    result alive.
    """
    value = program.value(made)
    is_future = isinstance(made, cst.Call) and method_name(made) == "submit" and bool(value.items)
    if is_future and value.items and value.items[0].has_graph and not program.mentions("backward"):
        yield Problem(
            node=made,
            message=f"`{store.target}` stores a future for every step, which keeps the result and its autograd graph alive",
            help="Submit a function that runs the model in `torch.no_grad()` and returns the result on the CPU",
        )


def _summed_at_once(program: Program, store: StoreFact) -> Iterator[Problem]:
    """Find `total = sum(loss_fn(model(x), y) for x, y in loader)` with gradients enabled and without a backward pass."""
    call = store.expression
    if not isinstance(call, cst.Call) or dotted(call.func) != "sum" or not call.args or store.no_grad:
        return
    made = call.args[0].value
    if not isinstance(made, (cst.GeneratorExp, cst.ListComp)):
        return
    iterable = program.value(made.for_in.iter).kind is ValueKind.LOADER
    if (
        iterable
        and program.value(made.elt).kind is ValueKind.GRAPH
        and not is_used_in_backward(program, store.target)
    ):
        yield Problem(
            node=made.elt,
            message=f"`{store.target}` accumulates a result with its autograd graph, which keeps the graph of every step alive",
            help=f"Add `{DETACH}`, or disable gradients",
            edits=tuple(append_to(program, made.elt, DETACH)),
            safe=can_be_detached(program, [made.elt], store),
        )


def _trains(program: Program, function: Function) -> bool:
    return (
        function.backward
        or function.optimizer_step
        or any(loop.trains for loop in program.loops if loop.function is function)
    )
