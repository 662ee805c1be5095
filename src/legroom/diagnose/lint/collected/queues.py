"""Finds queues without a limit that a thread fills with batches on the GPU (LG117)."""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.on_gpu import is_moved_batch
from legroom.diagnose.lint.collected.replay import is_put_on_gpu
from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import iterates_data_set
from legroom.diagnose.lint.flow.syntax import (
    contained_parts,
    dotted,
    keyword,
    last_name,
    method_name,
    moves_to_host,
    names_in,
    positional,
    receiver,
    walk,
)
from legroom.diagnose.lint.flow.values import NUMBER_METHODS, ValueKind
from legroom.diagnose.lint.rule import Problem

_LIMITING = ("qsize", "full", "Semaphore", "BoundedSemaphore", "Condition", "task_done", "Barrier")
"""Names that suggest that the program itself limits the queue."""


def unlimited_queues(program: Program) -> Iterator[Problem]:
    """Find queues that are created as `queue.Queue()` without `maxsize`, if a loop over a loader or a thread adds
    tensors on the GPU to them.
    """
    if program.mentions(*_LIMITING):
        return
    reported: set[cst.CSTNode] = set()
    for call in program.calls:
        given = positional(call.node)
        path = dotted(receiver(call.node))
        if call.method not in {"put", "put_nowait"} or not given or path is None:
            continue
        if not _puts_batch(program, call) and not _puts_sample(program, call):
            continue
        for made in _creations(program, path, call.function):
            if made not in reported and _is_unlimited(program, made):
                reported.add(made)
                yield Problem(
                    node=made,
                    message="The queue has no size limit, so a fast producer moves all its data to the GPU before the consumer uses it",
                    help="Limit the queue: `queue.Queue(maxsize=2)`",
                )


def _puts_batch(program: Program, call: CallFact) -> bool:
    return any(
        is_moved_batch(program, each, loop)
        for loop in call.loops
        if loop.iterable.kind is ValueKind.LOADER
        for each in program.stores
        if each.node is call.node
    )


def _puts_sample(program: Program, call: CallFact) -> bool:
    """Return True if a thread reads a dataset, and puts tensors on the GPU into a queue."""
    return (
        any(iterates_data_set(loop) for loop in call.loops)
        and _runs_in_thread(program, call.function)
        and _is_on_gpu(program, positional(call.node)[0].value, call.function)
    )


def _runs_in_thread(program: Program, function: Function) -> bool:
    known = program.classes.get(function.class_name or "")
    if known is not None and function.name == "run":
        return any(last_name(base) == "Thread" for base in known.bases)
    return any(
        (target := keyword(call.node, "target")) is not None
        and last_name(dotted(target.value) or "") == function.name
        for call in program.calls
        if last_name(call.name or "") == "Thread"
    )


def _is_on_gpu(program: Program, node: cst.BaseExpression, function: Function, depth: int = 0) -> bool:
    """Return True if an expression moves a tensor to the GPU, either directly or through a variable or function that
    it uses."""
    value = program.value(node)
    if value.host or value.kind is ValueKind.PLAIN:
        return False
    if isinstance(node, cst.Call) and (moves_to_host(node) or method_name(node) in _TO_HOST):
        return False
    parts = contained_parts(node)
    if parts:
        return any(_is_on_gpu(program, each, function, depth) for each in parts)
    calls = [each for each in walk(node) if isinstance(each, cst.Call)]
    if any(is_put_on_gpu(program, each) for each in calls):
        return True
    if depth == _MAX_DEPTH:
        return False
    returned = [
        (each, local)
        for call in program.calls
        if (local := call.local) is not None and call.node in calls
        for each in local.returned_nodes
    ]
    read = names_in(node)
    made = [
        (each.expression, function)
        for each in program.stores
        if each.function is function and each.how == "assign" and each.target in read
        if not program.inside(node, each.expression)
    ]
    return any(_is_on_gpu(program, each, where, depth + 1) for each, where in (*returned, *made))


_TO_HOST = NUMBER_METHODS | {"cpu"}
_MAX_DEPTH = 3


def _creations(program: Program, path: str, function: Function) -> list[cst.BaseExpression]:
    if path in function.parameters:
        return [
            each
            for outer, argument in _arguments(program, function, path)
            if (name := dotted(argument)) is not None
            for each in _creations(program, name, outer)
        ]
    return [
        each.expression
        for each in program.stores
        if each.target == path
        and each.how == "assign"
        and (each.function is function or path.startswith("self.") or not each.function.name)
    ]


def _arguments(
    program: Program, function: Function, parameter: str
) -> Iterator[tuple[Function, cst.BaseExpression]]:
    """Yield the arguments for a parameter, including those in `Thread(target=function, args=(q,))`."""
    for site in function.call_sites:
        for name, argument in function.receives(site.call):
            if name == parameter:
                yield site.caller, argument.value
    names = [each for each in function.parameters if each not in {"self", "cls"}]
    for call in program.calls:
        target, given = keyword(call.node, "target"), keyword(call.node, "args")
        if target is None or given is None or not isinstance(given.value, (cst.Tuple, cst.List)):
            continue
        if last_name(dotted(target.value) or "") == function.name and parameter in names:
            index = names.index(parameter)
            if index < len(given.value.elements):
                yield call.function, given.value.elements[index].value


def _is_unlimited(program: Program, node: cst.BaseExpression) -> bool:
    if not isinstance(node, cst.Call):
        return False
    name = program.imports.qualified(node.func) or method_name(node) or ""
    if name not in {"queue.Queue", "queue.SimpleQueue", "queue.LifoQueue"}:
        return False
    limit = keyword(node, "maxsize") or next(iter(node.args), None)
    return limit is None or (isinstance(limit.value, cst.Integer) and limit.value.value == "0")
