"""LG405: size_average and reduce are deprecated

## What it detects
The rule checks for `torch.nn` losses with the argument `size_average=` or `reduce=` set to True or False.

This rule is off by default. Enable it with `--select LG405` or `--select ALL`.

## Why this is a problem
`reduction=` replaces `size_average=` and `reduce=`. The old arguments are deprecated, and PyTorch issues a
warning if they are used.

## Example
```python
criterion = nn.MSELoss(size_average=False)
```

## Use instead
```python
criterion = nn.MSELoss(reduction="sum")
```

## Fix safety
The fix is safe: it passes the equivalent `reduction=`.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, remove_argument, replace
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, is_false, is_true, keyword
from legroom.diagnose.lint.rule import Problem

CODE = "LG405"


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("size_average", "reduce"):
        return
    for node in program.nodes_of(cst.Call):
        given = [each for name in ("size_average", "reduce") if (each := keyword(node, name)) is not None]
        name = program.imports.qualified(node.func) or ""
        if not given or not name.startswith("torch.nn."):
            continue  # a loss of another library may have such an argument
        reduction = _reduction(keyword(node, "size_average"), keyword(node, "reduce"))
        edits: list[Edit] = []
        if reduction is not None and keyword(node, "reduction") is None:
            edits = [replace(program, given[0], f'reduction="{reduction}"')]
            edits += [remove_argument(program, node, each) for each in given[1:]]
        names = " and ".join(f"`{each.keyword.value}`" for each in given if each.keyword is not None)
        yield Problem(
            node=given[0],
            message=f"The {'arguments' if len(given) > 1 else 'argument'} {names} of `{dotted(node.func)}` {'are' if len(given) > 1 else 'is'} deprecated",
            help=f'Use `reduction="{reduction or "mean"}"`',
            edits=tuple(edits),
        )


def _reduction(size_average: cst.Arg | None, reduce: cst.Arg | None) -> str | None:
    for argument in (size_average, reduce):
        if argument is not None and not (is_true(argument) or is_false(argument)):
            return None
    if is_false(reduce):
        return "none"
    return "sum" if is_false(size_average) else "mean"
