"""LG116: A tensor is concatenated to itself in every step

## What it detects
The rule checks for `x = torch.cat([x, ...])` (or `stack`, `hstack`, `vstack`) in a training loop that never truncates
or recreates `x`. The rule also checks for a window such as `queue = torch.cat([queue, keys])[-4096:]` if the added
tensor has a graph, because a slice keeps the whole graph alive. The key-value cache of a model is reported if the
program generates several sequences, but never calls the method that clears the cache.

## Why this is a problem
Each iteration allocates the whole history again, so memory use and time grow with every step. During the concatenation, the old and the
new tensor are both allocated. If gradients are enabled, the tensor also keeps the graphs of all earlier steps alive.

## Example
```python
history = torch.cat([history, output])
```

## Use instead
```python
history.append(output.detach().cpu())    # a list; call torch.cat(history) once, at the end
history = torch.cat([history, output.detach()])[-1000:]   # or keep only the latest elements
```

## Fix safety
The fix is available if the added tensor has a graph and no backward pass goes through the history. The fix adds
`.detach()`, so the history keeps no graph alive. The history still grows until you limit its length. The fix is safe if
no other code reads or prints the history. Otherwise, the fix is unsafe.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import append_to
from legroom.diagnose.lint.flow.backward_uses import is_used_in_backward
from legroom.diagnose.lint.flow.facts import Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.added_parts import (
    concatenated_parts,
    is_concatenated_through_name,
    is_concatenated_to_itself,
    window_parts,
)
from legroom.diagnose.lint.flow.retention.lifetimes import outlives_its_step
from legroom.diagnose.lint.flow.syntax import dotted, method_name, path_of
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.proofs import can_be_detached
from legroom.diagnose.lint.rule import Problem

CODE = "LG116"


def check(program: Program) -> Iterator[Problem]:
    for store in program.stores:
        if is_concatenated_through_name(program, store) and _is_never_cleared(program, store):
            yield Problem(
                node=store.expression,
                message=f"`{store.target}` grows in every call, and no code in this file calls the method that clears it",
                help=f"Clear `{store.target}` before each new sequence",
            )
        if not is_concatenated_to_itself(program, store):
            continue
        scope = outlives_its_step(program, store)
        if scope is None or not (store.value.has_graph or _is_training(scope)):
            continue
        parts = concatenated_parts(program, store.expression) or window_parts(program, store)
        others = [each for each in parts if path_of(each) != store.target]
        detached = isinstance(store.expression, cst.Call) and method_name(store.expression) == "detach"
        with_graph = (
            [] if detached else [each for each in others if program.value(each).kind is ValueKind.GRAPH]
        )
        yield Problem(
            node=store.expression,
            message=_message(store, with_graph=bool(with_graph)),
            help="Collect detached tensors in a list and concatenate the list once, or keep only the latest "
            "elements",
            edits=tuple(append_to(program, store.expression, ".detach()"))
            if with_graph and not is_used_in_backward(program, store.target)
            else (),
            safe=can_be_detached(program, [store.expression], store),
        )


def _is_training(scope: LoopFact | Function) -> bool:
    """Return False if only loops without training contain the code, such as a loop that generates tokens."""
    if isinstance(scope, LoopFact):
        return scope.trains
    loops = [loop for site in scope.call_sites for loop in site.loops]
    return not loops or any(loop.trains or loop.iterable.kind is ValueKind.LOADER for loop in loops)


def _is_never_cleared(program: Program, store: StoreFact) -> bool:
    """Return True for the key-value cache of a model that answers several requests, if the program never clears the
    cache.
    """
    clearing = {
        each.function
        for each in program.stores
        if each.target == store.target
        and dotted(each.expression) == "None"
        and each.function.class_name == store.function.class_name
        and each.function.name != "__init__"
    }
    return (
        bool(clearing)
        and all(_is_uncalled(program, each) for each in clearing)
        and any(
            call.receiver.kind is ValueKind.MODEL
            and call.loops
            and not program.is_module_class(call.function.class_name)
            and any(site.loops for site in call.function.call_sites)
            for call in program.calls
        )
    )


def _is_uncalled(program: Program, function: Function, seen: frozenset[str] = frozenset()) -> bool:
    """Return True if no code calls a function with this name. Calls inside functions that are never called do not
    count.
    """
    if function.name in seen:
        return True
    if isinstance(function.node, cst.Module) or function.name in program.passed_names:
        return False
    return all(
        _is_uncalled(program, each.function, seen | {function.name})
        for each in program.calls
        if function.name in (each.method, each.name)
    )


def _message(store: StoreFact, *, with_graph: bool) -> str:
    if isinstance(store.expression, cst.Subscript):
        return f"`{store.target}` keeps the graph of all steps alive: a slice keeps the graph of the whole tensor"
    growing = f"`{store.target}` grows in every step"
    return f"{growing}, and keeps the graph of all steps alive" if with_graph else growing
