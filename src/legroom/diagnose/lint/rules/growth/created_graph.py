"""LG109: backward() creates a graph of the gradients

## What it detects
The rule checks for `create_graph=True` in a call to `backward`. The rule allows `create_graph=True` in
`torch.autograd.grad`.

## Why this is a problem
With `create_graph=True`, gradients have their own graph. Each parameter references its gradient, the gradient
references its graph, and the graph references the parameter. This reference cycle keeps all activations of the step
alive. Only Python's garbage collector can free a reference cycle.

## Example
```python
loss.backward(create_graph=True)
penalty = sum(p.grad.norm() for p in model.parameters())
```

## Use instead
```python
gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
penalty = sum(gradient.norm() for gradient in gradients)   # no parameter references these gradients
```

## Fix safety
No automatic fix is available. If you do not need second derivatives, remove `create_graph=True`.
"""

from collections.abc import Iterator

from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import is_true, keyword
from legroom.diagnose.lint.rule import Problem

CODE = "LG109"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        argument = keyword(call.node, "create_graph")
        if call.method in {"backward", "manual_backward"} and argument is not None and is_true(argument):
            yield Problem(
                node=argument,
                message="`create_graph=True` creates a reference cycle between parameters and gradients, so the memory of the step "
                "stays allocated until the garbage collector runs",
                help="Use `torch.autograd.grad(..., create_graph=True)`, or remove `create_graph=True` if "
                "you need no second derivative",
            )
