"""LG201: Evaluation runs with gradients enabled

## What it detects
Reports contain this code if several batches passed through the model without a backward pass, and every operation saved
its activations.

`legroom lint` reports model calls that run with gradients enabled in the following cases:

- The call follows `model.eval()`.
- The call is in a loop without a backward pass, and the name of the function or the data indicates evaluation.
- The call is in any other loop without a backward pass, such as a loop that generates samples, and no later backward
  pass uses the results.
- The program only prints, compares or saves the results of the call, or converts them to numbers. The rule follows the
  results through variables, containers and functions in the file. In a training loop, the rule flags the call only if
  the model runs on the same data each time, such as a validation set. The rule also flags a rollout in reinforcement
  learning if the training code detaches all results that the rollout stores.
- The call computes embeddings or predictions in a function, and the file only evaluates the model.
- A training step calls the model, directly or through other functions, but no optimizer in the file updates the model.
  An example is the teacher model in knowledge distillation. The rule flags the call only if the model's parameters
  require gradients and its inputs do not.
- The call is in a loop that runs the backward pass only in one phase, as in `if phase == "train": loss.backward()`, and
  the program also runs the loop for another phase.
- The call is in the training step of another model, such as a call to the generator in the discriminator's step. The
  generator is trained in another function or later in the loop, after its gradients are set to zero.

The rule follows calls through functions, methods and modules in the file. For example, `model.sample()` may call
`self.next_token()`, which runs the model. The rule does not flag a function if all calls to the function in the file
are under `no_grad`. The rule also does not flag methods that frameworks call with gradients disabled, such as
`validation_step`.

## Why this is a problem
Without `torch.no_grad()`, autograd saves activations for a backward pass that never runs. `model.eval()` changes dropout and batch
normalization, but does not disable gradients.

## Example
```python
model.eval()
for x, y in loader:
    total += criterion(model(x), y)
```

## Use instead
```python
model.eval()
with torch.no_grad():                    # or torch.inference_mode()
    for x, y in loader:
        total += criterion(model(x), y).item()
```

## Estimated saving
The estimated saving is the memory of all activations that were saved during evaluation.

## Fix safety
The fix adds `@torch.no_grad()` to a function that only evaluates. In other functions, the fix puts the loop under `with
torch.no_grad():`. The fix is safe if three conditions are met, because the results then do not change:

- The file creates the model from `torch.nn` layers, and the model computes no gradients itself.
- The evaluation neither returns nor prints a tensor that has a `grad_fn`.
- The file uses neither attention modules nor `torch.compile`, because both use different kernels when gradients are
  disabled.

If a condition is not met, the fix is unsafe.
"""

from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

from legroom.diagnose.lint.edits import Edit, line_before, wrap_in_with
from legroom.diagnose.lint.flow.backward_uses import feeds_backward, is_never_differentiated
from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.lifetimes import is_local
from legroom.diagnose.lint.flow.steps import is_evaluation_hook
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_false,
    last_name,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import EVALUATION_NAMES, ValueKind
from legroom.diagnose.lint.gradients.other_losses import models_of_other_losses
from legroom.diagnose.lint.gradients.phases import evaluations_in_phases
from legroom.diagnose.lint.gradients.reached_models import (
    acts,
    is_test,
    needs_gradients,
    reached_functions,
    running_functions,
    takes_action,
)
from legroom.diagnose.lint.gradients.result_uses import ResultUses, Use
from legroom.diagnose.lint.gradients.untrained_models import (
    models_of_other_steps,
    names_fixed_model,
    untrained_models,
)
from legroom.diagnose.lint.gradients.unused_results import unused_results
from legroom.diagnose.lint.proofs import escapes, is_proven_module, may_be_printed
from legroom.diagnose.lint.rule import Problem

CODE = "LG201"
_HARMLESS = {
    "print",
    "float",
    "int",
    "len",
    "str",
    "sum",
    "max",
    "min",
    "zip",
    "enumerate",
    "list",
    "tuple",
    "isinstance",
}
_HARMLESS_METHODS = {"append", "extend", "add", "insert", "update", "items", "set_postfix"}


