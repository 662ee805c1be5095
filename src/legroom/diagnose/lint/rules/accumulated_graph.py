"""LG101: Memory grows with every step

Device memory rose at the end of each of the last steps, from the same lines. Something outlives its step: a
list that collects losses or outputs, a running total that is still a tensor, a hook or cache that never lets
go.

A loss tensor is four bytes, but it holds the autograd graph behind it, and in evaluation (or with
`retain_graph=True`) every activation of that step. The run ends in an out-of-memory error hours later, on
whatever line is unlucky.

```python
# instead of
losses.append(loss)                      # keeps the graph of every step
total = total + loss
# write
losses.append(loss.item())               # a number
total += loss.item()
outputs.append(output.detach().cpu())    # a tensor, on the host, without its history
```

In a report, the line is where the growing memory is *made*; the variable that keeps it is named where
Legroom could see it. Effect: all that has grown so far, less one step.

**In code** (`legroom lint`): a loss or an output that still has its graph is added up, appended, put under a new key or
given to an object that keeps it, in a loop that trains or evaluates, and nothing empties that place in the loop. Printing
it, a `deque` with a limit, a sum over several losses that goes backward once, are fine.

**Fix**: safe. `.item()` where only the number is used afterwards, else `.detach()`.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.detaching import detached, is_scalar, is_used_as_tensor, parts_with_graph
from legroom.diagnose.lint.edits import append_to
from legroom.diagnose.lint.facts import CallFact, Function, LoopFact, Store
from legroom.diagnose.lint.kinds import Kind
from legroom.diagnose.lint.lifetimes import (
    goes_backward_anywhere,
    is_in_step_code,
    is_let_go_elsewhere,
    is_limited,
    outlives_its_step,
)
from legroom.diagnose.lint.program import Program
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules.forward_hook import is_hook
from legroom.diagnose.lint.rules.growing_tensor import is_joined_to_itself
from legroom.diagnose.lint.syntax import dotted, live_names, method_name, names_in, path_of, receiver, walk

CODE = "LG101"


def check(program: Program) -> Iterator[Problem]:
    for store in program.stores:
        if _collects_graph(program, store):
            kept = outlives_its_step(program, store)
            if kept is not None and _key_is_new(program, store, kept):
                yield _stored(program, store)
        else:
            yield from _collected_at_once(program, store)
    for call in program.calls:
        yield from _given_to_a_keeper(program, call)


def _collects_graph(program: Program, store: Store) -> bool:
    if not store.value.carries_graph or is_hook(program, store.function):
        return False
    if _is_given_by_the_caller(store):
        return False  # told where it is given
    if store.how in {"augment", "append"}:
        return True
    if store.how == "item":
        into = (Kind.TENSOR, Kind.CONTAINER, Kind.UNKNOWN)
        return _averages_itself(store) or (store.varying_key and (store.mapping or store.into.kind in into))
    return adds_to_itself(program, store)


def _averages_itself(store: Store) -> bool:
    """`shadow[name] = 0.9 * shadow[name] + 0.1 * parameter`: the graph of every step hangs on the one before."""
    return (
        store.uses_itself
        and isinstance(store.expression, cst.BinaryOperation)
        and any(
            isinstance(each, cst.Subscript)
            and path_of(each) == store.target
            and _is_operand(store.expression, each)
            for each in walk(store.expression)
        )
    )


def _is_operand(expression: cst.CSTNode, wanted: cst.CSTNode) -> bool:
    if isinstance(expression, cst.BinaryOperation):
        return _is_operand(expression.left, wanted) or _is_operand(expression.right, wanted)
    return expression is wanted


def adds_to_itself(program: Program, store: Store) -> bool:
    """Made from itself by arithmetic alone; what goes through a model is a state."""
    if store.how != "assign" or not store.uses_itself or is_joined_to_itself(program, store):
        return False
    if _is_sum_with(program, store.expression, store.target):
        return True
    other = dotted(store.expression)
    if other is not None:  # total = new_total
        made = [each for each in program.stores if each.target == other and each.order < store.order]
        return bool(made) and _is_sum_with(program, made[-1].expression, store.target)
    return store.target in live_names(store.expression) and _is_arithmetic(program, store)


def _is_arithmetic(program: Program, store: Store) -> bool:
    """`torch.stack([total, loss]).sum()`: only operations of torch are between the old value and the new."""
    return isinstance(store.expression, cst.Call) and all(
        (program.imports.qualified(each.func) or "").startswith("torch.")
        or dotted(each.func) in {"sum", "max", "min"}
        or program.value(receiver(each) or each.func).is_tensor
        for each in walk(store.expression)
        if isinstance(each, cst.Call) and store.target in live_names(each)
    )


def _is_given_by_the_caller(store: Store) -> bool:
    kept = store.function.keeps
    return any(each.node is store.node for each in kept.values()) and bool(store.function.sites)


def _is_sum_with(program: Program, expression: cst.BaseExpression, target: str) -> bool:
    """`total + loss`, `0.9 * average + 0.1 * loss`, `[*losses, loss]`; `state = cell(x, state)` is another matter."""
    if isinstance(expression, cst.BinaryOperation):
        return any(_is_sum_with(program, side, target) for side in (expression.left, expression.right))
    if isinstance(expression, cst.IfExp):
        return any(_is_sum_with(program, side, target) for side in (expression.body, expression.orelse))
    if isinstance(expression, cst.ListComp):  # [0.9 * e + 0.1 * p for e, p in zip(average, parameters)]
        return isinstance(expression.elt, cst.BinaryOperation) and target in names_in(expression.for_in.iter)
    if isinstance(expression, (cst.List, cst.Tuple, cst.Dict)):
        starred = (cst.StarredElement, cst.StarredDictElement)
        return any(isinstance(each, starred) and dotted(each.value) == target for each in expression.elements)
    if isinstance(expression, cst.Call):
        name = program.imports.qualified(expression.func) or ""
        if name in {"torch.add", "torch.lerp", "torch.sub"}:
            return any(dotted(each.value) == target for each in expression.args)
        return method_name(expression) in {"add", "lerp", "mul", "sub"} and _is_sum_with(
            program, receiver(expression) or expression.func, target
        )
    return dotted(expression) == target


def _key_is_new(program: Program, store: Store, kept: LoopFact | Function) -> bool:
    """Whether each step has a key of its own: one that goes through the same few names again replaces them."""
    if store.how != "item" or _averages_itself(store):
        return True
    target = store.node.targets[0].target if isinstance(store.node, cst.Assign) else None
    if not isinstance(target, cst.Subscript):
        return False
    names = {name for each in target.slice for name in names_in(each.slice)}
    if not isinstance(kept, LoopFact):
        return store.mapping and bool(names)
    if not store.mapping:  # a place of a list or tensor: a new one only by the loop's own count
        return bool(names & kept.bound)
    inside = store.loops[store.loops.index(kept) + 1 :]
    return bool(names.difference(*(loop.bound for loop in inside)))


def _stored(program: Program, store: Store) -> Problem:
    suffix, edits, safe = detached(program, store, store.target)
    if goes_backward_anywhere(program, store.target):
        edits, remedy = [], f"Empty `{store.target}` once its step is over"
    else:
        remedy = f"Keep {{}} without it: add `{suffix}`"
    parts = parts_with_graph(program, store.expression, but=store.target if store.uses_itself else "")
    what = _words(program, parts)
    if store.how in {"augment", "assign"}:
        message = f"`{store.target}` adds up {what} with its graph: the graph of every step stays alive"
    else:
        message = f"`{store.target}` collects {what} with its graph: the graph of every step stays alive"
    return Problem(
        node=parts[0] if parts else store.expression,
        message=message,
        help=remedy.replace("{}", what),
        edits=tuple(edits),
        safe=safe,
    )


def _collected_at_once(program: Program, store: Store) -> Iterator[Problem]:
    """`losses = [step(batch) for batch in loader]` where `step` trains and gives its loss back."""
    comprehension = store.expression
    if not isinstance(comprehension, cst.ListComp) or not isinstance(comprehension.elt, cst.Call):
        return
    for call in program.calls:
        trains = call.local is not None and (call.local.backward or call.local.steps)
        if call.node is comprehension.elt and trains and program.value(call.node).kind is Kind.GRAPH:
            suffix = ".detach()" if is_used_as_tensor(program, store, store.target) else ".item()"
            yield Problem(
                node=comprehension.elt,
                message=f"`{store.target}` collects what every step returns with its graph",
                help=f"Keep it without: add `{suffix}`",
                edits=tuple(append_to(program, comprehension.elt, suffix)),
            )


def _given_to_a_keeper(program: Program, call: CallFact) -> Iterator[Problem]:
    """`meter.update(loss)` where `update` is in this file and puts its argument into the object."""
    if call.local is None or not call.local.keeps or not is_in_step_code(program, call):
        return
    site = next((each for each in call.local.sites if each.call is call.node), None)
    if site is None:
        return
    for name, store in call.local.keeps.items():
        value = site.values.get(name)
        if value is None or not value.carries_graph:
            continue
        if is_let_go_elsewhere(program, store) or is_limited(program, store) or _holds_graph_itself(store):
            continue
        if is_joined_to_itself(program, store):
            continue
        argument = next(
            (each.value for each in call.node.args if program.value(each.value).carries_graph), None
        )
        if argument is None:
            continue
        parts = parts_with_graph(program, argument)
        number = all(is_scalar(program, part, store) for part in parts) and not is_used_as_tensor(
            program, store, store.target
        )
        suffix = ".item()" if number else ".detach()"
        what = _words(program, parts)
        yield Problem(
            node=parts[0] if parts else argument,
            message=f"`{call.local.name}` keeps {what} with its graph in `{store.target}`, one more with every step",
            help=f"Give it {what} without its graph: add `{suffix}`",
            edits=tuple(
                edit
                for part in parts
                if program.value(part).kind is Kind.GRAPH
                for edit in append_to(program, part, suffix)
            ),
        )
        return


def _holds_graph_itself(store: Store) -> bool:
    """Told already where it is stored."""
    return store.value.carries_graph and store.function.name == "forward"


def _words(program: Program, parts: list[cst.BaseExpression]) -> str:
    if len(parts) == 1 and (path := dotted(parts[0])) is not None:
        return f"`{path}`"
    if len(parts) == 1:
        text = " ".join(program.source(parts[0]).split())
        if len(text) <= 40:
            return f"`{text}`"
    return "a result"
