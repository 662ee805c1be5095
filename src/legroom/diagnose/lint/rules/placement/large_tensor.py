"""LG313: One tensor fills the GPU

## What it detects
The rule checks for functions such as `torch.zeros` that allocate at least 8 GiB on the GPU. The rule applies if the file
contains the sizes. A size that is not known counts as 1.

## Why this is a problem
A replay buffer of a million stacked frames uses 26 GiB as uint8, and 105 GiB as float32. The buffer and the model must
share the memory of one GPU, although each step reads only a few entries.

## Example
```python
self.frames = torch.zeros((1_000_000, 4, 84, 84), dtype=torch.uint8, device="cuda")
```

## Use instead
```python
self.frames = torch.zeros((1_000_000, 4, 84, 84), dtype=torch.uint8)     # in host memory
batch = self.frames[index].to("cuda")
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator
from math import prod

import libcst as cst

from legroom.diagnose.lint.collected.replay import is_put_on_gpu
from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.limits import possible_numbers
from legroom.diagnose.lint.flow.syntax import dotted, keyword, last_name, positional
from legroom.diagnose.lint.rule import Problem

CODE = "LG313"
_MIN_BYTES = 8 * 2**30
_FACTORIES = {"torch.zeros", "torch.ones", "torch.empty", "torch.rand", "torch.randn", "torch.full"}
_WIDTHS = {
    "uint8": 1,
    "int8": 1,
    "bool": 1,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "float64": 8,
    "int64": 8,
    "long": 8,
}


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.name not in _FACTORIES or not _is_on_gpu(program, call.node):
            continue
        size = _bytes(program, call)
        if size >= _MIN_BYTES:
            yield Problem(
                node=call.node,
                message=f"This tensor allocates at least {size / 2**30:.0f} GiB on the GPU",
                help="Allocate the tensor in host memory, and move only the parts that a step needs to the GPU",
            )


def _is_on_gpu(program: Program, node: cst.CSTNode) -> bool:
    """Return True if a new tensor is on the GPU, as in `torch.zeros(..., device=device)` and
    `torch.zeros(...).cuda()`.
    """
    current: cst.CSTNode | None = node
    while isinstance(current, (cst.Call, cst.Attribute)):
        if isinstance(current, cst.Call) and is_put_on_gpu(program, current):
            return True
        current = program.parent.get(current)
    return False


def _bytes(program: Program, call: CallFact) -> int:
    sizes = [each.value for each in positional(call.node)]
    given = keyword(call.node, "size")
    first = given.value if given is not None else sizes[0] if sizes else None
    if isinstance(first, (cst.Tuple, cst.List)):
        sizes = [each.value for each in first.elements]
    known = [min(possible_numbers(program, size, call.function), default=1) for size in sizes]
    dtype = keyword(call.node, "dtype")
    return prod(known) * _WIDTHS.get(last_name(dotted(dtype.value) or "") if dtype is not None else "", 4)
