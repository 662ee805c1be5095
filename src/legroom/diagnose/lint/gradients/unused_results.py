"""Finds models that run with gradients although the program only reads numbers from their results (LG201)."""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import is_evaluation_hook
from legroom.diagnose.lint.flow.syntax import dotted, is_false, last_name, names_in, receiver, root
from legroom.diagnose.lint.flow.values import EVALUATION_NAMES, ValueKind
from legroom.diagnose.lint.gradients.reached_models import (
    acts,
    call_in_loop,
    is_test,
    running_functions,
    runs_model_itself,
)
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
"""A file that contains one of these names may compute gradients."""


def unused_results(program: Program, reported: set[LoopFact | Function]) -> Iterator[CallFact]:
    """Yield the first model call in each loop or function that only reads numbers from the results.

    Loops and functions in `reported` already have a finding.
    """
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
        outer, is_fixed = None, False
        if not call.loops and not _is_in_comprehension(program, call.node):
            evaluated = _evaluated_models(program) if evaluated is None else evaluated
            is_evaluation = _is_evaluation(program, call, evaluated)
            if is_evaluation and _only_infers(program, call, evaluated):
                reported.add(scope)
                yield call
                continue
            outer = call_in_loop(program, call.function)
            is_fixed = outer is None and not is_evaluation and _is_called_with_fixed_data(program, call)
            if outer is None and not is_evaluation and not is_fixed:
                continue
            if outer is not None and not reported.isdisjoint({outer.function, *outer.loops}):
                continue
        uses = uses or ResultUses(program)
        trains, is_acting = any(loop.trains for loop in call.loops), acts(program, call.function)
        enough = Use.EVALUATED if is_fixed or (trains and not is_acting) else Use.DETACHED
        use = uses.use_of(call.node, call.function)
        if is_acting and (trains or not runs_model_itself(call)) and not uses.is_collected:
            continue  # a single action needs little memory
        if enough <= use < Use.ESCAPES:
            reported |= {scope, *(outer.loops if outer is not None else ())}
            yield outer or call


def _runs_with_gradients(program: Program, call: CallFact) -> bool:
    """Return True if a call runs a model on data with gradients enabled.

    A method of a module counts only if this file contains its callers.
    """
    function = call.function
    in_method = call.local in running_functions(program) and call.loops and not call.no_grad
    in_method = in_method and not program.is_module_class(function.class_name)
    if not runs_model_itself(call) and not (in_method and call.result.has_graph):
        return False
    if is_evaluation_hook(function) or is_test(function):
        return False
    if isinstance(function.node, cst.FunctionDef) and program.is_module_class(function.class_name):
        return _is_evaluated_in_module(program, call)
    if not any(loop.trains for loop in call.loops):
        return True
    return not call.loops[-1].trains if acts(program, function) else _is_on_other_data(program, call)


def _is_evaluated_in_module(program: Program, call: CallFact) -> bool:
    sites = [
        each
        for each in call.function.call_sites
        if not each.no_grad and not is_evaluation_hook(each.caller) and not acts(program, each.caller)
    ]
    return bool(sites) and not any(loop.trains for loop in call.loops)


def _is_on_other_data(program: Program, call: CallFact) -> bool:
    """Return True if a training loop runs the model on data that do not change, such as a validation set or fixed
    noise.

    The training batch does not count, because programs often compute its accuracy on purpose.
    """
    loop = next(each for each in call.loops if each.trains)
    read = {path for each in call.node.args for path in names_in(each.value)}
    if any(EVALUATION_NAMES.search(last_name(path)) for path in read):
        return True
    return bool(read) and read.isdisjoint(_changed_names(program, loop))


def _changed_names(program: Program, loop: LoopFact) -> set[str]:
    changed = loop.bound | {
        each.target
        for each in program.stores
        if each.function is loop.function and loop.first <= each.order <= loop.last
    }
    return changed.union(*(each.bound for each in program.loops if loop.first <= each.first <= loop.last))


def _is_called_with_fixed_data(program: Program, call: CallFact) -> bool:
    """Return True if training loops call a function only with data that do not change, such as images to plot."""
    function = call.function
    inputs = {root(path) for each in call.node.args for path in names_in(each.value)} & set(
        function.parameters
    )
    sites = [site for site in function.call_sites if not site.no_grad]
    if not inputs or not sites or acts(program, function):
        return False
    for site in sites:
        loop = next((each for each in site.loops if each.trains), None)
        read = {
            path
            for name, argument in function.receives(site.call)
            if name in inputs
            for path in names_in(argument.value)
        }
        if loop is None or not read or not read.isdisjoint(_changed_names(program, loop)):
            return False
    return True


def _is_in_training_mode(program: Program, call: CallFact) -> bool:
    modes = [
        each.method == "train" and not (each.node.args and is_false(each.node.args[0]))
        for each in program.calls
        if each.function is call.function
        and each.order < call.order
        and each.method in {"eval", "train"}
        and each.receiver.kind is ValueKind.MODEL
    ]
    return bool(modes) and modes[-1] and not any(loop.trains for loop in call.loops)


def _is_in_comprehension(program: Program, node: cst.CSTNode) -> bool:
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
    """Return True if the name of the function suggests evaluation, or if the file never switches the model to
    training mode.
    """
    function = call.function
    if isinstance(function.node, cst.Module) or function.backward or function.optimizer_step:
        return False
    return bool(EVALUATION_NAMES.search(function.name)) or dotted(call.node.func) in evaluated


def _only_infers(program: Program, call: CallFact, evaluated: set[str]) -> bool:
    """Return True if a file only runs a model and trains nothing, such as a service that computes embeddings."""
    return (
        dotted(call.node.func) in evaluated
        and call.receiver.trainable
        and _INFERENCE.search(call.function.name) is not None
        and not program.mentions(*_TRAINING)
    )


def _evaluated_models(program: Program) -> set[str]:
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
