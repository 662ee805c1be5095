"""Finds models that run with gradients although the program only reads their results as numbers, for LG201."""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import EVALUATION_HOOKS
from legroom.diagnose.lint.flow.syntax import dotted, is_false, last_name, names_in, receiver, root
from legroom.diagnose.lint.flow.values import EVALUATION_NAMES, ValueKind
from legroom.diagnose.lint.gradients.result_uses import ResultUses, Use

_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)
_INFERENCE = re.compile(
    r"(?:^|_)(?:embed|embedding|encode|extract|features?|classify|predict|infer|caption|transcribe|translate|rank|detect)",
    re.IGNORECASE,
)
_TRAINING = (
    "backward", "manual_backward", "autograd", "grad", "optim", "requires_grad", "requires_grad_", "zero_grad",
    "set_grad_enabled", "enable_grad",
)  # fmt: skip
"""Names in files that compute gradients."""
_ENVIRONMENT = re.compile(r"^(?:\w*_)?envs?$|environment", re.IGNORECASE)


def unused_results(program: Program, reported: set[LoopFact | Function]) -> Iterator[CallFact]:
    """Yield the first call to a model in each loop or function that only reads the results of the model. `reported` are
    the loops and functions with another finding."""
    uses: ResultUses | None = None
    evaluated: set[str] | None = None
    for call in program.calls:
        if not _runs_with_gradients(program, call):
            continue
        scope: LoopFact | Function = call.loops[-1] if call.loops else call.function
        if not reported.isdisjoint({scope, call.function, *call.loops}) or _is_in_training_mode(
            program, call
        ):
            continue
        if not call.loops and not _is_in_comprehension(program, call.node):
            evaluated = _evaluated_models(program) if evaluated is None else evaluated
            if not _is_evaluation(program, call, evaluated):
                continue
            if _only_infers(program, call, evaluated):
                reported.add(scope)
                yield call
                continue
        uses = uses or ResultUses(program)
        enough = Use.EVALUATED if any(loop.trains for loop in call.loops) else Use.DETACHED
        if enough <= uses.use_of(call.node, call.function) < Use.ESCAPES:
            reported.add(scope)
            yield call


def _runs_with_gradients(program: Program, call: CallFact) -> bool:
    """Return True if a call runs a model on data with gradients enabled, outside a module."""
    function = call.function
    if call.receiver.kind is not ValueKind.MODEL or call.receiver.frozen or call.no_grad:
        return False
    if not call.result.has_graph or function.grad_mode_varies:
        return False
    if function.name in EVALUATION_HOOKS or is_test(function):
        return False
    if isinstance(function.node, cst.FunctionDef) and program.is_module_class(function.class_name):
        return False
    if not any(each.kind is not ValueKind.PARAMETER for each in call.arguments):
        return False
    if not any(loop.trains for loop in call.loops):
        return True
    return not _acts(program, function) and _is_on_other_data(program, call)


def is_test(function: Function) -> bool:
    """Return True for a test function of pytest, which returns nothing."""
    return function.name.startswith("test_") and not function.returned_nodes


def _is_on_other_data(program: Program, call: CallFact) -> bool:
    """Return True if a training loop runs the model on data that do not change, such as a validation set or fixed noise. An
    accuracy on the training batch is often wanted."""
    loop = next(each for each in call.loops if each.trains)
    read = {path for each in call.node.args for path in names_in(each.value)}
    if any(EVALUATION_NAMES.search(last_name(path)) for path in read):
        return True
    changed = loop.bound | {
        each.target
        for each in program.stores
        if each.function is call.function and loop.first <= each.order <= loop.last
    }
    inner = (each.bound for each in program.loops if loop.first <= each.first <= loop.last)
    return bool(read) and read.isdisjoint(changed.union(*inner))


def _is_in_training_mode(program: Program, call: CallFact) -> bool:
    """Return True if a function switches its model to training mode before the call, and not back."""
    modes = [
        each.method == "train" and not (each.node.args and is_false(each.node.args[0]))
        for each in program.calls
        if each.function is call.function
        and each.order < call.order
        and each.method in {"eval", "train"}
        and each.receiver.kind is ValueKind.MODEL
    ]
    return bool(modes) and modes[-1] and not any(loop.trains for loop in call.loops)


def _acts(program: Program, function: Function) -> bool:
    """Return True if a function steps through an environment. Choosing one action at a time needs little memory."""
    return any(
        call.function is function
        and call.method in {"step", "reset"}
        and any(_ENVIRONMENT.search(part) for part in (dotted(receiver(call.node)) or "").split("."))
        for call in program.calls
    )


def _is_in_comprehension(program: Program, node: cst.CSTNode) -> bool:
    """Return True if each iteration of a comprehension runs the model."""
    for parent in program.ancestors(node):
        if isinstance(parent, _COMPREHENSIONS):
            source = parent.for_in.iter
            called = dotted(node.func) if isinstance(node, cst.Call) else None
            if root(called or "") in names_in(parent.for_in.target):
                return False  # for model in models
            return not program.inside(node, source) and program.value(source).kind is not ValueKind.MODEL
        if isinstance(parent, (cst.FunctionDef, cst.Lambda, cst.BaseSmallStatement)):
            return False
    return False


def _is_evaluation(program: Program, call: CallFact, evaluated: set[str]) -> bool:
    """Return True if a function runs a model once, and the program shows that the model is evaluated there."""
    function = call.function
    if isinstance(function.node, cst.Module) or function.backward or function.optimizer_step:
        return False
    return bool(EVALUATION_NAMES.search(function.name)) or dotted(call.node.func) in evaluated


def _only_infers(program: Program, call: CallFact, evaluated: set[str]) -> bool:
    """Return True if a file only evaluates a model and nothing in the file trains, as in a service that computes
    embeddings."""
    return (
        dotted(call.node.func) in evaluated
        and call.receiver.trainable
        and _INFERENCE.search(call.function.name) is not None
        and not program.mentions(*_TRAINING)
    )


def _evaluated_models(program: Program) -> set[str]:
    """Return the models that the file switches to evaluation mode and never to training mode."""
    evaluated, trained = set[str | None](), set[str | None]()
    for call in program.calls:
        if call.method not in {"eval", "train"} or call.receiver.kind is not ValueKind.MODEL:
            continue
        owner = receiver(call.node)
        while isinstance(owner, cst.Call) and receiver(owner) is not None:  # model.to(device).eval()
            owner = receiver(owner)
        is_eval = call.method == "eval" or bool(call.node.args and is_false(call.node.args[0]))
        found = evaluated if is_eval else trained
        found.add(dotted(owner))
        found.update(each.target for each in program.stores if program.inside(call.node, each.expression))
    return {path for path in evaluated - trained if path is not None}
