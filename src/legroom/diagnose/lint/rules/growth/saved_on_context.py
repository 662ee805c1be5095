"""LG114: An autograd function stores tensors as attributes of ctx

## What it detects
The rule checks for tensors that the `forward` or `setup_context` method of a `torch.autograd.Function` assigns to an
attribute of `ctx`. The rule does not flag settings, such as a process group, a device or a number.

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

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import contained_parts, dotted, method_name, receiver, root, walk
from legroom.diagnose.lint.flow.values import NUMBER_ATTRIBUTES, ValueKind
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
_SETTING_NAMES = re.compile(
    r"(?:^|_)(?:devices?|gpus?|group|rank|dims?|axis|num|size|shape|weakref|fn|func|function|module|name|mode|config)(?:_|$)"
    r"|^(?:n|k|dim\d|p|eps|alpha|beta|scale|stride|padding|dilation|reduction)$"
)
_SETTINGS = {"needs_input_grad", "materialize_grads", "set_materialize_grads"}


def check(program: Program) -> Iterator[Problem]:
    for store in program.stores:
        function = store.function
        if (
            function.name not in {"forward", "setup_context"}
            or store.how != "assign"
            or not program.is_autograd_function(function.class_name)
        ):
            continue
        context = function.parameters[0] if function.parameters else ""
        if root(store.target) != context or store.target.count(".") != 1:
            continue
        if store.target.rpartition(".")[2] not in _SETTINGS and _is_tensor(program, store, store.expression):
            yield Problem(
                node=store.node,
                message=f"`{store.target}` keeps a tensor alive until the graph is freed, even after the backward pass",
                help="Use `ctx.save_for_backward(...)` and read `ctx.saved_tensors` in `backward`",
            )


def _is_tensor(program: Program, store: StoreFact, expression: cst.BaseExpression) -> bool:
    if isinstance(expression, (cst.Tuple, cst.List, cst.Dict)):
        return any(_is_tensor(program, store, each) for each in contained_parts(expression))
    if _is_setting(program, store.function, dotted(expression)) or _is_empty(expression):
        return False
    if isinstance(expression, cst.Attribute) and expression.attr.value in NUMBER_ATTRIBUTES:
        return False
    value = program.value(expression)
    if value.is_tensor or value.kind is ValueKind.PLAIN:
        return value.is_tensor
    if isinstance(expression, cst.Call):
        return _is_operation(program, expression) or method_name(expression) in {"clone", "detach"}
    path = dotted(expression)
    if path is None:
        return False
    if path in _tensor_inputs(program, store.function):
        return True
    known = program.classes[store.function.class_name or ""]
    return any(
        _uses_as_tensor(program, node, name)
        for part, name in ((store.function.body, path), (known.node, store.target))
        for node in walk(part)
    )


def _is_empty(node: cst.BaseExpression) -> bool:
    """Return True for `x.new_empty(0)`, which has no elements."""
    return (
        isinstance(node, cst.Call)
        and (method_name(node) or "").rpartition("_")[2] in {"empty", "zeros", "tensor"}
        and [getattr(each.value, "value", None) for each in node.args[:1]] == ["0"]
    )


def _is_setting(program: Program, function: Function, path: str | None) -> bool:
    """Return True if an input of `forward` is not a tensor.

    The evidence is the name or the annotation of the input, a call to the input, or a later parameter `*inputs`, which
    receives the tensors.
    """
    node = function.node
    if function.name != "forward" or path not in function.parameters or not isinstance(node, cst.FunctionDef):
        return False
    parameter = next((each for each in node.params.params if each.name.value == path), None)
    if parameter is None:
        return False
    if parameter.annotation is not None:
        return "Tensor" not in program.source(parameter.annotation.annotation)
    if _SETTING_NAMES.search(path):
        return True
    if any(isinstance(each, cst.Call) and dotted(each.func) == path for each in walk(function.body)):
        return True
    return isinstance(node.params.star_arg, cst.Param) and not any(
        _uses_as_tensor(program, each, path) for each in walk(function.body)
    )


def _tensor_inputs(program: Program, function: Function) -> set[str]:
    """Return the name of the first input of an autograd function and, in `setup_context`, also the name of the
    output.
    """
    if function.name == "forward":
        return set(function.parameters[1:2])
    inputs, output = function.parameters[1:2], function.parameters[2:3]  # setup_context(ctx, inputs, output)
    found = set(output)
    for store in program.stores:
        if store.function is function and dotted(store.expression) in inputs:
            found.add(store.target)  # x, y = inputs
            break
    return found


def _uses_as_tensor(program: Program, node: cst.CSTNode, name: str) -> bool:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        return name in {dotted(node.left), dotted(node.right)}
    if not isinstance(node, cst.Call):
        return False
    if method_name(node) in _TENSOR_METHODS and dotted(receiver(node)) == name:
        return True
    if method_name(node) == "save_for_backward":
        return any(dotted(each.value) == name for each in node.args)
    return _is_operation(program, node) and dotted(node.args[0].value) == name


def _is_operation(program: Program, call: cst.Call) -> bool:
    name = program.imports.qualified(call.func) or ""
    is_public = name.startswith("torch.") and "._" not in name and "distributed" not in name
    return bool(call.args) and is_public and not name.endswith("Size")
