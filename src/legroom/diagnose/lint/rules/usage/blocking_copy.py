"""LG302: Copies from pinned memory are blocking

## What it detects
The rule checks for batches from a loader with `pin_memory=True` that are moved to a device without
`non_blocking=True`. The rule also finds loaders that are created in another function.

This rule is off by default. Enable it with `--select LG302` or `--select ALL`.

## Why this is a problem
`pin_memory=True` costs host memory and time, but allows the GPU to copy data while the program continues. Without
`non_blocking=True`, the program still waits for each copy.

## Example
```python
loader = DataLoader(data, batch_size=64, pin_memory=True)
for x, y in loader:
    x, y = x.to(device), y.to(device)
```

## Use instead
```python
loader = DataLoader(data, batch_size=64, pin_memory=True)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
```

## Fix safety
The fix adds `non_blocking=True`. CUDA runs operations on the tensor only after the copy is complete, so results do not
change. The fix is safe if the file creates its loaders without `collate_fn`, so that batches consist of tensors, and if
the copy replaces the batch. Otherwise, the fix is unsafe.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import add_argument
from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    has_star,
    is_false,
    is_true,
    keyword,
    path_of,
    positional,
    receiver,
    root,
    string_value,
)
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG302"
_TYPES = {"float", "float32", "float16", "bfloat16", "long", "half", "int64", "bool"}


def check(program: Program) -> Iterator[Problem]:
    pinned, others = _loaders(program)
    if not pinned:
        return
    for call in program.calls:
        if call.method not in {"to", "cuda"} or keyword(call.node, "non_blocking") or has_star(call.node):
            continue
        if not call.loops or not _moves_to_a_gpu(call):
            continue
        batch = path_of(receiver(call.node))
        loop = next((each for each in reversed(call.loops) if batch and root(batch) in each.bound), None)
        if loop is None or loop.iterable.kind is not ValueKind.LOADER:
            continue
        if loop.iterable_path in others and loop.iterable_path not in pinned:
            continue
        if _is_same_name_rebound(program, call, batch):
            continue
        yield Problem(
            node=call.node,
            message="The batch is in pinned memory, but this copy blocks the program",
            help="Add `non_blocking=True`",
            edits=(add_argument(program, call.node, "non_blocking=True"),),
            safe=_loads_tensors(program) and _replaces_batch(program, call, batch),
        )


def _loads_tensors(program: Program) -> bool:
    """Return True if all loaders in the file return tensors. A `collate_fn` may return other objects."""
    made = [call for call in program.calls if (call.name or "").endswith("DataLoader")]
    return bool(made) and all(
        call.name == "torch.utils.data.DataLoader"
        and not has_star(call.node)
        and keyword(call.node, "collate_fn") is None
        and not _is_none(keyword(call.node, "batch_size"))
        for call in made
    )


def _is_none(argument: cst.Arg | None) -> bool:
    return argument is not None and isinstance(argument.value, cst.Name) and argument.value.value == "None"


def _replaces_batch(program: Program, call: CallFact, batch: str | None) -> bool:
    """Return True if the copy replaces the batch, as in `x = x.to(device)`.

    The program then has no name for the host tensor, and cannot change it during the copy.
    """
    return any(
        store.target == batch and store.how == "assign" and program.inside(call.node, store.expression)
        for store in program.stores
    )


def _moves_to_a_gpu(call: CallFact) -> bool:
    if call.method == "cuda":
        return True
    arguments = positional(call.node)
    device = arguments[0].value if arguments else getattr(keyword(call.node, "device"), "value", None)
    if device is None or string_value(device) == "cpu" or len(arguments) > 1:
        return False
    text = string_value(device)
    if text is not None:
        return text.startswith("cuda")
    return not (isinstance(device, cst.Attribute) and device.attr.value in _TYPES)


def _is_same_name_rebound(program: Program, call: CallFact, batch: str | None) -> bool:
    return any(
        store.target == batch
        and store.order < call.order
        and store.loops == call.loops
        and not program.inside(call.node, store.node)
        for store in program.stores
    )


def _loaders(program: Program) -> tuple[set[str], set[str]]:
    pinned: set[str] = set()
    others: set[str] = set()
    for store in program.stores:
        made = store.expression
        if isinstance(made, cst.Call) and (program.imports.qualified(made.func) or "").endswith("DataLoader"):
            argument = keyword(made, "pin_memory")
            if is_true(argument):
                pinned.add(store.target)
            elif argument is None or is_false(argument):
                others.add(store.target)
    if not pinned:
        for call in program.calls:
            if (call.name or "").endswith("DataLoader") and is_true(keyword(call.node, "pin_memory")):
                pinned.add("")
    return pinned, others
