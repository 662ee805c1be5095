"""Finds containers that collect one tensor per batch on the GPU.

The tensors are batches (LG117) or the states of a sampler (LG101). The tensors have no graph, but together they are
as large as the dataset.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.additions import additions_by_calls, is_visible
from legroom.diagnose.lint.flow.backward_uses import derived_names
from legroom.diagnose.lint.flow.facts import LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import is_length_limited, survives
from legroom.diagnose.lint.flow.steps import iterates_data_set
from legroom.diagnose.lint.flow.syntax import (
    contained_parts,
    dotted,
    is_call_of,
    keyword,
    last_name,
    method_name,
    moves_to_host,
    names_in,
    receiver,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import SAMPLING_NAMES, ValueKind, split_words
from legroom.diagnose.lint.rule import Problem

SIZE_PRESERVING = split_words(
    "bfloat16 clamp clip clone contiguous cuda detach double exp flatten flip float half interpolate log_softmax normalize "
    "permute relu reshape sigmoid softmax squeeze tanh to transpose unsqueeze view"
)
"""Methods and functions whose result has as many elements as their argument."""
_ON_GPU = split_words(
    "baddbmm bmm cdist cosine_similarity einsum matmul mm topk kmeans knn KNNIndex L2KNNIndex MIPSKNNIndex"
)
"""Functions that use a collection of embeddings on the GPU."""


def collected_states(program: Program, store: StoreFact) -> Iterator[Problem]:
    """Find samplers that collect the states of all steps, such as `frames.append(x)` in
    `for t in timesteps: x = denoise(x, t)`.

    A sampler has hundreds of states, and each state is as large as the final result.
    """
    path = dotted(store.expression)
    if store.how != "append" or path is None or not store.loops or not program.uses_gpu:
        return
    loop = store.loops[-1]
    if store.value.has_graph or store.value.host or not SAMPLING_NAMES.search(store.function.name):
        return
    if not isinstance(loop.node, cst.For) or not _goes_through_time(loop.node):
        return
    made = [each for each in program.stores if each.target == path and loop in each.loops]
    if len(made) != 1 or not made[0].uses_old_value or not _samples(program, made[0]):
        return
    if not is_collected(program, store, loop) or _is_stacked(program, store.target):
        return
    if not any(
        _is_on_gpu(each) for each in program.stores if each.target == path and each.order < loop.first
    ):
        return
    yield Problem(
        node=store.expression,
        message=f"`{store.target}` collects the states of all sampling steps on the GPU",
        help="Keep only some of the states, or copy each state to host memory: add `.cpu()`",
    )


_TIME = re.compile(
    r"^(?:T|t|timesteps?|num_timesteps|(?:num|n)_(?:inference_|sampling_)?steps|steps|sigmas)$"
)


def _goes_through_time(node: cst.For) -> bool:
    """Return True for a loop over many sampler steps, such as `for t in reversed(range(self.T))`."""
    if any(_TIME.search(last_name(each)) for each in names_in(node.iter)):
        return True
    numbers = [int(each.value, 0) for each in walk(node.iter) if isinstance(each, cst.Integer)]
    return any(_TIME.search(each) for each in names_in(node.target)) and any(each >= 100 for each in numbers)


def _is_on_gpu(made: StoreFact) -> bool:
    """Return True if the assigned tensor is on the GPU, as in `torch.randn(n, device=device)`, `x.to(device)` and
    `x.cuda()`.
    """
    return any(
        isinstance(node, cst.Call)
        and not moves_to_host(node)
        and (keyword(node, "device") is not None or method_name(node) in {"cuda", "to"})
        for node in walk(made.expression)
    )


def _samples(program: Program, made: StoreFact) -> bool:
    calls = [each for each in program.calls if program.inside(each.node, made.expression)]
    inner = {each.local for each in calls if each.local is not None}
    return any(
        each.receiver.kind is ValueKind.MODEL and each.no_grad
        for each in program.calls
        if each in calls or each.function in inner
    )


def _is_stacked(program: Program, target: str) -> bool:
    return any(
        any(is_call_of(node, name) for name in ("stack", "cat", "concat"))
        and last_name(target) in {last_name(path) for path in names_in(node)}
        for node in program.nodes_of(cst.Call)
    )


def collected_batches(program: Program) -> Iterator[Problem]:
    """Find `[(x.cuda(), y.cuda()) for x, y in loader]`, and loops over a loader that only move and store its batches."""
    for node in program.nodes_of(cst.ListComp):
        if (
            program.value(node.for_in.iter).kind is ValueKind.LOADER
            and not node.for_in.ifs
            and moves(program, node.elt, names_in(node.for_in.target))
            and not _is_consumed(program, node)
        ):
            yield _batches(node)
    for store in (*program.stores, *(addition for _, addition, _ in additions_by_calls(program))):
        known = loop_over_batches(store)
        loop = known or _loop_of_dataset(program, store)
        if loop is None or not is_collected(program, store, loop):
            continue
        if is_moved_batch(program, store, loop) and not is_used_on_gpu(program, store.target):
            yield _batches(
                store.expression, "samples of the dataset" if known is None else "batches of the loader"
            )


def _batches(node: cst.BaseExpression, what: str = "batches of the loader") -> Problem:
    return Problem(
        node=node,
        message=f"All {what} are moved to the GPU and stay there",
        help="Move each batch in the training loop, and use `pin_memory=True` with `non_blocking=True`",
    )


def _loop_of_dataset(program: Program, store: StoreFact) -> LoopFact | None:
    known = program.classes.get(store.function.class_name or "")
    if known is None or store.function.name != "__init__" or not store.target.startswith("self."):
        return None
    is_dataset = any(last_name(base).endswith("Dataset") for base in known.bases)
    return next((each for each in store.loops if is_dataset and iterates_data_set(each)), None)


def loop_over_batches(store: StoreFact) -> LoopFact | None:
    return next((each for each in reversed(store.loops) if each.iterable.kind is ValueKind.LOADER), None)


def is_collected(program: Program, store: StoreFact, loop: LoopFact) -> bool:
    if store.how == "item":
        if not (store.varying_key and store.mapping):
            return False
    elif store.how != "append":
        return False
    if any(isinstance(each, (cst.Break, cst.Return)) for each in walk(loop.node, into_functions=False)):
        return False
    return (
        not store.bounded
        and not is_length_limited(program, store)
        and not _is_conditional(program, store, loop)
        and survives(program, store.target, loop)
        and is_visible(program, store)
    )


def _is_conditional(program: Program, store: StoreFact, loop: LoopFact) -> bool:
    for each in program.ancestors(store.node):
        if each is loop.node:
            return False
        if isinstance(each, cst.If) and not _is_missing_once(each.test):
            return True
    return True


def _is_missing_once(test: cst.BaseExpression) -> bool:
    """Return True for a condition such as `previous is not None`, which is False only in the first iteration."""
    return (
        isinstance(test, cst.Comparison)
        and isinstance(test.comparisons[0].operator, cst.IsNot)
        and dotted(test.comparisons[0].comparator) == "None"
    )


def is_used_on_gpu(program: Program, target: str) -> bool:
    """Return True if the program computes with the collection on the GPU, for example in a nearest-neighbor search."""
    names = derived_names(program, target, on_gpu=True)
    for node in program.nodes_of(cst.BinaryOperation):
        is_product = isinstance(node.operator, cst.MatrixMultiply)
        if is_product and names & {last_name(path) for path in names_in(node)}:
            return True
    for call in program.nodes_of(cst.Call):
        called = last_name(dotted(call.func) or method_name(call) or "")
        is_model = program.value(call.func).kind in (ValueKind.MODEL, ValueKind.CRITERION)
        if _is_topk_of_samples(program, call, target):
            continue
        if (called in _ON_GPU or is_model) and names & {last_name(path) for path in names_in(call)}:
            return True
    return False


def _is_topk_of_samples(program: Program, node: cst.Call, target: str) -> bool:
    """Return True for a call such as `torch.cat(scores).topk(k, dim=1)`, whose result the program can also compute
    batch by batch.
    """
    given, owner = keyword(node, "dim"), receiver(node)
    by_sample = given is not None and getattr(given.value, "value", None) == "1"
    return method_name(node) == "topk" and by_sample and _is_concatenated(program, owner, target)


def _is_concatenated(
    program: Program, node: cst.BaseExpression | None, target: str, *, direct: bool = True
) -> bool:
    """Return True for a concatenation such as `torch.cat(scores)`, for a call to a function that returns the
    concatenation, and for a name to which it is assigned.
    """
    if isinstance(node, cst.Call) and is_call_of(node, "cat"):
        return bool(node.args) and last_name(dotted(node.args[0].value) or "") == last_name(target)
    if isinstance(node, cst.Call):
        call = program.call_of(node)
        local = call.local if call is not None else None
        returned = local.returned_nodes if local is not None else []
        return (
            bool(returned)
            and all(is_call_of(each, "cat") for each in returned)
            and all(_is_concatenated(program, each, target) for each in returned)
        )
    path = dotted(node) if node is not None and direct else None
    made = [each.expression for each in program.stores if each.target == path]
    return bool(made) and all(_is_concatenated(program, each, target, direct=False) for each in made)


def is_read_by_key(program: Program, store: StoreFact) -> bool:
    """Return True if the program reads single entries, such as the features of the samples in a batch."""
    if store.how != "item" and not store.mapping:
        return False
    name = last_name(store.target)
    return any(
        last_name(dotted(node.value) or "") == name
        and not isinstance(program.parent.get(node), (cst.AssignTarget, cst.Attribute))
        for node in program.nodes_of(cst.Subscript)
    )


def is_moved_batch(program: Program, store: StoreFact, loop: LoopFact) -> bool:
    parts = [store.expression, *contained_parts(store.expression)]
    names = {path for each in parts if (path := _same_tensor(each)) is not None}
    for each in reversed(program.stores):  # sample = x.detach()
        if each.target in names and loop.first <= each.order < store.order and each.how == "assign":
            names.update(filter(None, [_same_tensor(each.expression)]))
    batch = loop.bound if loop.iterable.kind is ValueKind.LOADER else _computed_in(program, loop)
    inputs = [
        call
        for call in program.calls
        if loop in call.loops and call.receiver.kind in (ValueKind.MODEL, ValueKind.CRITERION)
    ]
    if inputs and not any(
        names & names_in(each.value)
        for call in inputs
        if call.receiver.kind is ValueKind.MODEL
        for each in call.node.args
    ):
        return False  # labels, which are small
    if moves(program, store.expression, batch):
        return True
    return any(
        each.target in names
        and each.how == "assign"
        and loop.first <= each.order < store.order
        and moves(program, each.expression, batch)
        for each in program.stores
    )


def _computed_in(program: Program, loop: LoopFact) -> set[str]:
    """Return the variables of a loop over files, and the names that its body computes from them, such as `image`."""
    names = set(loop.bound)
    for each in program.stores:
        if loop in each.loops and each.how == "assign" and names & names_in(each.expression):
            names.add(each.target)
    return names


def _same_tensor(node: cst.BaseExpression) -> str | None:
    """Return the name of the tensor that an expression returns or copies: `x` for `x` and for `x.detach().clone()`."""
    while isinstance(node, cst.Call) and method_name(node) in SIZE_PRESERVING and not moves_to_host(node):
        owner = receiver(node)
        if owner is None:
            break
        node = owner
    return dotted(node)


def moves(
    program: Program, node: cst.BaseExpression, names: set[str] | frozenset[str], *, follow: bool = True
) -> bool:
    """Return True if an expression moves one of the named tensors to the GPU. With `follow`, it may call a function that
    does so.
    """
    if isinstance(node, (cst.DictComp, cst.ListComp, cst.GeneratorExp)):
        part = node.value if isinstance(node, cst.DictComp) else node.elt
        inner = names_in(node.for_in.target)
        return not names.isdisjoint(names_in(node.for_in.iter)) and moves(program, part, inner, follow=follow)
    parts = contained_parts(node)
    if parts:
        return any(moves(program, each, names, follow=follow) for each in parts)
    if not isinstance(node, cst.Call) or names.isdisjoint(names_in(node)):
        return False
    if method_name(node) == "cuda":
        return True
    if method_name(node) != "to" or receiver(node) is None:
        return follow and _is_moved_by_call(program, node, names)
    given = keyword(node, "device") or (node.args[0] if node.args else None)
    if given is None:
        return False
    text = string_value(given.value)
    if text is not None:
        return text.startswith("cuda")
    return _is_cuda_device(program, given.value)


def _is_moved_by_call(program: Program, node: cst.Call, names: set[str] | frozenset[str]) -> bool:
    """Return True for a call such as `to_device(batch)` to a function that returns its argument on the GPU."""
    call = program.call_of(node)
    function = call.local if call is not None else None
    if function is None:
        return False
    parameters = [each for each in function.parameters if each not in ("self", "cls")]
    given = {
        each.keyword.value if each.keyword is not None else parameters[number]
        for number, each in enumerate(node.args)
        if (each.keyword is not None or number < len(parameters)) and names & names_in(each.value)
    }
    return any(moves(program, each, given, follow=False) for each in function.returned_nodes)


def _is_cuda_device(program: Program, node: cst.BaseExpression) -> bool:
    path = last_name(dotted(node) or "")
    if "device" not in path.lower() and path.lower() != "dev":
        return False
    made = [program.source(each.expression) for each in program.stores if last_name(each.target) == path]
    known = [text for text in made if "cuda" in text or "cpu" in text]
    return any("cuda" in text for text in known) or (not known and program.uses_gpu)


def _is_consumed(program: Program, node: cst.ListComp) -> bool:
    """Return True if a list is only an argument of a call, as in `sum([x.cuda().mean() for x in loader])`."""
    return isinstance(program.parent.get(node), cst.Arg)
