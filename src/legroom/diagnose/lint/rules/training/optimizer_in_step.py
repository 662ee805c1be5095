"""LG118: An optimizer is created in every step

## What it detects
The rule checks for optimizers that are created inside the loop over training steps, for a model that exists before the
loop. The rule does not flag an optimizer that is created once per epoch, fold or task.

## Why this is a problem
Adam and most other optimizers keep state for each parameter. Creating a new optimizer in each step discards
this state, so momentum and adaptive learning rates have no effect. The state is also allocated again in each
step, while the old optimizer may still exist.

## Example
```python
for x, y in loader:
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate(step))
```

## Use instead
```python
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    optimizer.param_groups[0]["lr"] = learning_rate(step)   # or a scheduler from torch.optim.lr_scheduler
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import survives
from legroom.diagnose.lint.flow.steps import is_innermost_step_loop
from legroom.diagnose.lint.flow.syntax import dotted, last_name, method_name, positional, receiver, root
from legroom.diagnose.lint.rule import Problem

CODE = "LG118"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        name = call.name or ""
        if not name.startswith("torch.optim.") or not last_name(name)[:1].isupper() or "lr_scheduler" in name:
            continue
        if not _is_conditional(program, call) and _is_created_in_step(program, call, _model(call)):
            yield Problem(
                node=call.node,
                message=f"`{last_name(name)}` is created in every step, so its state is discarded and allocated again",
                help="Create the optimizer once before the loop, and change its learning rate with a scheduler",
            )


def _is_created_in_step(program: Program, call: CallFact, model: str | None) -> bool:
    """Return True if each step creates an optimizer for a model that survives the step."""
    if model is None:
        return False
    if call.loops:
        loop = call.loops[-1]
        return loop.backward and is_innermost_step_loop(program, loop) and survives(program, model, loop)
    function = call.function
    return (
        function.backward
        and not function.owns(model)
        and (root(model) not in function.parameters or root(model) == "self")
        and any(
            bool(site.loops) and is_innermost_step_loop(program, site.loops[-1])
            for site in function.call_sites
        )
    )


def _model(call: CallFact) -> str | None:
    """Return `model` for `Adam(model.parameters())`."""
    given = positional(call.node)[0].value if positional(call.node) else None
    if isinstance(given, cst.Call) and method_name(given) == "parameters":
        return dotted(receiver(given))
    return None


def _is_conditional(program: Program, call: CallFact) -> bool:
    for each in program.ancestors(call.node):
        if isinstance(each, (cst.For, cst.While, cst.FunctionDef)):
            return False
        if isinstance(each, (cst.If, cst.ExceptHandler)):
            return True
    return False
