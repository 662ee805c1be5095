"""LG112: The optimizer receives frozen parameters

## What it detects
The rule checks for optimizers that receive all parameters of a model, although part of the model is frozen
and never unfrozen.

## Why this is a problem
Parameters with `requires_grad = False` get no gradient, so the optimizer does not update them. However, the optimizer
still lists frozen parameters and keeps the state that it allocated before they were frozen. If a frozen parameter still
has a gradient from an earlier step, the optimizer applies this gradient. Sharded optimizers reserve memory for frozen
parameters too.

## Example
```python
for parameter in model.backbone.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.AdamW(model.parameters())
```

## Use instead
```python
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
```

## Fix safety
The fix is unsafe: the optimizer then receives only parameters that require gradients, so it cannot load an optimizer
state that was saved before the fix.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import replace
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, is_false, method_name, positional, receiver, root, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG112"


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("requires_grad", "requires_grad_"):
        return
    frozen, unfrozen = _frozen_models(program)
    for call in program.calls:
        if call.result.kind is not ValueKind.OPTIMIZER or not positional(call.node):
            continue
        given = positional(call.node)[0].value
        owner = (
            receiver(given) if isinstance(given, cst.Call) and method_name(given) == "parameters" else None
        )
        model = dotted(owner)
        if model is None or unfrozen or not _is_partly_frozen(model, frozen, call.order):
            continue
        yield Problem(
            node=given,
            message=f"The optimizer receives all parameters of `{model}`, but some of them are frozen",
            help="Pass only the parameters that require gradients",
            edits=(
                replace(
                    program,
                    given,
                    f"{'(' if len(call.node.args) > 1 else ''}parameter for parameter in {model}.parameters() "
                    f"if parameter.requires_grad{')' if len(call.node.args) > 1 else ''}",
                ),
            ),
            safe=False,
        )


def _is_partly_frozen(model: str, frozen: list[tuple[str, int]], before: int) -> bool:
    return any(order < before and (path == model or path.startswith(f"{model}.")) for path, order in frozen)


def _frozen_models(program: Program) -> tuple[list[tuple[str, int]], bool]:
    """Return the paths of the frozen modules with their positions in the code, and True if anything is unfrozen."""
    frozen: list[tuple[str, int]] = []
    unfrozen = False
    for store in program.stores:
        if not store.target.endswith(".requires_grad") or store.how != "assign":
            continue
        if isinstance(store.expression, cst.Name) and store.expression.value == "False":
            frozen.extend((path, store.order) for path in _models_of(program, root(store.target), store.node))
        else:
            unfrozen = True
    for call in program.calls:
        if call.method != "requires_grad_" or call.receiver.kind not in (
            ValueKind.MODEL,
            ValueKind.PARAMETER,
        ):
            continue
        path = dotted(receiver(call.node))
        if not call.node.args or not is_false(call.node.args[0]):
            unfrozen = unfrozen or call.receiver.kind is ValueKind.PARAMETER or bool(path)
        elif path is not None:
            named = (
                [path]
                if call.receiver.kind is ValueKind.MODEL
                else _models_of(program, root(path), call.node)
            )
            frozen.extend((each, call.order) for each in named)
    return frozen, unfrozen


def _models_of(program: Program, name: str, node: cst.CSTNode) -> list[str]:
    """Return the model whose parameters a loop iterates over, such as `backbone` in `for p in backbone.parameters()`."""
    for each in program.ancestors(node):
        if isinstance(each, cst.For):
            return [
                path
                for part in walk(each.iter)
                if isinstance(part, cst.Call)
                and method_name(part) in {"parameters", "named_parameters"}
                and (path := dotted(receiver(part))) is not None
            ]
    return []
