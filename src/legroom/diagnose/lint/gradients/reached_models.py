"""Finds the functions that run a model with gradients enabled, directly or indirectly, and the loops that call them,
for LG201.
"""

import re
from functools import lru_cache

from legroom.diagnose.lint.flow.facts import CallFact, CallSite, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import EVALUATION_HOOKS
from legroom.diagnose.lint.flow.syntax import dotted, receiver
from legroom.diagnose.lint.flow.values import ValueKind

_ENVIRONMENT = re.compile(r"^(?:\w*_)?envs?$|environment", re.IGNORECASE)


def runs_model_itself(call: CallFact) -> bool:
    """Return True if a call runs a model on data with gradients enabled.

    A call of another method of the model does not count.
    """
    return (
        call.receiver.kind is ValueKind.MODEL
        and not call.receiver.frozen
        and not call.no_grad
        and call.result.has_graph
        and (call.local is None or call.local.name in {"forward", "__call__"})
        and not call.function.grad_mode_varies
        and any(each.kind is not ValueKind.PARAMETER for each in call.arguments)
        and all(each.kind is not ValueKind.MODEL for each in call.arguments[:1])  # is_wrapped_model(model)
    )


@lru_cache(maxsize=1)
def running_functions(program: Program) -> frozenset[Function]:
    """Return the functions that run a model with gradients enabled and do not train.

    The `forward` of a module does not count, because it is the model itself.
    """
    running = [call for call in program.calls if runs_model_itself(call)]
    enabled = [
        call
        for call in program.calls
        if not call.no_grad and not call.function.grad_mode_varies and call.local
    ]
    training = [
        call
        for call in program.calls
        if call.method in {"backward", "manual_backward"} or (call.name or "").endswith("autograd.grad")
    ]
    found = _with_callers(running, enabled) - _with_callers(training, program.calls)
    return frozenset(each for each in found if each.name not in {"forward", "__init__"})


def _with_callers(calls: list[CallFact], others: list[CallFact]) -> set[Function]:
    """Return the functions that contain the calls, and the direct and indirect callers of these functions."""
    found = added = {each.function for each in calls}
    while added:
        added = {each.function for each in others if each.local in added} - found
        found = found | added
    return found


def reached_functions(program: Program, call: CallFact) -> set[Function]:
    found, pending = set[Function](), [call.local] if call.local is not None else []
    while pending:
        function = pending.pop()
        if function in found:
            continue
        found.add(function)
        pending += [
            each.local for each in program.calls if each.function is function and each.local is not None
        ]
    return found


def call_in_loop(program: Program, function: Function) -> CallFact | None:
    """Return the call that is inside a loop and runs a function, directly or indirectly.

    The result is None if a training step runs the function, because the training may use the result. The result is
    also None for a loop over the steps of an environment, because a single action needs little memory.
    """
    found: list[CallSite] = []
    pending, seen = [function], set[Function]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for site in current.call_sites:
            if site.no_grad or site.caller.grad_mode_varies or site.caller.name in EVALUATION_HOOKS:
                continue
            if site.caller.backward or acts(program, site.caller) or is_test(site.caller):
                return None
            if site.loops:
                if site.loops[-1].trains:
                    return None
                found.append(site)
            else:
                pending.append(site.caller)
    return next((each for each in program.calls if found and each.node is found[0].call), None)


def is_test(function: Function) -> bool:
    """Return True for a pytest test function, which returns nothing."""
    return function.name.startswith("test_") and not function.returned_nodes


def acts(program: Program, function: Function) -> bool:
    """Return True if a function steps through an environment. A single action needs little memory."""
    return any(
        call.function is function
        and call.method in {"step", "reset"}
        and any(_ENVIRONMENT.search(part) for part in (dotted(receiver(call.node)) or "").split("."))
        for call in program.calls
    )
