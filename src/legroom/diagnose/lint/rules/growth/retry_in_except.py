"""LG106: A retry runs inside the except block

## What it detects
The rule checks for `except` blocks that handle an out-of-memory error (or `RuntimeError`) and call a model, `backward`,
or the function that the `try` block called.

## Why this is a problem
During an `except` block, the exception is alive. The traceback of the exception keeps every frame of the failed attempt
alive, including all tensors in these frames. A retry inside the `except` block therefore has less free memory than the
failed attempt. `empty_cache()` cannot free tensors that a traceback keeps alive.

## Example
```python
try:
    step(batch)
except torch.OutOfMemoryError:
    torch.cuda.empty_cache()
    step(batch[: len(batch) // 2])       # tensors of the failed attempt are still allocated
```

## Use instead
```python
failed = False
try:
    step(batch)
except torch.OutOfMemoryError:
    failed = True
if failed:                               # outside the block, the exception is released
    step(batch[: len(batch) // 2])
```

## Fix safety
No automatic fix is available, because the right place for the retry depends on your code.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, names_in, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG106"
_FAILURES = {"RuntimeError", "OutOfMemoryError", "Exception", "BaseException", "MemoryError"}
_HARMLESS = {
    "print",
    "info",
    "warning",
    "error",
    "debug",
    "str",
    "len",
    "format",
    "append",
    "empty_cache",
    "zero_grad",
    "update",
}


def check(program: Program) -> Iterator[Problem]:
    reported: set[cst.ExceptHandler] = set()
    for call in program.calls:
        handler = call.handler
        if handler is None or handler in reported or not _may_be_memory(handler):
            continue
        attempt = program.parent.get(handler)
        if (
            isinstance(attempt, cst.Try)
            and (_names_runtime_error(handler) or "memory" in program.source(handler))
            and _is_retry(program, call, attempt)
        ):
            reported.add(handler)
            yield Problem(
                node=call.node,
                message="The retry runs while the exception still keeps every tensor of the failed attempt alive",
                help="Record the failure in the `except` block, and retry after the block",
            )


def _may_be_memory(handler: cst.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(last_name(path) in _FAILURES for path in names_in(handler.type))


def _names_runtime_error(handler: cst.ExceptHandler) -> bool:
    """Return True if the handler is not for every exception, as `except Exception` after a failed import is."""
    caught = {last_name(path) for path in names_in(handler.type)} if handler.type is not None else set()
    return not caught.isdisjoint(_FAILURES - {"Exception", "BaseException"})


def _is_retry(program: Program, call: CallFact, attempt: cst.Try) -> bool:
    if call.method == "backward":
        return True
    if call.receiver.kind is ValueKind.MODEL and call.result.has_graph:
        return True
    tried = {dotted(each.func) for each in walk(attempt.body) if isinstance(each, cst.Call)}
    name = dotted(call.node.func)
    if call.local is not None:
        again = call.local is call.function or name in tried
        if again and _works_on_tensors(program, call):
            return True
        return (again or _calls_again(call, tried)) and _is_retry_on_gpu(program, call, attempt)
    if name is None or name not in tried:
        return False
    return last_name(name) not in _HARMLESS and _is_retry_on_gpu(program, call, attempt)


def _calls_again(call: CallFact, tried: set[str | None]) -> bool:
    """Return True if the called function, such as `split_and_retry`, calls the failed function again."""
    if call.local is None:
        return False
    called = {dotted(each.func) for each in walk(call.local.body) if isinstance(each, cst.Call)}
    names = {call.function.name, *(each for each in tried if each is not None)}
    return any(
        each is not None and (each in names or each == f"self.{call.function.name}") for each in called
    ) and not any(last_name(each) in _HARMLESS for each in names)


def _is_retry_on_gpu(program: Program, call: CallFact, attempt: cst.Try) -> bool:
    """Return True for a retry after an out-of-memory error, but not for a fallback to the CPU."""
    return (
        bool(call.node.args)
        and _is_about_memory(program, attempt)
        and not any("cpu" in program.source(each) for each in attempt.handlers)
    )


def _is_about_memory(program: Program, attempt: cst.Try) -> bool:
    return any(
        "OutOfMemoryError" in (text := program.source(handler)) or "out of memory" in text
        for handler in attempt.handlers
    )


def _works_on_tensors(program: Program, call: CallFact) -> bool:
    return any(
        each.function is call.local and (each.method in {"backward", "step"} or each.result.has_graph)
        for each in program.calls
    )
