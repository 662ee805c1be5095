"""LG307: checkpoint_sequential uses one segment

## What it detects
The rule checks for `checkpoint_sequential` with one segment.

## Why this is a problem
`checkpoint_sequential` does not checkpoint the last segment. With one segment, it therefore checkpoints nothing: every
layer saves its activations, as without checkpointing.

## Example
```python
x = checkpoint_sequential(self.layers, 1, x, use_reentrant=False)
```

## Use instead
```python
segments = int(len(self.layers) ** 0.5)  # about the square root of the number of layers
x = checkpoint_sequential(self.layers, segments, x, use_reentrant=False)
```

## Fix safety
No automatic fix is available, because the best number of segments depends on the model.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, keyword, last_name, positional
from legroom.diagnose.lint.rule import Problem

CODE = "LG307"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if last_name(call.name or "") != "checkpoint_sequential":
            continue
        given = positional(call.node)
        segments = keyword(call.node, "segments") or (given[1] if len(given) > 1 else None)
        if segments is not None and _is_one(program, segments.value):
            yield Problem(
                node=segments.value,
                message="`checkpoint_sequential` with one segment checkpoints nothing, so every layer saves its activations",
                help="Use several segments, for example the square root of the number of layers",
            )


def _is_one(program: Program, node: cst.BaseExpression) -> bool:
    """Return True for `1`, and for a name to which the file assigns only 1."""
    if isinstance(node, cst.Integer):
        return node.value == "1"
    path = dotted(node)
    made = program.assigned(path)
    return bool(made) and all(isinstance(each, cst.Integer) and each.value == "1" for each in made)
