"""LG315: Offloading is enabled after the pipeline is on the GPU

## What it detects
The rule checks for `enable_model_cpu_offload()` and `enable_sequential_cpu_offload()` on a pipeline that the program moves
to the GPU with `.to("cuda")` or `.cuda()`.

## Why this is a problem
Offloading keeps the parts of the pipeline in host memory and moves each part to the GPU when it runs. `.to("cuda")` moves
all parts to the GPU first, so the peak is as high as without offloading.

## Example
```python
pipe = DiffusionPipeline.from_pretrained(name).to("cuda")
pipe.enable_model_cpu_offload()
```

## Use instead
```python
pipe = DiffusionPipeline.from_pretrained(name)
pipe.enable_model_cpu_offload()
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.replay import is_put_on_gpu
from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, receiver
from legroom.diagnose.lint.rule import Problem

CODE = "LG315"
_OFFLOADING = {"enable_model_cpu_offload", "enable_sequential_cpu_offload"}


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        path = dotted(receiver(call.node)) if call.method in _OFFLOADING else None
        if path is None or program.is_conditional(call.node):
            continue
        for moved in program.calls:
            if moved.function is not call.function or program.is_conditional(moved.node):
                continue
            if moved.method not in {"to", "cuda"} or not is_put_on_gpu(program, moved.node):
                continue
            if _is_replaced(program, path, moved, call):
                continue
            if dotted(receiver(moved.node)) == path or _is_assigned(program, moved.node, path):
                yield Problem(
                    node=moved.node,
                    message=f"`{path}` is moved to the GPU as a whole, although `{call.method}` moves one part at a time",
                    help="Remove this call",
                )
                break


def _is_replaced(program: Program, path: str, first: CallFact, second: CallFact) -> bool:
    """Return True if `path` refers to a new object in the second call."""
    return any(
        each.target == path
        and each.function is first.function
        and first.order < each.order < second.order
        and not each.uses_old_value
        and not program.inside(first.node, each.expression)
        for each in program.stores
    )


def _is_assigned(program: Program, node: cst.Call, path: str) -> bool:
    """Return True if the program assigns the result of the call to `path`, as in
    `pipe = Pipeline.from_pretrained(name).to("cuda")`.
    """
    return any(each is node for each in program.assigned(path))
