"""LG119: The losses of several micro-batches are summed before one backward pass

## What it detects
The rule checks for losses of different batches that are summed, or collected in a list, for a single backward
pass. The backward pass runs after a fixed number of batches, after a loop over micro-batches, or after all
batches of a loader. The backward pass may be in another function in the file.

The rule does not flag losses that share a graph: several losses of one batch, the losses of the time steps of a
recurrent model, and losses that use features computed before the loop.

## Why this is a problem
Gradient accumulation saves memory because only one micro-batch has a graph at a time. If the losses are summed first,
the graphs of all micro-batches stay alive until the backward pass. The peak is then as high as without accumulation.

## Example
```python
for micro_batch in micro_batches:
    total = total + criterion(model(micro_batch.x), micro_batch.y) / len(micro_batches)
total.backward()
```

## Use instead
```python
for micro_batch in micro_batches:
    loss = criterion(model(micro_batch.x), micro_batch.y) / len(micro_batches)
    loss.backward()                      # frees the graph; the gradients add up
```

## Fix safety
No automatic fix is available.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import runs_every_step
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    has_modulo,
    is_call_of,
    is_true,
    keyword,
    method_name,
    names_in,
    names_with_graph,
    path_of,
    positional,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules.growth.accumulated_graph import adds_to_itself

CODE = "LG119"
_MICRO_BATCHES = re.compile(r"micro|accum|chunk|sub_?batch|mini_?batch|grad_acc|split", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        yield from _sums_of_comprehensions(program, call)
        totals = _totals(program, call)
        if not totals:
            continue
        for store in program.stores:
            if (
                store.target in totals
                and store.function is call.function
                and store.order < call.order
                and _adds_a_loss(program, store)
                and _is_one_backward(program, store, call)
                and _is_independent(program, store)
            ):
                over_loader = store.loops != call.loops and store.loops[-1].iterable.kind is ValueKind.LOADER
                batch = "batch" if over_loader else "micro-batch"
                yield Problem(
                    node=store.expression,
                    message=f"`{store.target}` collects the losses of several {batch}es, so all their graphs stay alive until one backward pass",
                    help=f"Call `backward()` on the loss of each {batch}; the gradients add up",
                )
                break


def _sums_of_comprehensions(program: Program, call: CallFact) -> Iterator[Problem]:
    """Find `loss = sum(criterion(model(x), y) for x, y in loader)` before `loss.backward()`."""
    path = dotted(receiver(call.node)) if call.method == "backward" else None
    made = [
        each.expression
        for each in program.stores
        if path is not None
        and each.target == path
        and each.function is call.function
        and each.order < call.order
    ]
    for node in walk(made[-1]) if made else ():
        if (
            isinstance(node, (cst.ListComp, cst.GeneratorExp))
            and program.value(node.for_in.iter).kind is ValueKind.LOADER
            and program.value(node.elt).kind is ValueKind.GRAPH
            and is_call_of(program.parent.get(program.parent.get(node, node), node), "sum")
        ):
            yield Problem(
                node=node.elt,
                message=f"`{path}` sums the losses of all batches, so all their graphs stay alive until one backward pass",
                help="Call `backward()` on the loss of each batch; the gradients add up",
            )


def _totals(program: Program, call: CallFact) -> set[str]:
    """Return the name of the tensor on which `backward` is called, and the sum or list from which the tensor was
    computed.
    """
    given = positional(call.node)
    if call.method in {"backward", "manual_backward"}:
        is_passed = given and not call.receiver.is_tensor and program.value(given[0].value).has_graph
        start = given[0].value if is_passed else receiver(call.node)
    elif call.local is not None and call.local.backward:
        used = call.local.names_in_backward or frozenset()
        start = next((each.value for name, each in call.local.receives(call.node) if name in used), None)
    else:
        return set()
    total = _summed(program, start)
    made = [
        each.expression
        for each in program.stores
        if each.target == total
        and each.how == "assign"
        and each.function is call.function
        and each.order < call.order
        and each.loops == call.loops
    ]
    return {name for name in (total, _summed(program, made[-1]) if made else None) if name is not None}


def _summed(program: Program, node: cst.BaseExpression | None) -> str | None:
    """Return the sum or list from which the argument of `backward` is computed: `total` for `(total / 4)`,
    `scaler.scale(total)` and `torch.stack(total).mean()`.
    """
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Divide, cst.Multiply)):
        return _summed(program, node.left) or _summed(program, node.right)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):  # sums["a"] + sums["b"]
        parts = {_summed(program, node.left), _summed(program, node.right)}
        return (
            parts.pop()
            if len(parts) == 1 and isinstance(node.left, (cst.Subscript, cst.BinaryOperation))
            else None
        )
    if isinstance(node, cst.Subscript):
        return path_of(node)
    if isinstance(node, cst.Call):
        owner, name = receiver(node), program.imports.qualified(node.func) or ""
        if method_name(node) == "scale" or name in {"sum", "torch.stack", "torch.sum", "torch.mean"}:
            return _summed(program, node.args[0].value) if node.args else None
        if method_name(node) in {"mean", "sum"}:
            return _summed(program, owner)
        return None
    return dotted(node)


def _adds_a_loss(program: Program, store: StoreFact) -> bool:
    if not store.value.has_graph:
        return False
    if store.how == "augment":
        return isinstance(store.node, cst.AugAssign) and isinstance(store.node.operator, cst.AddAssign)
    if store.how == "item":
        return store.uses_old_value and isinstance(store.expression, cst.BinaryOperation)
    return store.how == "append" or (store.how == "assign" and adds_to_itself(program, store))


def _is_one_backward(program: Program, store: StoreFact, call: CallFact) -> bool:
    """Return True if the program stores several losses before each backward pass.

    The backward pass follows a loop over micro-batches, or runs only in every n-th iteration.
    """
    if store.loops == call.loops:
        if not store.loops and not runs_every_step(program, store.function):
            return False
        return any(
            _counts(each.test, store.target) and not program.inside(store.node, each)
            for each in program.ancestors(call.node)
            if isinstance(each, cst.If) and program.inside(call.node, each.body)
        )
    if not store.loops or store.loops[:-1] != call.loops:
        return False
    return _iterates_micro_batches(program, store.loops[-1]) or _is_divided_by_count(store.expression)


def _is_divided_by_count(expression: cst.BaseExpression) -> bool:
    """Return True if an expression divides by the number of micro-batches, as in `loss / accumulation_steps`."""
    return any(
        isinstance(each, cst.BinaryOperation)
        and isinstance(each.operator, cst.Divide)
        and any(_MICRO_BATCHES.search(name) for name in names_in(each.right))
        for each in walk(expression)
    )


def _counts(test: cst.BaseExpression, target: str) -> bool:
    """Return True if a condition counts steps or stored losses, as in `(step + 1) % 4 == 0` and `len(losses) == 4`."""
    return has_modulo(test) or any(
        isinstance(each, cst.Call)
        and dotted(each.func) == "len"
        and each.args
        and path_of(each.args[0].value) == target
        for each in walk(test)
    )


def _iterates_micro_batches(program: Program, loop: LoopFact) -> bool:
    if loop.iterable.kind is ValueKind.LOADER:
        return True
    if not isinstance(loop.node, cst.For):  # while True: x, y = next(batches)
        return any(
            isinstance(node, cst.Call)
            and dotted(node.func) == "next"
            and node.args
            and program.value(node.args[0].value).kind is ValueKind.LOADER
            for node in walk(loop.node.body)
        )
    names = {each.value for each in walk(loop.node.iter) if isinstance(each, cst.Name)} | loop.bound
    iterated = dotted(loop.node.iter)
    for site in loop.function.call_sites if iterated in loop.function.parameters else ():
        for name, argument in loop.function.receives(site.call):
            if name == iterated:
                given = names_in(argument.value)
                names |= given | {
                    each.iterable_path for each in site.loops if not given.isdisjoint(each.bound)
                }
    return any(_MICRO_BATCHES.search(name) for name in names)


def _is_independent(program: Program, store: StoreFact) -> bool:
    """Return True if each loss has its own graph, because no value with a graph comes from outside the iteration."""
    region: cst.CSTNode = store.loops[-1].node.body if store.loops else store.function.body
    first, bound = program.order[region], store.loops[-1].bound if store.loops else set[str]()
    inside = [
        each
        for each in program.stores
        if each.function is store.function and first < each.order and program.inside(each.node, region)
    ]
    made: dict[str, int] = {}
    for each in inside:
        if each.how == "assign" and not each.uses_old_value:
            made.setdefault(each.target, each.order)
    names = names_with_graph(store.expression) - {store.target}
    expressions: list[cst.CSTNode] = [store.expression]
    for each in reversed(inside):
        if each.order < store.order and each.target in names:
            names |= names_with_graph(each.expression)
            expressions.append(each.expression)
    nodes = [node for each in expressions for node in walk(each)]
    if any(isinstance(each, cst.Call) and is_true(keyword(each, "create_graph")) for each in walk(region)):
        return False  # meta-learning
    computed = {each.target for each in inside if each.value.has_graph} - {store.target}
    for node in nodes:
        path = dotted(node)
        if path is None or path == store.target:
            continue
        if (
            not program.value(node).has_graph and path not in computed
        ):  # a state is detached in some iterations only
            continue
        first_made = made.get(path, made.get(root(path), len(program.nodes)))  # output.loss
        if path in bound or root(path) in bound or program.order[node] <= first_made:
            return False
    models = {
        call.node if call.node in nodes else call.function
        for call in program.calls
        if call.receiver.kind is ValueKind.MODEL and call.result.has_graph
    }
    return any(call.node in nodes and (call.node in models or call.local in models) for call in program.calls)
