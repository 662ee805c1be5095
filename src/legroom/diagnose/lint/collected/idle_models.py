"""Finds models and optimizers that the program keeps on the GPU although it uses only some of them at a time
(LG101).
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.replay import is_put_on_gpu
from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import survives
from legroom.diagnose.lint.flow.syntax import dotted, is_call_of, last_name, method_name, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem


def idle_models(program: Program) -> Iterator[Problem]:
    """Find `self.model = copy.deepcopy(model).to(device)` in a constructor, if the program uses only a few instances
    of the class in each round.

    For example, a program for federated learning selects a few clients in each round.
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
                message=f"Every object in `{owner}` keeps its own model on the GPU, but each round uses only some of the models",
                help="Keep the models in host memory, and move a model to the GPU only while it is used",
            )


def idle_optimizers(program: Program) -> Iterator[Problem]:
    """Find `self.optimizers.append(optimizer)` with a new optimizer for each stage of the training, if the program never
    steps the stored optimizers again. Each optimizer keeps its state on the GPU.
    """
    for store in program.stores:
        if (
            store.value.kind is not ValueKind.OPTIMIZER
            or store.how not in {"append", "item"}
            or store.bounded
        ):
            continue
        function = store.function
        loops = (*store.loops, *(loop for site in function.call_sites for loop in site.loops))
        callers = (
            loop for site in function.call_sites for each in site.caller.call_sites for loop in each.loops
        )
        stages = [loop for loop in (*loops, *callers) if loop.trains]
        if not stages or not _is_created_here(program, store) or _are_stepped(program, store):
            continue
        if all(survives(program, store.target, loop) for loop in stages):
            yield Problem(
                node=store.expression,
                message=f"`{store.target}` keeps the optimizers of all stages and their state, although the program uses only the "
                "newest optimizer",
                help="Keep only the current optimizer",
            )


def _is_created_here(program: Program, store: StoreFact) -> bool:
    path = dotted(store.expression)
    return isinstance(store.expression, cst.Call) or any(
        each.target == path and isinstance(each.expression, cst.Call)
        for each in program.stores
        if each.function is store.function and each.loops == store.loops and each.order < store.order
    )


def _are_stepped(program: Program, store: StoreFact) -> bool:
    """Return True if the program does more with the stored optimizers than read their learning rates."""
    for _, parent in program.other_uses(store):
        if isinstance(parent, cst.Attribute):
            continue
        if isinstance(parent, (cst.For, cst.CompFor)):
            scope = parent if isinstance(parent, cst.For) else program.parent.get(parent)
            read = [each.attr.value for each in walk(scope or parent) if isinstance(each, cst.Attribute)]
            if (
                not {"step", "zero_grad", "state_dict", "load_state_dict"} & set(read)
                and "param_groups" in read
            ):
                continue
        if isinstance(parent, cst.Arg) and is_call_of(program.parent.get(parent) or parent, "len"):
            continue
        return True
    return False


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
