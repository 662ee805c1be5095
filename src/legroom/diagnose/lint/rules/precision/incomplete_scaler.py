"""LG407: GradScaler is used incompletely

## What it detects
The rule reports two cases after `scaler.scale(loss).backward()`:

- `optimizer.step()` is called directly, without `scaler.step(optimizer)` or `scaler.unscale_(optimizer)`.
- `scaler.step(optimizer)` is called, but the file never calls `scaler.update()`.

## Why this is a problem
`scaler.scale` multiplies the loss by a large factor. Only `scaler.step` or `scaler.unscale_` divides the gradients by
this factor. Without `scaler.update`, the factor never decreases after an overflow, so all following steps can be
skipped.

## Example
```python
scaler.scale(loss).backward()
optimizer.step()
```

## Use instead
```python
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, receiver
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules.precision.clipped_scaled_gradients import scaled_backward

CODE = "LG407"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.method != "step":
            continue
        scaler = scaled_backward(program, call)
        if scaler is None:
            continue
        if dotted(receiver(call.node)) == scaler:
            if not _calls(program, call, scaler, {"update"}, anywhere=True):
                yield Problem(
                    node=call.node,
                    message=f"`{scaler}.update()` is never called, so the loss scale never changes",
                    help=f"Call `{scaler}.update()` after `{scaler}.step(...)`",
                )
        elif (
            call.receiver.kind is ValueKind.OPTIMIZER
            and not call.node.args
            and not _calls(program, call, scaler, {"step", "unscale_"}, anywhere=False)
        ):
            optimizer = dotted(receiver(call.node)) or "optimizer"
            yield Problem(
                node=call.node,
                message=f"`{optimizer}.step()` uses gradients that are still multiplied by the loss scale",
                help=f"Call `{scaler}.step({optimizer})` instead",
            )


def _calls(program: Program, call: CallFact, scaler: str, methods: set[str], *, anywhere: bool) -> bool:
    return any(
        (anywhere or other.function is call.function)
        and other.method in methods
        and last_name(dotted(receiver(other.node)) or "") == last_name(scaler)
        for other in program.calls
    )
