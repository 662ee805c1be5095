"""Finds models that run with gradients in a training step although no optimizer trains them (LG201)."""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    bound_paths,
    dotted,
    is_false,
    last_name,
    method_name,
    names_in,
    names_with_graph,
    path_of,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import (
    GRAPHLESS_ATTRIBUTES,
    GRAPHLESS_METHODS,
    NUMBER_METHODS,
    UNKNOWN,
    Value,
    ValueKind,
)
from legroom.diagnose.lint.gradients.trained_names import (
    is_trained,
    model_aliases,
    optimized_names,
    optimizers_of,
)

_FIXED = re.compile(
    r"teacher|target|reference|^ref_|^ema_|_ema$|frozen|pretrained|momentum|extractor|vgg", re.IGNORECASE
)
_FREEZING = re.compile(r"freeze|frozen|grad|trainable|toggle", re.IGNORECASE)
_WITHOUT_GRAPH = GRAPHLESS_METHODS | GRAPHLESS_ATTRIBUTES | (NUMBER_METHODS - {"backward"})


def untrained_models(program: Program) -> Iterator[tuple[CallFact, str]]:
    """Yield the first call to each untrained model, with the name of the model.

    The file creates the model, its parameters require gradients, and its inputs have no graph.
    """
    reported: set[str] = set()
    for call, path, argument in _model_calls(program):
        if path in reported or call.no_grad or not call.result.has_graph:
            continue
        is_trainable = argument is None and (
            _is_copied(program, path) or _is_created_trainable(program, path, call)
        )
        if not builds_unused_graph(program, call, argument=argument, trained=is_trainable):
            continue
        trained = _optimized_names(program, call.function)
        names = model_aliases(program, path)
        if (
            not trained
            or is_trained(program, names, trained)
            or _is_part_of_trained(program, call.function, trained)
            or any(last_name(path) == last_name(each) for each in trained)
            or _needs_input_gradients(program, call, trained)
        ):
            continue
        if not _is_fixed(program, names) or may_be_frozen(program, names):
            continue
        if _ends_without_graph(program, call.node) or _is_returned_detached(program, call):
            continue
        reported.add(path)
        yield call, path


def _model_calls(program: Program) -> Iterator[tuple[CallFact, str, cst.Arg | None]]:
    """Yield the calls that run a model, with the path of the model.

    The third item is the argument with the model, as in `log_probabilities(reference, tokens)`, or None.
    """
    for call in program.calls:
        path = model_path(program, call)
        if path is not None:
            yield call, path, None
    run = _run_parameters(program)
    for call in program.calls:
        for name, argument in call.local.receives(call.node) if call.local is not None else ():
            path = dotted(argument.value)
            is_model = program.value(argument.value).kind is ValueKind.MODEL
            if path is not None and is_model and (call.local, name) in run:
                yield call, path, argument


def _is_copied(program: Program, path: str) -> bool:
    """Return True if the model is a copy, as in `teacher = copy.deepcopy(student)`. The parameters of the copy also
    require gradients.
    """
    made = program.assigned(path)
    return len(made) == 1 and any(
        isinstance(node, cst.Call) and last_name(dotted(node.func) or "") == "deepcopy"
        for node in walk(made[0])
    )


def _is_created_trainable(program: Program, path: str, call: CallFact) -> bool:
    known = program.classes.get(_called_model(program, call).class_name or "")
    made = program.assigned(path)
    return (
        known is not None
        and len(made) == 1
        and any(isinstance(node, cst.Call) and dotted(node.func) == known.name for node in walk(made[0]))
        and not program.mentions("requires_grad", "requires_grad_")
        and not any(isinstance(node, cst.Name) and _FREEZING.search(node.value) for node in walk(known.node))
    )


def _run_parameters(program: Program) -> set[tuple[Function | None, str]]:
    found = {
        (call.function, name)
        for call in program.calls
        if not call.no_grad and call.result.has_graph and not call.function.grad_mode_varies
        if (name := dotted(call.node.func)) in call.function.parameters
        and call.receiver.kind is ValueKind.MODEL
    }
    run: set[tuple[Function | None, str]] = set(found)
    for _ in range(2):
        run |= {
            (call.function, path)
            for call in program.calls
            if call.local is not None and not call.no_grad
            for name, argument in call.local.receives(call.node)
            if (call.local, name) in run and (path := dotted(argument.value)) in call.function.parameters
        }
    return run


