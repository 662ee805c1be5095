"""Finds containers that collect the outputs of a model for all batches on the GPU (LG101).

The outputs have no graph, but together they can fill the GPU.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import libcst as cst

from legroom.diagnose.lint.collected.additions import is_visible
from legroom.diagnose.lint.collected.on_gpu import (
    SIZE_PRESERVING,
    is_collected,
    is_read_by_key,
    is_used_on_gpu,
    moves,
)
from legroom.diagnose.lint.collected.replay import is_put_on_gpu
from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.lifetimes import shared_default
from legroom.diagnose.lint.flow.retention.releases import is_length_limited
from legroom.diagnose.lint.flow.steps import iterates_data_set
from legroom.diagnose.lint.flow.syntax import (
    contained_parts,
    dotted,
    is_call_of,
    is_true,
    keyword,
    last_name,
    method_name,
    moves_to_host,
    names_in,
    receiver,
    root,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import TENSOR_FACTORIES, Value, ValueKind, split_words
from legroom.diagnose.lint.rule import Problem

_MAX_DEPTH = 16
_OUTPUT_ATTRIBUTES = split_words(
    "logits last_hidden_state pooler_output hidden_states image_embeds text_embeds embeddings sentence_embedding scores "
    "attentions past_key_values"
)
_SEQUENCES = split_words("last_hidden_state hidden_states")
"""Attributes of a model output that contain one vector per token."""
_FEATURES = re.compile(r"(?:^|_)(?:feat|features?|embed|embedding|encode|represent|extract)", re.IGNORECASE)
"""Names of the methods of a model that return features."""
_SMALL = re.compile(r"(?:^|_)(?:box|bbox|score|label|angle|pose|class_id)$")
"""Names of results with a few numbers for each sample."""
_LOSS = re.compile(r"(?:Loss|Criterion|Criteria|Objective)$")
"""Names of the classes whose results are losses."""
_GATHERING = split_words("gather gather_for_metrics all_gather pad_across_processes")


@dataclass(frozen=True, slots=True)
class _Place:
    """The context in which an expression is evaluated."""

    function: Function
    loops: tuple[LoopFact, ...]
    order: int
    arguments: dict[str, cst.BaseExpression] = field(default_factory=dict)
    caller: "_Place | None" = None


def collected_outputs(program: Program, store: StoreFact) -> Iterator[Problem]:
    """Find stores such as `outputs.append(model(x.cuda()))` with gradients disabled, for each batch of the data."""
    if store.value.has_graph or store.value.host or _SMALL.search(dotted(store.expression) or ""):
        return
    if any("Pipeline" in base for known in program.classes.values() for base in known.bases):
        return  # the next model of the pipeline receives the outputs
    made: cst.BaseExpression = store.expression
    batch: set[str] | frozenset[str]
    within: cst.CSTNode
    if isinstance(made, cst.ListComp):  # outputs = [model(x.cuda()) for x in loader]
        batch, within = names_in(made.for_in.target), made
        if made.for_in.ifs or program.value(made.for_in.iter).kind is not ValueKind.LOADER:
            return
        made = made.elt
    else:
        loop = _loop_over_data(program, store)
        if loop is not None and not is_collected(program, store, loop):
            return
        loop = loop or _loop_around_method(program, store)
        if loop is None:
            return
        if loop.trains and is_read_by_key(program, store):
            return
        batch, within = loop.bound, loop.node
    models: list[CallFact] = []
    if not _contains_output(program, made, _Place(store.function, store.loops, store.order), models):
        return
    if models and all(root(dotted(each.node.func) or "") in batch for each in models):
        return  # a loop over models: for prompt, encoder in zip(prompts, encoders)
    if not _moves_input(program, within, batch) and not any(
        _receives_gpu_data(program, each) for each in models
    ):
        return
    if is_used_on_gpu(program, store.target):
        return
    default = shared_default(program, store.function, store.target)
    if default is not None:
        yield Problem(
            node=default,
            message=f"All calls share the default value of `{store.target}`, which collects the outputs of all batches on the GPU",
            help=f"Use `{store.target}=None`, and create the container in `{store.function.name}`",
        )
        return
    yield Problem(
        node=made,
        message=f"`{store.target}` collects the outputs of all batches on the GPU",
        help="Copy each output to host memory: add `.cpu()`",
    )


def stored_output(program: Program, store: StoreFact, node: cst.BaseExpression) -> bool:
    """Return True if a node in a storing statement is the output of a model, or a tensor of similar size."""
    return _contains_output(program, node, _Place(store.function, store.loops, store.order), [])


def _loop_over_data(program: Program, store: StoreFact) -> LoopFact | None:
    """Return the innermost loop over a loader, or over a dataset if the loop does not train."""
    for loop in reversed(store.loops):
        if loop.iterable.kind is ValueKind.LOADER:
            return loop
        if not loop.trains and (iterates_data_set(loop) or _iterates_generator(program, loop)):
            return loop
    return None


def _iterates_generator(program: Program, loop: LoopFact) -> bool:
    """Return True for a loop over a generator of this file that yields the batches of a dataset."""
    call = program.call_of(loop.node.iter) if isinstance(loop.node, cst.For) else None
    function = call.local if call is not None else None
    return (
        function is not None
        and function.is_generator
        and any(each.function is function and iterates_data_set(each) for each in program.loops)
    )


def _loop_around_method(program: Program, store: StoreFact) -> LoopFact | None:
    """Return the loop over a loader that calls a method such as `validation_step`. The method must always add to an
    attribute, and the file must never empty this attribute.
    """
    name = last_name(store.target)
    if store.how != "append" or not store.target.startswith("self.") or store.loops or store.bounded:
        return None
    if not is_visible(program, store) or is_length_limited(program, store):
        return None
    if any(last_name(each.target) == name for each in program.releases) or any(
        last_name(each.target) == name and each.how == "assign" and each.function.name != "__init__"
        for each in program.stores
    ):
        return None
    inside = [each for each in program.ancestors(store.node) if isinstance(each, (cst.If, cst.FunctionDef))]
    if inside[:1] != [store.function.node]:
        return None
    loops = [loop for site in store.function.call_sites for loop in site.loops]
    return next((loop for loop in loops if loop.iterable.kind is ValueKind.LOADER), None)


def _moves_input(program: Program, loop: cst.CSTNode, batch: set[str] | frozenset[str]) -> bool:
    calls = [node for node in walk(loop) if isinstance(node, cst.Call)]
    return any(moves(program, node, batch) for node in calls) or any(
        is_put_on_gpu(program, node)
        for call in program.calls
        if call.local is not None and call.node in calls and batch & names_in(call.node)
        for returned in call.local.returned_nodes
        for node in walk(returned)
        if isinstance(node, cst.Call)
    )


def _receives_gpu_data(program: Program, call: CallFact) -> bool:
    """Return True if the caller of a model moves data to the GPU, or if Accelerate or Fabric may do so."""
    if program.mentions("Accelerator", "Fabric") and program.mentions("prepare", "setup_dataloaders"):
        return True
    if program.mentions("SentenceTransformer") and is_true(keyword(call.node, "convert_to_tensor")):
        return True
    return any(
        isinstance(node, cst.Call)
        and method_name(node) in {"to", "cuda"}
        and is_put_on_gpu(program, node)
        and (owner := receiver(node)) is not None
        and program.value(owner).kind is not ValueKind.MODEL
        for node in walk(call.function.body, into_functions=False)
    )


def _contains_output(
    program: Program, node: cst.BaseExpression, place: _Place, models: list[CallFact], depth: int = 0
) -> bool:
    """Return True if an expression is the output of a model, or a tensor of similar size computed from it.

    Append the calls to these models to `models`.
    """
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, cst.Yield):
        return isinstance(node.value, cst.BaseExpression) and _contains_output(
            program, node.value, place, models, depth + 1
        )
    if isinstance(node, cst.Call):
        return _is_output_call(program, node, place, models, depth)
    if isinstance(node, cst.ListComp):
        return _contains_output(program, node.elt, place, models, depth + 1)
    parts = contained_parts(node)
    if isinstance(node, cst.BinaryOperation):
        parts = [node.left, node.right]
    elif isinstance(node, cst.Comparison):  # (logits.sigmoid() > 0.5).float()
        parts = [node.left]
    elif isinstance(node, cst.Attribute) and node.attr.value in _OUTPUT_ATTRIBUTES:
        parts = [node.value]
    elif isinstance(node, cst.Subscript) and all(_is_view(program, each.slice) for each in node.slice):
        parts = [node.value]  # a view keeps the whole output alive
    if parts:
        return any(_contains_output(program, each, place, models, depth + 1) for each in parts)
    path = dotted(node)
    if path is None:
        return False
    if any(path in loop.bound for loop in place.loops):
        return any(
            path in loop.bound
            and isinstance(loop.node, cst.For)
            and loop.iterable.kind is not ValueKind.LOADER
            and any(
                _contains_output(program, each, place, models, depth + 1)
                for each in _iterated(loop.node.iter, path, loop)
            )
            for loop in place.loops
        )
    made = [
        each
        for each in program.stores
        if each.target == path
        and each.how == "assign"
        and each.function is place.function
        and each.order < place.order
    ]
    added = [
        each.expression
        for each in program.stores
        if each.target == path and each.how == "augment" and each.function is place.function
        if each.order < place.order and not each.value.host
    ]
    if any(_contains_output(program, each, place, models, depth + 1) for each in added):
        return True  # probabilities += model(x).softmax(1)
    if not made and path in place.arguments and place.caller is not None:
        return _contains_output(program, place.arguments[path], place.caller, models, depth + 1)
    if not made or made[-1].value.host or _is_plain(made[-1].value):
        return False
    if _is_allocated_on_gpu(program, made[-1].expression) and any(
        each.target == path
        and each.how == "item"
        and each.function is place.function
        and made[-1].order < each.order < place.order
        and _contains_output(
            program, each.expression, replace(place, loops=each.loops, order=each.order), models, depth + 1
        )
        for each in program.stores
    ):
        return True  # result = torch.zeros(size, device=x.device); result[start:stop] = model(x[start:stop])
    before = replace(place, loops=made[-1].loops, order=made[-1].order)
    return _contains_output(program, made[-1].expression, before, models, depth + 1)


def _is_plain(value: Value) -> bool:
    """Return True for a number, and for a container of numbers."""
    if value.kind is ValueKind.CONTAINER and value.contents:
        return all(map(_is_plain, value.contents))
    return value.kind is ValueKind.PLAIN


def _is_allocated_on_gpu(program: Program, node: cst.BaseExpression) -> bool:
    """Return True for a new tensor such as `torch.zeros(size, device=x.device)` and `x.new_zeros(size)`."""
    if not isinstance(node, cst.Call):
        return False
    name = method_name(node) or last_name(dotted(node.func) or "")
    if name in {"cuda", "to"}:
        return is_put_on_gpu(program, node)
    if not (program.imports.qualified(node.func) or "").startswith("torch.") or name not in TENSOR_FACTORIES:
        return name.startswith("new_")
    given = keyword(node, "device")
    if given is None:
        return name.endswith("_like")
    return "cpu" not in (string_value(given.value) or "") and not any(
        is_call_of(each, "device") and "cpu" in program.source(each) for each in walk(given.value)
    )


def _is_output_call(
    program: Program, node: cst.Call, place: _Place, models: list[CallFact], depth: int
) -> bool:
    value = program.value(node)
    if value.host or _is_plain(value):
        return False
    called = program.call_of(node)
    if called is not None and called.local is not None and _LOSS.search(called.local.class_name or ""):
        return False
    if method_name(node) == "submit" and len(node.args) > 1:  # a future keeps the result
        function = program.functions.get(program.value(node.args[0].value).function or "")
        run = node.with_changes(args=node.args[1:])
        return function is not None and _returns_output(program, function, run, place, models, depth)
    if called is not None and called.receiver.kind is ValueKind.MODEL and _runs(called):
        models.append(called)
        return True
    if called is not None and called.local is not None:
        return _returns_output(program, called.local, node, place, models, depth)
    parts = contained_parts(node)
    if parts:
        return any(_contains_output(program, each, place, models, depth + 1) for each in parts)
    name = last_name(dotted(node.func) or method_name(node) or "")
    if name in _GATHERING and node.args:
        return _contains_output(program, node.args[0].value, place, models, depth + 1)
    if not value.is_tensor or moves_to_host(node):
        return False
    if _is_score(node):
        return False
    is_function = (program.imports.qualified(node.func) or "").startswith("torch.")
    inner = node.args[0].value if is_function and node.args else receiver(node)
    is_average = name in {"mean", "sum"} and is_call_of(inner or node, "stack")  # of several outputs
    is_kept = name in SIZE_PRESERVING | {"stack", "cat", "empty_like", "zeros_like"} or is_average
    if inner is None or not (is_kept or _is_pooled(program, node, inner, place)):
        return False
    return _contains_output(program, inner, place, models, depth + 1)


def _is_score(node: cst.BaseExpression) -> bool:
    """Return True for a call such as `x.squeeze(-1)`, whose result has only one number for each sample."""
    given = node.args[0].value if isinstance(node, cst.Call) and node.args else None
    return (
        isinstance(node, cst.Call)
        and method_name(node) == "squeeze"
        and isinstance(given, cst.UnaryOperation)
        and getattr(given.expression, "value", None) == "1"
    )


def _is_pooled(program: Program, node: cst.Call, inner: cst.BaseExpression, place: _Place) -> bool:
    """Return True if a call reduces the vectors of all tokens to one vector, as in
    `output.last_hidden_state.mean(1)`.
    """
    dims = [each.value for each in node.args if isinstance(each.value, cst.Integer)]
    if last_name(dotted(node.func) or method_name(node) or "") not in {"mean", "sum", "amax"}:
        return False
    if [each.value for each in dims] != ["1"]:
        return False
    given = [place.arguments[name] for name in names_in(inner) & place.arguments.keys()]
    return any(
        isinstance(node, cst.Attribute) and node.attr.value in _SEQUENCES
        for each in (inner, *given)
        for node in walk(each)
    )


def _runs(call: CallFact) -> bool:
    """Return True for a call that computes an output, such as `model(x)`, and not for `model.eval()`."""
    if call.local is None:
        return call.result.is_tensor or call.result.kind is ValueKind.CONTAINER
    is_output = call.local.name in {"forward", "__call__"} or _FEATURES.search(call.local.name) is not None
    returned = call.local.returned_nodes
    is_score = bool(returned) and all(map(_is_score, returned))
    return is_output and call.local.returns.kind is not ValueKind.PLAIN and not is_score


def _returns_output(
    program: Program, function: Function, call: cst.Call, caller: _Place, models: list[CallFact], depth: int
) -> bool:
    returned: list[cst.BaseExpression] = list(function.returned_nodes)
    returned += [each for each in walk(function.body, into_functions=False) if isinstance(each, cst.Yield)]
    if function.returns.host or function.name == "__init__":
        return False
    arguments = {name: argument.value for name, argument in function.receives(call)}
    for each in returned:
        order = program.order[each]
        loops = tuple(
            loop for loop in program.loops if loop.function is function and loop.first <= order <= loop.last
        )
        place = _Place(function, loops, order, arguments, caller)
        if _contains_output(program, each, place, models, depth + 1):
            return True
    return False


def _iterated(node: cst.BaseExpression, path: str, loop: LoopFact) -> list[cst.BaseExpression]:
    """Return the iterable of a loop variable: `outputs` for `output` in `for i, output in zip(ids, outputs)`."""
    if not isinstance(node, cst.Call) or dotted(node.func) not in {"zip", "enumerate"}:
        return [node]
    target = loop.node.target if isinstance(loop.node, cst.For) else None
    names = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else []
    arguments = [each.value for each in node.args]
    if dotted(node.func) == "enumerate":
        names = names[1:]
    return [each for name, each in zip(names, arguments, strict=False) if dotted(name) == path]


def _is_view(program: Program, index: cst.BaseSlice) -> bool:
    """Return True if indexing returns a view. Indexing with a mask or a tensor of indices creates a copy."""
    if isinstance(index, cst.Slice):
        return True
    if not isinstance(index, cst.Index):
        return False
    value = program.value(index.value)
    is_number = isinstance(index.value, (cst.Integer, cst.UnaryOperation, cst.Ellipsis, cst.SimpleString))
    return (
        is_number or value.kind is ValueKind.PLAIN or root(dotted(index.value) or "") in {"i", "j", "k", "b"}
    )
