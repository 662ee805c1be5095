"""LG406: .data bypasses autograd

## What it detects
The rule checks for uses of `.data` on a value that is known to be a tensor, such as an output, a parameter, a `.weight`
or a `.grad`. The rule does not flag three uses of `.data`:

- An assignment changes the dtype or device of a parameter (`p.data = p.data.to(torch.bfloat16)`).
- `__init__`, `_init_weights` or a similar method initializes the tensor.
- The code only reads metadata (`w.data.shape`).

## Why this is a problem
`.data` shares the memory of the tensor, but not its version counter. Autograd does not detect a change through `.data`,
and gradients can be silently wrong. `.detach()` also returns a tensor without a graph, but autograd detects changes
through `.detach()` and raises an error if a gradient is no longer valid.

## Example
```python
total += loss.data
p.data -= lr * p.grad.data
```

## Use instead
```python
total += loss.detach()                   # or loss.item()
with torch.no_grad():
    p -= lr * p.grad
```

## Fix safety
The fix is safe: it replaces `.data` by `.detach()` if the value is only read. No fix is available if `.data` is
assigned or changed.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted
from legroom.diagnose.lint.flow.values import NUMBER_ATTRIBUTES, ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG406"


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("data"):
        return
    for node in program.nodes:
        if (
            not isinstance(node, cst.Attribute)
            or node.attr.value != "data"
            or not _is_tensor(program, node.value)
            or _is_replaced(program, node)
            or _is_harmless(program, node)
        ):
            continue
        edits: tuple[Edit, ...] = ()
        if not _is_changed(program, node):
            start, end = program.span(node.attr)
            edits = (Edit(start, end, "detach()"),)
        yield Problem(
            node=node.attr,
            message=f"`{dotted(node) or '.data'}` bypasses autograd, so autograd does not detect changes to "
            "the tensor",
            help="Use `.detach()` to read the tensor, or `with torch.no_grad():` to change it",
            edits=edits,
        )


def _is_tensor(program: Program, node: cst.BaseExpression) -> bool:
    kind = program.value(node).kind
    if kind in (ValueKind.GRAPH, ValueKind.PARAMETER):
        return True
    return isinstance(node, cst.Attribute) and node.attr.value in {"grad", "weight", "bias"}


def _is_harmless(program: Program, node: cst.Attribute) -> bool:
    """Return True if only metadata is read (`w.data.shape`), or the tensor is being initialized."""
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
    """Return True if the statement assigns a new tensor to a parameter."""
    for parent in program.ancestors(node):
        if isinstance(parent, cst.Assign):
            return any(
                isinstance(each.target, cst.Attribute) and each.target.attr.value == "data"
                for each in parent.targets
            )
        if isinstance(parent, cst.SimpleStatementLine):
            return False
    return False


def _is_changed(program: Program, node: cst.Attribute) -> bool:
    child: cst.CSTNode = node
    for parent in program.ancestors(node):
        if isinstance(parent, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign)):
            return parent.target is child
        if isinstance(parent, cst.Attribute) and parent.attr.value.endswith("_") and parent.value is child:
            return True
        if isinstance(parent, cst.Arg):  # a function may modify its argument: nn.init.normal_(w.data)
            call = program.parent.get(parent)
            return isinstance(call, cst.Call) and (dotted(call.func) or "").endswith("_")
        if isinstance(parent, cst.SimpleStatementLine):
            return False
        child = parent
    return False
