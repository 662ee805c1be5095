"""Finds queues without a limit that a thread fills with batches on the GPU, for LG117."""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.on_gpu import is_moved_batch
from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, keyword, last_name, method_name, positional, receiver
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

_LIMITING = ("qsize", "full", "Semaphore", "BoundedSemaphore", "Condition", "task_done", "Barrier")
"""Names that suggest that the program itself limits the queue."""


def unlimited_queues(program: Program) -> Iterator[Problem]:
    """Find `queue.Queue()` without `maxsize`, to which a loop over a loader adds batches on the GPU."""
    if program.mentions(*_LIMITING):
        return
    reported: set[cst.CSTNode] = set()
    for call in program.calls:
        loop = next((each for each in reversed(call.loops) if each.iterable.kind is ValueKind.LOADER), None)
        given = positional(call.node)
        path = dotted(receiver(call.node))
        if call.method not in {"put", "put_nowait"} or loop is None or not given or path is None:
            continue
        if not _puts_batch(program, call, loop):
            continue
        for made in _creations(program, path, call.function):
            if made not in reported and _is_unlimited(program, made):
                reported.add(made)
                yield Problem(
                    node=made,
                    message="The queue has no limit, so a fast loader moves all its batches to the GPU before the program uses them",
                    help="Limit the queue: `queue.Queue(maxsize=2)`",
                )


def _puts_batch(program: Program, call: CallFact, loop: LoopFact) -> bool:
    return any(is_moved_batch(program, each, loop) for each in program.stores if each.node is call.node)


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
