"""LG402: torch.cuda.amp is deprecated

## What it detects
The rule checks for imported or fully qualified names from `torch.cuda.amp` and `torch.cpu.amp`. The rule does
not flag code that runs only with certain torch versions, or fallbacks that run if importing the new names
fails.

This rule is off by default. Enable it with `--select LG402` or `--select ALL`.

## Why this is a problem
`torch.cuda.amp.autocast` and `torch.cuda.amp.GradScaler` are deprecated and issue a warning on every use.
`torch.amp` has the same classes, with the device as the first argument.

On Ampere and newer GPUs, `torch.amp.autocast("cuda", dtype=torch.bfloat16)` needs no scaler.

## Example
```python
with torch.cuda.amp.autocast():
    loss = criterion(model(x), y)
scaler = torch.cuda.amp.GradScaler()
```

## Use instead
```python
with torch.amp.autocast("cuda"):
    loss = criterion(model(x), y)
scaler = torch.amp.GradScaler("cuda")
```

## Fix safety
The fix is safe: it changes the name and adds the device argument. No fix is available for `autocast` with positional
arguments.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, add_argument, replace
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, positional
from legroom.diagnose.lint.rule import Problem

CODE = "LG402"
_OLD = ("torch.cuda.amp", "torch.cpu.amp")
_NAMES = {"autocast", "GradScaler"}
_MISSING = re.compile(r"ImportError|AttributeError|ModuleNotFoundError")


def check(program: Program) -> Iterator[Problem]:
    for node in program.nodes_of(cst.ImportFrom):
        yield from _imported(program, node)
    for call in program.nodes_of(cst.Call):
        yield from _full_name(program, call)


def _is_for_old_versions(program: Program, node: cst.CSTNode) -> bool:
    """Return True if the code runs only for an old version of PyTorch: under a version check, or after a failed
    import.
    """
    for parent in program.ancestors(node):
        if isinstance(parent, cst.If) and re.search(
            r"version|hasattr", program.source(parent.test), re.IGNORECASE
        ):
            return True
        handlers = parent.handlers if isinstance(parent, cst.Try) else ()
        if any(each.type is not None and _MISSING.search(program.source(each.type)) for each in handlers):
            return True
    return False


def _full_name(program: Program, call: cst.Call) -> Iterator[Problem]:
    """Find calls with a full name, as in `torch.cuda.amp.autocast(...)`."""
    path = dotted(call.func) or ""
    name = program.imports.qualified(call.func) or ""
    if not _is_old(name) or not path.endswith(f"amp.{name.rpartition('.')[2]}"):
        return
    if _is_for_old_versions(program, call):
        return
    device = name.split(".")[1]
    new = (
        program.imports.name_for(f"torch.amp.{name.rpartition('.')[2]}")
        if "torch" in program.imports.full_names
        else None
    )
    edits: tuple[Edit, ...] = ()
    if new is not None and _accepts_device(call, name):
        edits = (replace(program, call.func, new), _device(program, call, device))
    yield Problem(
        node=call.func,
        message=f"`{name}` is deprecated",
        help=f'Use `torch.amp.{name.rpartition(".")[2]}("{device}")`',
        edits=edits,
    )


def _imported(program: Program, node: cst.ImportFrom) -> Iterator[Problem]:
    source = dotted(node.module)
    if source not in _OLD or isinstance(node.names, cst.ImportStar) or node.module is None:
        return
    if _is_for_old_versions(program, node):
        return
    device = source.split(".")[1]
    names = {each.evaluated_alias or each.evaluated_name: each.evaluated_name for each in node.names}
    calls = [
        each
        for each in program.nodes_of(cst.Call)
        if isinstance(each.func, cst.Name) and each.func.value in names
    ]
    known = set(names.values()) <= _NAMES
    others = any(
        each.value in names
        and not program.inside(each, node)
        and not any(each is call.func for call in calls)
        for each in program.nodes_of(cst.Name)
    )
    can = known and not others and all(_accepts_device(call, names[_name(call)]) for call in calls)
    edits = (
        [replace(program, node.module, "torch.amp"), *(_device(program, call, device) for call in calls)]
        if can
        else []
    )
    yield Problem(
        node=node.module,
        message=f"`{source}` is deprecated",
        help=f'Import from `torch.amp` and pass the device first: `autocast("{device}")`',
        edits=tuple(edits),
    )


def _name(call: cst.Call) -> str:
    return call.func.value if isinstance(call.func, cst.Name) else ""


def _is_old(name: str) -> bool:
    return name.startswith(tuple(f"{old}." for old in _OLD)) and name.rpartition(".")[2] in _NAMES


def _accepts_device(call: cst.Call, name: str) -> bool:
    """Return True if the device can be added as the first argument.

    This is not possible for `autocast(False)`: the second positional argument of the new function is the dtype, and
    not `enabled`.
    """
    return name.endswith("GradScaler") or not positional(call)


def _device(program: Program, call: cst.Call, device: str) -> Edit:
    return add_argument(program, call, f'"{device}"', first=True)
