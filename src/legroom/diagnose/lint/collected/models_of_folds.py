"""Finds models that a function trains, and that its caller or its object keeps on the GPU for every fold (LG101)."""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.models import (
    LIBRARIES,
    creating_loop,
    is_moved_to_host,
    is_on_gpu,
    is_target,
    is_used_again,
)
from legroom.diagnose.lint.flow.facts import Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import survives
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_call_of,
    last_name,
    method_name,
    names_in,
    receiver,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

_UNUSED = "`{}` keeps every trained model on the GPU, but the program does not use the models again"
_NEXT = "`{}` keeps every trained model on the GPU while the loop trains the next model"


def models_of_folds(program: Program) -> Iterator[Problem]:
    """Find `results[fold] = train_fold(...)` if `train_fold` returns a model on the GPU, and `self.models[fold] = model`
    in a method that a loop calls. Also find `learners.append(learner)` if each `learner` contains its own model.
    """
    if not program.uses_gpu:
        return
    for store in program.stores:
        problem = (
            _kept_result(program, store) or _kept_by_object(program, store) or _kept_in_object(program, store)
        )
        if problem is not None:
            yield problem


def _kept_result(program: Program, store: StoreFact) -> Problem | None:
    made = store.expression
    if isinstance(made, (cst.ListComp, cst.DictComp)) and store.how == "assign":
        made = made.elt if isinstance(made, cst.ListComp) else made.value  # [train(seed) for seed in seeds]
    elif (
        store.how not in {"append", "item"}
        or (store.how == "item" and not store.varying_key)
        or not store.loops
        or store.bounded
        or not survives(program, store.target, store.loops[-1])
        or program.is_conditional(store.node, store.loops[-1].node)
    ):
        return None
    call = program.call_of(made)
    if call is None or call.local is None or not store.function.owns(store.target):
        return None
    found = _returned_model(program, call.local)
    if found is None or not _is_trained_on_gpu(program, call.local, found[0]):
        return None
    used_again = is_used_again(program, store, found[1])
    if used_again and not any(
        isinstance(node, cst.Call) and LIBRARIES.search(program.imports.qualified(node.func) or "")
        for node in walk(call.local.body)
    ):
        return None
    return Problem(
        node=made,
        message=(_NEXT if used_again else _UNUSED).format(store.target),
        help=f"Return only the scores from `{call.local.name}`, or move the model to host memory first: `model.cpu()`",
    )


def _kept_by_object(program: Program, store: StoreFact) -> Problem | None:
    function, path = store.function, dotted(store.expression)
    if store.how not in {"append", "item"} or (store.how == "item" and not store.varying_key):
        return None
    if path is None or not store.target.startswith("self.") or function.name == "__init__":
        return None
    if store.value.kind is not ValueKind.MODEL or store.bounded or program.is_conditional(store.node):
        return None
    loops = [store.loops] if store.loops else [site.loops for site in function.call_sites]
    if not any(loops) or not _is_trained_on_gpu(program, function, path):
        return None
    name = last_name(store.target)
    is_created = any(last_name(call.name or "") == function.class_name for call in program.calls)
    if not is_created or any(last_name(each.target) == name for each in program.releases):
        return None
    if any(_is_read(program, node, parent) for node, parent in program.other_uses(store)):
        return None
    return Problem(
        node=store.expression,
        message=_UNUSED.format(store.target),
        help="Store only the scores, and save the model's state dict to a file",
    )


def _kept_in_object(program: Program, store: StoreFact) -> Problem | None:
    """Find objects that a loop creates with a model, if later code reads only other attributes, such as the losses."""
    known = program.classes.get(store.value.class_name or "")
    path = dotted(store.expression)
    if (
        known is None
        or path is None
        or store.how not in {"append", "item"}
        or program.is_module_class(known.name)
    ):
        return None
    models = {
        name.removeprefix("self.") for name, value in known.attributes.items() if value.kind in _MODEL_KINDS
    }
    loop = creating_loop(program, store, path)
    if not models or loop is None or store.bounded or program.is_conditional(store.node, loop.node):
        return None
    if not is_on_gpu(program, path, loop) or is_moved_to_host(program, path, loop):
        return None
    if any(_leaves_gpu(program, known.node, f"self.{each}") for each in models) or any(
        _leaves_gpu(program, loop.node, f"{path}.{each}") for each in models
    ):
        return None
    is_own = store.function.owns(store.target) or any(
        last_name(call.name or "") == store.function.class_name for call in program.calls
    )
    if not is_own or not survives(program, store.target, loop):
        return None
    numbers = {name.removeprefix("self.") for name in known.attributes} - models
    uses = [node for node, parent in program.other_uses(store) if _is_read(program, node, parent)]
    if not uses or not all(_reads_only(program, node, numbers) for node in uses):
        return None
    return Problem(
        node=store.expression,
        message=_UNUSED.format(store.target),
        help=f"Store only the attributes that are used later, or move the model to host memory first: `{path}.{min(models)}.cpu()`",
    )


