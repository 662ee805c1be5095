"""Finds containers that collect gradients or copies of a model (LG101).

Each of these copies is as large as the model.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.facts import Fact, Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.lifetimes import outlives_its_step
from legroom.diagnose.lint.flow.retention.releases import is_length_limited, survives
from legroom.diagnose.lint.flow.steps import is_innermost_step_loop
from legroom.diagnose.lint.flow.syntax import (
    contained_parts,
    dotted,
    has_modulo,
    is_call_of,
    last_name,
    method_name,
    moves_to_host,
    names_in,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

KeyCheck = Callable[[Program, StoreFact, LoopFact | Function], bool]


def collected_models(program: Program, store: StoreFact, key_is_new: KeyCheck) -> Iterator[Problem]:
    """Find stores such as `history.append(copy.deepcopy(model.state_dict()))` in every step or epoch."""
    if store.how not in {"append", "item"} or (store.how == "item" and not store.varying_key):
        return
    if not program.mentions("deepcopy", "clone", "cat", "parameters_to_vector"):
        return
    if store.value.kind is ValueKind.PLAIN or _is_number(store.expression):
        return  # a number
    copies = _copied_models(program, store.expression, store)
    if not copies:
        return
    if _is_added_by_callback(program, store):
        yield _copied(store)
        return
    if any(each.target == store.target and each.function is store.function for each in program.releases):
        return  # a pool of opponents with a limit
    scope = outlives_its_step(program, store)
    if scope is None or not any(
        _adds_copies(program, loop, models) and _is_repeated(program, node, loop)
        for node, loop, models in _loops_of(store, scope, copies)
    ):
        return
    if key_is_new(program, store, scope):
        yield _copied(store)


def _is_number(node: cst.BaseExpression) -> bool:
    """Return True if an expression reduces tensors to numbers, as in `torch.cat(parameters).norm()`."""
    return isinstance(node, cst.Call) and method_name(node) in _REDUCTIONS


def _copied(store: StoreFact) -> Problem:
    return Problem(
        node=store.expression,
        message=f"`{store.target}` stores a copy of the model or its state, and nothing removes old copies",
        help="Keep only the latest copies, or store them in host memory",
    )


_REDUCTIONS = {"item", "max", "mean", "min", "norm", "std", "sum", "tolist", "var"}
_REPEATED_CALLBACK = re.compile(
    r"^on_(?:\w+_)?(?:epoch|step|batch|evaluate|log|save)(?:_(?:start|begin|end))?$|^on_validation_end$"
)


def _is_added_by_callback(program: Program, store: StoreFact) -> bool:
    """Return True if each epoch or evaluation adds to an attribute of a callback.

    The result does not depend on methods that a trainer calls only once, such as `on_train_end`.
    """
    function = store.function
    known = program.classes.get(function.class_name or "")
    if known is None or not any(base.endswith("Callback") for base in known.bases):
        return False
    if store.how != "append" and not _has_key_of_step(store):
        return False
    if root(store.target) != "self" or store.loops or store.bounded:
        return False
    if not _REPEATED_CALLBACK.search(function.name) or is_length_limited(program, store):
        return False
    if any(isinstance(each, (cst.If, cst.Try)) for each in program.ancestors(store.node)):
        return False
    if any(isinstance(each, cst.If) and store.target in names_in(each.test) for each in walk(function.body)):
        return False  # if len(self.states) == 10: return
    emptied: list[Fact] = [each for each in program.releases if each.target == store.target]
    emptied += [
        each
        for each in program.stores
        if each.target == store.target and each.how == "assign" and each.function.name != "__init__"
    ]
    once = {"on_train_end", "on_train_begin", "on_train_start", "on_fit_end", "on_fit_start"}
    return all(each.function.name in once for each in emptied)


def _has_key_of_step(store: StoreFact) -> bool:
    numbers = {name for name in store.function.parameters if _STEP_NUMBER.search(name)}
    return any(
        isinstance(node, cst.Subscript)
        and any(path in numbers for each in node.slice for path in names_in(each))
        for node in walk(store.node)
    )


_STEP_NUMBER = re.compile(r"epoch|step|iter|batch_idx", re.IGNORECASE)


def _loops_of(
    store: StoreFact, scope: LoopFact | Function, copies: set[str]
) -> Iterator[tuple[cst.CSTNode, LoopFact, set[str]]]:
    if isinstance(scope, LoopFact):
        yield store.node, scope, copies
        return
    for site in scope.call_sites:
        if site.loops:
            given = {name: dotted(argument.value) or "" for name, argument in scope.receives(site.call)}
            yield site.call, site.loops[-1], {given.get(root(path), path) for path in copies}


def _adds_copies(program: Program, loop: LoopFact, models: set[str]) -> bool:
    """Return True if each iteration of a loop trains and copies the same model.

    A loop over folds or tasks does not count, because it trains only a few models.
    """
    if is_innermost_step_loop(program, loop):
        return True
    if not isinstance(loop.node, cst.For) or not loop.trains or not program.uses_gpu:
        return False
    iterated = {last_name(path) for path in names_in(loop.node.iter)} | loop.bound
    if any(_FEW.search(name) for name in iterated) or not any(_MANY.search(name) for name in iterated):
        return False
    return not any(
        each.how == "assign"
        and loop.first <= each.order <= loop.last
        and each.function is loop.function
        and any(model == each.target or model.startswith(f"{each.target}.") for model in models)
        for each in program.stores
    )


def _is_repeated(program: Program, node: cst.CSTNode, loop: LoopFact) -> bool:
    """Return True if every step, or every n-th epoch, copies the model. Other conditions may limit the number of
    copies, as in `if epoch in milestones`.
    """
    if is_innermost_step_loop(program, loop):
        return True
    for each in program.ancestors(node):
        if each is loop.node:
            return True
        if isinstance(each, cst.If) and not has_modulo(each.test) and not program.inside(node, each.test):
            return False
    return True


_MANY = re.compile(r"epoch|step|iter|round|cycle|generation|episode|^(?:e|ep|it|i|t|k|n|_)$", re.IGNORECASE)
_FEW = re.compile(
    r"fold|task|seed|trial|member|client|stage|domain|expert|layer|head|agent|model", re.IGNORECASE
)
_WHOLE_MODEL = {"named_parameters", "parameters", "state_dict"}


def _copied_models(
    program: Program, expression: cst.BaseExpression, store: StoreFact, depth: int = 0
) -> set[str]:
    """Return the models that an expression copies on the same device, such as `model` for `{"state":
    copy.deepcopy(model.state_dict())}`.
    """
    nodes = list(walk(expression))
    if any(_moves_to_host(node) for node in nodes):
        return set()
    found = {path for node in nodes if (path := _copied_model(program, node)) is not None}
    if found or depth > _MAX_DEPTH:
        return found
    for part in (expression, *contained_parts(expression)):
        if isinstance(part, cst.ListComp):
            found |= _copied_in_list(program, part, store, depth)
        found |= _copied_before(program, part, store, depth)
    return found


_MAX_DEPTH = 4


def _copied_in_list(program: Program, made: cst.ListComp, store: StoreFact, depth: int) -> set[str]:
    """Return the models that a list copies, such as `[client.fit(model) for client in clients]` and
    `[state for state, count in results]`.

    The second list contains the first items of `results`, which may be a parameter of the function.
    """
    if isinstance(made.elt, cst.Call):
        return _copied_before(program, made.elt, store, depth)
    source, target = dotted(made.for_in.iter), made.for_in.target
    names = [dotted(each.value) for each in target.elements] if isinstance(target, cst.Tuple) else []
    item = dotted(made.elt)
    if source is None or item is None or names[:1] != [item]:
        return set()
    function = store.function
    if source not in function.parameters:
        return _copied_before(program, made.for_in.iter, store, depth)
    found: set[str] = set()
    for site in function.call_sites:
        for name, argument in function.receives(site.call):
            if name == source:
                order = program.order[site.call]
                at = replace(store.at, function=site.caller, loops=site.loops, order=order)
                found |= _copied_before(program, argument.value, replace(store, at=at), depth)
    return found


def _copied_before(program: Program, part: cst.BaseExpression, store: StoreFact, depth: int) -> set[str]:
    path = dotted(part)
    if path is not None:
        made = [
            each
            for each in program.stores
            if each.target == path and each.function is store.function and each.order < store.order
        ]
        found = _copied_models(program, made[-1].expression, made[-1], depth + 1) if made else set()
        moved = found and any(
            isinstance(each, cst.Call) and _moves_to_host(each) and dotted(receiver(each)) == path
            for each in walk(store.function.body)
        )
        return set() if moved else found
    if not isinstance(part, cst.Call):
        return set()
    call = program.call_of(part)
    if method_name(part) == "state_dict" and depth:
        return _copied_into_variable(program, dotted(receiver(part)), store, depth)
    if call is None or call.local is None:
        inner = receiver(part)  # copy.deepcopy(model).eval()
        return _copied_before(program, inner, store, depth) if inner is not None and depth == 0 else set()
    inside = max(
        (each for each in program.stores if each.function is call.local),
        key=lambda each: each.order,
        default=store,
    )
    inside = replace(inside, at=replace(inside.at, order=inside.order + 1))  # after the last assignment
    given = {name: dotted(argument.value) or "" for name, argument in call.local.receives(part)}
    return {
        given.get(model, model)
        for each in call.local.returned_nodes
        for model in _copied_models(program, each, inside, depth + 1)
    }


def _copied_into_variable(program: Program, path: str | None, store: StoreFact, depth: int) -> set[str]:
    """Return the model that a local variable contains a copy of, such as `model` for `local = copy.deepcopy(model)`."""
    made = [
        each
        for each in program.stores
        if each.target == path and each.function is store.function and each.how == "assign"
    ]
    if len(made) != 1 or path not in store.function.local_names:
        return set()
    if any(
        isinstance(each, cst.Call) and _moves_to_host(each) and dotted(receiver(each)) == path
        for each in walk(store.function.body)
    ):
        return set()
    return _copied_models(program, made[0].expression, made[0], depth + 1)


def _moves_to_host(node: cst.CSTNode) -> bool:
    """Return True if a node moves a tensor to the host, as in `x.cpu()`, `x.numpy()` and `x.to("cpu")`."""
    return isinstance(node, cst.Call) and (method_name(node) in {"cpu", "numpy"} or moves_to_host(node))


def _copied_model(program: Program, node: cst.CSTNode) -> str | None:
    """Return the model that a node copies. Examples of copies are `deepcopy(model)`, `deepcopy(model.state_dict())`,
    `[p.clone() for p in model.parameters()]` and `parameters_to_vector(model.parameters())`.
    """
    if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.DictComp)):
        return _cloned_model(program, node)
    if not isinstance(node, cst.Call) or not node.args:
        return None
    given = node.args[0].value
    if is_call_of(node, "parameters_to_vector"):
        return _read_model(given)
    if not is_call_of(node, "deepcopy"):
        return None
    if isinstance(given, cst.Call):
        return _read_model(given) if method_name(given) == "state_dict" else None
    return dotted(given) if program.value(given).kind is ValueKind.MODEL else None


def _cloned_model(program: Program, node: cst.ListComp | cst.GeneratorExp | cst.DictComp) -> str | None:
    made: cst.BaseExpression | None = node.value if isinstance(node, cst.DictComp) else node.elt
    methods = set[str | None]()
    while isinstance(made, cst.Call):
        methods.add(method_name(made))
        made = receiver(made)
    is_parameter = isinstance(made, cst.Name) or (
        isinstance(made, cst.Attribute) and made.attr.value == "data"
    )
    outer = program.parent.get(program.parent.get(node, node))
    copies = "clone" in methods or (isinstance(outer, cst.Call) and is_call_of(outer, "cat"))
    if not is_parameter or not copies or not methods <= _COPYING:
        return None
    read = list(walk(node.for_in.iter))
    if isinstance(node.for_in.iter, cst.Call) and method_name(node.for_in.iter) in {"items", "values"}:
        read += _assigned_before(program, receiver(node.for_in.iter), node)
    return next((path for each in read if (path := _read_model(each)) is not None), None)


def _assigned_before(
    program: Program, name: cst.BaseExpression | None, node: cst.CSTNode
) -> list[cst.BaseExpression]:
    function = next((each for each in program.ancestors(node) if isinstance(each, cst.FunctionDef)), None)
    made = [
        each.expression
        for each in program.stores
        if each.target == dotted(name)
        and each.order < program.order[node]
        and (
            each.function.node is function
            or (function is None and isinstance(each.function.node, cst.Module))
        )
    ]
    return made[-1:]


def _read_model(node: cst.CSTNode) -> str | None:
    """Return the model whose state a call reads, such as `model` for `model.state_dict()` and `model.parameters()`."""
    if isinstance(node, cst.Call) and method_name(node) in _WHOLE_MODEL:
        return dotted(receiver(node)) or ""
    return None


def collected_gradients(program: Program, store: StoreFact, key_is_new: KeyCheck) -> Iterator[Problem]:
    """Find stores such as `history.append(parameter.grad.clone())`."""
    if (
        store.how not in {"append", "item"}
        or store.value.host
        or not _contains_gradients(program, store.expression, store)
    ):
        return
    if store.how == "item" and not store.varying_key:
        return
    if not all(survives(program, store.target, loop) for loop in store.loops if loop.trains):
        return  # averaged over several batches
    scope = outlives_its_step(program, store, every_step=_is_added_by_updates(program, store))
    if isinstance(scope, LoopFact) and _is_one_step(store, scope):
        return
    if scope is not None and key_is_new(program, store, scope):
        yield Problem(
            node=store.expression,
            message=f"`{store.target}` stores gradients, which keeps the gradients of every step alive",
            help="Store a number such as `.norm().item()`, or copy the gradient to host memory with `.cpu()`",
        )


def _is_added_by_updates(program: Program, store: StoreFact) -> bool:
    """Return True if a method stores gradients in its object for each batch, and each batch is followed by an
    optimizer step.

    A program may store the gradients of a few batches on purpose, but those of a whole epoch use too much memory.
    """
    if any(isinstance(each, cst.If) for each in program.ancestors(store.node)):
        return False
    sites = store.function.call_sites
    return bool(sites) and all(
        site.loops
        and site.loops[-1].iterable.kind is ValueKind.LOADER
        and _is_updating(program, site.loops[-1])
        and not program.is_conditional(site.call, site.loops[-1].node)
        for site in sites
    )


def _is_updating(program: Program, loop: LoopFact) -> bool:
    return any(
        call.loops[-1:] == (loop,)
        and call.method == "step"
        and call.receiver.kind in (ValueKind.OPTIMIZER, ValueKind.SCALER)
        and not program.is_conditional(call.node, loop.node)
        for call in program.calls
    )


def _is_one_step(store: StoreFact, loop: LoopFact) -> bool:
    """Return True if a local list contains the losses of one step, as in multi-task learning."""
    function = store.function
    if isinstance(function.node, cst.Module) or not function.owns(store.target):
        return False
    if any(each.trains for site in function.call_sites for each in site.loops):
        return True
    return (
        isinstance(loop.node, cst.For)
        and loop.iterable.kind is not ValueKind.LOADER
        and root(loop.iterable_path) in function.parameters
    )


_COPYING = {
    "abs",
    "clone",
    "data",
    "detach",
    "flatten",
    "float",
    "half",
    "pow",
    "reshape",
    "square",
    "view",
}


def _contains_gradients(
    program: Program, expression: cst.BaseExpression, store: StoreFact, depth: int = 0
) -> bool:
    """Return True if an expression contains the gradient of a parameter on the GPU, not only its norm."""
    if depth > 6:
        return False
    if isinstance(expression, (cst.ListComp, cst.GeneratorExp)):
        return _contains_gradients(program, expression.elt, store, depth + 1)
    if isinstance(expression, cst.DictComp):
        return _contains_gradients(program, expression.value, store, depth + 1)
    if isinstance(expression, cst.IfExp):
        return any(
            _contains_gradients(program, each, store, depth + 1)
            for each in (expression.body, expression.orelse)
        )
    parts = contained_parts(expression)
    if parts:
        return any(_contains_gradients(program, each, store, depth + 1) for each in parts)
    if isinstance(expression, cst.Call):
        return _returns_gradients(program, expression, store, depth)
    if isinstance(expression, cst.Name):
        made = _last_store(program, expression.value, store)
        return made is not None and _contains_gradients(program, made.expression, made, depth + 1)
    if not isinstance(expression, cst.Attribute):
        return False
    if expression.attr.value == "grad":
        return program.value(expression.value).kind is ValueKind.PARAMETER
    return expression.attr.value == "data" and _contains_gradients(
        program, expression.value, store, depth + 1
    )


def _returns_gradients(program: Program, node: cst.Call, store: StoreFact, depth: int) -> bool:
    """Return True if a call returns gradients. Examples are `gradient.clone()`,
    `torch.cat([p.grad.flatten() for p in parameters])` and calls to functions in this file that return gradients.
    """
    if any(is_call_of(node, name) for name in ("cat", "stack", "concat", "deepcopy")) and node.args:
        return _contains_gradients(program, node.args[0].value, store, depth + 1)
    call = program.call_of(node)
    if call is not None and call.local is not None:
        last = max(
            (each for each in program.stores if each.function is call.local),
            key=lambda each: each.order,
            default=store,
        )
        return any(_contains_gradients(program, each, last, depth + 1) for each in call.local.returned_nodes)
    owner = receiver(node)
    return (
        owner is not None
        and method_name(node) in _COPYING
        and _contains_gradients(program, owner, store, depth + 1)
    )


def _last_store(program: Program, path: str, store: StoreFact) -> StoreFact | None:
    made = [
        each
        for each in program.stores
        if each.target == path
        and each.how == "assign"
        and each.function is store.function
        and each.order <= store.order
        and each is not store
    ]
    return made[-1] if made else None
