"""LG109: backward() builds a graph of the gradients

With `create_graph=True` the gradients know how they were computed. Each parameter then holds its gradient, the gradient its
graph, and the graph the parameter: a cycle that only the garbage collector frees, with all activations of the step in it.

```python
# instead of
loss.backward(create_graph=True)
penalty = sum(p.grad.norm() for p in model.parameters())
# write
gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
penalty = sum(gradient.norm() for gradient in gradients)   # no parameter holds these
```

**In code**: `create_graph=True` in a call of `backward`. In `torch.autograd.grad` it is fine.

**Fix**: none; if no second derivative is wanted, remove the argument.
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
                message="Gradients that keep their graph form a cycle with their parameters: the step's memory stays "
                "until the garbage collector comes",
                help="Use `torch.autograd.grad(..., create_graph=True)`, or remove it if no second derivative is wanted",
            )
