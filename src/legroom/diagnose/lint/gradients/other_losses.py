"""Finds models that run with gradients although only the loss of another model uses their results (LG201)."""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, names_in, receiver, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.gradients.trained_names import (
    is_trained,
    model_aliases,
    optimized_names,
    optimizer_sources,
)
from legroom.diagnose.lint.gradients.untrained_models import (
    builds_unused_graph,
    is_detached,
    may_be_frozen,
    model_path,
)


def models_of_other_losses(program: Program) -> Iterator[tuple[CallFact, str]]:
    """Yield calls such as `fake = generator(z)`, whose result only the loss of the discriminator uses.

    The program sets the generator's gradients to zero before the generator's own backward pass.
    """
    reported: set[str] = set()
    for call in program.calls:
        path = model_path(program, call)
        if path is None or path in reported or not (call.loops or call.function.backward):
            continue
        if not builds_unused_graph(program, call, trained=True):
            continue
        events = [
            each
            for each in program.calls
            if each.function is call.function and each.loops == call.loops and each.order > call.order
            if each.method in {"zero_grad", "backward", "step"}
        ]
        backward = next((each for each in events if each.method == "backward"), None)
        if backward is None or not _is_for_other_model(program, events, backward, path):
            continue
        if (
            _is_used_only_before(program, call, backward)
            and _reaches(program, call, backward)
            and not is_detached(program, call)
        ):
            reported.add(path)
            yield call, path


def _reaches(program: Program, call: CallFact, backward: CallFact) -> bool:
    """Return True if the loss depends on the result of a call. For example, it does not depend on an action that the
    program passes only to an environment.
    """
    names: set[str] = set()
    for store in program.stores:
        is_before = store.function is call.function and store.order < backward.order
        if is_before and (program.inside(call.node, store.expression) or names & names_in(store.expression)):
            names.add(store.target)
    return program.inside(call.node, backward.node) or bool(names & names_in(backward.node))


def _is_for_other_model(program: Program, events: list[CallFact], backward: CallFact, path: str) -> bool:
    """Return True if the next optimizer step does not train the model `path`, and the gradients of `path` are set to
    zero before its own optimizer step.
    """
    names = model_aliases(program, path)
    if may_be_frozen(program, names):
        return False
    steps = [
        each
        for each in events
        if each.method == "step" and each.receiver.kind is ValueKind.OPTIMIZER and each.order > backward.order
    ]
    trains = {each: _trains(program, each, names) for each in steps}
    if not steps or trains[steps[0]] is not False or True not in trains.values():
        return False
    own = next(each for each in steps if trains[each])
    first = next((each for each in events if each.method == "backward" and each.order > steps[0].order), own)
    optimizer = dotted(receiver(own.node))
    return any(
        each.method == "zero_grad"
        and backward.order < each.order < first.order
        and dotted(receiver(each.node)) in {optimizer, *names}
        for each in events
    )


def _trains(program: Program, step: CallFact, names: set[str]) -> bool | None:
    """Return True if an optimizer trains a model, and None if this is unknown."""
    made = optimizer_sources(program, step.function, dotted(receiver(step.node)))
    return is_trained(program, names, optimized_names(program, made)) if made else None


def _is_used_only_before(program: Program, call: CallFact, backward: CallFact) -> bool:
    """Return True if no code reads the result after the backward pass."""
    targets = {
        each.target
        for each in program.stores
        if each.function is call.function
        and each.how == "assign"
        and (each.expression is call.node or _is_in_loss(program, call, each.expression))
    }
    if not targets and _is_in_loss(program, call, backward.node):  # loss(D(G(z)), fake).backward()
        return True
    if len(targets) != 1 or any("." in each for each in targets):
        return False
    reads = [
        program.order[node]
        for node in walk(call.function.body)
        if isinstance(node, cst.Name)
        and node.value in targets
        and not isinstance(program.parent.get(node), cst.AssignTarget)
        and not _is_read_as_number(program, node)
    ]
    made = [each.order for each in program.stores if each.target in targets and each.order > backward.order]
    last = min(made, default=len(program.nodes))
    end = max(program.order[node] for node in walk(backward.node))  # discriminator(fake).mean().backward()
    return any(each < end for each in reads) and not any(end < each < last for each in reads)


def _is_in_loss(program: Program, call: CallFact, loss: cst.BaseExpression) -> bool:
    """Return True if only another model reads a result, such as `generator(z)` in `discriminator(generator(z))`."""
    argument = program.parent.get(call.node)
    outer = program.parent.get(argument) if isinstance(argument, cst.Arg) else None
    return (
        any(each.node is outer and each.receiver.kind is ValueKind.MODEL for each in program.calls)
        and outer is not loss
        and outer is not None
        and program.inside(outer, loss)
    )


def _is_read_as_number(program: Program, node: cst.CSTNode) -> bool:
    """Return True if the program reads only the value of a loss, as in `(real_loss + loss).item()` and
    `f"{loss:.3f}"`.
    """
    for each in program.ancestors(node):
        if isinstance(each, cst.Attribute) and each.attr.value in {"item", "detach", "data", "tolist"}:
            return True
        if isinstance(each, cst.FormattedStringExpression):
            return True
        if not isinstance(each, (cst.BinaryOperation, cst.Attribute)):
            return False
    return False
