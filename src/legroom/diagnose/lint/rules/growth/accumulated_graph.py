"""LG101: Memory grows with every step

## What it detects
Reports contain this code if device memory or an autograd graph grew in each of the most recent steps, at the
same lines of code. The report shows the line that allocates the memory. If Legroom finds the variable that
keeps the memory alive, the report also shows that variable.

`legroom lint` checks for training and evaluation loops that sum, append or store a loss or output without detaching it.
The rule applies if the loop never clears the container that stores the values. The rule also applies to the buffers of
a layer that `forward` updates in place, as in `self.running_mean.mul_(0.9).add_(0.1 * x.mean(0))`.

The rule also flags code that keeps the following values alive, even if they have no graph:

- gradients or copies of the model that are stored in every step
- trained models that are stored, although the program does not use them again, also if a function trains and returns
  the model of each fold
- the outputs of all batches, if they are collected on the GPU
- the intermediate samples of all steps of a diffusion model, if they are collected on the GPU
- the logits of a language model or a segmentation model that a Transformers `Trainer` collects on the GPU for
  `compute_metrics`
- the outputs that a Lightning callback or module adds to a list in every batch, on the GPU or in host memory, if no code
  clears the list; also small tensors, if `on_train_epoch_end` or `on_validation_epoch_end` concatenates them
- the outputs that a callback of a similar trainer stores in each `on_val_batch_end`
- metrics of torchmetrics or of the project that store every prediction and are never reset
- the states in a replay buffer on the GPU, if the states are images, or if the program moves sampled states to the GPU
  anyway
- the models of all clients or agents, for example in federated learning, if each round uses only some of them, and
  the states of the clients of every round
- the optimizers of earlier training stages, if the program never uses them again
- the pretrained models of all folds, if they stay on the GPU while the next model is trained
- the models that an Optuna study stores for all trials
- the entries of a cache with random keys, because the program cannot look up these entries again
- the results that a cache stores for every request, session or text, if the cache never removes old entries, and the
  inputs or outputs that a service adds to a list in every request
- a loss or output that a stored closure reads later, such as in `jobs.append(lambda: log(loss))`

A pool of a limited size is also reported if it keeps graphs alive and replaces its entries at random, such as the image
pool of a GAN.

The container may be a local variable, a global variable, or an attribute of an object whose methods store their
arguments. The finding is reported at the statement that stores the value. If a method stores whatever value it
receives, such as `AverageMeter.update()`, the finding is reported at the line that calls the method.

The rule does not flag code that prints a loss, stores losses in a `deque` with a `maxlen`, clears the container in each
epoch, copies results to the host with a recursive function such as `to_cpu(results)` or with `tree_map`, or sums
several losses for one backward pass. The rule flags a sum of losses even if the sum is reset to zero in each epoch. It
also flags an object that stores the gradients of every optimizer step until the end of the epoch.

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
the value, and that the value is not printed. Otherwise, the fix is unsafe. It is also unsafe in a file that uses
`torch.autograd`. The fix does not add `.item()`, because a sum of Python numbers is rounded differently from a sum of
tensors.

If a collected value may be a view (`output[:, 0]`), the fix adds `.detach().clone()`, because a detached view
keeps the whole tensor alive. This fix is unsafe, because in-place changes to the tensor no longer change the
collected value.
"""

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.collected.additions import (
    additions_by_assignment,
    additions_by_calls,
    describe,
    detaching_advice,
    detaching_or_clearing,
    is_closure,
    is_for_any_value,
    is_passed_directly,
    is_reported_at_store,
    passed_to_append,
    passed_to_storing_functions,
    replaces,
)
from legroom.diagnose.lint.collected.at_once import collected_at_once
from legroom.diagnose.lint.collected.copies import KeyCheck, collected_gradients, collected_models
from legroom.diagnose.lint.collected.idle_models import idle_models, idle_optimizers
from legroom.diagnose.lint.collected.input_statistics import is_input_statistic
from legroom.diagnose.lint.collected.lightning import kept_by_lightning
from legroom.diagnose.lint.collected.metrics import metrics_without_reset
from legroom.diagnose.lint.collected.models import kept_models, models_of_trials, sequential_models
from legroom.diagnose.lint.collected.models_of_folds import models_of_folds
from legroom.diagnose.lint.collected.new_keys import averages_itself, key_is_new
from legroom.diagnose.lint.collected.on_gpu import collected_states
from legroom.diagnose.lint.collected.outputs import collected_outputs
from legroom.diagnose.lint.collected.replay import replayed_on_gpu
from legroom.diagnose.lint.collected.requests import kept_for_requests
from legroom.diagnose.lint.collected.trainer_predictions import collected_by_trainer
from legroom.diagnose.lint.collected.unreachable import unreachable_entries
from legroom.diagnose.lint.detaching import (
    detach_edits,
    parts_with_graph,
)
from legroom.diagnose.lint.flow.backward_uses import is_used_in_backward
from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.added_parts import added_parts, is_concatenated_to_itself
from legroom.diagnose.lint.flow.retention.lifetimes import outlives_its_step
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_false,
    keyword,
    method_name,
    names_in,
    names_with_graph,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind, split_words
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules.growth.forward_hook import is_hook

