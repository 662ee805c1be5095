"""LG115: Every step adds a parameter group

A parameter group stays in the optimizer, with the parameters in it and their state. Added in the loop, each step makes the optimizer
larger and slower.

```python
# instead of
for batch in loader:
    optimizer.add_param_group({"params": head.parameters()})
# write
optimizer.add_param_group({"params": head.parameters()})
for batch in loader:
    ...
```

**In code**: `add_param_group` in a loop that trains, under no condition.

**Fix**: none.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.lifetimes import is_step_loop
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.rule import Problem

CODE = "LG115"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.method != "add_param_group" or not call.loops or not is_step_loop(call.loops[-1]):
            continue
        if _is_conditional(program, call.node, call.loops[-1].node):
            continue
        yield Problem(
            node=call.node,
            message="The optimizer gets one more parameter group, and its state, with every step",
            help="Add the group once, before the loop",
        )


def _is_conditional(program: Program, node: cst.CSTNode, loop: cst.CSTNode) -> bool:
    for each in program.ancestors(node):
        if each is loop:
            return False
        if isinstance(each, cst.If):
            return True
    return False
