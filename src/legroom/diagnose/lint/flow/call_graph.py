"""What loops do by way of the functions that they call: whether a loop trains, goes backward, runs a model with gradients on."""

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, innermost_iterable, is_true, keyword, root
from legroom.diagnose.lint.flow.values import ValueKind

_PASSES = {"torch.autograd.backward", "torch.autograd.grad"}


def spread_over_calls(program: Program) -> None:
    """A loop trains if a function that it calls does."""
    trains = {call.function for call in program.calls if _is_backward(call) or _is_step(call)}
    backward = {call.function for call in program.calls if _is_backward(call)}
    for _ in range(3):
        trains |= {call.function for call in program.calls if call.local in trains}
        backward |= {call.function for call in program.calls if call.local in backward}
    computing = {call.function for call in program.calls if _runs_a_model(call)}
    for loop in program.loops:  # over a generator that trains
        source = innermost_iterable(loop.node.iter) if isinstance(loop.node, cst.For) else None
        for call in program.calls:
            if (
                call.local in backward
                and isinstance(loop.node, cst.For)
                and call.node in (source, loop.node.iter)
            ):
                loop.trains = loop.backward = True
    for call in program.calls:
        does_backward = _is_backward(call) or call.local in backward
        does_step = _is_step(call)
        for loop in call.loops:
            loop.backward |= does_backward
            loop.trains |= does_backward or does_step or call.local in trains
            runs = _runs_a_model(call) or (call.local in computing and call.result.carries_graph)
            loop.computes |= runs and root(dotted(call.node.func) or "") not in loop.bound
        if not call.loops:
            call.function.backward |= does_backward
            call.function.steps |= does_step


def _runs_a_model(call: CallFact) -> bool:
    return call.receiver.kind is ValueKind.MODEL and call.result.carries_graph


def _is_backward(call: CallFact) -> bool:
    if call.name == "torch.autograd.grad" and is_true(keyword(call.node, "create_graph")):
        return False  # a part of the step: what it gives goes backward itself
    return call.method in {"backward", "manual_backward"} or call.name in _PASSES


def _is_step(call: CallFact) -> bool:
    return call.method == "step" and call.receiver.kind in (ValueKind.OPTIMIZER, ValueKind.SCALER)
