"""Finds metrics that store the predictions of all epochs because nothing resets them (LG101)."""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
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
    if not any(each.startswith("torchmetrics") for each in program.imports.full_names.values()):
        return
    reported: set[str] = set()
    for call in program.calls:
        path = dotted(receiver(call.node)) if call.method == "update" else dotted(call.node.func)
        if path is None or path in reported or not call.node.args:
            continue
        made = [each for each in program.stores if each.target == path]
        if len(made) != 1 or not _stores_predictions(program, made[0].expression):
            continue
        if _is_updated_in_all_epochs(call, made[0]) and not _may_be_reset(program, path):
            reported.add(path)
            yield Problem(
                node=call.node,
                message=f"`{path}` stores the predictions of every epoch, because the metric is never reset",
                help=f"Call `{path}.reset()` at the start of each epoch",
            )


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
