"""LG503: DataLoader receives both a sampler and shuffle=True

## What it detects
The rule checks for `sampler=` (or `batch_sampler=`) and `shuffle=True` in the same call to `DataLoader`.

## Why this is a problem
The sampler determines the order of the data. `DataLoader` raises a `ValueError` if `shuffle=True` is passed as well.

## Example
```python
DataLoader(data, sampler=sampler, shuffle=True)
```

## Use instead
```python
DataLoader(data, sampler=sampler)        # DistributedSampler shuffles on its own
```

## Fix safety
The fix removes `shuffle=True`. The fix is safe if the file creates the sampler, and unsafe otherwise.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import remove_argument
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, is_true, keyword
from legroom.diagnose.lint.rule import Problem

CODE = "LG503"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        shuffle = keyword(call.node, "shuffle")
        sampler = keyword(call.node, "sampler") or keyword(call.node, "batch_sampler")
        if (
            not (call.name or "").endswith("DataLoader")
            or shuffle is None
            or not is_true(shuffle)
            or sampler is None
        ):
            continue
        if _may_be_none(program, sampler.value):
            continue
        yield Problem(
            node=shuffle,
            message="A DataLoader with a sampler and `shuffle=True` raises a ValueError",
            help="Remove `shuffle=True`, because the sampler determines the order",
            edits=(remove_argument(program, call.node, shuffle),),
            safe=isinstance(sampler.value, cst.Call) or bool(program.assigned(dotted(sampler.value))),
        )


def _may_be_none(program: Program, sampler: cst.BaseExpression) -> bool:
    """Return True if the sampler is None in some runs, for example with one process."""
    path = dotted(sampler)
    if path is None:
        return not isinstance(sampler, cst.Call)
    if path == "None" or any(path in each.parameters for each in program.functions.values()):
        return True
    return not all(isinstance(each, cst.Call) for each in program.assigned(path))
