"""LG201: Evaluation runs with gradients enabled

## What it detects
In a report: several batches went through the model without a backward pass, and every operation saved its activations.

In source code (`legroom lint`): a model is called with gradients enabled in one of these places:

- after `model.eval()`;
- in a loop without a backward pass, if the function or the data has a name that indicates evaluation;
- in any other loop without a backward pass whose results are not used in one later.

The rule allows functions that are only called under `no_grad` in the file, and methods that frameworks call with gradients
disabled (`validation_step`).

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
All activations that were allocated.

## Fix safety
The fix is safe if the function returns no tensor with a graph, and unsafe otherwise. It adds `@torch.no_grad()` to a function that only
evaluates. In other functions, it puts the loop under `with torch.no_grad():`.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, line_before, under_with
from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact
from legroom.diagnose.lint.flow.lifetimes import feeds_backward
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import is_false, last_name, live_names, names_in, receiver, walk
from legroom.diagnose.lint.flow.values import EVALUATION_NAMES, ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG201"
_BY_FRAMEWORKS = {"validation_step", "test_step", "predict_step", "on_validation_batch_end", "forward"}
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
_NEEDS_GRADIENTS = {"requires_grad_", "retain_grad", "register_full_backward_hook", "enable_grad"}


def check(program: Program) -> Iterator[Problem]:
    for call, loop in evaluations_with_gradients(program):
        edits, safe = _fix(program, call, loop)
        yield Problem(
            node=_model_call(program, call).node,
            message="This evaluates with gradients on: every operation keeps what a backward pass would need",
            help="Put it under `with torch.no_grad():`, or `torch.inference_mode()`",
            edits=tuple(edits),
            safe=safe,
        )


def evaluations_with_gradients(program: Program) -> Iterator[tuple[CallFact, LoopFact | None]]:
    """The first call of a model in each evaluation, and the loop that evaluates if there is one."""
    told: set[LoopFact | Function] = set()
    for call in program.calls:
        if call.no_grad or not _runs_a_model(program, call) or call.function.grad_is_chosen:
            continue
        loop = _outermost_without_training(call)
        place: LoopFact | Function = loop if loop is not None else call.function
        if place in told or not _is_evaluation(program, call, loop) or _wants_gradients(program, call, loop):
            continue
        told.add(place)
        yield call, loop


def _runs_a_model(program: Program, call: CallFact) -> bool:
    """Whether a call runs a model with gradients on, itself or in a function of this file."""
    if not call.result.carries_graph or call.function.name in _BY_FRAMEWORKS:
        return False
    if call.receiver.kind is ValueKind.MODEL:
        if _is_only_called_like_one(program, call):
            return False
        return any(each.kind is not ValueKind.PARAMETER for each in call.arguments)  # on data
    if call.local is None or call.local.grad_is_chosen:
        return False
    return bool(call.loops) and any(
        each.function is call.local and each.receiver.kind is ValueKind.MODEL and each.result.carries_graph
        for each in program.calls
    )


def _model_call(program: Program, call: CallFact) -> CallFact:
    """Where the model is called: in the function that the evaluation calls, if it is one of this file that only it calls."""
    function = call.local
    if (
        call.receiver.kind is ValueKind.MODEL
        or function is None
        or len({site.call for site in function.sites}) != 1
    ):
        return call
    inside = (
        each for each in program.calls if each.function is function and each.receiver.kind is ValueKind.MODEL
    )
    return next((each for each in inside if each.result.carries_graph), call)


def _is_only_called_like_one(program: Program, call: CallFact) -> bool:
    """`writer.generator(name, value)`: a method with a model's name, of something unknown, whose result no one wants."""
    of = receiver(call.node)
    return (
        of is not None
        and program.value(of).kind is ValueKind.UNKNOWN
        and program.value(of).class_name is None
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
    if any(each.trains for each in call.loops) and loop is None:
        return _is_switched_to_evaluation(program, call, within=call.loops[-1]) is True
    if loop is None and (call.function.backward or call.function.steps):
        return False
    if isinstance(call.function.node, cst.FunctionDef) and program.is_module_class(call.function.class_name):
        return False
    if call.function.name.startswith("test_"):
        return False
    switched = _is_switched_to_evaluation(program, call)
    if loop is None:
        return bool(switched) and not _trains_anywhere(program, call.function)
    named = bool(EVALUATION_NAMES.search(call.function.name))
    over_test_data = any(
        EVALUATION_NAMES.search(last_name(each.iterated)) for each in call.loops if each.iterated
    )
    if switched or over_test_data or (named and switched is None):
        return loop.computes
    if isinstance(loop.node, cst.For) and program.value(_begins_with(loop.node.iter)).kind is ValueKind.MODEL:
        return False  # over a model's own parts
    return loop.computes and switched is None and not _gives_graph_away(program, call, loop)


def _begins_with(node: cst.BaseExpression) -> cst.BaseExpression:
    """`model` of `model.graph.nodes`."""
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node


def _gives_graph_away(program: Program, call: CallFact, loop: LoopFact) -> bool:
    """Whether someone else may go backward through what the loop computes."""
    function = call.function
    if function.returns.carries_graph or (not function.returned_nodes and _yields(function)):
        return True
    for store in program.stores:
        if (
            store.function is function
            and loop.first <= store.order <= loop.last
            and store.value.carries_graph
        ):
            outlives = (
                "." in store.target or store.target in function.parameters or not function.owns(store.target)
            )
            if (outlives and store.how != "assign") or ("." in store.target):
                return True
            if feeds_backward(program, store.target, function, loop):
                return True
    called = {each.local for each in program.calls if each.function is function and loop in each.loops}
    if any(
        store.function in called and store.value.carries_graph and not store.function.owns(store.target)
        for store in program.stores
    ):
        return True
    return any(
        other.function is function
        and loop.first <= other.order <= loop.last
        and other.local is None
        and other.receiver.kind is not ValueKind.CRITERION
        and not (other.name or "").startswith("torch.")
        and (other.name or "") not in _HARMLESS
        and other.method not in _HARMLESS_METHODS
        and not other.receiver.is_tensor
        and any(each.carries_graph for each in other.arguments)
        for other in program.calls
    )


def _yields(function: Function) -> bool:
    return any(isinstance(each, cst.Yield) for each in walk(function.body, into_functions=False))


def _is_switched_to_evaluation(
    program: Program, call: CallFact, within: LoopFact | None = None
) -> bool | None:
    """Whether the last switch before the call, in its function, was `.eval()`; None where there is none."""
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


def _wants_gradients(program: Program, call: CallFact, loop: LoopFact | None) -> bool:
    """Saliency, attacks, penalties: gradients of something are taken without a training step."""
    first, last = (loop.first, loop.last) if loop is not None else (0, len(program.nodes))
    if loop is None and call.loops:
        return _goes_backward(program, call)
    for other in program.calls:
        if other.function is not call.function or not first <= other.order <= last:
            continue
        if other.method in _NEEDS_GRADIENTS or (other.name or "").endswith("autograd.grad"):
            return True
        if other.method in {"backward", "manual_backward"}:
            return True
    results = {
        store.target
        for store in program.stores
        if store.function is call.function and first <= store.order <= last and store.value.carries_graph
    }
    return any(
        other.function is call.function
        and other.method == "backward"
        and other.order > last
        and names_in(other.node) & results
        for other in program.calls
    )


def _goes_backward(program: Program, call: CallFact) -> bool:
    """Whether what this one call gives goes backward."""
    results = {
        store.target
        for store in program.stores
        if store.function is call.function and program.inside(call.node, store.expression)
    }
    for store in program.stores:
        if store.function is call.function and results & live_names(store.expression):
            results.add(store.target)
    return any(
        other.function is call.function and other.method == "backward" and names_in(other.node) & results
        for other in program.calls
    )


def _fix(program: Program, call: CallFact, loop: LoopFact | None) -> tuple[list[Edit], bool]:
    name = program.imports.name_for("torch.no_grad")
    if name is None:
        return [], False
    function = call.function
    safe = not function.returns.carries_graph
    only_evaluates = (
        isinstance(function.node, cst.FunctionDef)
        and not _trains_anywhere(program, function)
        and (bool(EVALUATION_NAMES.search(function.name)))
        and not any(each.trains for each in program.loops if each.function is function)
    )
    if only_evaluates and isinstance(function.node, cst.FunctionDef):
        first = function.node.asynchronous or function.node
        return [_above_def(program, function.node, f"@{name}()")], safe if first is function.node else False
    if loop is not None:
        return under_with(program, loop.node, f"{name}()"), safe
    line = program.statement_line(call.node)
    return (under_with(program, line, f"{name}()") if line is not None else []), safe


def _above_def(program: Program, node: cst.FunctionDef, code: str) -> Edit:
    """A decorator below those that are there: `staticmethod` must stay the outermost."""
    if not node.decorators:
        return line_before(program, node, code)
    (line, _), _ = program.span(node.name)
    margin = program.lines[line - 1][: len(program.lines[line - 1]) - len(program.lines[line - 1].lstrip())]
    return Edit((line, 0), (line, 0), f"{margin}{code}{program.newline}")