def check(program: Program) -> Iterator[Problem]:
    reported: set[cst.CSTNode] = set()
    for call, loop in evaluations_with_gradients(program):
        run = _model_call(program, call).node
        if run in reported:
            continue
        reported.add(run)
        edits, safe = _fix(program, call, loop)
        statement = _statement_without_effect(program, call.function)
        yield Problem(
            node=statement or run,
            message="The evaluation runs with gradients enabled, so every operation saves tensors for a backward pass"
            if statement is None
            else f"`{program.source(statement)}` has no effect as a statement, so the evaluation runs with gradients enabled",
            help="Wrap the evaluation in `with torch.no_grad():` or `with torch.inference_mode():`",
            edits=tuple(edits),
            safe=safe,
        )
    for call, model in untrained_models(program):
        yield Problem(
            node=call.node,
            message=f"`{model}` runs with gradients enabled in the training step, but no optimizer trains it",
            help=f"Run `{model}` in `with torch.no_grad():`, or freeze it with `{model}.requires_grad_(False)`",
        )
    for call, model in (*models_of_other_steps(program), *models_of_other_losses(program)):
        yield Problem(
            node=call.node,
            message=f"`{model}` runs with gradients enabled in the training step of another model, but this step does not "
            f"use the gradients of `{model}`",
            help=f"Run `{model}` in `with torch.no_grad():`, or add `.detach()` to its output",
        )
    yield from evaluations_in_phases(program)


def _statement_without_effect(program: Program, function: Function) -> cst.BaseExpression | None:
    """Return the first `torch.no_grad()` that is a separate statement instead of part of a `with` statement."""
    for node in walk(function.body, into_functions=False):
        if isinstance(node, cst.Expr):
            made = node.value.func if isinstance(node.value, cst.Call) else node.value
            if program.imports.qualified(made) in {"torch.no_grad", "torch.inference_mode"}:
                return node.value
    return None


@lru_cache(maxsize=1)  # LG104 also reads the evaluations
def evaluations_with_gradients(program: Program) -> tuple[tuple[CallFact, LoopFact | None], ...]:
    """Return the first model call in each evaluation, and the evaluation loop if there is one."""
    found = [*_evaluations(program)]
    reported: set[LoopFact | Function] = {loop or call.function for call, loop in found}
    reported = reported.union(*(reached_functions(program, call) for call, _ in found))
    found += [(call, _outermost_without_training(call)) for call in unused_results(program, reported)]
    found = [
        (call, loop)
        for call, loop in found
        if not takes_action(program, call)
        and not _becomes_array(program, _model_call(program, call))
        and not (call.local is not None and call.local.name == "__init__")
    ]
    functions = {call.function for call, _ in found}
    return tuple(
        (call, loop)
        for call, loop in found
        if functions.isdisjoint(reached_functions(program, call) - {call.function})  # reported there
    )


def _becomes_array(program: Program, call: CallFact) -> bool:
    """Return True for `model(x).numpy()` of a model from another file.

    The call raises an error if the result has a graph, so the other file disables gradients or freezes the model.
    """
    uses = ResultUses(program)
    uses.use_of(call.node, call.function)
    return uses.is_array and not call.receiver.trainable


def _evaluations(program: Program) -> Iterator[tuple[CallFact, LoopFact | None]]:
    """Yield the first model call in each function or loop that evaluates.

    A call is an evaluation if a name indicates evaluation, if `model.eval()` was called before, or if no backward pass
    uses the results.
    """
    reported: set[LoopFact | Function] = set()
    for call in program.calls:
        if call.no_grad or not _runs_a_model(program, call) or call.function.grad_mode_varies:
            continue
        loop = _outermost_without_training(call)
        scope: LoopFact | Function = loop if loop is not None else call.function
        if (
            scope in reported
            or not _is_evaluation(program, call, loop)
            or needs_gradients(program, call, loop)
        ):
            continue
        reported.add(scope)
        yield call, loop


def _runs_a_model(program: Program, call: CallFact) -> bool:
    if is_evaluation_hook(call.function):
        return False
    if call.receiver.kind is ValueKind.MODEL and call.result.has_graph and not _runs_in_function(call):
        if _only_has_model_name(program, call):
            return False
        return any(each.kind is not ValueKind.PARAMETER for each in call.arguments)  # on data
    if call.local not in running_functions(program) or call.local.grad_mode_varies:
        return False
    if not call.loops:
        return _is_in_eval_mode(program, call) is True and _is_only_read(program, call)
    return call.result.has_graph or not acts(program, call.function)


def _runs_in_function(call: CallFact) -> bool:
    """Return True if the call runs a function in this file other than `forward`, such as `model.generate(x)`."""
    return call.local is not None and call.local.name not in {"forward", "__call__"}


def _is_only_read(program: Program, call: CallFact) -> bool:
    return Use.UNUSED < ResultUses(program).use_of(call.node, call.function) < Use.ESCAPES


