"""LG108: Every backward pass retains the graph

## What it detects
The rule checks for `retain_graph=True` in a loop or a training step in the following cases:

- No other backward pass follows in the same iteration.
- Other backward passes follow, but they go through other graphs, because the losses have no intermediate tensors in
  common. The rule also follows the tensors into functions that run a backward pass, and into callers.
- The discriminator step of a GAN retains the generator's graph, although the program sets the generator's gradients to
  zero before the generator's own backward pass.

## Why this is a problem
`backward()` frees the saved activations layer by layer, so the gradients can use the same memory. With
`retain_graph=True`, all activations stay allocated until the loss is released, so the peak is higher in every step.
`retain_graph=True` is needed only if a second backward pass goes through the same graph.

If PyTorch raises "Trying to backward through the graph a second time" after you remove `retain_graph=True`, a tensor
from one step is still attached to its graph when the next step uses it. Detach that tensor (LG104).

## Example
```python
loss.backward(retain_graph=True)

d_loss = adversarial(discriminator(fake), zeros)   # computes gradients of the generator, too
d_loss.backward(retain_graph=True)
```

## Use instead
```python
loss.backward()

d_loss = adversarial(discriminator(fake.detach()), zeros)
d_loss.backward()
```

## Fix safety
The fix removes `retain_graph=True`. The fix is unsafe, because a later backward pass may need the graph.
"""

import re
from collections.abc import Iterator
from typing import TypeAlias

import libcst as cst

from legroom.diagnose.lint.edits import remove_argument
from legroom.diagnose.lint.flow.backward_uses import dominates
from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import runs_every_step
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_true,
    keyword,
    method_name,
    names_in,
    names_with_graph,
    positional,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import UNKNOWN, ValueKind
from legroom.diagnose.lint.gradients.trained_names import optimized_names
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules.growth import carried_state

CODE = "LG108"
_PASSES = {"backward", "manual_backward"}
_Graph: TypeAlias = tuple[str, int]
"""The name of a value with a graph, and the node that assigns it, or `_OUTSIDE`."""
_OUTSIDE = -1


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        argument = keyword(call.node, "retain_graph")
        if argument is None or not is_true(argument) or not _is_backward(call):
            continue
        creates = keyword(call.node, "create_graph")
        if creates is not None and is_true(creates):
            continue  # a graph of the gradients needs this graph
        if not _is_repeated(program, call) or _reuses_graph(program, call):
            continue
        if _another_follows(program, call) and not _is_separate(program, call):
            shared = _shared_without_need(program, call)
            if shared:
                yield _undetached(argument, shared[0])
            continue
        if _is_used_again(program, call, _graphs(program, call)):
            continue
        if not (call.loops or call.method in _PASSES or call.function.optimizer_step):
            continue  # a function that returns gradients: its graph is freed when it returns
        yield Problem(
            node=argument,
            message="`retain_graph=True` keeps all activations alive until the next step, and no other backward pass "
            "through this graph was found in the same step",
            help="Remove `retain_graph=True`. If the backward pass fails without this argument, detach the "
            "state that is carried from step to step",
            edits=()
            if _accumulates(program, call) or _has_unfixable_state(program)
            else (remove_argument(program, call.node, argument),),
            safe=False,
        )


def _is_repeated(program: Program, call: CallFact) -> bool:
    """Return True if a backward pass runs in every step.

    A function without callers in this file counts as a step if it computes the loss and calls the optimizer.
    """
    function = call.function
    if call.loops:
        return True
    if function.call_sites:
        return runs_every_step(program, function)
    computed = {each.target for each in program.stores if each.function is function and each.value.has_graph}
    return (
        isinstance(function.node, cst.FunctionDef)
        and function.optimizer_step
        and bool(computed & names_in(call.node))
    )