def _is_returned_detached(program: Program, call: CallFact) -> bool:
    returned = any(program.inside(call.node, each) for each in call.function.returned_nodes)
    return returned and any(_ends_without_graph(program, site.call) for site in call.function.call_sites)


def models_of_other_steps(program: Program) -> Iterator[tuple[CallFact, str]]:
    """Yield calls to a model in a function that trains another model, such as a generator in the step of the
    discriminator.

    The called model is trained in a different function, which sets the gradients to zero before it uses them.
    """
    reported: set[str] = set()
    for call in program.calls:
        path = model_path(program, call)
        if path is None or path in reported or not builds_unused_graph(program, call, trained=True):
            continue
        sources = optimizers_of(program, call.function)
        names = model_aliases(program, path)
        if not sources or not call.function.backward or not _is_trained_elsewhere(program, names, call):
            continue
        if not call.receiver.trainable and may_be_frozen(program, names):
            continue
        trained = optimized_names(program, sources)
        if is_trained(program, names, trained) or _needs_input_gradients(program, call, trained):
            continue
        if not is_detached(program, call) and not _leaves_function(program, call):
            reported.add(path)
            yield call, path


def _is_trained_elsewhere(program: Program, names: set[str], call: CallFact) -> bool:
    for function in program.functions.values():
        sources = optimizers_of(program, function) if function is not call.function else []
        if not sources or not is_trained(program, names, optimized_names(program, sources)):
            continue
        order = [
            each.method
            for each in program.calls
            if each.function is function and each.method in {"zero_grad", "backward", "step"}
        ]
        if order[:2] == ["zero_grad", "backward"]:
            return True
    return False


def _leaves_function(program: Program, call: CallFact) -> bool:
    targets = {
        each.target
        for each in program.stores
        if each.function is call.function and program.inside(call.node, each.expression)
    }
    return any("." in each or not call.function.owns(each) for each in targets) or any(
        program.inside(call.node, each) or not targets.isdisjoint(names_with_graph(each))
        for each in call.function.returned_nodes
    )


def model_path(program: Program, call: CallFact) -> str | None:
    """Return the path of the model that a call runs, such as `teacher` for `teacher(x)` and `teacher.encode(x)`."""
    owner = receiver(call.node)
    is_method = owner is not None and program.value(owner).kind is ValueKind.MODEL and dotted(owner) != "self"
    return dotted(owner if is_method else call.node.func)


def builds_unused_graph(
    program: Program, call: CallFact, *, trained: bool = False, argument: cst.Arg | None = None
) -> bool:
    """Return True if a training step runs a model with gradients on inputs without a graph.

    `trained` is True if an optimizer trains the model, which means that the parameters of the model require gradients.
    `argument` is the argument that contains the model, if the call passes the model to a function that runs it.
    """
    model = _called_model(program, call) if argument is None else program.value(argument.value)
    return (
        model.kind is ValueKind.MODEL
        and (model.trainable or trained)
        and not model.frozen
        and not call.no_grad
        and call.result.has_graph
        and not call.function.grad_mode_varies
        and _is_in_training_step(program, call)
        and bool(call.arguments)
        and all(
            value.kind in (ValueKind.TENSOR, ValueKind.PLAIN)
            or (value.kind is ValueKind.CONTAINER and value.contents and _has_only_data(value))
            or (value.kind is ValueKind.UNKNOWN and _is_data(program, call, given.value))
            for value, given in zip(call.arguments, call.node.args, strict=True)
            if given is not argument
        )
    )


def _has_only_data(value: Value) -> bool:
    """Return True if a container has only tensors and plain values, such as
    `{"input_ids": ids, "attention_mask": mask}`.
    """
    return all(each.kind in (ValueKind.TENSOR, ValueKind.PLAIN) for each in value.contents)


