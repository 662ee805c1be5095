"""LG304: The cache is emptied in every step

## What it detects
The rule checks for unconditional calls to `empty_cache()` in a loop over batches or steps, outside `except` blocks.

## Why this is a problem
PyTorch caches freed memory for later allocations. `empty_cache()` returns the cache to the driver. `empty_cache()`
waits for the GPU, and the next step must allocate the memory from the driver again. `empty_cache()` frees no memory
that is in use, so it cannot make a step fit.

`empty_cache()` is useful between phases with different memory use, such as training and evaluation, or after an
out-of-memory error. To reduce fragmentation, set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.

## Example
```python
for batch in loader:
    train_step(batch)
    torch.cuda.empty_cache()
```

## Use instead
```python
for batch in loader:
    train_step(batch)
```

## Fix safety
The fix removes the call to `empty_cache()`. The fix is safe unless the file also reads the amount of reserved memory.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import remove_statement
from legroom.diagnose.lint.flow.facts import CallFact, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import has_step_loop, is_innermost_step_loop, runs_every_step
from legroom.diagnose.lint.flow.syntax import dotted, receiver, root, walk
from legroom.diagnose.lint.rule import Problem

CODE = "LG304"
_READING_THE_CACHE = (
    "mem_get_info",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "max_memory_cached",
    "max_memory_reserved",
)


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.method != "empty_cache" and call.name != "empty_cache":
            continue
        owner = dotted(receiver(call.node))
        if owner is not None and root(owner) not in program.imports.full_names:
            continue  # the cache of another object
        if call.handler is not None or program.is_conditional(call.node):
            continue
        in_step = (
            _empties_in_step(program, call.loops[-1]) if call.loops else _is_step_function(program, call)
        )
        if in_step:
            yield Problem(
                node=call.node,
                message="`empty_cache()` makes every step wait and allocate the same memory from the driver again",
                help="Remove the call: PyTorch reuses free memory, and `empty_cache()` does not free memory "
                "in use",
                edits=tuple(remove_statement(program, call.node)),
                safe=not program.mentions(*_READING_THE_CACHE),
            )


def _empties_in_step(program: Program, loop: LoopFact) -> bool:
    return is_innermost_step_loop(program, loop) and not _recovers(program, loop)


def _recovers(program: Program, loop: LoopFact) -> bool:
    """Return True if the loop handles out-of-memory errors, after which it is useful to empty the cache."""
    return any(
        isinstance(each, cst.ExceptHandler)
        and ("OutOfMemoryError" in (text := program.source(each)) or "out of memory" in text)
        for each in walk(loop.node)
    )


def _is_step_function(program: Program, call: CallFact) -> bool:
    is_step = any(
        each.function is call.function and not each.loops and each.method in {"backward", "step"}
        for each in program.calls
    )
    return is_step and runs_every_step(program, call.function) and not has_step_loop(program, call.function)