def _is_separate(program: Program, first: CallFact) -> bool:
    """Return True if no later backward pass of the iteration uses a value from which the first loss is computed."""
    loop = first.loops[-1] if first.loops else None
    others = [
        each
        for each in program.calls
        if each.function is first.function
        and each.node is not first.node
        and _is_backward(each)
        and (loop is None or loop.first <= each.order <= loop.last)
    ]
    if any(each.loops != first.loops for each in others):
        return False
    used = [_sources(program, each, loop) for each in (first, *others)]
    if any(each is None for each in used):
        return False
    first_used, *rest = (each or set() for each in used)
    return all(first_used.isdisjoint(each) for each in rest)


def _sources(program: Program, call: CallFact, loop: LoopFact | None) -> set[str] | None:
    """Return the names that the iteration assigns and from which the loss is computed.

    Return None if the loss may depend on a graph that is created elsewhere.
    """
    function = call.function
    without_graph = (
        ValueKind.TENSOR,
        ValueKind.PLAIN,
        ValueKind.MODEL,
        ValueKind.CRITERION,
        ValueKind.OPTIMIZER,
    )
    read = names_with_graph(call.node)
    names: set[str] = set()
    is_known = False
    for store in reversed(program.stores):
        if store.target not in read or store.value.kind in without_graph:
            continue
        in_iteration = (
            store.function is function
            and store.order < call.order
            and (loop is None or store.order >= loop.first)
        )
        if in_iteration:
            names.add(store.target)
            read |= names_with_graph(store.expression)
            is_known = True
        elif store.function is function or "." in store.target or not function.owns(store.target):
            if store.function is function and store.order > call.order and not store.uses_old_value:
                continue  # the loss of a later step
            return None
    return names if is_known else None


def _undetached(argument: cst.Arg, name: str) -> Problem:
    return Problem(
        node=argument,
        message=f"`retain_graph=True` retains the graph of `{name}`, but the program sets the gradients from this graph to zero before it uses them",
        help=f"Pass `{name}.detach()` to the model that this step trains, and remove `retain_graph=True`",
    )


def _shared_without_need(program: Program, first: CallFact) -> list[str]:
    """Return the names of values that two backward passes use with their graph, although only the second pass needs
    their gradients.

    Between the passes, an optimizer step trains the first model, and the gradients of the second model are set to
    zero.
    """
    loop = first.loops[-1] if first.loops else None
    calls = [
        each
        for each in program.calls
        if each.function is first.function
        and each.order > first.order
        and (loop is None or loop.first <= each.order <= loop.last)
    ]
    second = next((each for each in calls if _is_backward(each)), None)
    if second is None:
        return []
    between = [each for each in calls if each.order < second.order]
    stepped = {dotted(receiver(each.node)) for each in between if _is_step(each)}
    zeroed = {dotted(receiver(each.node)) for each in between if each.method == "zero_grad"}
    optimizers = {
        path
        for each in calls
        if each.order > second.order and _is_step(each) and (path := dotted(receiver(each.node))) is not None
    }
    discarded = {each for each in optimizers - stepped if _is_zeroed(program, each, zeroed)}
    used = _used_with_graph(program, first, loop)
    shared = [name for name in _used_with_graph(program, second, loop) if name in used]
    trained = optimized_names(program, [each for path in stepped for each in program.assigned(path)])
    others = (
        optimized_names(program, [each for path in discarded for each in program.assigned(path)]) - trained
    )
    made = [_names_called(program, first, each) for each in shared]
    if not trained or any(not each.isdisjoint(trained) for each in made):
        return []
    return shared if any(not each.isdisjoint(others) for each in made) else []


def _names_called(program: Program, call: CallFact, path: str) -> set[str]:
    return {
        name
        for store in program.stores
        if store.target == path and store.function is call.function
        for node in walk(store.expression)
        if isinstance(node, cst.Call)
        and (name := dotted(node.func)) is not None
        and root(name) not in program.imports.full_names
    }


def _is_step(call: CallFact) -> bool:
    return call.method == "step" and call.receiver.kind is ValueKind.OPTIMIZER