def _called_model(program: Program, call: CallFact) -> Value:
    owner = call.function.class_name
    if program.is_module_class(owner) and dotted(call.node.func) != "self":
        attributes = program.classes[owner or ""].attributes
        return attributes.get(dotted(call.node.func) or "", UNKNOWN)
    return call.receiver


def _is_in_training_step(program: Program, call: CallFact) -> bool:
    """Return True if a call is in a training step, or in a module that only training steps in this file run."""
    function = call.function
    if not program.is_module_class(function.class_name):
        return _trains(function, call.loops) or _is_loss_of_trainer(program, function)
    if (
        function.name != "forward"
        or not function.call_sites
        or program.mentions("requires_grad", "requires_grad_")
    ):
        return False
    read = {root(path) for each in call.node.args for path in names_in(each.value)}
    known = (ValueKind.TENSOR, ValueKind.PLAIN)
    return read <= set(function.parameters) and all(
        any(loop.trains for loop in site.loops)
        and all(name in site.values and site.values[name].kind in known for name in read)
        for site in function.call_sites
    )


def _is_loss_of_trainer(program: Program, function: Function) -> bool:
    """Return True for `compute_loss` of a Transformers `Trainer`, which trains only the model that it receives."""
    known = program.classes.get(function.class_name or "")
    return (
        function.name == "compute_loss"
        and known is not None
        and any(last_name(base).endswith("Trainer") and base not in program.classes for base in known.bases)
        and "model" in function.parameters
    )


def _trains(function: Function, loops: tuple[LoopFact, ...], depth: int = 0) -> bool:
    if function.backward or any(loop.trains for loop in loops):
        return True
    sites = [site for site in function.call_sites if not site.no_grad]
    return depth < 3 and bool(sites) and all(_trains(site.caller, site.loops, depth + 1) for site in sites)


def _is_part_of_trained(program: Program, function: Function, trained: set[str]) -> bool:
    """Return True if an optimizer may train the module that runs the model."""
    return program.is_module_class(function.class_name) and any(
        store.value.class_name == function.class_name
        and (store.target in trained or last_name(store.target) in trained)
        for store in program.stores
    )


def _is_data(program: Program, call: CallFact, argument: cst.BaseExpression) -> bool:
    """Return True if an argument is the batch or one of its elements.

    Such an argument is a loop variable, a parameter, or a variable or attribute that is assigned from one of them.
    """
    given = set(call.function.parameters).union(*(loop.bound for loop in call.loops)) - {"self"}
    for each in program.stores:  # x, y = batch
        is_before = each.function is call.function and each.order < call.order and each.how == "assign"
        if is_before and not each.value.has_graph and _is_moved(each.expression, given):
            given.add(each.target)
    if {root(path) for path in names_in(argument)} <= given:
        return True
    path = dotted(argument) or ""
    made = program.assigned(path) if path.startswith("self.") else []
    return bool(made) and all(
        isinstance(each, cst.Call) and method_name(each) in {"to", "cuda"} for each in made
    )


def _is_moved(node: cst.BaseExpression, names: set[str]) -> bool:
    """Return True if an expression is a batch or a part of it, with or without a move to the GPU. Examples are
    `batch["image"]`, `batch["image"].to(device)` and `(each.cuda() for each in batch)`. The names of the batches are
    in `names`.
    """
    if isinstance(node, (cst.GeneratorExp, cst.ListComp)):
        return _is_moved(node.for_in.iter, names) and _is_moved(node.elt, bound_paths(node.for_in.target))
    if isinstance(node, cst.Call) and method_name(node) in {"to", "cuda"}:
        node = receiver(node) or node
    return root(path_of(node) or "") in names


def _needs_input_gradients(program: Program, call: CallFact, trained: set[str]) -> bool:
    """Return True if the program computes gradients with respect to an input, for example to optimize an image."""
    given = {name for each in call.node.args for name in names_in(each.value)}
    return not given.isdisjoint(trained) or any(
        other.method in {"requires_grad_", "retain_grad"}
        and (owner := receiver(other.node)) is not None
        and not given.isdisjoint(names_in(owner))
        for other in program.calls
    )


