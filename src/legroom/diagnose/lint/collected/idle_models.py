"""Finds lists of objects that each keep a model on the GPU, although each step uses only some of the objects, for
LG101.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.replay import is_put_on_gpu
from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, method_name, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem


def idle_models(program: Program) -> Iterator[Problem]:
    """Find `self.model = copy.deepcopy(model).to(device)` in a constructor, if the program uses only a few of the
    objects in each round.

    For example, a program for federated learning draws a few clients in each round.
    """
    if not program.drawn_names:
        return
    owners = {name: target for target, name in _drawn_objects(program)}
    for store in program.stores:
        owner = owners.get(store.function.class_name or "")
        if owner is None or store.function.name != "__init__" or not store.target.startswith("self."):
            continue
        if store.value.kind is ValueKind.MODEL and _is_on_gpu(program, store):
            yield Problem(
                node=store.expression,
                message=f"Every object in `{owner}` keeps its own model on the GPU, but each round uses only some of them",
                help="Keep the models in host memory, and move a model to the GPU only while it is used",
            )


def _drawn_objects(program: Program) -> Iterator[tuple[str, str]]:
    for store in program.stores:
        if last_name(store.target) not in program.drawn_names:
            continue
        made = store.expression
        if store.how == "assign" and isinstance(made, cst.ListComp):
            made = made.elt
        elif store.how != "append" or not store.loops:
            continue
        name = dotted(made.func) if isinstance(made, cst.Call) else None
        if name in program.classes:
            yield store.target, name or ""


def _is_on_gpu(program: Program, store: StoreFact) -> bool:
    calls = [each for each in walk(store.expression) if isinstance(each, cst.Call)]
    if not any(method_name(each) in {"to", "cuda"} and is_put_on_gpu(program, each) for each in calls):
        return False
    known = program.classes[store.function.class_name or ""]
    return not any(
        isinstance(each, cst.Call)
        and (method_name(each) == "cpu" or (method_name(each) == "to" and "cpu" in program.source(each)))
        and (dotted(each.func) or "").startswith(f"{store.target}.")
        for each in walk(known.node)
    )
