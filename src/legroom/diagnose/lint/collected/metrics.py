"""Finds metrics that store the predictions of all epochs because nothing resets them (LG101)."""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import is_length_limited
from legroom.diagnose.lint.flow.syntax import dotted, keyword, last_name, method_name, receiver
from legroom.diagnose.lint.flow.values import SELF_METHODS
from legroom.diagnose.lint.rule import Problem

_STORING = re.compile(
    r"^(?:Binary|Multiclass|Multilabel)?(?:AUROC|ROC|AveragePrecision|PrecisionRecallCurve|CalibrationError)$"
    r"|^(?:SpearmanCorrCoef|KendallRankCorrCoef|CatMetric|CosineSimilarity)$|^Retrieval[A-Z]\w+$"
)
"""torchmetrics classes that store every prediction."""


def metrics_without_reset(program: Program) -> Iterator[Problem]:
    """Find metrics that a loop over epochs updates but never resets, such as `auroc.update(...)` without
    `auroc.reset()`.
    """
    reported: set[str] = set()
    yield from _own_metrics_without_reset(program, reported)
    if not any(each.startswith("torchmetrics") for each in program.imports.full_names.values()):
        return
    for call in program.calls:
        path = dotted(receiver(call.node)) if call.method == "update" else dotted(call.node.func)
        if path is None or path in reported or not call.node.args:
            continue
        made = [each for each in program.stores if each.target == path]
        if len(made) != 1 or not _stores_predictions(program, made[0].expression):
            continue
        if _is_updated_in_all_epochs(call, made[0]) and not _may_be_reset(program, path):
            reported.add(path)
            yield _without_reset(call, path)


def _without_reset(call: CallFact, path: str, reset: str = "reset") -> Problem:
    return Problem(
        node=call.node,
        message=f"`{path}` stores the predictions of every epoch, because the metric is never reset",
        help=f"Call `{path}.{reset}()` at the start of each epoch",
    )


def _own_metrics_without_reset(program: Program, reported: set[str]) -> Iterator[Problem]:
    """Find metrics of the project that store every prediction in a list, and whose method `reset` is never called."""
    if not program.uses_gpu:
        return
    for call in program.calls:
        path = dotted(receiver(call.node))
        if path is None or path in reported or call.local is None or not call.loops:
            continue
        known = program.classes.get(call.receiver.class_name or "")
        reset = known.methods.get("reset") if known is not None else None
        if reset is None or call.local.class_name != reset.class_name or not _is_whole(program, reset):
            continue
        made = [each for each in program.stores if each.target == path]
        if len(made) != 1 or made[0].value.class_name != reset.class_name:
            continue
        if not any(
            _is_kept_until(program, store, reset) for store in program.stores if store.function is call.local
        ):
            continue
        if _is_updated_in_all_epochs(call, made[0]) and not _may_be_reset(program, path):
            reported.add(path)
            yield _without_reset(call, path)


def _is_whole(program: Program, reset: Function) -> bool:
    """Return True if no other code of the program may call `reset` or inherit from its class."""
    known = program.classes[reset.class_name or ""]
    return (
        not reset.call_sites
        and all(base in {"object", "abc.ABC"} for base in known.bases)
        and not any(known.name in each.bases for each in program.classes.values())
    )


def _is_kept_until(program: Program, store: StoreFact, reset: Function) -> bool:
    """Return True if a method adds a tensor on the GPU to a list that only `reset` empties."""
    if store.how != "append" or not store.target.startswith("self.") or store.bounded:
        return False
    if not store.value.output or store.value.host or store.value.has_graph:
        return False
    if program.is_conditional(store.node) or is_length_limited(program, store):
        return False
    emptied = {
        each.function for each in program.releases if last_name(each.target) == last_name(store.target)
    }
    emptied |= {
        each.function
        for each in program.stores
        if each.target == store.target and each.how == "assign" and each.function.name != "__init__"
    }
    return emptied == {reset}


def _stores_predictions(program: Program, made: cst.BaseExpression) -> bool:
    """Return True if a new metric stores predictions, as in `torchmetrics.AUROC(task="binary").to(device)`. With
    `thresholds`, a metric stores only counts.
    """
    while isinstance(made, cst.Call) and method_name(made) in SELF_METHODS:
        inner = receiver(made)
        if inner is None:
            return False
        made = inner
    if not isinstance(made, cst.Call):
        return False
    name = program.imports.qualified(made.func) or ""
    thresholds = keyword(made, "thresholds")
    return (
        name.startswith("torchmetrics.")
        and _STORING.search(last_name(name)) is not None
        and (thresholds is None or dotted(thresholds.value) == "None")
    )


def _is_updated_in_all_epochs(call: CallFact, made: StoreFact) -> bool:
    """Return True if a loop inside the training loop updates a metric that is created outside both loops."""
    if made.loops:
        return False
    if made.function is call.function:
        return any(loop.trains for loop in call.loops[:-1])
    return (
        "." in made.target
        and made.function.name == "__init__"
        and made.function.class_name == call.function.class_name
        and bool(call.loops)
        and any(loop.trains for site in call.function.call_sites for loop in site.loops)
    )


def _may_be_reset(program: Program, path: str) -> bool:
    """Return True if the file resets the metric, or passes it to code that may reset it, such as Lightning's
    `self.log`.
    """
    name = last_name(path)
    for call in program.calls:
        if call.method in {"reset", "clone"}:
            owner = dotted(receiver(call.node))
            if owner is None or last_name(owner) == name or not program.assigned(owner):
                return True
    return any(
        _is_passed(program, node)
        for kind in (cst.Name, cst.Attribute)
        for node in program.nodes_of(kind)
        if dotted(node) == path
    )


def _is_passed(program: Program, node: cst.CSTNode) -> bool:
    parent = program.parent.get(node)
    if isinstance(parent, cst.Call):
        return parent.func is not node
    return not isinstance(parent, (cst.Attribute, cst.AssignTarget))
