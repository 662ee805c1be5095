"""LG406: .data bypasses autograd

## What it detects
The rule checks for two in-place changes through `.data` that autograd would otherwise reject:

- The code changes a computed tensor, such as an output.
- The code changes a parameter after the forward pass and before the backward pass, in the same function.

The rule does not flag code that only reads `.data`, initializes parameters, or updates parameters between steps, such
as in an optimizer or a target network.

## Why this is a problem
`.data` shares the tensor's memory but not its version counter. Autograd does not detect a change through
`.data`, and gradients can be silently wrong. `.detach()` also returns a tensor without a graph, but autograd
detects changes through `.detach()` and raises an error if a gradient is no longer valid.

## Example
```python
output = model(x)
output.data.clamp_(min=0)                # the gradient of the model ignores the clamp
output.sum().backward()
```

## Use instead
```python
output = model(x).clamp(min=0)
output.sum().backward()
```

## Fix safety
No automatic fix is available.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, method_name
from legroom.diagnose.lint.flow.values import NUMBER_ATTRIBUTES, ValueKind, split_words
from legroom.diagnose.lint.rule import Problem

CODE = "LG406"


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("data"):
        return
    for node in program.nodes_of(cst.Attribute):
        if (
            node.attr.value == "data"
            and _is_changed(program, node)
            and _affects_gradients(program, node)
            and not _is_replaced(program, node)
            and not _is_harmless(program, node)
        ):
            yield Problem(
                node=node.attr,
                message=f"`{dotted(node) or '.data'}` changes a tensor that a backward pass needs, and autograd does not "
                "detect the change",
                help="Compute a new tensor, or change the parameter after the backward pass",
            )


def _affects_gradients(program: Program, node: cst.Attribute) -> bool:
    kind = program.value(node.value).kind
    if kind is ValueKind.GRAPH:
        return True
    is_parameter = kind is ValueKind.PARAMETER or (
        isinstance(node.value, cst.Attribute) and node.value.attr.value in {"weight", "bias"}
    )
    order = program.order[node]
    function = next(
        (each for each in program.ancestors(node) if isinstance(each, cst.FunctionDef)), program.module
    )
    forward = [
        call.order
        for call in program.calls
        if call.function.node is function and call.receiver.kind is ValueKind.MODEL and call.result.has_graph
    ]
    backward = [
        call.order for call in program.calls if call.function.node is function and call.method == "backward"
    ]
    before = max((each for each in (*forward, *backward) if each < order), default=None)
    return (
        is_parameter
        and before in forward
        and any(each > order for each in backward)
        and not any(order < each < min(after for after in backward if after > order) for each in forward)
    )


def _is_harmless(program: Program, node: cst.Attribute) -> bool:
    """Return True if the code reads only metadata (`w.data.shape`), or initializes the tensor."""
    parent = program.parent.get(node)
    if isinstance(parent, cst.Attribute) and parent.attr.value in _METADATA:
        return True
    for each in program.ancestors(node):
        if isinstance(each, cst.Call):
            called = program.imports.qualified(each.func) or ""
            if called == "isinstance" or called.startswith("torch.nn.init."):
                return True
        elif isinstance(each, cst.FunctionDef):
            return _INITIALIZES.search(each.name.value) is not None
    return False


_METADATA = NUMBER_ATTRIBUTES | {"size", "dim", "numel", "data_ptr", "type", "stride", "is_contiguous"}
_INITIALIZES = re.compile(r"^__init__$|(?:^|_)(?:init|initiali[sz]e|reset)(?:_|$)")


def _is_replaced(program: Program, node: cst.Attribute) -> bool:
    for parent in program.ancestors(node):
        if isinstance(parent, cst.Assign):
            return any(
                isinstance(each.target, cst.Attribute) and each.target.attr.value == "data"
                for each in parent.targets
            )
        if isinstance(parent, cst.SimpleStatementLine):
            return False
    return False


def _is_mask(program: Program, call: cst.CSTNode | None) -> bool:
    """Return True for `scores.data.masked_fill_(mask, float("-inf"))`. The gradient of the softmax is zero there."""
    if not isinstance(call, cst.Call) or method_name(call) != "masked_fill_":
        return False
    return re.search(r"\binf\b", program.source(call)) is not None


_VIEWS = split_words(
    "view reshape flatten squeeze unsqueeze t transpose permute narrow select diagonal expand unbind chunk split"
)


def _is_changed(program: Program, node: cst.Attribute) -> bool:
    child: cst.CSTNode = node
    for parent in program.ancestors(node):
        if isinstance(parent, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign)):
            return parent.target is child
        if isinstance(parent, cst.Attribute) and parent.attr.value.endswith("_") and parent.value is child:
            return not _is_mask(program, program.parent.get(parent))
        if isinstance(parent, cst.Call) and parent.func is child and method_name(parent) not in _VIEWS:
            return False  # x.data.new(2, 3).zero_() changes a new tensor
        if isinstance(parent, cst.Arg):  # a function may modify its argument: nn.init.normal_(w.data)
            call = program.parent.get(parent)
            return isinstance(call, cst.Call) and (dotted(call.func) or "").endswith("_")
        if isinstance(parent, cst.SimpleStatementLine):
            return False
        child = parent
    return False
