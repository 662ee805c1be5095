"""LG403: The backward pass runs under autocast

## What it detects
The rule checks for `backward()` inside a `with autocast` block. It also checks functions that have the
`autocast` decorator or that are called only inside such a block.

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
from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import is_false, keyword, last_name
from legroom.diagnose.lint.rule import Problem

CODE = "LG403"


def check(program: Program) -> Iterator[Problem]:
    reported = set[cst.CSTNode]()
    for call in program.calls:
        if call.method not in {"backward", "manual_backward"}:
            continue
        item, enabled = _autocast_around(program, call.node)
        if item is None:
            outer = _autocast_of_callers(program, call.function)
            if outer is not None and outer not in reported:
                reported.add(outer)
                yield Problem(
                    node=outer.item if isinstance(outer, cst.WithItem) else outer.decorator,
                    message=f"The backward pass in `{call.function.name}` runs under autocast, which keeps half-precision copies "
                    "of the weights alive",
                    help="Limit autocast to the forward pass and the loss",
                )
            continue
        if not enabled:
            continue
        edits = _fix(program, call)
        yield Problem(
            node=item.item
            if any(program.inside(each.node, program.parent[item]) for each in call.loops)
            else call.node,
            message="The backward pass runs under autocast, which keeps half-precision copies of the weights "
            "alive",
            help="End the autocast block before the backward pass",
            edits=tuple(edits),
            safe=False,
        )


def _autocast_around(program: Program, node: cst.CSTNode) -> tuple[cst.WithItem | None, bool]:
    """Return the innermost `with autocast` around a node in its function, and True if autocast is enabled."""
    for each in program.ancestors(node):
        if isinstance(each, cst.FunctionDef):
            break
        if isinstance(each, cst.With):
            for item in each.items:
                if _is_autocast(program, item.item):
                    is_off = isinstance(item.item, cst.Call) and is_false(keyword(item.item, "enabled"))
                    return item, not is_off
    return None, False


def _autocast_of_callers(
    program: Program, function: Function, seen: frozenset[Function] = frozenset()
) -> cst.WithItem | cst.Decorator | None:
    """Return the autocast block or decorator that encloses every call to a function."""
    if isinstance(function.node, cst.FunctionDef):
        for each in function.node.decorators:
            if _is_autocast(program, each.decorator):
                off = isinstance(each.decorator, cst.Call) and is_false(keyword(each.decorator, "enabled"))
                return None if off else each
    if not function.call_sites or function in seen:
        return None
    found: cst.WithItem | cst.Decorator | None = None
    for site in function.call_sites:
        item, enabled = _autocast_around(program, site.call)
        if item is not None and not enabled:
            return None
        found = item or _autocast_of_callers(program, site.caller, seen | {function})
        if found is None:
            return None
    return found


def _fix(program: Program, call: CallFact) -> list[Edit]:
    line = program.statement_line(call.node)
    block = program.parent.get(line) if line is not None else None
    with_block = program.parent.get(block) if block is not None else None
    if line is None or not isinstance(block, cst.IndentedBlock) or not isinstance(with_block, cst.With):
        return []
    if not any(_is_autocast(program, item.item) for item in with_block.items) or len(with_block.items) != 1:
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


def _is_autocast(program: Program, node: cst.BaseExpression) -> bool:
    called = node.func if isinstance(node, cst.Call) else node
    return last_name(program.imports.qualified(called) or "") == "autocast"
