"""LG107: A stored exception keeps tensors alive

## What it detects
The rule checks for exceptions (`except ... as name`) that are stored in an object that outlives the `except`
block. The rule applies if the `try` block uses tensors, or calls a function in the same file that uses
tensors.

## Why this is a problem
An exception references its traceback, the traceback references every frame, and each frame references its local
variables: the batch, the outputs, and the loss with its graph. A stored exception therefore keeps all tensors in its
frames alive.

## Example
```python
except RuntimeError as error:
    errors.append(error)
```

## Use instead
```python
except RuntimeError as error:
    errors.append(str(error))                     # only the message
    errors.append(error.with_traceback(None))     # or the exception without its frames
```

## Fix safety
The fix is unsafe: it adds `.with_traceback(None)`, so the exception shows a different traceback if it is raised
again. No fix is available if the exception itself references tensors or was raised from another exception.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import append_to
from legroom.diagnose.lint.flow.facts import CallFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.lifetimes import is_local
from legroom.diagnose.lint.flow.steps import is_in_step_code
from legroom.diagnose.lint.flow.syntax import contained_parts, method_name, names_in, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG107"


def check(program: Program) -> Iterator[Problem]:
    for store in program.stores:
        if store.handler is None and store.how not in {"append", "item"}:
            continue
        stored = [
            each for each in _parts(store.expression) if program.value(each).kind is ValueKind.EXCEPTION
        ]
        if not stored:
            continue
        attempt = program.parent.get(store.handler) if store.handler is not None else None
        if isinstance(attempt, cst.Try) and not _touches_tensors(program, attempt):
            continue
        if _ends_thread(store):
            continue
        if store.handler is None and not is_in_step_code(program, store):
            continue
        if store.how == "assign" and is_local(store) and not store.loops and not _continues(program, store):
            continue
        retains_more = store.handler is not None and _retains_more(program, store.handler)
        yield Problem(
            node=stored[0],
            message=f"`{store.target}` stores the exception with its traceback, which keeps every tensor in its frames alive",
            help="Store the exception message (`str(error)`)"
            if retains_more
            else "Store the exception message (`str(error)`), or the exception without its traceback",
            edits=tuple(
                edit
                for each in stored
                if isinstance(each, cst.Name) and not retains_more
                for edit in append_to(program, each, ".with_traceback(None)")
            ),
            safe=False,
        )


def _ends_thread(store: StoreFact) -> bool:
    """Return True if a thread passes its exception to another thread when it ends, as in `self.queue.put(error)`."""
    return isinstance(store.node, cst.Call) and method_name(store.node) == "put" and not store.loops


def _retains_more(program: Program, handler: cst.ExceptHandler) -> bool:
    caught = names_in(handler.type) if handler.type is not None else set()
    if any(
        value.is_tensor or value.has_graph
        for name in caught & program.classes.keys()
        for value in program.classes[name].attributes.values()
    ):
        return True
    return any(
        node.exc is not None
        and names_in(node.exc) & caught
        and any(isinstance(each, cst.ExceptHandler) for each in program.ancestors(node))
        for node in program.nodes_of(cst.Raise)
    )


def _parts(expression: cst.BaseExpression) -> list[cst.BaseExpression]:
    inside = contained_parts(expression)
    return [part for each in inside for part in _parts(each)] if inside else [expression]


def _touches_tensors(program: Program, attempt: cst.Try) -> bool:
    inside = {each for each in walk(attempt.body) if isinstance(each, cst.Call)}
    return any(call.node in inside for call in _work(program))


def _continues(program: Program, store: StoreFact) -> bool:
    """Return True if the function computes with tensors after storing the exception."""
    if isinstance(store.function.node, cst.Module):
        return True
    return any(
        call.function is store.function and call.order > store.order and call.handler is not store.handler
        for call in _work(program)
    )


def _work(program: Program) -> Iterator[CallFact]:
    working = {
        each.function
        for each in program.calls
        if each.result.is_tensor
        or each.method in {"backward", "to", "cuda"}
        or each.receiver.kind is ValueKind.MODEL
    }
    for call in program.calls:
        if (
            call.result.is_tensor
            or call.method == "backward"
            or call.local in working
            or any(each.is_tensor for each in call.arguments)
            or call.receiver.kind is ValueKind.MODEL
        ):
            yield call
