"""Determines which loops and functions run in every step."""

import re

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallSite, Fact, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, innermost_iterable, last_name, method_name, walk
from legroom.diagnose.lint.flow.values import EVALUATION_NAMES, ValueKind, split_words

STEP_FUNCTIONS = frozenset(
    {
        "training_step",
        "validation_step",
        "test_step",
        "predict_step",
        "train_step",
        "on_train_batch_end",
        "on_validation_batch_end",
        "on_test_batch_end",
        "on_predict_batch_end",
        "write_on_batch_end",
        "on_after_backward",
        "on_step_end",
        "on_batch_end",
        "train_batch",
        "compute_loss",
        "prediction_step",
    }
)
"""Methods that frameworks call in every step."""
_EVALUATION_HOOKS = frozenset(
    [
        "validation_step",
        "test_step",
        "predict_step",
        "on_validation_batch_end",
        "on_test_batch_end",
        "on_predict_batch_end",
        "forward",
    ]
)
"""Methods that frameworks may call with gradients disabled."""


def is_evaluation_hook(function: Function) -> bool:
    """Return True if a framework may call a function with gradients disabled. A method that the program itself calls in
    a loop with gradients enabled, such as `validation_step` of its own trainer, is not a hook.
    """
    if function.name not in _EVALUATION_HOOKS:
        return False
    return function.name == "forward" or not any(
        site.loops and not site.no_grad and not site.caller.grad_mode_varies for site in function.call_sites
    )


_DATA = re.compile(
    r"(?:^|_)(?:texts|sentences|documents|docs|corpus|queries|passages|images|paths|files|videos|clips|frames|samples"
    r"|dataset|records|rows|prompts|recordings|segments|windows|pages|utterances|tiles|patches|molecules)$",
    re.IGNORECASE,
)
"""Names of datasets that programs use without a loader."""
_DATA_CALLS = split_words("glob rglob iterdir listdir iterrows itertuples batched scandir")


def iterates_data_set(loop: LoopFact) -> bool:
    """Return True if a loop iterates over a dataset. Examples are loops over `range(0, len(texts), size)`, over
    `folder.glob("*.png")`, and over a name that suggests a dataset.
    """
    if not isinstance(loop.node, cst.For):
        return False
    iterable = loop.node.iter
    for node in walk(iterable):
        if isinstance(node, cst.Call):
            if dotted(node.func) in {"range", "trange"} and len(node.args) == 3:
                return any(isinstance(each, cst.Call) and dotted(each.func) == "len" for each in walk(node))
            called = last_name(dotted(node.func) or method_name(node) or "")
            if called in _DATA_CALLS or _DATA.search(called):
                return True
    return _DATA.search(last_name(dotted(innermost_iterable(iterable)) or "")) is not None


def is_step_loop(loop: LoopFact) -> bool:
    """Return True if each iteration of a loop is a training or evaluation step.

    The iterations over the layers of a model are not steps.
    """
    over_loader = loop.iterable.kind is ValueKind.LOADER
    if loop.function.name == "forward" and not over_loader:
        return False
    if loop.trains or not loop.runs_model:
        return loop.trains
    if loop.in_module and not over_loader and not iterates_data_set(loop):
        return False
    return loop.function.name != "__init__" or iterates_data_set(loop)


def iterates_data(loop: LoopFact) -> bool:
    return (
        loop.trains
        or loop.iterable.kind is ValueKind.LOADER
        or bool(EVALUATION_NAMES.search(loop.function.name))
    )


def is_innermost_step_loop(program: Program, loop: LoopFact) -> bool:
    """Return True for a loop over steps that contains no other loop over steps.

    A loop over epochs is not innermost.
    """
    if not (is_step_loop(loop) or loop.iterable.kind is ValueKind.LOADER):
        return False
    return not any(
        other.outer is loop and (is_step_loop(other) or other.iterable.kind is ValueKind.LOADER)
        for other in program.loops
    ) and not any(
        call.local is not None and loop in call.loops and has_step_loop(program, call.local)
        for call in program.calls
    )


def has_step_loop(program: Program, function: Function, seen: frozenset[Function] = frozenset()) -> bool:
    if function in seen:
        return False
    if any(loop.function is function and is_step_loop(loop) for loop in program.loops):
        return True
    called = {call.local for call in program.calls if call.function is function and call.local is not None}
    return any(has_step_loop(program, each, seen | {function}) for each in called)


def runs_every_step(program: Program, function: Function, seen: frozenset[Function] = frozenset()) -> bool:
    if isinstance(function.node, cst.Module) or function in seen or function.name == "__init__":
        return False
    if function.name in STEP_FUNCTIONS:
        return True
    if is_forward(program, function) or function in program.handlers.steps:
        return True
    if function.backward and not function.call_sites:  # called from another file: a step or a closure
        return True
    return any(_is_repeated_call(program, site, function, seen) for site in function.call_sites)


def _is_repeated_call(
    program: Program, site: CallSite, function: Function, seen: frozenset[Function]
) -> bool:
    if any(is_step_loop(loop) for loop in site.loops):
        return True
    return runs_every_step(program, site.caller, seen | {function})


def is_forward(program: Program, function: Function) -> bool:
    return function.name == "forward" and program.is_module_class(function.class_name)


def is_in_step_code(program: Program, fact: Fact) -> bool:
    return any(is_step_loop(loop) for loop in fact.loops) or runs_every_step(program, fact.function)
