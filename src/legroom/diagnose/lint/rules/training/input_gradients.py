"""LG124: The batch requires gradients that nothing reads

## What it detects
The rule checks for training loops that set `requires_grad` for the batch, as in `x.requires_grad_()`. The rule applies
if the file reads no gradient: it contains neither `.grad` nor `autograd.grad`.

## Why this is a problem
The backward pass computes and stores a gradient as large as the batch. The first layers of the model must also save their
inputs, even if their parameters are frozen.

## Example
```python
for x, y in loader:
    x = x.cuda().requires_grad_()
    loss = criterion(model(x), y)
```

## Use instead
```python
for x, y in loader:
    x = x.cuda()                         # the model's parameters already require gradients
    loss = criterion(model(x), y)
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, is_false, is_true, keyword, receiver, root
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG124"
_READING = (
    "grad",
    "jacobian",
    "hessian",
    "vjp",
    "jacrev",
    "register_hook",
    "retain_grad",
    "checkpoint",
    "checkpoint_sequential",
)


def check(program: Program) -> Iterator[Problem]:
    if program.mentions(*_READING) or not program.mentions("requires_grad_", "requires_grad", "Variable"):
        return
    for call in program.calls:
        loop = next(
            (each for each in call.loops if each.iterable.kind is ValueKind.LOADER and each.trains), None
        )
        if loop is None:
            continue
        if call.method == "requires_grad_" and not (call.node.args and is_false(call.node.args[0])):
            path = _batch(call.node)
        elif (call.name or "").endswith("Variable") and is_true(keyword(call.node, "requires_grad")):
            path = _batch(call.node.args[0].value)
        else:
            continue
        if path is not None and _is_batch(program, path, loop):
            yield Problem(
                node=call.node,
                message=f"`{path}` requires gradients, but the program never reads its gradient",
                help="Remove `requires_grad`: the model's parameters already require gradients",
            )


def _batch(node: cst.BaseExpression) -> str | None:
    """Return the name of the batch in a chain of method calls, such as `x` for `x.to(device).requires_grad_()`."""
    while isinstance(node, cst.Call):
        owner = receiver(node)
        if owner is None:
            return None
        node = owner
    return dotted(node)


def _is_batch(program: Program, path: str, loop: LoopFact) -> bool:
    return root(path) in loop.bound and not any(
        root(path) in (dotted(argument.value) or "") and call.result.kind is ValueKind.OPTIMIZER
        for call in program.calls
        for argument in call.node.args
    )
