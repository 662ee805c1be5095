"""LG101: Memory grows with every step

## What it detects
Reports contain this code if device memory or an autograd graph grew in each of the most recent steps, at the
same lines of code. The report shows the line that allocates the memory. If Legroom finds the variable that
keeps the memory alive, the report also shows that variable.

`legroom lint` checks for training and evaluation loops that sum, append or store a loss or output together with its
graph. The rule applies if nothing in the loop clears the container. The rule also covers calls to objects that store
their arguments.

The rule also flags code that keeps the following values alive, even if they have no graph:

- gradients or copies of the model that are stored in every step, and trained models that the program does not use again
- the outputs of all batches, or the states of all sampling steps, if they are collected on the GPU. Other functions in
  the file may compute them.
- the logits of a language model or a segmentation model that a Transformers `Trainer` collects on the GPU for
  `compute_metrics`
- torchmetrics metrics that store every prediction and are never reset
- states that a replay buffer stores on the GPU, if they are images, or if the program moves each sample to the GPU
  again
- the models of objects such as federated clients, if each round uses only some of the objects
- the entries of a cache with random keys, which the program cannot find again
- the results that a cache stores for every request, session or text, if the cache never removes old entries
- a loss or output that a stored closure reads later, such as in `jobs.append(lambda: log(loss))`

The container may be local, global, or in an object whose methods store their arguments. The finding is
reported at the statement that stores the value. If a method stores whatever value it receives, such as
`AverageMeter.update()`, the finding is reported at the line that calls the method.

The rule does not flag printing a loss, storing losses in a `deque` with a `maxlen`, containers that are cleared in each
epoch, or summing several losses for one backward pass. The rule flags a sum of losses that is set to zero only once per
epoch. It also flags an object that stores the gradients of every optimizer step until the end of the epoch.

## Why this is a problem
A loss tensor uses only four bytes, but it keeps the autograd graph of its step alive. In evaluation, or with
`retain_graph=True`, the graph keeps every activation of the step. Eventually, the run fails with an
out-of-memory error on an unrelated line.

## Example
```python
losses.append(loss)                      # keeps the graph of every step
total = total + loss
outputs.append(output)
```

## Use instead
```python
losses.append(loss.item())               # a Python number
total += loss.item()
outputs.append(output.detach().cpu())    # a tensor on the host, without its graph
```

## Estimated saving
The estimated saving is all memory that has accumulated so far, except the memory of one step.

## Fix safety
The fix adds `.detach()`. The fix is safe if the code shows that the value is a tensor, that no later backward pass uses
the value, and that the value is not printed. Otherwise, the fix is unsafe. The fix does not add `.item()`, because a
sum of Python numbers is rounded differently from a sum of tensors.

If a collected value may be a view (`output[:, 0]`), the fix adds `.detach().clone()`, because a detached view
keeps the whole tensor alive. This fix is unsafe, because in-place changes to the tensor no longer change the
collected value.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from legroom.diagnose.lint.collected.additions import additions_by_assignment, additions_by_calls
from legroom.diagnose.lint.collected.at_once import collected_at_once
from legroom.diagnose.lint.collected.copies import KeyCheck, collected_gradients, collected_models
from legroom.diagnose.lint.collected.idle_models import idle_models
from legroom.diagnose.lint.collected.metrics import metrics_without_reset
from legroom.diagnose.lint.collected.models import kept_models
from legroom.diagnose.lint.collected.new_keys import averages_itself, key_is_new, key_of, key_repeats
from legroom.diagnose.lint.collected.on_gpu import collected_states
from legroom.diagnose.lint.collected.outputs import collected_outputs
from legroom.diagnose.lint.collected.replay import replayed_on_gpu
from legroom.diagnose.lint.collected.requests import kept_for_requests
from legroom.diagnose.lint.collected.trainer_predictions import collected_by_trainer
from legroom.diagnose.lint.collected.unreachable import unreachable_entries
from legroom.diagnose.lint.detaching import (
    COPY,
    DETACH,
    detach_edits,
    detaching_call,
    may_be_view,
    parts_with_graph,
)
from legroom.diagnose.lint.edits import Edit, append_to
from legroom.diagnose.lint.flow.assignments import append_method
from legroom.diagnose.lint.flow.backward_uses import is_used_in_backward
from legroom.diagnose.lint.flow.facts import CallFact, Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.added_parts import added_parts
from legroom.diagnose.lint.flow.retention.lifetimes import outlives_call, outlives_its_step
from legroom.diagnose.lint.flow.retention.limits import is_replayed
from legroom.diagnose.lint.flow.retention.releases import survives
from legroom.diagnose.lint.flow.steps import is_forward, is_in_step_code, is_step_loop
from legroom.diagnose.lint.flow.syntax import (
    contained_parts,
    dotted,
    is_false,
    keyword,
    method_name,
    names_in,
    names_with_graph,
    path_of,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import UNKNOWN, ValueKind
from legroom.diagnose.lint.proofs import frees_graph, may_be_printed
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules.growth.forward_hook import is_hook
from legroom.diagnose.lint.rules.growth.growing_tensor import is_concatenated_to_itself

CODE = "LG101"
_FINDERS = (
    metrics_without_reset,
    replayed_on_gpu,
    idle_models,
    unreachable_entries,
    kept_for_requests,
    collected_by_trainer,
)


def check(program: Program) -> Iterator[Problem]:
    for store in program.stores:
        if _collects_graph(program, store):
            scope = outlives_its_step(program, store, every_step=_is_closure(program, store.expression))
            if scope is not None and key_is_new(program, store, scope):
                yield _stored(program, store)
        else:
            yield from collected_at_once(program, store)
            for each in (store, *additions_by_assignment(program, store)):
                yield from _collected(program, each, key_is_new)
            yield from collected_states(program, store)
            yield from kept_models(program, store)
    for call, addition, store in additions_by_calls(program):
        if not addition.value.has_graph and not _replaces(program, call, store):
            for problem in _collected(program, addition, lambda *_: True):
                yield problem if _is_for_any_value(store) else replace(problem, node=store.expression)
    yield from _passed_to_storing_functions(program)
    for call in program.calls:
        yield from _passed_to_append(program, call)
    for find in _FINDERS:
        yield from find(program)


def _collected(program: Program, store: StoreFact, key_is_new: KeyCheck) -> Iterator[Problem]:
    """Find tensors without a graph that a container collects on the GPU."""
    yield from collected_gradients(program, store, key_is_new)
    yield from collected_models(program, store, key_is_new)
    yield from collected_outputs(program, store)


def _collects_graph(program: Program, store: StoreFact) -> bool:
    if not store.value.has_graph or is_hook(program, store.function):
        return False
    if _is_passed_by_caller(program, store):
        return False  # reported at the call
    if store.how in {"augment", "append"}:
        return True
    if store.how == "item":
        if store.previous.is_tensor:  # writing into a tensor extends its graph, at any index
            given = root(store.target) in store.function.parameters and root(store.target) != "self"
            return store.previous.kind is not ValueKind.PARAMETER and not given
        growing = (ValueKind.CONTAINER, ValueKind.UNKNOWN)
        return averages_itself(store) or (
            store.varying_key and (store.mapping or store.previous.kind in growing)
        )
    return adds_to_itself(program, store)


def adds_to_itself(program: Program, store: StoreFact) -> bool:
    """Return True if the target is updated by arithmetic only. A value that passes through a model is a state (LG104)."""
    if store.how != "assign" or not store.uses_old_value or is_concatenated_to_itself(program, store):
        return False
    if _is_sum_with(program, store.expression, store.target):
        return True
    other = dotted(store.expression)
    if other is not None:  # total = new_total
        made = [each for each in program.stores if each.target == other and each.order < store.order]
        return bool(made) and _is_sum_with(program, made[-1].expression, store.target)
    return store.target in names_with_graph(store.expression) and _is_arithmetic(program, store)


def _is_arithmetic(program: Program, store: StoreFact) -> bool:
    """Return True if the old value is used only by torch operations, as in `torch.stack([total, loss]).sum()`."""
    made = store.expression
    while isinstance(made, cst.Subscript):
        made = made.value
    return isinstance(made, cst.Call) and all(
        (program.imports.qualified(each.func) or "").startswith("torch.")
        or dotted(each.func) in {"sum", "max", "min"}
        or program.value(receiver(each) or each.func).is_tensor
        for each in walk(store.expression)
        if isinstance(each, cst.Call) and store.target in names_with_graph(each)
    )


def _is_passed_by_caller(program: Program, store: StoreFact) -> bool:
    names = [name for name, each in store.function.stored_parameters.items() if each.node is store.node]
    return not _is_reported_at_store(store) and any(
        _is_passed_directly(store.function, name) for name in names
    )


def _is_passed_directly(function: Function, name: str) -> bool:
    """Return True if a caller passes a value with a graph that is not a comprehension. The result of a comprehension
    is easier to detach in the statement that stores it."""
    new = (cst.DictComp, cst.ListComp, cst.GeneratorExp)
    return any(
        not isinstance(argument.value, new) and site.values.get(name, UNKNOWN).has_graph
        for site in function.call_sites
        for given, argument in function.receives(site.call)
        if given == name
    )


def _is_sum_with(program: Program, expression: cst.BaseExpression, target: str) -> bool:
    """Return True for a sum or list such as `total + loss`, `0.9 * average + 0.1 * loss` or `[*losses, loss]`, but
    not for `state = cell(x, state)`."""
    if isinstance(expression, cst.BinaryOperation):
        return any(_is_sum_with(program, side, target) for side in (expression.left, expression.right))
    if isinstance(expression, cst.IfExp):
        return any(_is_sum_with(program, side, target) for side in (expression.body, expression.orelse))
    if isinstance(expression, cst.ListComp):  # [0.9 * e + 0.1 * p for e, p in zip(average, parameters)]
        sources = names_in(expression.for_in.iter)
        return (
            isinstance(expression.elt, cst.BinaryOperation)
            and target in sources
            and not any(_are_gradients(program, each) for each in sources)
        )
    if added_parts(expression, target, program.value_classes):  # [*losses, loss], (loss, losses)
        return True
    if isinstance(expression, cst.Call):
        name = program.imports.qualified(expression.func) or ""
        if name in {"torch.add", "torch.lerp", "torch.sub"}:
            return any(dotted(each.value) == target for each in expression.args)
        return method_name(expression) in {"add", "lerp", "mul", "sub"} and _is_sum_with(
            program, receiver(expression) or expression.func, target
        )
    return dotted(expression) == target


def _are_gradients(program: Program, path: str) -> bool:
    """Return True for `grads` without a graph in `[p - lr * g for p, g in zip(weights, grads)]`: a step of an inner
    loop."""
    return any(
        isinstance(each, cst.Call)
        and (program.imports.qualified(each.func) or "").endswith("torch.autograd.grad")
        and ((creates_graph := keyword(each, "create_graph")) is None or is_false(creates_graph))
        for each in program.assigned(path)
    )


def _stored(program: Program, store: StoreFact) -> Problem:
    edits, safe = detach_edits(program, store, store.target)
    parts = parts_with_graph(program, store.expression, but=store.target if store.uses_old_value else "")
    if is_used_in_backward(program, store.target):
        edits, remedy = [], f"Clear `{store.target}` after each step"
    else:
        remedy = f"Store {{}} without its graph: {_addition(program, parts, store)}"
    if not parts:
        edits, remedy = [], "Store only numbers or detached tensors"
    if any(_is_closure(program, part) for part in parts):
        edits, remedy = [], "Compute the number before the closure, or let the closure read a detached tensor"
    what = _describe(program, parts)
    action = "accumulates" if store.how in {"augment", "assign"} else "stores"
    return Problem(
        node=parts[0] if parts else store.expression,
        message=f"`{store.target}` {action} {what} with its autograd graph, which keeps the graph of every step alive",
        help=remedy.replace("{}", what),
        edits=tuple(edits),
        safe=safe,
    )


def _addition(
    program: Program, parts: list[cst.BaseExpression], store: StoreFact, function: Function | None = None
) -> str:
    """Return advice that names the call to add to each stored subexpression with a graph."""
    calls = {detaching_call(program, part, store, function) for part in parts}
    return _added_call(COPY if COPY in calls else DETACH)


def _added_call(call: str) -> str:
    reason = " (a detached view keeps the whole tensor alive)" if call == COPY else ""
    return f"add `{call}`{reason}, or `.item()` for a number"


@dataclass(frozen=True, slots=True)
class _Passed:
    """A call that passes a value with its graph to a function that stores it, such as `meter.update(loss)`."""

    call: CallFact
    store: StoreFact
    """The statement in the function that stores the value."""
    parts: list[cst.BaseExpression]
    """The subexpressions of the argument that have a graph."""
    argument: cst.BaseExpression


def _passed_to_storing_functions(program: Program) -> Iterator[Problem]:
    """Find calls such as `meter.update(loss)`, where `update` is defined in this file and stores its argument. The finding
    is at the statement that stores the value, or at the call if other calls pass other values."""
    found: dict[cst.CSTNode, list[_Passed]] = {}
    for call in program.calls:
        passed = _passed_with_graph(program, call)
        if passed is not None:
            found.setdefault(passed.store.node, []).append(passed)
    for each in found.values():
        store = each[0].store
        if (
            _is_for_any_value(store)
            or _receives_other_values(store)
            or any(_names_its_value(program, passed) for passed in each)
        ):
            yield from (_reported_at_call(program, passed) for passed in each)
        else:
            yield _reported_at_store(program, each)


def _passed_with_graph(program: Program, call: CallFact) -> _Passed | None:
    if call.local is None or not call.local.stored_parameters or not is_in_step_code(program, call):
        return None
    site = next((each for each in call.local.call_sites if each.call is call.node), None)
    if site is None:
        return None
    for name, store in call.local.stored_parameters.items():
        value = site.values.get(name)
        if value is None or not value.has_graph or not _is_passed_directly(call.local, name):
            continue
        every_step = any(_is_closure(program, each.value) for each in call.node.args)
        if _is_reported_at_store(store) or not outlives_call(program, call, store, every_step=every_step):
            continue
        if store.value.kind in (ValueKind.PLAIN, ValueKind.TENSOR) or _replaces(program, call, store):
            continue
        if _is_passed_on(program, call.function, store):
            continue  # reported at the outer call
        if store.function is not call.local and is_forward(program, call.local):
            continue  # reported in the model
        if is_concatenated_to_itself(program, store):
            continue
        argument = next((each.value for each in call.node.args if program.value(each.value).has_graph), None)
        if argument is not None:
            return _Passed(call, store, parts_with_graph(program, argument), argument)
    return None


def _is_for_any_value(store: StoreFact) -> bool:
    """Return True if a function is meant to store any value: it accepts any number of arguments, the fields of a
    record, or the values of a meter. The function is then correct, and the mistake is in the call."""
    function = store.function
    names = [name for name, each in function.stored_parameters.items() if each.node is store.node]
    stored = function.stored_parameters.keys() & set(function.parameters)
    if store.is_in_argument or len(stored) >= _FIELDS_OF_RECORD:
        return True
    if isinstance(function.node, cst.FunctionDef):
        stars = (function.node.params.star_arg, function.node.params.star_kwarg)
        if any(isinstance(each, cst.Param) and each.name.value in names for each in stars):
            return True
    return store.how in {"augment", "assign"} and any(_METER_VALUE.search(name) for name in names)


def _names_its_value(program: Program, passed: _Passed) -> bool:
    """Return True for `log("loss", loss)`, `log({"loss": loss})`, `push((state, log_prob))` and `defer(lambda:
    log(loss))`: the function also stores other values."""
    return any(
        isinstance(each, cst.BaseString) or bool(contained_parts(each)) or _is_closure(program, each)
        for each in (argument.value for argument in passed.call.node.args)
    )


def _receives_other_values(store: StoreFact) -> bool:
    """Return True if other calls pass values without a graph to the function that stores them."""
    return any(
        not site.values[name].has_graph
        for name, each in store.function.stored_parameters.items()
        if each.node is store.node
        for site in store.function.call_sites
        if name in site.values
    )


_FIELDS_OF_RECORD = 3
_METER_VALUE = re.compile(r"^(?:v|x|n|val|value|number|metric|amount)$")
"""Names of the parameters of an average meter, which should receive numbers."""


def _reported_at_call(program: Program, passed: _Passed) -> Problem:
    what, store = _describe(program, passed.parts), passed.store
    edits, safe = _detached_arguments(program, passed)
    name = passed.call.local.name if passed.call.local is not None else store.function.name
    return Problem(
        node=passed.parts[0] if passed.parts else passed.argument,
        message=f"`{name}` stores {what} with its autograd graph in `{store.target}` in every step",
        help=f"Clear `{store.target}` after each step"
        if is_used_in_backward(program, store.target)
        else f"Pass {what} without its graph: {_addition(program, passed.parts, store, passed.call.function)}",
        edits=edits,
        safe=safe,
    )


def _reported_at_store(program: Program, passed: list[_Passed]) -> Problem:
    store, first = passed[0].store, passed[0]
    parts = parts_with_graph(program, store.expression, but=store.target if store.uses_old_value else "")
    what, given = _describe(program, parts or [store.expression]), _describe(program, first.parts)
    caller = first.call.function.qualified_name
    where = f"`{caller}` passes" if caller else "the program passes"
    changes = [_detached_arguments(program, each) for each in passed]
    calls = {
        detaching_call(program, part, store, each.call.function) for each in passed for part in each.parts
    }
    added = COPY if COPY in calls else DETACH
    return Problem(
        node=parts[0] if parts else store.expression,
        message=f"`{store.target}` stores {what} with its autograd graph in every step ({where} {given})",
        help=f"Clear `{store.target}` after each step"
        if is_used_in_backward(program, store.target)
        else f"Store {what} without its graph: add `{added}`, or pass {given} without its graph",
        edits=tuple(edit for edits, _ in changes for edit in edits)
        if all(edits for edits, _ in changes)
        else (),
        safe=all(safe for _, safe in changes),
    )


def _detached_arguments(program: Program, passed: _Passed) -> tuple[tuple[Edit, ...], bool]:
    """Return the edits that pass the value without its graph, and True if they are safe."""
    call, store = passed.call, passed.store
    if call.result.has_graph or is_used_in_backward(program, store.target):
        return (), False
    edits = tuple(
        edit
        for part in passed.parts
        if program.value(part).kind is ValueKind.GRAPH
        for edit in append_to(program, part, detaching_call(program, part, store, call.function))
    )
    return edits, _can_be_passed_detached(program, passed.parts, call, store)


def _passed_to_append(program: Program, call: CallFact) -> Iterator[Problem]:
    """Find calls such as `on_step(loss)` in a function that is called as `train(on_step=losses.append)`."""
    function, name = call.function, dotted(call.node.func)
    if name not in function.parameters or not any(each.has_graph for each in call.arguments[:1]):
        return
    for site in function.call_sites:
        given = next(
            (each.value for parameter, each in function.receives(site.call) if parameter == name), None
        )
        adder = append_method(given) if given is not None else None
        if adder is None or program.value(adder).function is not None:
            continue  # not a container, but an object of this file
        target = path_of(adder.value)
        loops = [loop for loop in (*site.loops, *call.loops) if is_step_loop(loop)]
        if (
            target is None
            or not loops
            or any(each.target == target and each.value.bounded for each in program.stores)
        ):
            continue
        if not all(survives(program, target, loop) for loop in loops):
            continue
        what = _describe(program, [call.node.args[0].value])
        is_view = may_be_view(program, call.node.args[0].value, function)
        yield Problem(
            node=call.node.args[0].value,
            message=f"`{name}` stores {what} with its autograd graph in `{target}` in every step",
            help=f"Pass {what} without its graph: {_added_call(COPY if is_view else DETACH)}",
        )
        return


def _can_be_passed_detached(
    program: Program, parts: list[cst.BaseExpression], call: CallFact, store: StoreFact
) -> bool:
    """Return True if a function can receive detached values without changing what the program does."""
    return not may_be_printed(program, store.target) and all(
        frees_graph(program, dotted(part) or "", call.function, call)
        and detaching_call(program, part, store, call.function) == DETACH
        for part in parts
    )


def _is_passed_on(program: Program, function: Function, store: StoreFact) -> bool:
    """Return True if the function received the value with its graph from its caller. A model's `forward` is excluded."""
    return not is_forward(program, function) and any(
        each.node is store.node
        and any(site.values.get(name, UNKNOWN).has_graph for site in function.call_sites)
        for name, each in function.stored_parameters.items()
    )


