"""LG502: set_epoch is never called on the sampler

## What it detects
The rule checks for files that use a shuffling `DistributedSampler` and never call `set_epoch`, although they iterate
over a loader in a loop over epochs.

## Why this is a problem
`DistributedSampler` computes the order of the data from its epoch number. Without `set_epoch`, every epoch uses the same
order, and each rank gets the same part of the data in every epoch.

## Example
```python
for epoch in range(epochs):
    for batch in loader: ...
```

## Use instead
```python
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for batch in loader: ...
```

## Fix safety
The fix is unsafe: it adds the call at the beginning of the epoch, which changes the order of the data.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, line_before
from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, is_false, keyword
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG502"


def check(program: Program) -> Iterator[Problem]:
    if program.mentions("set_epoch"):
        return
    epochs = [
        loop.outer
        for loop in program.loops
        if loop.outer is not None and (loop.iterable.kind is ValueKind.LOADER or loop.trains)
    ]
    epochs += [
        call.loops[-1]
        for call in program.calls
        if call.loops
        and call.local is not None
        and any(loop.function is call.local and loop.trains for loop in program.loops)
    ]
    for call in program.calls:
        if not (call.name or "").endswith("DistributedSampler") or is_false(keyword(call.node, "shuffle")):
            continue
        if epochs:
            yield Problem(
                node=call.node,
                message="This sampler's epoch is never set, so every epoch uses the same order",
                help="Call `sampler.set_epoch(epoch)` at the start of each epoch",
                edits=_fix(program, call, [each.node for each in epochs]),
                safe=False,
            )


def _fix(program: Program, call: CallFact, loops: list[cst.For | cst.While]) -> tuple[Edit, ...]:
    name = next(
        (store.target for store in program.stores if store.expression is call.node and store.how == "assign"),
        None,
    )
    for loop in loops:
        if name is None or not isinstance(loop, cst.For) or not isinstance(loop.body, cst.IndentedBlock):
            continue
        epoch = dotted(loop.target)
        if epoch is not None and call.function is next(
            (each.function for each in program.loops if each.node is loop), None
        ):
            return (line_before(program, loop.body.body[0], f"{name}.set_epoch({epoch})"),)
    return ()
