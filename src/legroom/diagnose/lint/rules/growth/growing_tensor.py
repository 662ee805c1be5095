"""LG116: A tensor is concatenated to itself in every step

## What it detects
The rule checks for `x = torch.cat([x, ...])` (or `stack`, `hstack`, `vstack`) in a training loop that never truncates
or recreates `x`. The rule also checks for a window such as `queue = torch.cat([queue, keys])[-4096:]` if the added
tensor has a graph, because a slice keeps the whole graph alive.

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
from legroom.diagnose.lint.flow.facts import LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.lifetimes import outlives_its_step
from legroom.diagnose.lint.flow.syntax import dotted, keyword, method_name, path_of, positional, receiver
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.proofs import can_be_detached
from legroom.diagnose.lint.rule import Problem

CODE = "LG116"
_CONCATENATING = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"}
_METHODS_OF_HISTORY = {"detach", "contiguous", "clone", "cpu", "to", "float", "half"}


def check(program: Program) -> Iterator[Problem]:
    for store in program.stores:
        if not is_concatenated_to_itself(program, store):
            continue
        scope = outlives_its_step(program, store)
        if scope is None or not (store.value.has_graph or not isinstance(scope, LoopFact) or scope.trains):
            continue
        parts = _concatenated(program, store.expression) or _window(program, store)
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


def _message(store: StoreFact, *, with_graph: bool) -> str:
    if isinstance(store.expression, cst.Subscript):
        return f"`{store.target}` keeps the graph of all steps alive: a slice keeps the graph of the whole tensor"
    growing = f"`{store.target}` grows in every step"
    return f"{growing}, and keeps the graph of all steps alive" if with_graph else growing


def _window(program: Program, store: StoreFact) -> list[cst.BaseExpression]:
    """Return the concatenated expressions of `torch.cat([...])[-100:]` if the result has a graph. A window without a
    graph does not grow."""
    expression = store.expression
    if not isinstance(expression, cst.Subscript) or store.value.kind is not ValueKind.GRAPH:
        return []
    if any(each.node is store.node for each in store.function.stored_parameters.values()):
        return []  # reported at the call that passes the tensor
    return _concatenated(program, expression.value)


def is_concatenated_to_itself(program: Program, store: StoreFact) -> bool:
    """Return True for `x = torch.cat([x, ...])`. `x` may be an item, as in `cache["k"] = torch.cat([cache["k"],
    ...])`."""
    parts = _concatenated(program, store.expression) or _window(program, store)
    if store.how == "item":
        return not store.varying_key and any(
            isinstance(each, cst.Subscript) and path_of(each) == store.target for each in parts
        )
    return store.how == "assign" and store.target in {dotted(each) for each in parts}


def _concatenated(program: Program, expression: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the concatenated expressions of `torch.cat([...])`. The call may be in a conditional expression or
    followed by a method such as `.detach()`."""
    if isinstance(expression, cst.IfExp):
        return [*_concatenated(program, expression.body), *_concatenated(program, expression.orelse)]
    if not isinstance(expression, cst.Call):
        return []
    name = program.imports.qualified(expression.func) or ""
    if not name.startswith("torch.") or name.rpartition(".")[2] not in _CONCATENATING:
        owner = receiver(expression)
        return (
            _concatenated(program, owner)
            if method_name(expression) in _METHODS_OF_HISTORY and owner is not None
            else []
        )
    given = positional(expression)[0] if positional(expression) else keyword(expression, "tensors")
    if given is None or not isinstance(given.value, (cst.List, cst.Tuple)):
        return []
    return [each.value for each in given.value.elements]