def _replaces(program: Program, call: CallFact, store: StoreFact) -> bool:
    """Return True if the call passes a constant key, as in `recorder.record("loss", loss)`, so the old value is
    replaced."""
    if store.how != "item" or averages_itself(store) or call.local is None:
        return False
    if is_replayed(program, store.target):
        return False
    key = key_of(store)
    if any(key_repeats(program, each) for each in key):
        return True
    names = {name for each in key for name in names_in(each)} - {"str", "int", "repr"}
    given = [argument.value for name, argument in call.local.receives(call.node) if name in names]
    return names <= set(call.local.parameters) and all(
        isinstance(each, (cst.SimpleString, cst.Integer)) or key_repeats(program, each) for each in given
    )


def _is_reported_at_store(store: StoreFact) -> bool:
    """Return True if the finding is reported at the statement that stores the value, and not at the call. The caller
    of a callback does not know what the callback stores. A method such as `update_center`, which only its own object
    calls, updates the state of that object."""
    function = store.function
    is_called = function.name == "__call__"  # self.average(loss)
    callers = {dotted(site.call.func if is_called else receiver(site.call)) for site in function.call_sites}
    is_own = store.how == "assign" and callers <= {"self"}
    return store.value.has_graph and (function.name == "forward" or function.is_dispatched or is_own)


def _is_closure(program: Program, expression: cst.BaseExpression) -> bool:
    """Return True for a function that keeps a graph alive and runs later, such as `lambda: log(loss)`."""
    value = program.value(expression)
    return (isinstance(expression, cst.Lambda) or value.function is not None) and value.has_graph


def _describe(program: Program, parts: list[cst.BaseExpression]) -> str:
    if len(parts) == 1 and (path := dotted(parts[0])) is not None:
        return f"`{path}`"
    if len(parts) == 1 and _is_closure(program, parts[0]):
        return "a closure"
    if len(parts) == 1:
        text = " ".join(program.source(parts[0]).split())
        if len(text) <= 40:
            return f"`{text}`"
    return "a result"
