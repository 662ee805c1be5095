"""LG306: pin_memory is used for tensors on the GPU

## What it detects
The rule checks for a `DataLoader` with `pin_memory=True` over a `TensorDataset` whose tensors are on the GPU.

## Why this is a problem
Only tensors in host memory can be pinned. The loader fails with `cannot pin 'torch.cuda.FloatTensor'`. A dataset that
is on the GPU also uses GPU memory during the whole run.

## Example
```python
x = x.cuda()
loader = DataLoader(TensorDataset(x, y), pin_memory=True)
```

## Use instead
```python
loader = DataLoader(TensorDataset(x, y), pin_memory=True)    # in host memory; move each batch to the GPU
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_call_of,
    is_true,
    keyword,
    method_name,
    path_of,
    positional,
)
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules.usage.cuda_in_workers import is_gpu

CODE = "LG306"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if not (call.name or "").endswith("DataLoader") or not is_true(keyword(call.node, "pin_memory")):
            continue
        given = positional(call.node)[0].value if positional(call.node) else None
        if given is not None and any(_is_on_gpu(program, each) for each in _tensors(program, given)):
            yield Problem(
                node=call.node,
                message="`pin_memory=True` fails, because the dataset's tensors are on the GPU",
                help="Keep the dataset in host memory, or remove `pin_memory=True`",
            )


def _tensors(program: Program, dataset: cst.BaseExpression) -> list[cst.BaseExpression]:
    path = dotted(dataset)
    made = program.assigned(path)
    found = made[-1] if made else dataset
    if isinstance(found, cst.Call) and is_call_of(found, "TensorDataset"):
        return [each.value for each in positional(found)]
    return []


def _is_on_gpu(program: Program, tensor: cst.BaseExpression) -> bool:
    path = path_of(tensor)
    made = program.assigned(path)
    moved = made[-1] if made else tensor
    if not isinstance(moved, cst.Call):
        return False
    return method_name(moved) == "cuda" or (method_name(moved) == "to" and is_gpu(program, moved))
