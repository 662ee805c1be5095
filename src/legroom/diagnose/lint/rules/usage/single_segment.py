"""LG307: checkpoint_sequential uses one segment

## What it detects
The rule checks for `checkpoint_sequential` with one segment. The number may be a constant, or an argument that the file
passes to the constructor of the model.

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
from legroom.diagnose.lint.flow.retention.limits import literals
from legroom.diagnose.lint.flow.syntax import keyword, last_name, positional
from legroom.diagnose.lint.rule import Problem

CODE = "LG307"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if last_name(call.name or "") != "checkpoint_sequential":
            continue
        given = positional(call.node)
        segments = keyword(call.node, "segments") or (given[1] if len(given) > 1 else None)
        numbers = literals(program, segments.value, call.function) if segments is not None else []
        ones = [each for each in numbers if each.value == "1"]
        passed = [each for each in ones if isinstance(program.parent.get(each), cst.Arg)]
        if segments is not None and ones and (passed or len(ones) == len(numbers)):
            yield Problem(
                node=passed[0] if passed else segments.value,
                message="`checkpoint_sequential` with one segment checkpoints nothing, so every layer saves its activations",
                help="Use several segments, for example the square root of the number of layers",
            )
