"""LG122: A statement has no effect

## What it detects
The rule checks for statements that name a method without calling it, such as `optimizer.zero_grad` or
`torch.cuda.empty_cache`. The rule also checks for calls to `detach()` and `cpu()` whose result is not used.

## Why this is a problem
Python evaluates the statement and discards the result. Gradients are not cleared, the graph of a state is not released,
and a tensor stays on the GPU.

## Example
```python
optimizer.zero_grad
hidden.detach()
```

## Use instead
```python
optimizer.zero_grad()
hidden = hidden.detach()
```

## Fix safety
The fix adds the parentheses, or assigns the result. The fix is unsafe, because it changes what the program computes.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, replace
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, method_name, receiver
from legroom.diagnose.lint.flow.values import ValueKind, guess_from_name
from legroom.diagnose.lint.rule import Problem

CODE = "LG122"
_METHODS = {"zero_grad", "backward", "empty_cache", "detach_", "eval", "reset_peak_memory_stats"}
_RESULTS = {"detach", "cpu"}


def check(program: Program) -> Iterator[Problem]:
    for node in program.nodes_of(cst.Expr):
        made = node.value
        if isinstance(made, cst.Attribute) and made.attr.value in _METHODS:
            yield _problem(program, made, "is not called", f"{program.source(made)}()")
        elif isinstance(made, cst.Call) and method_name(made) in _RESULTS and not made.args:
            owner = receiver(made)
            path = dotted(owner)
            if owner is None or path is None or guess_from_name(last_name(path)).kind is ValueKind.MODEL:
                continue  # model.cpu() moves the model itself
            if program.value(owner).is_tensor:
                yield _problem(
                    program,
                    made,
                    "returns a new tensor, which is discarded",
                    f"{path} = {program.source(made)}",
                )


def _problem(program: Program, node: cst.BaseExpression, what: str, fix: str) -> Problem:
    edit: Edit = replace(program, node, fix)
    return Problem(
        node=node,
        message=f"`{program.source(node)}` {what}, so the statement has no effect",
        help=f"Replace with `{fix}`",
        edits=(edit,),
        safe=False,
    )