def _is_zeroed(program: Program, optimizer: str, zeroed: set[str | None]) -> bool:
    return optimizer in zeroed or any(
        not zeroed.isdisjoint(names_in(each)) for each in program.assigned(optimizer)
    )


def _used_with_graph(program: Program, call: CallFact, loop: LoopFact | None) -> list[str]:
    stores = [
        each
        for each in program.stores
        if each.function is call.function
        and each.order < call.order
        and (loop is None or each.order >= loop.first)
        and each.value.has_graph
    ]
    names = names_with_graph(call.node)
    for store in reversed(stores):
        if store.target in names:
            names |= names_with_graph(store.expression)
    return list(dict.fromkeys(store.target for store in stores if store.target in names))


def _is_used_again(
    program: Program, call: CallFact, graphs: set[_Graph], seen: frozenset[Function] = frozenset()
) -> bool:
    """Return True if a later call, or a caller of this function, runs a backward pass through one of the graphs."""
    function = call.function
    loop = call.loops[-1] if call.loops else None
    for other in program.calls:
        if other.function is not function or other.order <= call.order:
            continue
        if loop is not None and other.order > loop.last:
            continue
        if _runs_backward(program, other) and not graphs.isdisjoint(_graphs(program, other)):
            return True
    names = {name for name, _ in graphs}
    kept = {  # losses.append(loss)
        each.target
        for each in program.stores
        if each.function is function and each.how == "append" and names & names_with_graph(each.expression)
    }
    if any(_runs_backward(program, each) and kept & names_with_graph(each.node) for each in program.calls):
        return True
    returns = any(not names.isdisjoint(names_with_graph(each)) for each in function.returned_nodes)
    for site in function.call_sites if function not in seen else ():
        outer = program.call_of(site.call)
        if outer is None:
            continue
        if outer.loops and _depends_on_outer_graph(program, outer, outer.loops[-1]):
            return True
        passed = _graphs(program, outer) | {
            (_attribute(outer, name), _OUTSIDE) for name in names if name.startswith("self.")
        }
        if returns:
            stores = (each for each in program.stores if each.function is site.caller)
            passed |= {
                (each.target, each.order) for each in stores if program.inside(site.call, each.expression)
            }
        if passed and _is_used_again(program, outer, passed, seen | {function}):
            return True
    return False


def _runs_backward(program: Program, call: CallFact) -> bool:
    """Return True if a call runs a backward pass, or may run one in a class of another file."""
    if _is_backward(call):
        return True
    known = [call.local] if call.local is not None else program.methods.get(call.method or "", [])
    if not known and call.receiver.kind in (ValueKind.UNKNOWN, ValueKind.CRITERION):
        return _UPDATING.search(call.method or "") is not None
    return any(
        each.backward or any(loop.backward and loop.function is each for loop in program.loops)
        for each in known
    )


_UPDATING = re.compile(r"backward|optimi[sz]e|^(?:train|learn)(?:$|_(?:on|step|batch))")
"""Names of methods that run a backward pass."""


def _graphs(program: Program, call: CallFact) -> set[_Graph]:
    """Return the values with a graph from which a call computes its gradients.

    A method also reads the attributes of its object, such as `self.fake` in `self.backward_D()`.
    """
    function = call.function
    attributes = {
        _attribute(call, name)
        for inner in program.calls
        if inner.function is call.local and inner.local is None and _is_backward(inner)
        for name, order in _graphs(program, inner)
        if order == _OUTSIDE and name.startswith("self.")
    }
    names = names_with_graph(call.node) | attributes
    found: set[_Graph] = set()
    for store in reversed(program.stores):
        if store.function is not function or store.order >= call.order or store.target not in names:
            continue
        if store.value.has_graph and (not call.loops or store.order >= call.loops[-1].first):
            found.add((store.target, store.order))
            if store.how == "assign" and not store.uses_old_value and dominates(program, store, call):
                names -= {store.target}
            names |= names_with_graph(store.expression)
    with_graph = {path for path, value in function.environment.items() if value.has_graph}
    given = {name for name in names & with_graph if "." in name or name in function.parameters}
    return found | {(name, _OUTSIDE) for name in given | (names & attributes)}