_MODEL_KINDS = (ValueKind.MODEL, ValueKind.OPTIMIZER)


def _leaves_gpu(program: Program, scope: cst.CSTNode, path: str) -> bool:
    """Return True if code moves a model to host memory, deletes it or replaces it with None."""
    return any(
        (isinstance(node, cst.Call) and dotted(receiver(node)) == path and "cpu" in program.source(node))
        or (isinstance(node, cst.Del) and path in names_in(node.target))
        or (
            isinstance(node, cst.Assign)
            and dotted(node.value) == "None"
            and any(dotted(each.target) == path for each in node.targets)
        )
        for node in walk(scope)
    )


def _reads_only(program: Program, node: cst.CSTNode, attributes: set[str]) -> bool:
    """Return True if a loop or comprehension over a container reads only some attributes of the entries."""
    loop = next(
        (each for each in program.ancestors(node) if isinstance(each, (cst.For, cst.CompFor))),
        None,
    )
    scope = program.parent.get(loop) if isinstance(loop, cst.CompFor) else loop
    if loop is None or scope is None or not program.inside(node, loop.iter):
        return False
    bound = names_in(loop.target)
    for each in walk(scope):
        if isinstance(each, cst.Name) and each.value in bound and not program.inside(each, loop.target):
            parent = program.parent.get(each)
            if isinstance(parent, cst.Attribute) and parent.attr is each:
                continue
            if not isinstance(parent, cst.Attribute) or parent.attr.value not in attributes:
                return False
    return True


def _is_read(program: Program, node: cst.CSTNode, parent: cst.CSTNode | None) -> bool:
    if isinstance(parent, cst.Attribute) and parent.attr is node:
        return False  # the name in `self.models`, which is another node
    call = program.parent.get(parent) if isinstance(parent, cst.Arg) else None
    return not is_target(program, parent) and not (call is not None and is_call_of(call, "len"))


def _returned_model(program: Program, function: Function) -> tuple[str, str | int | None] | None:
    """Return the name of the model that a function creates and returns, and its key or index in the result."""
    for node in function.returned_nodes:
        parts: list[tuple[cst.BaseExpression, str | int | None]] = [(node, None)]
        if isinstance(node, cst.Tuple):
            parts = [(each.value, index) for index, each in enumerate(node.elements)]
        elif isinstance(node, cst.Dict):
            parts = [
                (each.value, string_value(each.key))
                for each in node.elements
                if isinstance(each, cst.DictElement)
            ]
        elif isinstance(node, cst.Call) and last_name(dotted(node.func) or "") in program.classes:
            parts = _fields(program, node)
        for part, key in parts:
            if program.value(part).kind is ValueKind.MODEL and dotted(part) is not None:
                return dotted(part) or "", key
    return None


def _fields(program: Program, node: cst.Call) -> list[tuple[cst.BaseExpression, str | int | None]]:
    """Return the arguments of a dataclass such as `Result(model, score)`, and the names of its fields."""
    known = program.classes[last_name(dotted(node.func) or "")]
    names = [
        dotted(each.target)
        for each in walk(known.node.body, into_functions=False)
        if isinstance(each, cst.AnnAssign)
    ]
    given = zip(names, node.args, strict=False)
    return [(each.value, each.keyword.value if each.keyword else name) for name, each in given]


def _is_trained_on_gpu(program: Program, function: Function, path: str) -> bool:
    """Return True if a function creates a model, moves it to the GPU and trains it, and does not move it back."""
    created = [
        each.expression
        for each in program.stores
        if each.target == path
        and each.function is function
        and isinstance(each.expression, cst.Call)
        and not each.uses_old_value
    ]
    if not created or not (
        function.backward or any(loop.function is function and loop.trains for loop in program.loops)
    ):
        return False
    moved = [
        node
        for node in walk(function.body)
        if isinstance(node, cst.Call)
        and method_name(node) in {"cuda", "to", "cpu"}
        and (
            dotted(receiver(node)) == path
            or node in created  # Net().cuda()
            or program.value(node).kind is ValueKind.MODEL
        )
    ]
    return bool(moved) and not any("cpu" in program.source(node) for node in moved)
