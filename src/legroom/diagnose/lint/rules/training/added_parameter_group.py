"""LG115: Every step adds a parameter group

## What it detects
The rule checks for unconditional calls to `add_param_group` in a training loop.

## Why this is a problem
A parameter group stays in the optimizer, with its parameters and their state. If each step adds a group, the optimizer
uses more memory and time in every step.

## Example
```python
for batch in loader:
    optimizer.add_param_group({"params": head.parameters()})
```

## Use instead
```python
optimizer.add_param_group({"params": head.parameters()})
for batch in loader:
    ...
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import is_step_loop
from legroom.diagnose.lint.rule import Problem

CODE = "LG115"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.method != "add_param_group" or not call.loops or not is_step_loop(call.loops[-1]):
            continue
        if program.is_conditional(call.node, call.loops[-1].node):
            continue
        yield Problem(
            node=call.node,
            message="Every step adds another parameter group, with its own state, to the optimizer",
            help="Add the group once, before the loop",
        )