def _attribute(call: CallFact, name: str) -> str:
    """Return the name that an attribute of `self` in a called method has in the caller."""
    return f"{dotted(receiver(call.node))}{name.removeprefix('self')}"


def _accumulates(program: Program, call: CallFact) -> bool:
    """Return True if the loss is a sum over all steps. In this case, the second step would fail without
    `retain_graph=True`.
    """
    read = names_in(call.node)
    return any(
        store.uses_old_value and store.target in read and any(loop in store.loops for loop in call.loops)
        for store in program.stores
    )


def _has_unfixable_state(program: Program) -> bool:
    """Return True if a state that is carried between steps has no automatic fix.

    In this case, the second step would fail without `retain_graph=True`.
    """
    return any(not problem.edits for problem in carried_state.check(program))


def _is_backward(call: CallFact) -> bool:
    return call.method in _PASSES or (call.name or "").endswith("autograd.grad")


def _another_follows(program: Program, call: CallFact) -> bool:
    loop = call.loops[-1] if call.loops else None
    for other in program.calls:
        if other.function is not call.function or other.order <= call.order or other.node is call.node:
            continue
        if _is_backward(other) and (loop is None or loop.first <= other.order <= loop.last):
            return True
    return False


def _reuses_graph(program: Program, call: CallFact) -> bool:
    """Return True if the backward pass of every iteration uses a graph that was created before the loop."""
    if not call.loops:
        return False
    loop = call.loops[-1]
    read = names_in(_differentiated(call))
    if _depends_on_outer_graph(program, call, loop):
        return True
    return not any(
        loop.first <= store.order <= loop.last and store.target in read and not _is_lookup(store.expression)
        for store in program.stores
    ) and not any(other.result.has_graph and program.inside(other.node, call.node) for other in program.calls)


def _differentiated(call: CallFact) -> cst.CSTNode:
    """Return the outputs that `torch.autograd.grad` differentiates, without the vector `grad_outputs`."""
    if call.method in _PASSES:
        return call.node
    given = keyword(call.node, "outputs") or next(iter(positional(call.node)), None)
    return given.value if given is not None else call.node


def _depends_on_outer_graph(program: Program, call: CallFact, loop: LoopFact) -> bool:
    """Return True if every loss depends on a graph that was created before the loop.

    The result is False if the loop contains an optimizer step, because no later step needs the gradients of that
    graph.
    """
    if any(loop in each.loops and _is_step(each) for each in program.calls):
        return False
    read = names_with_graph(call.node)
    before: set[str] = set()
    for store in reversed(program.stores):
        if store.function is not call.function or store.target not in read:
            continue
        if store.order >= loop.first:
            read |= names_with_graph(store.expression) if store.order < call.order else set()
        elif store.value.has_graph and store.how == "assign":
            before.add(store.target)
    function = call.function
    before |= {
        name
        for name in read & set(function.parameters)
        if _GRADIENT.search(name) or function.environment.get(name, UNKNOWN).has_graph
    }
    inside = {each.target for each in program.stores if loop.first <= each.order <= loop.last}
    return not before <= inside | loop.bound


_GRADIENT = re.compile(r"(?:^|_)(?:grads?|gradients?)(?:$|_)")
"""Names of parameters that contain gradients with a graph, such as `flat_grad`."""


def _is_lookup(expression: cst.BaseExpression) -> bool:
    """Return True if an expression looks up a value that was computed earlier, as in `losses.pop(name)` and
    `losses[name]`.
    """
    while isinstance(expression, (cst.Subscript, cst.Attribute)) or (
        isinstance(expression, cst.Call) and method_name(expression) in {"pop", "popleft", "get"}
    ):
        expression = expression.func if isinstance(expression, cst.Call) else expression.value
    return isinstance(expression, cst.Name)
