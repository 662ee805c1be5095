"""LG104: Activations of earlier steps are still alive

## What it detects
Reports contain this code if activations that autograd saved in an earlier step are still allocated.

`legroom lint` checks for loops that pass a state to a model and assign the returned state to the same variable. The
rule applies if the loop has a backward pass or runs with gradients enabled, and nothing in the loop detaches or
recreates the state. The rule does not flag a loop over the time steps within one training step, or a key-value cache
that is trimmed before it is stored in a file that does not train.

## Why this is a problem
The backward pass releases saved activations. Activations stay allocated if there is no backward pass, if the backward
pass uses `retain_graph=True`, or if a state carried from step to step (for example in a recurrent network) keeps its
history.

## Example
```python
hidden = model(x, hidden)                # the graph reaches back to the first step
loss.backward(retain_graph=True)
```

## Use instead
```python
hidden = model(x, hidden.detach())
loss.backward()
```

## Estimated saving
The estimated saving is the memory of the activations from earlier steps.

## Fix safety
The fix is unsafe: it detaches the state that the model receives, so gradients stop at the beginning of the step, as in
truncated backpropagation through time. In a tuple or list of states, every element is detached. If the initial state is
`None`, it stays `None`.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, append_to, replace
from legroom.diagnose.lint.flow.call_results import names_a_loss
from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.added_parts import is_concatenated_to_itself
from legroom.diagnose.lint.flow.retention.lifetimes import is_local, survives_in_callers
from legroom.diagnose.lint.flow.retention.releases import is_length_limited, is_released_elsewhere, survives
from legroom.diagnose.lint.flow.steps import runs_every_step
from legroom.diagnose.lint.flow.syntax import (
    NUMBER_FUNCTIONS,
    children,
    dotted,
    last_name,
    names_in,
    names_with_graph,
    path_of,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind, guess_from_name
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules.growth.accumulated_graph import adds_to_itself, is_converted
from legroom.diagnose.lint.rules.usage.evaluation_with_gradients import evaluations_with_gradients

CODE = "LG104"


def check(program: Program) -> Iterator[Problem]:
    reported: set[cst.CSTNode] = set()
    evaluating = {loop for _, loop in evaluations_with_gradients(program)}
    for store in program.stores:
        if store.no_grad or store.node in reported or not _is_carried(program, store):
            continue
        in_loop = any(
            (loop.backward or (loop in evaluating and not loop.in_module))  # LG201 reports loops of a model
            and survives(program, store.target, loop)
            for loop in store.loops
        )
        if in_loop or _is_stored_in_module(program, store):
            reported.add(store.node)
            argument = _state_argument(store)
            yield Problem(
                node=argument or store.expression,
                message=f"`{store.target}` carries its autograd graph from step to step, so the graph reaches back to the "
                "first step",
                help=f"Detach the state first: `{store.target}.detach()`",
                edits=_fix(program, store, argument),
                safe=False,
            )


def _is_carried(program: Program, store: StoreFact) -> bool:
    """Return True if a statement stores a state for the next step, as in `hidden = model(x, hidden)`."""
    if not store.uses_old_value or not store.value.has_graph or is_concatenated_to_itself(program, store):
        return False
    if _is_memory(program, store):
        return False
    if store.how == "append":  # later values still depend on the values that a window dropped
        return store.bounded
    if store.how == "item":
        if store.previous.is_tensor or not isinstance(store.expression, cst.Call):
            return False
        return _state_argument(store) is not None or store.target not in names_in(store.expression)
    if store.how != "assign" or adds_to_itself(program, store) or is_converted(store):
        return False
    if guess_from_name(last_name(store.target)).kind is ValueKind.MODEL:  # self.model = wrapped
        return False
    if isinstance(store.expression, cst.DictComp):  # filters or converts the old dict
        return False
    if isinstance(store.expression, (cst.Tuple, cst.List, cst.Set, cst.Dict)):  # (loss, history): a chain
        parts = [dotted(each.value) for each in store.expression.elements]
        return store.target in parts or ("." in store.target and None not in parts)  # self.state = (h, c)
    if isinstance(store.expression, cst.Call) and names_a_loss(dotted(store.expression.func) or ""):
        return False
    if _returns_same_object(program, store):
        return False
    if store.target not in names_in(store.expression):
        # state, or output[1]. In `h, c = state`, a later `h, c = model(x, (h, c))` uses the old value.
        return path_of(store.expression) is not None and not _is_replaced(program, store)
    return _reads_with_history(program, store.expression, store.target)


def _is_replaced(program: Program, store: StoreFact) -> bool:
    """Return True if a later assignment in the same loop computes a new value from the value that a store copies."""
    return any(
        other.target == store.target
        and other.node is not store.node
        and other.loops == store.loops
        and other.order > store.order
        and isinstance(other.expression, cst.Call)
        and store.target in names_in(other.expression)
        for other in program.stores
    )


def _is_memory(program: Program, store: StoreFact) -> bool:
    """Return True for the memory of a Transformer-XL or XLNet from another file. These models detach it."""
    return last_name(store.target).strip("_") == "mems" and not any(
        call.receiver.trainable
        and program.inside(call.node, store.expression)
        and not program.is_foreign(call.receiver.class_name)
        for call in program.calls
    )


def _returns_same_object(program: Program, store: StoreFact) -> bool:
    """Return True if a called function returns the object that it receives, as in `state = train_step(state, batch)`."""
    call = program.call_of(store.expression)
    if call is None or call.local is None or not call.local.returned_nodes:
        return False
    given = {
        name for name, argument in call.local.receives(call.node) if path_of(argument.value) == store.target
    }
    rebound = {each.target for each in program.stores if each.function is call.local and each.how == "assign"}
    return all(dotted(each) in given - rebound for each in call.local.returned_nodes)


def _reads_with_history(program: Program, node: cst.CSTNode, target: str) -> bool:
    """Return True if an expression reads a state together with its graph.

    The result is False if the expression detaches the state, or calls a function that does so.
    """
    if isinstance(node, cst.Call) and program.value(node).kind in (ValueKind.TENSOR, ValueKind.PLAIN):
        return False
    if isinstance(node, cst.BinaryOperation) and not program.value(node).has_graph:
        return False  # state.step + 1
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)) and target in names_in(node.for_in.iter):
        made = any(isinstance(each, cst.Call) for each in walk(node.elt))
        return made and bool(names_in(node.for_in.target) & names_with_graph(node.elt))
    if isinstance(node, (cst.Name, cst.Attribute)):
        return target in names_with_graph(node)
    return any(
        _reads_with_history(program, each, target)
        for each in children(node)
        if target in names_with_graph(each)
    )


def _state_argument(store: StoreFact) -> cst.BaseExpression | None:
    for call in walk(store.expression):
        if not isinstance(call, cst.Call) or dotted(call.func) in NUMBER_FUNCTIONS:
            continue
        for argument in call.args:
            parts = (
                argument.value.elements if isinstance(argument.value, (cst.Tuple, cst.List)) else [argument]
            )
            for part in parts:
                if path_of(part.value) == store.target and not isinstance(part.value, cst.Call):
                    return part.value
    return None


def _is_stored_in_module(program: Program, store: StoreFact) -> bool:
    return (
        not is_local(store)
        and runs_every_step(program, store.function)
        and not is_released_elsewhere(program, store)
        and not is_length_limited(program, store)
        and survives_in_callers(program, store)
    )


def _fix(program: Program, store: StoreFact, argument: cst.BaseExpression | None) -> tuple[Edit, ...]:
    if argument is None or dotted(argument) is None or _is_object(store):
        return ()
    state = store.target
    initial = [each for each in program.stores if each.target == state and each.node is not store.node]
    known = [each for each in initial if dotted(each.expression) != "None"]
    detached = _detached(state, known) if known else _detach_any(state)
    if detached and len(known) < len(initial):
        detached = f"None if {state} is None else {detached}"
    if detached == f"{state}.detach()":
        return tuple(append_to(program, argument, ".detach()"))
    return (replace(program, argument, detached),) if detached else ()


def _detached(state: str, initial: list[StoreFact]) -> str:
    """Return an expression that detaches a state, or "" if no one-line expression can do so."""
    if all(each.value.is_tensor for each in initial):
        return f"{state}.detach()"
    if any(each.value.mapping or _is_object(each) for each in initial):
        return ""
    if not all(each.value.kind is ValueKind.CONTAINER for each in initial):
        return _detach_any(state)
    if not all(part.is_tensor for each in initial for part in each.value.contents):
        return ""
    if any(isinstance(each.expression, (cst.List, cst.ListComp, cst.BinaryOperation)) for each in initial):
        return f"[part.detach() for part in {state}]"
    return f"tuple(part.detach() for part in {state})"


def _is_object(store: StoreFact) -> bool:
    """Return True if the state is an object such as `StreamState(...)`, whose class determines how to detach it."""
    made = store.expression.func if isinstance(store.expression, cst.Call) else None
    return store.value.class_name is not None or last_name(dotted(made) or "")[:1].isupper()


def _detach_any(state: str) -> str:
    """Return code that detaches a tuple, as in an LSTM, or a tensor, as in a GRU."""
    return f"tuple(part.detach() for part in {state}) if isinstance({state}, tuple) else {state}.detach()"