def _model_call(program: Program, call: CallFact) -> CallFact:
    """Return the call that runs the model.

    If the evaluation calls a function that has no other callers, this call is in that function.
    """
    function = call.local
    if (
        call.receiver.kind is ValueKind.MODEL
        or function is None
        or len({site.call for site in function.call_sites}) != 1
    ):
        return call
    inside = (
        each for each in program.calls if each.function is function and each.receiver.kind is ValueKind.MODEL
    )
    return next((each for each in inside if each.result.has_graph), call)


def _only_has_model_name(program: Program, call: CallFact) -> bool:
    """Return True if only the name of the called method suggests a model, as in `writer.generator(name, value)`."""
    owner = receiver(call.node)
    return (
        owner is not None
        and program.value(owner).kind is ValueKind.UNKNOWN
        and program.value(owner).class_name is None
        and isinstance(program.parent.get(call.node), cst.Expr)
    )


def _outermost_without_training(call: CallFact) -> LoopFact | None:
    found = None
    for loop in reversed(call.loops):
        if loop.trains:
            break
        found = loop
    return found


def _is_evaluation(program: Program, call: CallFact, loop: LoopFact | None) -> bool:
    if not call.loops and _runs_in_function(call):
        return True  # after `model.eval()`, and the program only reads the result
    if any(each.trains for each in call.loops) and loop is None:
        return _is_in_eval_mode(program, call, within=call.loops[-1]) is True
    if loop is None and (call.function.backward or call.function.optimizer_step):
        return False
    is_given = root(dotted(call.node.func) or "") in call.function.own_parameters
    if program.is_module_class(call.function.class_name) and not is_given:
        return False
    if _is_compared(program, call):
        return False
    if is_test(call.function):
        return False
    switched = _is_in_eval_mode(program, call)
    is_discarded = isinstance(program.parent.get(_model_call(program, call).node), cst.Expr)
    if is_discarded and (loop is None or loop.iterable.kind is not ValueKind.LOADER):
        return False  # the result is discarded: a warm-up, or the calibration of a quantized model
    if loop is None:
        repeated = _is_repeated_in_evaluation(program, call) and switched is None
        return (bool(switched) or repeated) and not _trains_anywhere(program, call.function)
    named = bool(EVALUATION_NAMES.search(call.function.name))
    over_test_data = any(
        EVALUATION_NAMES.search(last_name(each.iterable_path)) for each in call.loops if each.iterable_path
    )
    if switched or over_test_data or (named and switched is None):
        return loop.runs_model
    if (
        isinstance(loop.node, cst.For)
        and program.value(_root_expression(loop.node.iter)).kind is ValueKind.MODEL
    ):
        return False  # iterates over the submodules of a model
    return (
        loop.runs_model
        and switched is None
        and call.result.has_graph
        and not _results_escape(program, call, loop)
        and _is_only_read(program, call)
    )


def _is_repeated_in_evaluation(program: Program, call: CallFact) -> bool:
    """Return True for a model call in a comprehension, such as `[model(x) for x in batches]`, if the name of the
    function suggests evaluation.
    """
    if not EVALUATION_NAMES.search(call.function.name):
        return False
    for parent in program.ancestors(call.node):
        if isinstance(parent, (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)):
            return program.value(parent.for_in.iter).kind is not ValueKind.MODEL
        if isinstance(parent, (cst.FunctionDef, cst.BaseSmallStatement)):
            return False
    return False


def _is_compared(program: Program, call: CallFact) -> bool:
    """Return True if the program only compares the result, as in `torch.testing.assert_close(compiled(x), model(x))`."""
    for parent in program.ancestors(call.node):
        if isinstance(parent, cst.Call):
            name = last_name(dotted(parent.func) or "")
            return name.startswith("assert") or name in {"allclose", "isclose", "equal"}
        if isinstance(parent, cst.BaseSmallStatement):
            return False
    return False


