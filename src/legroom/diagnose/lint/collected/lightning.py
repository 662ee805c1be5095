"""Finds attributes to which Lightning callbacks and modules add outputs in every batch, for LG101.

Lightning disables gradients in evaluation, but the outputs of all batches stay in GPU memory or host memory.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.outputs import stored_output
from legroom.diagnose.lint.flow.facts import Function, ReleaseFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import is_length_limited
from legroom.diagnose.lint.flow.syntax import (
    bound_paths,
    contained_parts,
    dotted,
    is_call_of,
    last_name,
    method_name,
    moves_to_host,
    names_in,
    receiver,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import split_words
from legroom.diagnose.lint.rule import Problem

_BATCH_HOOK = re.compile(
    r"^on_(?:train|validation|test|predict)_batch_end$|^write_on_batch_end$"
    r"|^on_(?:val|valid|eval|evaluation|validate)_(?:batch|step)_end$|^on_validation_step_end$"
    r"|^after_(?:val|valid|validation|eval)_(?:batch|step)$"
)
"""Matches the methods of callbacks that receive the results of each batch, including those of similar trainers."""
_STEP = re.compile(r"^(?:training|validation|test|predict)_step$")
_ONE_PASS = re.compile(r"test|predict|^write")
_BASES = re.compile(r"(?:^|\.)(?:Callback|BasePredictionWriter|LightningModule)$")
_GIVEN = split_words("outputs output prediction predictions preds pred logits recon reconstruction batch")
"""Parameters of the hooks that contain the tensors of a batch."""
_SMALL = re.compile(
    r"loss|acc|metric|score|label|target|idx|index|indices|ids?$|path|name|^y$|len", re.IGNORECASE
)
_EVERY_BATCH = re.compile(r"sanity_checking|dataloader_idx")
"""Matches conditions that do not select single batches."""
_ONCE = split_words(
    "__init__ setup on_fit_start on_fit_end on_train_start on_train_end on_predict_start on_test_start teardown"
)
"""Methods that Lightning calls once in a run."""


def kept_by_lightning(program: Program) -> Iterator[Problem]:
    """Find `self.outputs.append(outputs)` in `on_validation_batch_end`, and `self.maps.append(maps.cpu())` in
    `validation_step`, if no code clears the attribute.
    """
    reported = set[str]()
    for store in program.stores:
        hook = _hook(program, store.function)
        if (
            hook is None
            or (store.value.has_graph and "train" in hook)
            or store.target in reported
            or not _is_added_in_every_batch(program, store)
        ):
            continue
        host, kept = _kept(program, store)
        if not kept and _is_read_after_epoch(program, store):
            host, kept = False, True
        if not kept or (host and _ONE_PASS.search(hook)) or _is_cleared(program, store):
            continue
        reported.add(store.target)
        where = "host memory" if host else "GPU memory"
        yield Problem(
            node=store.expression,
            message=f"`{store.target}` keeps the outputs of all batches in {where}, and no code clears it",
            help=f"Clear `{store.target}` after each epoch"
            + ("" if host else ", and copy each output to host memory: add `.cpu()`"),
        )


def _hook(program: Program, function: Function) -> str | None:
    """Return the method that Lightning calls for each batch, if this function is the method or is only called by it."""
    known = program.classes.get(function.class_name or "")
    if known is None or not any(
        _BASES.search(base) for base in (*known.bases, *_bases_of(program, known.bases))
    ):
        return None
    if _BATCH_HOOK.search(function.name) or _STEP.search(function.name):
        return function.name
    callers = {
        site.caller.name for site in function.call_sites if site.caller.class_name == function.class_name
    }
    if not callers or not all(map(_STEP.search, callers)):
        return None
    return min(callers, key=lambda name: bool(_ONE_PASS.search(name)))


def _bases_of(program: Program, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if name in program.classes:
            yield from program.classes[name].bases


def _is_added_in_every_batch(program: Program, store: StoreFact) -> bool:
    if store.how not in {"append", "augment"} or not store.target.startswith("self.") or store.bounded:
        return False
    if is_length_limited(program, store):
        return False
    tests = [each.test for each in program.ancestors(store.node) if isinstance(each, cst.If)]
    tests += [
        each.test
        for each in walk(store.function.body, into_functions=False)
        if isinstance(each, cst.If) and any(isinstance(inner, cst.Return) for inner in walk(each.body))
    ]
    return all(_EVERY_BATCH.search(program.source(each)) for each in tests)


def _kept(program: Program, store: StoreFact) -> tuple[bool, bool]:
    """Return whether the stored value is on the host, and whether it is as large as the outputs of a batch."""
    found = [_large(program, store, part) for part in contained_parts(store.expression) or [store.expression]]
    large = [host for host in found if host is not None]
    return all(large), bool(large)


def _is_read_after_epoch(program: Program, store: StoreFact) -> bool:
    """Return True if a module combines the tensors of an epoch, as in `torch.cat(self.logits)` in
    `on_train_epoch_end`.

    If no code clears such a list, it grows in each epoch, and each combination contains the tensors of all epochs. The
    tensors may therefore be small.
    """
    hook = _hook(program, store.function) or ""
    known = program.classes.get(store.function.class_name or "")
    if known is None or hook not in {"training_step", "validation_step"}:
        return False
    if not all(base in program.classes or _BASES.search(base) for base in known.bases):
        return False  # another class may clear the list
    parts = contained_parts(store.expression) or [store.expression]
    if not any(program.value(each).is_tensor and not program.value(each).host for each in parts):
        return False
    end = "on_train_epoch_end" if hook == "training_step" else "on_validation_epoch_end"
    method = program.method(known.name, end)
    return method is not None and any(
        store.target in names_in(node)
        for node in walk(method.body)
        if isinstance(node, cst.Call) and any(is_call_of(node, each) for each in ("cat", "stack", "concat"))
    )


def _large(program: Program, store: StoreFact, node: cst.BaseExpression) -> bool | None:
    """Return None for a small value, True for an output in host memory, and False for an output on the GPU."""
    host = program.value(node).host
    path = dotted(node)
    made = [
        each.expression
        for each in program.stores
        if each.target == path and each.function is store.function and each.order < store.order
    ]
    if path is not None and made and isinstance(made[-1], cst.Call):
        host = host or program.value(made[-1]).host
        if _SMALL.search(path):
            return None
        node = made[-1]
    while isinstance(node, cst.Call) and (inner := receiver(node)) is not None:
        method = method_name(node)
        if method not in {"cpu", "detach", "numpy", "clone", "float", "to", "half"}:
            break
        host = host or method in {"cpu", "numpy"} or moves_to_host(node)
        node = inner
    if _BATCH_HOOK.search(store.function.name):
        return host if _is_given(program, store.function, node) else None
    if _SMALL.search(last_name(dotted(node) or "")) or not stored_output(program, store, node):
        return None
    return host


def _is_given(program: Program, function: Function, node: cst.BaseExpression) -> bool:
    """Return True for `outputs`, `outputs["logits"]` and `outputs.logits`, but not for `outputs["loss"]`."""
    keys: list[str] = []
    while isinstance(node, (cst.Subscript, cst.Attribute)):
        if isinstance(node, cst.Attribute):
            keys.append(node.attr.value)
        else:
            keys += [string_value(getattr(each.slice, "value", None)) or "" for each in node.slice]
        node = node.value
    name = dotted(node)
    for each in walk(function.body):  # x, y = batch
        if isinstance(each, cst.Assign) and name is not None and dotted(each.value) in _GIVEN - {name}:
            bound = set[str]().union(*(bound_paths(target.target) for target in each.targets))
            keys, name = ([*keys, name], dotted(each.value)) if name in bound else (keys, name)
    if name not in _GIVEN or name not in function.parameters or any(map(_SMALL.search, keys)):
        return False
    step = {"on_train_batch_end": "training_step", "on_validation_batch_end": "validation_step"}.get(
        function.name, function.name.replace("on_", "").replace("batch_end", "step")
    )
    known = program.methods.get(step, []) if name != "batch" else []
    return not any(
        _SMALL.search(last_name(dotted(each) or "")) or program.value(each).host
        for method in known
        for each in method.returned_nodes
    )


def _is_cleared(program: Program, store: StoreFact) -> bool:
    name = last_name(store.target)
    assigned = (each for each in program.stores if each.how == "assign")
    emptied: list[ReleaseFact | StoreFact] = [*program.releases, *assigned]
    emptied = [each for each in emptied if last_name(each.target) == name and "." in each.target]
    return any(each.function.name not in _ONCE for each in emptied)