CODE = "LG101"
_FINDERS = (
    metrics_without_reset,
    replayed_on_gpu,
    idle_models,
    idle_optimizers,
    sequential_models,
    models_of_trials,
    models_of_folds,
    unreachable_entries,
    kept_for_requests,
    collected_by_trainer,
)


def check(program: Program) -> Iterator[Problem]:
    by_lightning = list(kept_by_lightning(program))
    yield from by_lightning
    kept = {each.node for each in by_lightning}
    for store in program.stores:
        if store.expression in kept:
            continue
        if _collects_graph(program, store):
            scope = outlives_its_step(program, store, every_step=is_closure(program, store.expression))
            if scope is not None and key_is_new(program, store, scope):
                yield _stored(program, store)
        else:
            yield from collected_at_once(program, store)
            for each in (store, *additions_by_assignment(program, store)):
                yield from _collected(program, each, key_is_new)
            yield from collected_states(program, store)
            yield from kept_models(program, store)
    for call, addition, store in additions_by_calls(program):
        if not addition.value.has_graph and not replaces(program, call, store):
            for problem in _collected(program, addition, lambda *_: True):
                yield problem if is_for_any_value(store) else replace(problem, node=store.expression)
    yield from passed_to_storing_functions(program)
    for call in program.calls:
        yield from passed_to_append(program, call)
    for find in _FINDERS:
        yield from find(program)


def _collected(program: Program, store: StoreFact, key_is_new: KeyCheck) -> Iterator[Problem]:
    yield from collected_gradients(program, store, key_is_new)
    yield from collected_models(program, store, key_is_new)
    yield from collected_outputs(program, store)


def _collects_graph(program: Program, store: StoreFact) -> bool:
    if not store.value.has_graph or is_hook(program, store.function):
        return False
    if _is_passed_by_caller(program, store):
        return False  # reported at the call
    if store.no_grad and store.how == "item" and store.previous.is_tensor:
        return False  # copies only the numbers into the tensor
    if store.how in {"augment", "append"}:
        return store.how == "append" or not is_input_statistic(program, store)
    if store.how == "item":
        if store.previous.is_tensor:  # writing into a tensor extends its graph, at any index
            given = root(store.target) in store.function.parameters and root(store.target) != "self"
            is_parameter = store.previous.kind is ValueKind.PARAMETER
            return not (is_parameter or given or _depends_on_itself(program, store))
        growing = (ValueKind.CONTAINER, ValueKind.UNKNOWN)
        return averages_itself(program, store) or (
            store.varying_key and (store.mapping or store.previous.kind in growing)
        )
    return adds_to_itself(program, store) and not is_input_statistic(program, store)


def _depends_on_itself(program: Program, store: StoreFact) -> bool:
    """Return True if an item is set only while it has its first value, as in `if self.params[2] < 0:`."""
    names: set[str] = set()
    for each in program.ancestors(store.node):
        if isinstance(each, cst.If) and program.inside(store.node, each.body):
            names |= names_in(each.test)
    for known in reversed(program.stores):
        if known.function is store.function and known.order < store.order and known.target in names:
            names |= names_in(known.expression)
    return not store.varying_key and store.target in names


