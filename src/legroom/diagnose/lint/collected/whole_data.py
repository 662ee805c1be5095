"""Finds datasets and videos that are moved to the GPU as a whole, although the program uses them in batches
(LG117).
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.on_gpu import SIZE_PRESERVING, moves
from legroom.diagnose.lint.collected.replay import is_put_on_gpu
from legroom.diagnose.lint.flow.facts import CallFact, Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_call_of,
    keyword,
    last_name,
    method_name,
    names_in,
    path_of,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

_LABELS = re.compile(r"label|target|mask|^y|mean|std|weight|index|indices|ids?$", re.IGNORECASE)
"""Matches names of tensors that are small compared with the samples of a dataset."""
_CONCATENATION = ("cat", "concat", "stack", "vstack")


def whole_datasets(program: Program) -> Iterator[Problem]:
    """Find `self.images = torch.stack(images).to(device)` in the constructor of a dataset, although the program also
    moves each batch to the GPU.
    """
    if not _moves_batches(program):
        return
    for store in program.stores:
        if (
            store.function.name == "__init__"
            and store.how == "assign"
            and store.target.startswith("self.")
            and not _LABELS.search(last_name(store.target))
            and _is_read_by_index(program, store)
            and any(
                isinstance(node, cst.Call) and is_put_on_gpu(program, node) for node in walk(store.expression)
            )
        ):
            yield Problem(
                node=store.expression,
                message=f"`{store.target}` keeps the whole dataset on the GPU, although the program moves each batch to the GPU",
                help="Keep the dataset in host memory, and use `pin_memory=True` in the loader",
            )


def whole_batches(program: Program) -> Iterator[Problem]:
    """Find `DataLoader(images, batch_size=len(images))` for a dataset of images."""
    if not _moves_batches(program) or not program.mentions(
        "ImageFolder", "Conv2d", "Image", "read_image", "imread"
    ):
        return
    for call in program.calls:
        size = keyword(call.node, "batch_size") or (call.node.args[1] if len(call.node.args) > 1 else None)
        given = dotted(call.node.args[0].value) if call.node.args else None
        if last_name(call.name or "") != "DataLoader" or size is None or given is None:
            continue
        measured = (
            size.value.args if isinstance(size.value, cst.Call) and is_call_of(size.value, "len") else ()
        )
        if measured and dotted(measured[0].value) == given:
            yield Problem(
                node=size.value,
                message="The loader returns the whole dataset as one batch, which the program moves to the GPU",
                help="Use a fixed batch size",
            )


def _moves_batches(program: Program) -> bool:
    return any(
        isinstance(node, cst.Call) and moves(program, node, loop.bound)
        for loop in program.loops
        if loop.iterable.kind is ValueKind.LOADER
        for node in walk(loop.node.body)
    )


def _is_read_by_index(program: Program, store: StoreFact) -> bool:
    """Return True if `__getitem__` of a dataset reads `self.images[index]`."""
    known = program.classes.get(store.function.class_name or "")
    if known is None or not any(last_name(base).endswith("Dataset") for base in known.bases):
        return False
    method = known.methods.get("__getitem__")
    return method is not None and any(
        isinstance(node, cst.Subscript)
        and dotted(node.value) == store.target
        and any(names_in(each.slice) & set(method.parameters[1:]) for each in node.slice)
        for node in walk(method.body)
    )


def whole_videos(program: Program) -> Iterator[Problem]:
    """Find `frames.to(device)` for all frames of a video, if the function then runs a model on parts of the video."""
    if not program.mentions("read_video"):
        return
    for call in program.calls:
        owner = receiver(call.node)
        path = dotted(owner)
        if call.method not in {"to", "cuda"} or path is None or not is_put_on_gpu(program, call.node):
            continue
        made = [
            each.expression
            for each in program.stores
            if each.target == path and each.function is call.function and each.order < call.order
            if not program.inside(call.node, each.node)
        ]
        if made and _reads_all_frames(made[-1]) and not call.loops and _goes_through_parts(program, call):
            yield Problem(
                node=call.node,
                message="All frames of the video are moved to the GPU, although the model processes only one part of the video at a time",
                help="Move the frames of each part in the loop",
            )


def _reads_all_frames(node: cst.BaseExpression) -> bool:
    while isinstance(node, cst.Subscript):
        node = node.value
    return (
        isinstance(node, cst.Call)
        and is_call_of(node, "read_video")
        and keyword(node, "end_pts") is None
        and len([each for each in node.args if each.keyword is None]) < 3
    )


def _goes_through_parts(program: Program, call: CallFact) -> bool:
    return any(
        loop.function is call.function and loop.first > call.order and isinstance(loop.node, cst.For)
        for loop in program.loops
        if any(each.receiver.kind is ValueKind.MODEL and loop in each.loops for each in program.calls)
    )


def is_whole_dataset(program: Program, node: cst.BaseExpression, function: Function, depth: int = 0) -> bool:
    """Return True if a tensor contains a value for each sample of the dataset. Such a tensor is concatenated from the
    results for all batches of a loader.
    """
    while isinstance(node, cst.Subscript) or (
        isinstance(node, cst.Call)
        and method_name(node) in SIZE_PRESERVING | {"cpu", "expand"}
        and root(dotted(node.func) or "") not in program.imports.full_names
    ):
        inner = node.value if isinstance(node, cst.Subscript) else receiver(node)
        if inner is None:
            return False
        node = inner
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, cst.Call):
        if any(is_call_of(node, name) for name in _CONCATENATION) and node.args:
            return _collects_batches(program, node.args[0].value, function)
        call = program.call_of(node)
        local = call.local if call is not None else None
        returned = local.returned_nodes if local is not None and local is not function else []
        return local is not None and any(
            is_whole_dataset(program, each, local, depth + 1) for each in returned
        )
    path = dotted(node)
    if path is None:
        return False
    if path in function.parameters:
        return any(
            is_whole_dataset(program, argument.value, site.caller, depth + 1)
            for site in function.call_sites
            for name, argument in function.receives(site.call)
            if name == path
        )
    made = [each for each in program.stores if each.target == path and each.function is function]
    return any(
        is_whole_dataset(program, each.expression, function, depth + 1)
        for each in made
        if each.how == "assign" and dotted(each.expression) != path
    )


_MAX_DEPTH = 6


def _collects_batches(program: Program, node: cst.BaseExpression, function: Function) -> bool:
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        return program.value(node.for_in.iter).kind is ValueKind.LOADER
    path = path_of(node)
    return path is not None and any(
        each.target == path
        and each.function is function
        and each.how == "append"
        and any(loop.iterable.kind is ValueKind.LOADER for loop in each.loops)
        for each in program.stores
    )
