"""LG308: Parameters are frozen with a learning rate of zero

## What it detects
The rule checks for optimizer parameter groups with `"lr": 0`. The rule does not flag programs that change the
learning rates of parameter groups, or that also set `requires_grad`.

## Why this is a problem
A learning rate of zero does not change the parameters, but they still require gradients. The forward pass saves the
activations of the frozen layers, the backward pass computes their gradients, and the optimizer allocates its state for
them.

## Example
```python
optimizer = torch.optim.AdamW([
    {"params": model.backbone.parameters(), "lr": 0.0},
    {"params": model.head.parameters(), "lr": 1e-3},
])
```

## Use instead
```python
model.backbone.requires_grad_(False)
optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import method_name, string_value
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG308"
_CHANGING = ("param_groups", "requires_grad", "requires_grad_", "OneCycleLR", "CyclicLR", "add_param_group")
"""Names whose use shows that the program may train the parameters later."""


def check(program: Program) -> Iterator[Problem]:
    if program.mentions(*_CHANGING) or not any(
        call.result.kind is ValueKind.OPTIMIZER for call in program.calls
    ):
        return
    for node in program.nodes_of(cst.Dict):
        items = {
            string_value(each.key): each.value for each in node.elements if isinstance(each, cst.DictElement)
        }
        given, rate = items.get("params"), items.get("lr")
        if (
            isinstance(given, cst.Call)
            and method_name(given) == "parameters"
            and isinstance(rate, (cst.Integer, cst.Float))
            and float(rate.evaluated_value) == 0
        ):
            yield Problem(
                node=rate,
                message="A learning rate of zero freezes these parameters, but they still use memory for gradients, activations "
                "and optimizer state",
                help="Freeze them with `requires_grad_(False)`, and pass only the other parameters to the optimizer",
            )
