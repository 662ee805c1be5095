"""LG403: The backward pass runs under autocast

## What it detects
The rule checks for `backward()` inside a `with` block of `autocast`.

## Why this is a problem
Backward operations automatically use the dtype of their forward operations, so autocast has no benefit for the backward
pass. Autocast keeps half-precision copies of the weights until its block ends. If the backward pass is inside the
block, the half-precision copies stay allocated when memory use is highest.

## Example
```python
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(x), y)
    loss.backward()
```

## Use instead
```python
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(x), y)
loss.backward()
```

## Fix safety
The fix is unsafe: it moves `backward()` and all lines after it out of the block. Operations in the moved lines, and
custom backward functions, may run in a different precision after the fix.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, has_multiline_string
from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import is_false, keyword, last_name
from legroom.diagnose.lint.rule import Problem

CODE = "LG403"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.method not in {"backward", "manual_backward"}:
            continue
        if not _is_under_autocast(program, call):
            continue
        edits = _fix(program, call)
        yield Problem(
            node=call.node,
            message="The backward pass runs under autocast, which keeps half-precision copies of the weights "
            "alive",
            help="End the autocast block before the backward pass",
            edits=tuple(edits),
            safe=False,
        )


def _is_under_autocast(program: Program, call: CallFact) -> bool:
    """Return True if the innermost autocast block around the call is enabled."""
    for each in program.ancestors(call.node):
        if isinstance(each, cst.FunctionDef):
            return False
        if isinstance(each, cst.With):
            for item in each.items:
                if _is_autocast(program, item):
                    return not (isinstance(item.item, cst.Call) and is_false(keyword(item.item, "enabled")))
    return False


def _fix(program: Program, call: CallFact) -> list[Edit]:
    line = program.statement_line(call.node)
    block = program.parent.get(line) if line is not None else None
    with_block = program.parent.get(block) if block is not None else None
    if line is None or not isinstance(block, cst.IndentedBlock) or not isinstance(with_block, cst.With):
        return []
    if not any(_is_autocast(program, item) for item in with_block.items) or len(with_block.items) != 1:
        return []
    index = list(block.body).index(line)
    rest = block.body[index:]
    if index == 0 or any(has_multiline_string(program, each) for each in rest):
        return []
    (_, outer), _ = program.span(with_block)
    edits = []
    first = program.span(line)[0][0]
    last = program.span(block.body[-1])[1][0]
    inner = program.span(line)[0][1]
    for number in range(first, last + 1):
        if program.lines[number - 1].strip():
            edits.append(Edit((number, outer), (number, inner), ""))
    return edits


def _is_autocast(program: Program, item: cst.WithItem) -> bool:
    called = item.item.func if isinstance(item.item, cst.Call) else item.item
    return last_name(program.imports.qualified(called) or "") == "autocast"
