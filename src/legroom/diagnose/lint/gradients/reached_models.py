"""Finds the functions that run a model with gradients enabled, directly or indirectly, and the loops that call them
(LG201).
"""

import re
from functools import lru_cache

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, CallSite, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import is_evaluation_hook
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_call_of,
    last_name,
    method_name,
    names_in,
    names_with_graph,
    receiver,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind, split_words

_ENVIRONMENT = re.compile(r"^(?:\w*_)?envs?$|environment", re.IGNORECASE)


def runs_model_itself(call: CallFact) -> bool:
    """Return True if a call runs a model on data with gradients enabled.

    A call to another method of the model does not count.
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
            if site.no_grad or site.caller.grad_mode_varies or is_evaluation_hook(site.caller):
                continue
            if site.caller.backward or acts(program, site.caller) or is_test(site.caller):
                return None
            if site.loops:
                if site.loops[-1].trains:
                    return None
                found.append(site)
            else:
                pending.append(site.caller)
    return program.call_of(found[0].call) if found else None


def is_test(function: Function) -> bool:
    """Return True for a pytest test function, which returns nothing, and for a helper such as `assert_module`.

    A helper of `unittest` calls methods such as `self.assertEqual`.
    """
    if function.name.startswith("assert_"):
        return True
    if function.returned_nodes or not isinstance(function.node, cst.FunctionDef):
        return False
    return (
        function.name.startswith("test_")
        or any(
            isinstance(node, cst.Attribute) and _ASSERTION.match(node.attr.value)
            for node in walk(function.body)
        )
        or _runs_random_input(function)
    )


def _runs_random_input(function: Function) -> bool:
    """Return True for `def test(): print(Net()(torch.randn(1, 3, 32, 32)).shape)`."""
    nodes = list(walk(function.body))
    return (
        function.name == "test"
        and not function.parameters
        and not any(isinstance(node, (cst.For, cst.While)) for node in nodes)
        and any(isinstance(node, cst.Call) and is_call_of(node, "randn") for node in nodes)
    )


_ASSERTION = re.compile(r"assert[A-Z]")


def acts(program: Program, function: Function) -> bool:
    """Return True if a function steps through an environment."""
    return any(
        call.function is function
        and call.method in {"step", "reset"}
        and any(_ENVIRONMENT.search(part) for part in (dotted(receiver(call.node)) or "").split("."))
        for call in program.calls
    )


def takes_action(program: Program, call: CallFact) -> bool:
    """Return True for `net(state).argmax().item()` in a training loop, or in a function that steps through an
    environment.

    The graph of a single sample is freed immediately, and needs less memory than the graph of a training step.
    """
    trains = any(loop.trains for loop in call.loops)
    return (trains or acts(program, call.function)) and _becomes_number(program, call.node, call.function)


def _becomes_number(program: Program, node: cst.CSTNode, function: Function, depth: int = 0) -> bool:
    """Return True if an expression converts one result to one Python number, without a sum or mean over samples."""
    for parent in program.ancestors(node):
        if isinstance(parent, cst.Call):
            name = last_name(dotted(parent.func) or method_name(parent) or "")
            if name in {"int", "float", "item"}:
                return True
            if name not in _PER_SAMPLE:
                return False
        elif isinstance(parent, cst.Assign) and len(parent.targets) == 1 and depth < _MAX_DEPTH:
            target = parent.targets[0].target
            read = [
                each
                for each in walk(function.body, into_functions=False)
                if isinstance(each, cst.Name)
                and each.value == dotted(target)
                and not isinstance(program.parent.get(each), cst.AssignTarget)
            ]
            return bool(read) and all(_becomes_number(program, each, function, depth + 1) for each in read)
        elif isinstance(parent, (cst.BaseSmallStatement, cst.BinaryOperation, cst.Comparison)):
            return False
    return False


_MAX_DEPTH = 2
_PER_SAMPLE = split_words(
    "argmax max squeeze cpu detach softmax sample multinomial Categorical view flatten unsqueeze"
)


def needs_gradients(program: Program, call: CallFact, loop: LoopFact | None) -> bool:
    """Return True if the program computes gradients without a training step, as in saliency maps, attacks and
    penalties.
    """
    first, last = (loop.first, loop.last) if loop is not None else (0, len(program.nodes))
    if loop is None and call.loops:
        return _is_used_in_backward(program, call)
    for other in program.calls:
        if other.function is not call.function or not first <= other.order <= last:
            continue
        if other.method in _NEEDS_GRADIENTS or (other.name or "").endswith("autograd.grad"):
            return True
        if other.method in {"backward", "manual_backward"}:
            return True
    results = {
        store.target
        for store in program.stores
        if store.function is call.function and first <= store.order <= last and store.value.has_graph
    }
    return any(
        other.function is call.function
        and other.method == "backward"
        and other.order > last
        and names_in(other.node) & results
        for other in program.calls
    )


def _is_used_in_backward(program: Program, call: CallFact) -> bool:
    results = {
        store.target
        for store in program.stores
        if store.function is call.function and program.inside(call.node, store.expression)
    }
    for store in program.stores:
        if store.function is call.function and results & names_with_graph(store.expression):
            results.add(store.target)
    return any(
        other.function is call.function and other.method == "backward" and names_in(other.node) & results
        for other in program.calls
    )


_NEEDS_GRADIENTS = {"requires_grad_", "retain_grad", "register_full_backward_hook", "enable_grad"}
