"""Finds trained models that a container keeps on the GPU although nothing uses them again (LG101)."""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import survives
from legroom.diagnose.lint.flow.syntax import (
    bound_paths,
    contained_parts,
    dotted,
    is_call_of,
    keyword,
    last_name,
    method_name,
    names_in,
    path_of,
    receiver,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem


def kept_models(program: Program, store: StoreFact) -> Iterator[Problem]:
    """Find `models.append(model)` in a loop over folds or settings that creates and trains the model."""
    if store.how not in {"append", "item"} or (store.how == "item" and not store.varying_key):
        return
    if not store.loops or not program.uses_gpu or not store.function.owns(store.target):
        return
    for part in _parts(store.expression):
        path = dotted(part)
        if path is None or program.value(part).kind is not ValueKind.MODEL:
            continue
        loop = creating_loop(program, store, path)
        if loop is None or store.bounded or not survives(program, store.target, loop):
            continue
        if program.is_conditional(store.node, loop.node) or is_moved_to_host(program, path, loop):
            continue
        if not is_on_gpu(program, path, loop):
            continue
        used_again = is_used_again(program, store, _key_of(program, part))
        if used_again and _is_pretrained(program, path, loop):
            yield Problem(
                node=part,
                message=f"`{store.target}` keeps every trained model on the GPU while the loop trains the next model",
                help="Move the model to host memory first: `model.cpu()`. Move it back to the GPU when it is used",
            )
        elif not used_again and _is_scored(program, store, loop, part):
            yield Problem(
                node=part,
                message=f"`{store.target}` keeps every trained model on the GPU, but the program does not use the models again",
                help="Store the scores, and save the model's state dict to a file or keep it in host memory",
            )
        return


def sequential_models(program: Program) -> Iterator[Problem]:
    """Find `models.append(model.cuda())` in a loop over checkpoints, if the models are used one after another."""
    for store in program.stores:
        made = store.expression
        if store.how != "append" or not store.loops or program.value(made).kind is not ValueKind.MODEL:
            continue
        if any(loop.trains or loop.iterable.kind is ValueKind.LOADER for loop in store.loops):
            continue
        loop = store.loops[-1]
        owner: cst.BaseExpression | None = made
        while isinstance(owner, cst.Call):  # model.cuda().eval()
            owner = receiver(owner)
        path = dotted(owner)
        nodes = list(walk(loop.node))
        placed = [
            node for node in nodes if isinstance(node, cst.Call) and method_name(node) in {"to", "cuda"}
        ]
        if not placed or any("cpu" in program.source(node) for node in placed) or path is None:
            continue
        uses = [
            node
            for node in walk(store.function.body)
            if isinstance(node, (cst.Name, cst.Attribute))
            and dotted(node) == store.target
            and program.order[node] > loop.last
        ]
        loops = [program.parent.get(node) for node in uses]
        if _is_pretrained(program, path, loop) and len(loops) == 1 and _runs_over_data(program, loops[0]):
            yield Problem(
                node=made,
                message=f"`{store.target}` keeps all models on the GPU, but the program runs one model at a time",
                help="Keep the models in host memory, and move each model to the GPU while it runs",
            )


def models_of_trials(program: Program) -> Iterator[Problem]:
    """Find `trial.set_user_attr("model", model)`, because the study keeps the model of every trial."""
    for call in program.calls:
        given = call.arguments[1:2] if call.method == "set_user_attr" and program.uses_gpu else ()
        if any(each.kind is ValueKind.MODEL for each in given):
            yield Problem(
                node=call.node,
                message="The study keeps the model of every trial on the GPU",
                help="Save the model's state dict to a file, and store its path",
            )


def _runs_over_data(program: Program, loop: cst.CSTNode | None) -> bool:
    """Return True for a loop over models that iterates over a loader for each model, without moving the models."""
    if not isinstance(loop, cst.For):
        return False
    bound = bound_paths(loop.target)
    if any(
        isinstance(node, cst.Call) and method_name(node) == "cpu" and dotted(receiver(node)) in bound
        for node in walk(loop)
    ):
        return False
    return any(
        program.value(node.iter).kind is ValueKind.LOADER
        for node in walk(loop.body)
        if isinstance(node, (cst.For, cst.CompFor))
    )


def _parts(expression: cst.BaseExpression) -> list[cst.BaseExpression]:
    parts = contained_parts(expression)
    return [expression, *(each for part in parts for each in _parts(part))]


def creating_loop(program: Program, store: StoreFact, path: str) -> LoopFact | None:
    for loop in reversed(store.loops):
        made = [
            each
            for each in program.stores
            if each.target == path
            and each.how == "assign"
            and each.function is store.function
            and each.loops[-1:] == (loop,)
            and isinstance(each.expression, cst.Call)
            and not each.uses_old_value
            and each.order < store.order
        ]
        if made:
            return loop if loop.trains and store.loops[-1] is loop else None
    return None


def is_on_gpu(program: Program, path: str, loop: LoopFact) -> bool:
    return any(
        isinstance(node, cst.Call)
        and (method_name(node) == "cuda" or (method_name(node) == "to" and "cpu" not in program.source(node)))
        and (dotted(receiver(node)) == path or program.value(node).kind is ValueKind.MODEL)
        for scope in (loop.node, *_creating_functions(program, path, loop))
        for node in walk(scope)
    )


def _is_pretrained(program: Program, path: str, loop: LoopFact) -> bool:
    """Return True if the loop creates a model from a library. Such a model is usually large."""
    bodies = _creating_functions(program, path, loop)
    return any(
        LIBRARIES.search(program.imports.qualified(node.func) or "")
        for scope in (loop.node, *bodies)
        for node in walk(scope)
        if isinstance(node, cst.Call)
    )


LIBRARIES = re.compile(r"^timm\.create_model$|^torchvision\.models\.|^transformers\.\w+\.from_pretrained$")


def _creating_functions(program: Program, path: str, loop: LoopFact) -> list[cst.CSTNode]:
    made = [each for each in program.stores if each.target == path and each.loops[-1:] == (loop,)]
    found: list[Function] = []
    added = [
        call.local
        for call in program.calls
        if call.local is not None and any(call.node is each.expression for each in made)
    ]
    while added:
        found += [each for each in added if each not in found]
        added = [
            call.local
            for call in program.calls
            if call.function in added and call.local is not None and call.local not in found
        ]
    return [each.body for each in found]


def _is_scored(program: Program, store: StoreFact, loop: LoopFact, model: cst.BaseExpression) -> bool:
    """Return True if the loop also stores a score of the model."""
    if any(
        program.value(each).kind in (ValueKind.PLAIN, ValueKind.UNKNOWN)
        and each is not model
        and not isinstance(each, (cst.BaseString, cst.BaseNumber))
        and names_in(each).isdisjoint(loop.bound)
        and not contained_parts(each)
        for each in _parts(store.expression)[1:]
    ):
        return True
    return any(
        each is not store
        and each.how in {"append", "item"}
        and each.target != store.target
        and each.loops[-1:] == (loop,)
        and each.function is store.function
        and not each.value.is_tensor
        for each in program.stores
    )


def is_moved_to_host(program: Program, path: str, loop: LoopFact) -> bool:
    inside = [node for body in _creating_functions(program, path, loop) for node in walk(body)]
    for node in (*walk(loop.node), *inside):
        owner = receiver(node) if isinstance(node, cst.Call) else None
        if not isinstance(node, cst.Call) or owner is None:
            continue
        if dotted(owner) != path and program.value(owner).kind is not ValueKind.MODEL:
            continue
        given = keyword(node, "device") or (node.args[0] if node.args else None)
        if method_name(node) == "cpu" or (
            method_name(node) == "to" and given is not None and "cpu" in program.source(given.value)
        ):
            return True
    return False


def is_used_again(program: Program, store: StoreFact, key: str | int | None) -> bool:
    """Return True if other code may use all the models, for example as an ensemble.

    `key` is the key of the model in each entry, or its index.
    """
    for node in walk(store.function.body):
        if dotted(node) != store.target or program.inside(node, store.node):
            continue
        parent = program.parent.get(node)
        if isinstance(parent, cst.AssignTarget) or is_target(program, parent):
            continue  # models = []
        if isinstance(parent, cst.Arg):
            call = program.parent.get(parent)
            if call is not None and (
                is_call_of(call, "len") or is_call_of(call, "max") or is_call_of(call, "min")
            ):
                continue
        if (
            isinstance(parent, cst.Subscript)
            and parent.value is node
            and _is_one(program, parent, store.target)
        ):
            continue
        if _is_saved_only(program, node, key):
            continue
        if key is None or not _reads_other_keys(program, node, key):
            return True
    return False


def _is_saved_only(program: Program, node: cst.CSTNode, key: str | int | None) -> bool:
    """Return True if a loop over the entries only saves the models, as in `torch.save(r["model"].state_dict(), path)`."""
    loop = next((each for each in program.ancestors(node) if isinstance(each, cst.For)), None)
    if loop is None or not program.inside(node, loop.iter):
        return False
    bound = bound_paths(loop.target)
    read = [
        each
        for each in walk(loop.body)
        if isinstance(each, cst.Name) and each.value in bound and _may_be_model(program, each, key)
    ]
    return bool(read) and all(_is_saved(program, each, loop) for each in read)


def _may_be_model(program: Program, name: cst.Name, key: str | int | None) -> bool:
    """Return False if a name is probably not the model, for example `r["fold"]` or `score`."""
    parent = program.parent.get(name)
    if key is None or not isinstance(parent, cst.Subscript) or parent.value is not name:
        return _NUMBERS.search(name.value) is None
    read = string_value(getattr(parent.slice[0].slice, "value", None))
    return read is None or read == key


def _is_saved(program: Program, node: cst.CSTNode, loop: cst.For) -> bool:
    for each in program.ancestors(node):
        if each is loop:
            return False
        if isinstance(each, cst.Call) and method_name(each) == "save_pretrained":
            return program.inside(node, each.func)
        if isinstance(each, cst.Call) and is_call_of(each, "save"):
            return bool(each.args) and program.inside(node, each.args[0])
        if isinstance(each, cst.Call) and method_name(each) != "state_dict":
            return False
    return False


_NUMBERS = re.compile(r"^[kijn]$|^(?:fold|idx|index|name|key|path|seed|score|acc|loss)\w*$", re.IGNORECASE)


def is_target(program: Program, element: cst.CSTNode | None) -> bool:
    """Return True for a name on the left side of an assignment such as `models, scores = [], []`."""
    outer = program.parent.get(element) if isinstance(element, cst.Element) else None
    return outer is not None and isinstance(program.parent.get(outer), cst.AssignTarget)


def _is_one(program: Program, node: cst.Subscript, target: str) -> bool:
    """Return True if an expression outside a loop reads one entry, as in `models[best]`."""
    if any(isinstance(each.slice, cst.Slice) for each in node.slice):
        return False
    return path_of(node) == target and not any(
        isinstance(each, (cst.For, cst.While, cst.ListComp, cst.GeneratorExp, cst.DictComp))
        for each in program.ancestors(node)
    )


def _key_of(program: Program, model: cst.BaseExpression) -> str | None:
    """Return the key of a model in a dict, such as "model" for `{"model": model, "loss": loss.item()}`."""
    parent = program.parent.get(model)
    return string_value(parent.key) if isinstance(parent, cst.DictElement) else None


def _reads_other_keys(program: Program, node: cst.CSTNode, key: str | int) -> bool:
    """Return True if a loop over the entries reads only other keys, as in `sum(r["loss"] for r in results)` and
    `[score for _, score in results]`.
    """
    loop = next(
        (each for each in program.ancestors(node) if isinstance(each, (cst.For, cst.CompFor))),
        None,
    )
    if loop is None or not program.inside(node, loop.iter):
        return False
    scope = loop if isinstance(loop, cst.For) else program.parent.get(loop)
    target: cst.BaseExpression = loop.target
    if (
        isinstance(loop.iter, cst.Call)
        and method_name(loop.iter) == "items"
        and isinstance(target, cst.Tuple)
    ):
        target = target.elements[-1].value
    bound = names_in(target)
    if isinstance(key, int):
        model = target.elements[key : key + 1] if isinstance(target, cst.Tuple) else ()
        bound = frozenset(name for each in model for name in names_in(each.value))
        return bool(bound) and not any(
            isinstance(each, cst.Name) and each.value in bound and not program.inside(each, loop.target)
            for each in walk(scope or loop)
        )
    for each in walk(scope) if scope is not None else ():
        if not isinstance(each, cst.Name) or each.value not in bound or program.inside(each, loop.target):
            continue
        parent = program.parent.get(each)
        if isinstance(parent, cst.Subscript) and parent.value is each:
            read = string_value(getattr(parent.slice[0].slice, "value", None))
            if read is None or read == key:
                return False
        elif isinstance(parent, cst.Attribute) and parent.value is each and parent.attr.value != key:
            continue
        elif last_name(each.value) not in {"fold", "k", "name", "key"}:
            return False
    return True
