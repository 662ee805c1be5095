"""LG114: An autograd function stores tensors as attributes of ctx

## What it detects
The rule checks for tensors that the `forward` method of a `torch.autograd.Function` assigns to an attribute of `ctx`.

## Why this is a problem
The backward pass frees tensors saved with `ctx.save_for_backward`. A tensor stored as an attribute of `ctx` stays alive
until the graph is freed. If the tensor is an output, it forms a reference cycle with its own graph. Reference counting
alone never frees a reference cycle.

## Example
```python
ctx.input = input
```

## Use instead
```python
ctx.save_for_backward(input)             # in backward: input, = ctx.saved_tensors
```

## Fix safety
No automatic fix is available, because `backward` must read the tensor from `ctx.saved_tensors`.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, method_name, receiver, root, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG114"
_TENSOR_METHODS = {
    "clone",
    "exp",
    "log",
    "sum",
    "mean",
    "mm",
    "matmul",
    "clamp",
    "relu",
    "sigmoid",
    "tanh",
    "pow",
    "sqrt",
    "t",
    "view",
    "reshape",
    "new_zeros",
    "new_empty",
    "contiguous",
    "detach",
    "sign",
    "abs",
}
_SETTINGS = {"needs_input_grad", "materialize_grads", "set_materialize_grads"}


def check(program: Program) -> Iterator[Problem]:
    for store in program.stores:
        function = store.function
        if (
            function.name != "forward"
            or store.how != "assign"
            or not _is_autograd_function(program, function.class_name)
        ):
            continue
        context = function.parameters[0] if function.parameters else ""
        if root(store.target) != context or store.target.count(".") != 1:
            continue
        if store.target.rpartition(".")[2] not in _SETTINGS and _is_tensor(program, store):
            yield Problem(
                node=store.node,
                message=f"`{store.target}` keeps a tensor alive until the graph is freed, even after the backward pass",
                help="Use `ctx.save_for_backward(...)` and read `ctx.saved_tensors` in `backward`",
            )


def _is_autograd_function(program: Program, class_name: str | None) -> bool:
    known = program.classes.get(class_name or "")
    return known is not None and any(
        base.endswith(("autograd.Function", "autograd.function.Function")) for base in known.bases
    )


def _is_tensor(program: Program, store: StoreFact) -> bool:
    if store.value.is_tensor or store.value.kind is ValueKind.PLAIN:
        return store.value.is_tensor
    path = dotted(store.expression)
    if isinstance(store.expression, cst.Call) and _is_operation(program, store.expression):
        return True
    if path is None:
        return isinstance(store.expression, cst.Call) and method_name(store.expression) in {"clone", "detach"}
    for node in walk(store.function.body):
        if (
            isinstance(node, cst.Call)
            and method_name(node) in _TENSOR_METHODS
            and dotted(receiver(node)) == path
        ):
            return True
        if isinstance(node, cst.Call) and _is_operation(program, node) and dotted(node.args[0].value) == path:
            return True
    return False


def _is_operation(program: Program, call: cst.Call) -> bool:
    """Return True if a call is a torch operation with arguments."""
    name = program.imports.qualified(call.func) or ""
    is_public = name.startswith("torch.") and "._" not in name and "distributed" not in name
    return bool(call.args) and is_public and not name.endswith("Size")
