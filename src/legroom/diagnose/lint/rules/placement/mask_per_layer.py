"""LG312: Every layer stores its own large mask

## What it detects
The rule checks for buffers and attributes such as `torch.tril(torch.ones(length, length))` of at
least 128 MiB in a module of which the model creates several instances. The rule applies only if the value of `length`
is known from the file.

## Why this is a problem
The size of the mask grows with the square of the length. A float32 mask for 16,384 tokens uses 1 GiB. If each of 24
layers stores a mask, the masks use 24 GiB.

## Example
```python
class Attention(nn.Module):              # the model creates one for each layer
    def __init__(self, context):         # 16384
        self.register_buffer("mask", torch.tril(torch.ones(context, context)))
```

## Use instead
```python
y = F.scaled_dot_product_attention(q, k, v, is_causal=True)      # needs no mask
mask = torch.ones(length, length, dtype=torch.bool).tril()       # or create one mask for all layers
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.limits import possible_numbers
from legroom.diagnose.lint.flow.syntax import dotted, positional, walk
from legroom.diagnose.lint.rule import Problem

CODE = "LG312"
_MIN_BYTES = 128 * 2**20
_FACTORIES = {"torch.ones", "torch.zeros", "torch.full", "torch.empty"}


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("tril", "triu", "tril_", "triu_"):
        return
    repeated = _repeated_classes(program)
    for call in program.calls:
        if call.name not in _FACTORIES or call.function.name != "__init__":
            continue
        if call.function.class_name not in repeated or not _is_stored(program, call):
            continue
        size = _side(program, call)
        width = 1 if "bool" in program.source(_statement(program, call)) else 4
        if size * size * width >= _MIN_BYTES:
            yield Problem(
                node=call.node,
                message=f"Every `{call.function.class_name}` stores its own mask of {size * size * width / 2**20:.0f} MiB",
                help="Share one mask between the layers, or use `scaled_dot_product_attention(..., is_causal=True)`",
            )


def _side(program: Program, call: CallFact) -> int:
    """Return the side length of a square matrix, or 0 if the matrix is not square or its size is unknown."""
    sizes = [each.value for each in positional(call.node)]
    if len(sizes) > 0 and isinstance(sizes[0], cst.Tuple):
        sizes = [each.value for each in sizes[0].elements]
    *_, one, other = (None, None, *sizes)
    if one is None or other is None or program.source(one) != program.source(other):
        return 0
    return min(possible_numbers(program, one, call.function), default=0)


def _statement(program: Program, call: CallFact) -> cst.CSTNode:
    return program.statement_line(call.node) or call.node


def _is_stored(program: Program, call: CallFact) -> bool:
    """Return True if the matrix is a buffer or an attribute."""
    for each in program.ancestors(call.node):
        if isinstance(each, cst.Call) and dotted(each.func) == "self.register_buffer":
            return True
        if isinstance(each, cst.Assign):
            return any((dotted(target.target) or "").startswith("self.") for target in each.targets)
    return False


def _repeated_classes(program: Program) -> set[str]:
    """Return the modules of which a loop or comprehension creates several instances, directly or within other modules."""
    found = {
        name
        for kind in (cst.ListComp, cst.GeneratorExp, cst.For)
        for node in program.nodes_of(kind)
        for name in _created(node)
        if program.is_module_class(name)
    }
    for _ in range(3):
        found |= {
            name
            for each in found
            for name in _created(program.classes[each].node)
            if program.is_module_class(name)
        }
    return found


def _created(node: cst.CSTNode) -> set[str]:
    return {dotted(each.func) or "" for each in walk(node) if isinstance(each, cst.Call)}
