"""LG310: The forward pass runs outside autocast

## What it detects
The rule checks for training steps that compute only the loss in an `autocast` block. The model runs before the block,
and the block contains no call to a model.

## Why this is a problem
Autocast changes the types of the operations in its block. The operations of the model run before the block, so they run
in float32: the activations use twice the memory, and the matrix multiplications do not use the fast 16-bit units.

## Example
```python
logits = model(images)
with torch.autocast("cuda"):
    loss = criterion(logits, labels)
scaler.scale(loss).backward()
```

## Use instead
```python
with torch.autocast("cuda"):
    logits = model(images)
    loss = criterion(logits, labels)
scaler.scale(loss).backward()
```

## Fix safety
No automatic fix is available, because the change affects the numerical results.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, names_in, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG310"


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("autocast"):
        return
    for block in program.nodes_of(cst.With):
        if not any(_is_autocast(each.item) for each in block.items):
            continue
        inside = [call for call in program.calls if program.inside(call.node, block.body)]
        if not any(call.result.has_graph for call in inside) or any(map(_may_run_model, inside)):
            continue
        run = _model_call_before(program, block)
        if run is not None:
            yield Problem(
                node=run.node,
                message="The model runs before the `autocast` block, so its activations are in float32",
                help="Move the call into the `autocast` block",
            )


def _is_autocast(node: cst.BaseExpression) -> bool:
    called = node.func if isinstance(node, cst.Call) else node
    return last_name(dotted(called) or "") == "autocast"


def _may_run_model(call: CallFact) -> bool:
    """Return True if a call in the block runs a model. An unknown object may contain a model."""
    if call.receiver.kind is ValueKind.MODEL and call.local is None:
        return call.method not in {"parameters", "train", "eval", "zero_grad"}
    return call.receiver.kind is ValueKind.MODEL or (
        call.local is None and call.result.kind is ValueKind.UNKNOWN and call.method is None
    )


def _model_call_before(program: Program, block: cst.With) -> CallFact | None:
    """Return the call before a block that runs a trainable model in the same step without autocast, if the block reads
    its result."""
    read = {path for each in walk(block.body) for path in names_in(each)}
    outer = program.parent.get(block)
    for store in program.stores:
        if store.target not in read or store.how != "assign" or program.parent.get(block) is None:
            continue
        line = program.statement_line(store.node)
        if line is None or program.parent.get(line) is not outer or store.order > program.order[block]:
            continue
        for call in program.calls:
            if (
                call.node is store.expression
                and call.receiver.kind is ValueKind.MODEL
                and call.result.has_graph
                and not call.receiver.frozen
                and any(loop.trains for loop in call.loops)
                and not any("autocast" in each for each in call.contexts)
                and not _casts_itself(call)
            ):
                return call
    return None


def _casts_itself(call: CallFact) -> bool:
    """Return True if the `forward` of the model uses autocast."""
    return call.local is not None and any(
        isinstance(node, cst.Name) and node.value == "autocast" for node in walk(call.local.node)
    )
