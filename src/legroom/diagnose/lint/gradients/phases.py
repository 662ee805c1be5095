"""Finds loops that train in one phase and evaluate in another phase with gradients enabled (LG201)."""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, names_in, string_value, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

_SWITCHES = {"no_grad", "inference_mode", "set_grad_enabled", "enable_grad", "nullcontext"}
_CONTEXTS = {"autocast", "tqdm", "open", "trange", "record_function", "profile", "amp_autocast"}
_PHASE = re.compile(r"train|phase|mode|split|optim|^opt$|is_|stage|update", re.IGNORECASE)


def evaluations_in_phases(program: Program) -> Iterator[Problem]:
    """Find model calls in a loop with `if phase == "train": loss.backward()`, if the other phase has gradients
    enabled.
    """
    seen: set[Function] = set()
    for call in program.calls:
        if call.method not in {"backward", "manual_backward"} or not call.loops or call.function in seen:
            continue
        seen.add(call.function)
        test = _phase_test(program, call)
        if test is None or not _runs_without_training(program, call, test):
            continue
        run = next((each for each in program.calls if _runs_in_both_phases(program, each, call, test)), None)
        if run is not None:
            condition = program.source(test)
            yield Problem(
                node=run.node,
                message=f"The model also runs with gradients enabled if `{condition}` is False, and no backward pass follows",
                help=f"Run the forward pass in `with torch.set_grad_enabled({condition}):`",
            )


def _phase_test(program: Program, call: CallFact) -> cst.BaseExpression | None:
    """Return the condition of the backward pass, or None if the condition can change between iterations of the loop."""
    function, loop = call.function, call.loops[-1]
    if any(isinstance(node, cst.Name) and node.value in _SWITCHES for node in walk(function.node)):
        return None
    if isinstance(function.node, cst.FunctionDef) and function.node.decorators:
        return None
    if function.returns.has_graph or program.is_module_class(function.class_name):
        return None  # the caller may run the backward pass
    others = [each for each in program.calls if each.function is function and each.method == call.method]
    if len(others) != 1:
        return None
    for node in program.ancestors(call.node):
        if node is loop.node:
            return None
        if isinstance(node, cst.If):
            return node.test if node.orelse is None and program.inside(call.node, node.body) else None
    return None


def _runs_without_training(program: Program, call: CallFact, test: cst.BaseExpression) -> bool:
    """Return True if the program also runs the loop with a phase for which the condition is False.

    An outer loop or an argument of a call sets the phase.
    """
    name, value = _compared(_definition(program, call.function, test))
    if name is None or not _PHASE.search(name):
        return False
    if isinstance(value, str):
        for loop in call.loops[:-1]:
            if name in loop.bound and isinstance(loop.node, cst.For):
                phases = {
                    string_value(each) for each in walk(loop.node.iter) if isinstance(each, cst.SimpleString)
                }
                return value in phases and len(phases) > 1
    function = call.function
    if name not in function.parameters:
        return False
    for site in function.call_sites:
        if site.no_grad or site.caller.grad_mode_varies:
            continue
        given = next((each.value for key, each in function.receives(site.call) if key == name), None)
        if given is None and function.uses_default(site.call, name):
            given = _default(function, name)
        if isinstance(value, str):
            if string_value(given) not in {None, value}:
                return True
        elif dotted(given) in {"False", "None"}:
            return True
    return False


def _definition(program: Program, function: Function, test: cst.BaseExpression) -> cst.BaseExpression:
    """Return `phase == "train"` for `training`, if the function assigns `training = phase == "train"`."""
    path = dotted(test)
    made = [each for each in program.stores if each.target == path and each.function is function]
    if path is None or path in function.parameters or len(made) != 1 or made[0].loops:
        return test
    return made[0].expression


def _compared(test: cst.BaseExpression) -> tuple[str | None, str | bool]:
    """Return the compared name and value: `phase` and `"train"` for `phase == "train"`, or `training` and True for
    `training`.
    """
    if isinstance(test, cst.Name):
        return test.value, True
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1 and isinstance(test.left, cst.Name):
        target = test.comparisons[0]
        text = string_value(target.comparator)
        if isinstance(target.operator, cst.Equal) and text is not None:
            return test.left.value, text
        if isinstance(target.operator, cst.IsNot) and dotted(target.comparator) == "None":
            return test.left.value, True
    return None, True


def _default(function: Function, name: str) -> cst.BaseExpression | None:
    assert isinstance(function.node, cst.FunctionDef)
    given = function.node.params
    return next(
        (each.default for each in (*given.params, *given.kwonly_params) if each.name.value == name), None
    )


def _runs_in_both_phases(
    program: Program, call: CallFact, backward: CallFact, test: cst.BaseExpression
) -> bool:
    if call.function is not backward.function or call.loops != backward.loops or call.no_grad:
        return False
    if call.receiver.kind is not ValueKind.MODEL or not call.result.has_graph or not call.arguments:
        return False
    for node in program.ancestors(call.node):
        if node is backward.loops[-1].node:
            return True
        if isinstance(node, cst.If) and names_in(node.test) & names_in(test):
            return False
        if isinstance(node, cst.With):
            entered = (
                each.item.func if isinstance(each.item, cst.Call) else each.item for each in node.items
            )
            if any(last_name(dotted(each) or "") not in _CONTEXTS for each in entered):
                return False
    return False
