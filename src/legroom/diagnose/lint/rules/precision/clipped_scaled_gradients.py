"""LG404: Gradients are clipped before they are unscaled

## What it detects
The rule checks for `clip_grad_norm_` or `clip_grad_value_` after `scaler.scale(...).backward()`, in a function that
does not call `unscale_`.

## Why this is a problem
`GradScaler` multiplies the loss, and with it the gradients, by a large factor. If the gradients are clipped before they
are unscaled, they become much smaller than intended. The scale factor also changes during the run, so the effect of the
clipping changes too.

## Example
```python
scaler.scale(loss).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
```

## Use instead
```python
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
```

## Fix safety
The fix is unsafe: it adds `unscale_` before the clipping, which changes the training result.
"""

from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from legroom.diagnose.lint.edits import Edit, line_before
from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, method_name, positional, receiver
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG404"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if last_name(call.name or call.method or "") not in {"clip_grad_norm_", "clip_grad_value_"}:
            continue
        scaled = scaled_backward(program, call)
        if scaled is None or _unscales(program, call) or _runs_without(program, call.node, scaled):
            continue
        yield Problem(
            node=call.node,
            message="Gradients are clipped while they are still multiplied by the loss scale",
            help=f"Call `{scaled}.unscale_(optimizer)` first",
            edits=_fix(program, call, scaled),
            safe=False,
        )


def scaled_backward(program: Program, call: CallFact) -> str | None:
    for other in program.calls:
        if other.function is not call.function or other.order > call.order or other.method != "backward":
            continue
        scaled = receiver(other.node)
        if not isinstance(scaled, cst.Call) or method_name(scaled) != "scale":
            continue
        if not _are_in_other_branches(program, other.node, call.node):
            return dotted(receiver(scaled))
    return None


def _are_in_other_branches(program: Program, first: cst.CSTNode, second: cst.CSTNode) -> bool:
    """Return True if an `if` statement runs only one of two nodes, as in `if scaler is not None: ... else: ...`."""
    above = [first, *program.ancestors(first)]
    for inner, outer in pairwise(above):
        if isinstance(outer, cst.If) and program.inside(second, outer) and not program.inside(second, inner):
            return True
    return False


def _runs_without(program: Program, node: cst.CSTNode, scaler: str) -> bool:
    """Return True if a node runs only without a scaler, as in `if scaler is None: clip_grad_norm_(...)`."""
    above = [node, *program.ancestors(node)]
    for inner, outer in pairwise(above):
        if isinstance(outer, cst.If):
            test = program.source(outer.test).strip()
            if test in {f"{scaler} is None", f"not {scaler}"} and inner is outer.body:
                return True
            if test in {f"{scaler} is not None", scaler} and inner is outer.orelse:
                return True
    return False


def _unscales(program: Program, call: CallFact) -> bool:
    return any(
        other.function is call.function and other.method in {"unscale_", "unscale"} for other in program.calls
    )


def _fix(program: Program, call: CallFact, scaler: str) -> tuple[Edit, ...]:
    line = program.statement_line(call.node)
    for other in program.calls:
        if (
            other.function is call.function
            and other.method == "step"
            and other.receiver.kind is ValueKind.SCALER
        ):
            given = positional(other.node)
            optimizer = dotted(given[0].value) if given else None
            if optimizer is not None and line is not None:
                return (line_before(program, line, f"{scaler}.unscale_({optimizer})"),)
    return ()
