"""LG113: Gradients are never cleared

## What it detects
The rule checks for loops that call `backward()` and `optimizer.step()` but never clear the gradients. Gradients are
cleared by `zero_grad` or by an assignment to `.grad`. The rule searches the function that contains the loop, and all
functions in the same file that the loop calls.

## Why this is a problem
`backward()` adds to the existing gradients. If the gradients are never cleared, each step uses the accumulated
gradients of all steps so far. The gradients also stay allocated during each forward pass, at the same time as the
activations.

## Example
```python
loss.backward()
optimizer.step()
```

## Use instead
```python
loss.backward()
optimizer.step()
optimizer.zero_grad(set_to_none=True)
```

## Fix safety
The fix is unsafe: it adds `zero_grad` after the step, which changes the training result.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, line_after
from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, method_name, names_in, receiver, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG113"


def check(program: Program) -> Iterator[Problem]:
    reported: set[LoopFact | Function] = set()
    for call in program.calls:
        if call.method != "step" or call.receiver.kind is not ValueKind.OPTIMIZER:
            continue
        loop = next((each for each in reversed(call.loops) if each.backward), None)
        if loop is None and not (call.function.backward and call.function.call_sites):
            continue
        if loop is None and _is_created_in_call(program, call):
            continue
        scope: LoopFact | Function = loop if loop is not None else call.function
        if scope in reported or _clears(program, call.function, frozenset()) or _is_closure_step(call.node):
            continue
        if loop is not None and _is_created_with_inputs(program, call, loop):
            continue
        reported.add(scope)
        optimizer = dotted(receiver(call.node))
        line = program.statement_line(call.node)
        edits: tuple[Edit, ...] = ()
        if optimizer is not None and line is not None and len(line.body) == 1:
            edits = (line_after(program, line, f"{optimizer}.zero_grad(set_to_none=True)"),)
        yield Problem(
            node=call.node,
            message="Gradients are never cleared, so each step adds to the gradients of all previous steps",
            help=f"Call `{optimizer or 'optimizer'}.zero_grad(set_to_none=True)` after the step",
            edits=edits,
            safe=False,
        )


def _is_created_in_call(program: Program, step: CallFact) -> bool:
    """Return True if each call to the function creates the parameters and the optimizer, and runs one step."""
    function = step.function
    return any(
        each.target == dotted(receiver(step.node))
        and each.function is function
        and isinstance(each.expression, cst.Call)
        and bool(each.expression.args)
        and all(map(function.owns, names_in(each.expression.args[0])))
        for each in program.stores
    )


def _is_created_with_inputs(program: Program, step: CallFact, loop: LoopFact) -> bool:
    """Return True if each iteration creates the optimizer and the tensors that it changes, as in `SGD([x_in])`."""
    made = [each for each in program.stores if each.how == "assign" and loop.first <= each.order <= loop.last]
    new = {each.target for each in made if not each.uses_old_value}
    return any(
        each.target == dotted(receiver(step.node))
        and isinstance(each.expression, cst.Call)
        and bool(each.expression.args)
        and isinstance(given := each.expression.args[0].value, cst.List)
        and all(dotted(part.value) in new for part in given.elements)
        for each in made
    )


def _is_closure_step(node: cst.Call) -> bool:
    return bool(node.args)  # LBFGS: the closure clears them


def _clears(program: Program, function: Function, seen: frozenset[Function]) -> bool:
    if function in seen:
        return False
    if any(_clears_here(node) for node in walk(function.node)):
        return True
    seen = seen | {function}
    called = {call.local for call in program.calls if call.function is function and call.local is not None}
    callers = {site.caller for site in function.call_sites}
    return any(_clears(program, each, seen) for each in called | callers)


def _clears_here(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call):
        name = method_name(node) or dotted(node.func) or ""
        if "zero_grad" in name or name in {"reset_grad", "clear_grad", "clear_gradients"}:
            return True
        return name in {"zero_", "detach_"} and (dotted(receiver(node)) or "").endswith(".grad")
    if isinstance(node, cst.AssignTarget):
        return (dotted(node.target) or "").endswith(".grad")
    return isinstance(node, cst.Name) and node.value in {"zero_grad", "grads_to_none"}