def _root_expression(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the innermost object of an expression, such as `model` for `model.graph.nodes`."""
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node


def _results_escape(program: Program, call: CallFact, loop: LoopFact) -> bool:
    function = call.function
    if not function.returned_nodes and function.is_generator:
        return True
    if function.returns.has_graph and not is_never_differentiated(program, function):
        return True
    for store in program.stores:
        if store.function is function and loop.first <= store.order <= loop.last and store.value.has_graph:
            outlives = (
                "." in store.target or store.target in function.parameters or not function.owns(store.target)
            )
            if (outlives and store.how != "assign") or ("." in store.target):
                return True
            if feeds_backward(program, store.target, function, loop):
                return True
    called = {each.local for each in program.calls if each.function is function and loop in each.loops}
    if any(
        store.function in called and store.value.has_graph and not is_local(store) for store in program.stores
    ):
        return True
    return any(
        other.function is function
        and loop.first <= other.order <= loop.last
        and other.local is None
        and other.receiver.kind not in (ValueKind.CRITERION, ValueKind.MODEL)
        and not (other.name or "").startswith("torch.")
        and (other.name or "") not in _HARMLESS
        and other.method not in _HARMLESS_METHODS
        and not other.receiver.is_tensor
        and any(each.has_graph for each in other.arguments)
        for other in program.calls
    )


def _is_in_eval_mode(program: Program, call: CallFact, within: LoopFact | None = None) -> bool | None:
    """Return True if the last change of the mode before the call is `.eval()`, False if it is `.train()`, and None if
    the function does not set the mode.
    """
    last = None
    for other in program.calls:
        if (
            other.function is not call.function
            or other.order >= call.order
            or other.method not in {"eval", "train"}
        ):
            continue
        if within is not None and other.order < within.first:
            continue
        if names_fixed_model(dotted(receiver(other.node))) and not names_fixed_model(dotted(call.node.func)):
            continue  # the mode of the teacher does not show the mode of the student
        if other.receiver.kind is ValueKind.MODEL:
            is_eval = other.method == "eval" or bool(other.node.args and is_false(other.node.args[0]))
            last = is_eval
    return last


def _trains_anywhere(program: Program, function: Function) -> bool:
    return any(
        call.function is function
        and (call.method in {"backward", "manual_backward"} or call.method == "step")
        for call in program.calls
    )


def _fix(program: Program, call: CallFact, loop: LoopFact | None) -> tuple[list[Edit], bool]:
    name = program.imports.name_for("torch.no_grad")
    if name is None:
        return [], False
    function = call.function
    safe = _keeps_results(program, call, loop)
    only_evaluates = (
        isinstance(function.node, cst.FunctionDef)
        and not _trains_anywhere(program, function)
        and (bool(EVALUATION_NAMES.search(function.name)))
        and not any(each.trains for each in program.loops if each.function is function)
    )
    if only_evaluates and isinstance(function.node, cst.FunctionDef):
        first = function.node.asynchronous or function.node
        return [
            _insert_decorator(program, function.node, f"@{name}()")
        ], safe if first is function.node else False
    if loop is not None:
        return wrap_in_with(program, loop.node, f"{name}()"), safe
    line = program.statement_line(call.node)
    return (wrap_in_with(program, line, f"{name}()") if line is not None else []), safe


_OTHER_KERNELS = (
    "MultiheadAttention",
    "Transformer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "compile",
    "checkpoint",
)


def _keeps_results(program: Program, call: CallFact, loop: LoopFact | None) -> bool:
    """Return True if the results of the evaluation are the same without gradients."""
    function = call.function
    if function.returns.has_graph or program.mentions(*_OTHER_KERNELS):
        return False
    inside = [each for each in program.calls if each.function is function and not each.no_grad]
    models = [each for each in inside if each.receiver.kind is ValueKind.MODEL and each.result.has_graph]
    if not models or not all(is_proven_module(program, each.node.func) for each in models):
        return False
    if any(each.local is not None and each.receiver.kind is not ValueKind.MODEL for each in inside):
        return False  # the function that is called may need gradients
    stores = [store for store in program.stores if store.function is function and store.value.has_graph]
    return not any(
        escapes(program, store) or may_be_printed(program, store.target) for store in stores
    ) and not any(
        each.result.has_graph
        and isinstance(program.parent.get(each.node), cst.Arg)
        and _prints(program, each)
        for each in inside
    )


def _prints(program: Program, call: CallFact) -> bool:
    argument = program.parent[call.node]
    outer = program.parent.get(argument)
    name = program.imports.qualified(outer.func) if isinstance(outer, cst.Call) else None
    if name is None or name.startswith("torch."):
        return False
    return name not in _HARMLESS - {"print", "str"}


def _insert_decorator(program: Program, node: cst.FunctionDef, code: str) -> Edit:
    """Insert a decorator below existing decorators, because `staticmethod` must stay the outermost decorator."""
    if not node.decorators:
        return line_before(program, node, code)
    (line, _), _ = program.span(node.name)
    margin = program.lines[line - 1][: len(program.lines[line - 1]) - len(program.lines[line - 1].lstrip())]
    return Edit((line, 0), (line, 0), f"{margin}{code}{program.newline}")