def _optimized_names(program: Program, function: Function) -> set[str]:
    """Return the names of the objects from which the optimizers of a function are created. If these optimizers are
    unknown, all optimizers of the file count.
    """
    if _is_loss_of_trainer(program, function):
        return {"model", "self.model"}
    sources = optimizers_of(program, function) or [
        *(each.expression for each in program.stores if each.value.kind is ValueKind.OPTIMIZER),
        *(call.node for call in program.calls if call.result.kind is ValueKind.OPTIMIZER),
    ]
    sources += [call.node for call in program.calls if call.method == "add_param_group"]
    return optimized_names(program, sources)


def _is_fixed(program: Program, names: set[str]) -> bool:
    """Return True if the code shows that the program does not train a model.

    Evidence is a call to `eval()`, a copy of another model's weights, or a name such as `teacher`.
    """
    switched = any(
        isinstance(node, cst.Call) and method_name(node) == "from_pretrained"
        for each in program.stores
        if each.target in names and each.how == "assign"
        for node in walk(each.expression)
    )
    for call in program.calls:
        if call.method == "load_state_dict" and dotted(receiver(call.node)) in names:
            switched |= any(
                isinstance(each.value, cst.Call) and method_name(each.value) == "state_dict"
                for each in call.node.args
            )
        if call.method not in {"eval", "train"} or call.receiver.kind is not ValueKind.MODEL:
            continue
        owner = receiver(call.node)
        while isinstance(owner, cst.Call) and receiver(owner) is not None:  # teacher.to(device).eval()
            owner = receiver(owner)
        targets = {dotted(owner)} | {
            each.target for each in program.stores if program.inside(call.node, each.expression)
        }
        if targets.isdisjoint(names):
            continue
        if call.method == "train" and not (call.node.args and is_false(call.node.args[0])):
            return False
        switched = True
    return switched or any(map(names_fixed_model, names))


def names_fixed_model(path: str | None) -> bool:
    """Return True if a name suggests a model that the program does not train, such as `teacher`."""
    return path is not None and _FIXED.search(last_name(path)) is not None


def may_be_frozen(program: Program, names: set[str]) -> bool:
    for call in program.calls:
        if not any(dotted(each.value) in names for each in call.node.args):
            continue
        if call.local is None:
            called = last_name(call.name or call.method or "")
            if _FREEZING.search(called) or not _is_known(call):
                return True
        elif any(
            isinstance(node, cst.Name) and node.value.startswith("requires_grad")
            for node in walk(call.local.body)
        ):
            return True
    return False


def _is_known(call: CallFact) -> bool:
    """Return True if the called function does not change the model: a torch function, a class or a builtin."""
    name = call.name or ""
    return (
        name.startswith(("torch.", "copy."))
        or call.receiver.kind is not ValueKind.UNKNOWN
        or call.result.kind is not ValueKind.UNKNOWN
        or last_name(name) in {"append", "print", "id", "len", "isinstance", "super"}
    )


def is_detached(program: Program, call: CallFact) -> bool:
    """Return True if the result is detached immediately, which frees the graph before the backward pass."""
    if _ends_without_graph(program, call.node):
        return True
    targets = {
        each.target
        for each in program.stores
        if each.function is call.function and program.inside(call.node, each.expression)
    }
    reads = [
        node
        for node in walk(call.function.body, into_functions=False)
        if dotted(node) in targets
        and not isinstance(program.parent.get(node), (cst.AssignTarget, cst.Element))
    ]
    return bool(reads) and all(_ends_without_graph(program, each) for each in reads)


def _ends_without_graph(program: Program, node: cst.CSTNode) -> bool:
    """Return True if the program detaches a result, as in `x.detach()`, `x.max(1)[0].detach()` and `x.data`."""
    parent = program.parent.get(node)
    while isinstance(parent, (cst.Attribute, cst.Call, cst.Subscript)):
        if isinstance(parent, cst.Call) and parent.func is not node:
            return False
        is_latent = isinstance(node, cst.Attribute) and node.attr.value == "latent_dist"  # has a graph
        if isinstance(parent, cst.Attribute) and parent.attr.value in _WITHOUT_GRAPH and not is_latent:
            return True
        node, parent = parent, program.parent.get(parent)
    return False