def adds_to_itself(program: Program, store: StoreFact) -> bool:
    """Return True if only arithmetic updates the target.

    If the old value passes through a model, the target is a state, which LG104 reports.
    """
    if store.how != "assign" or not store.uses_old_value or is_converted(store):
        return False
    if is_concatenated_to_itself(program, store):
        return False
    if _is_sum_with(program, store.expression, store.target):
        return True
    other = dotted(store.expression)
    if other is not None:  # total = new_total
        made = [each for each in program.stores if each.target == other and each.order < store.order]
        return bool(made) and _is_sum_with(program, made[-1].expression, store.target)
    return _is_computed_from(program, store, store.expression, store.target)


def is_converted(store: StoreFact) -> bool:
    """Return True for `self.weight = self.weight.half()`, which adds nothing to the value."""
    made = store.expression
    while isinstance(made, cst.Call) and method_name(made) in _CONVERSIONS:
        made = receiver(made) or made.func
    return made is not store.expression and dotted(made) == store.target


_CONVERSIONS = split_words("half float double bfloat16 to cuda cpu type type_as contiguous")


def _is_computed_from(
    program: Program, store: StoreFact, made: cst.BaseExpression, path: str, depth: int = 0
) -> bool:
    """Return True if torch operations compute a value from the old value, as in `torch.stack([total, loss]).sum()`.

    The computation may use intermediate variables, as in
    `mixed = 0.9 * self.mean + 0.1 * x; self.mean = F.normalize(mixed)`.
    """
    if path in names_with_graph(made):
        return isinstance(made, (cst.Call, cst.Subscript)) and _is_arithmetic(program, made, path)
    names = sorted(name for name in names_with_graph(made) if "." not in name and depth < _MAX_DEPTH)
    for name in names if isinstance(made, cst.Call) else ():
        known = [
            each
            for each in program.stores
            if each.target == name
            and each.function is store.function
            and each.order < store.order
            and each.how == "assign"
            and each.loops == store.loops
        ]
        if known and _is_arithmetic(program, made, name):
            inner = known[-1].expression
            if _is_sum_with(program, inner, path) or _is_computed_from(
                program, store, inner, path, depth + 1
            ):
                return True
    return False


_MAX_DEPTH = 2


def _is_arithmetic(program: Program, made: cst.BaseExpression, path: str) -> bool:
    """Return True if an expression uses a value only in torch operations."""
    while isinstance(made, cst.Subscript):
        made = made.value
    return isinstance(made, cst.Call) and all(
        (program.imports.qualified(each.func) or "").startswith("torch.")
        or dotted(each.func) in {"sum", "max", "min"}
        or program.value(receiver(each) or each.func).is_tensor
        for each in walk(made)
        if isinstance(each, cst.Call) and path in names_with_graph(each)
    )


def _is_passed_by_caller(program: Program, store: StoreFact) -> bool:
    names = [name for name, each in store.function.stored_parameters.items() if each.node is store.node]
    return not is_reported_at_store(store) and any(is_passed_directly(store.function, name) for name in names)


def _is_sum_with(program: Program, expression: cst.BaseExpression, target: str) -> bool:
    """Return True if an expression adds to `target`, as in `total + loss`, `0.9 * average + 0.1 * loss` and
    `[*losses, loss]`, but not in `state = cell(x, state)`.
    """
    if isinstance(expression, cst.BinaryOperation):
        return any(_is_sum_with(program, side, target) for side in (expression.left, expression.right))
    if isinstance(expression, cst.IfExp):
        return any(_is_sum_with(program, side, target) for side in (expression.body, expression.orelse))
    if isinstance(expression, cst.DictComp):  # {k: total.get(k, 0) + v for k, v in losses.items()}
        return isinstance(expression.value, cst.BinaryOperation) and target in names_in(expression)
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
    """Return True if `path` is the result of `torch.autograd.grad` without `create_graph`."""
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
        edits, remedy = [], detaching_or_clearing("{}", store.target)
    else:
        remedy = f"Store {{}} without its graph: {detaching_advice(program, parts, store)}"
    if not parts:
        edits, remedy = [], "Store only numbers or detached tensors"
    if any(is_closure(program, part) for part in parts):
        edits, remedy = [], "Compute the number before the closure, or let the closure read a detached tensor"
    what = describe(program, parts)
    action = "accumulates" if store.how in {"augment", "assign"} else "stores"
    return Problem(
        node=parts[0] if parts else store.expression,
        message=f"`{store.target}` {action} {what} with its autograd graph, which keeps the graph of every step alive",
        help=remedy.replace("{}", what),
        edits=tuple(edits),
        safe=safe,
    )
