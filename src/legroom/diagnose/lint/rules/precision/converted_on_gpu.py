"""LG408: A model is converted to half precision on the GPU

## What it detects
The rule checks for pretrained language models and pipelines that are moved to the GPU in full precision and
then converted with `half()`, `bfloat16()` or `to(dtype)`. The rule does not report other models, because they
are often small.

## Why this is a problem
The full-precision weights need twice the memory of the half-precision weights. All full-precision weights are on the
GPU before the conversion starts. A model with 7 billion parameters temporarily needs 28 GB on the GPU, although it
needs only 14 GB later.

## Example
```python
model = AutoModelForCausalLM.from_pretrained(name).cuda().half()
```

## Use instead
```python
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16).cuda()
model = build_model().half().cuda()      # for a model without this option
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    keyword,
    last_name,
    method_name,
    positional,
    receiver,
    string_value,
)
from legroom.diagnose.lint.flow.values import SELF_METHODS, ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG408"
_HALF = {"torch.float16", "torch.half", "torch.bfloat16"}
_LOADED = {"from_pretrained"}
_LARGE = ("CausalLM", "Seq2SeqLM", "ConditionalGeneration", "ImageTextToText", "Vision2Seq", "Pipeline")
"""Substrings in the class names of models that are usually large."""


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.receiver.kind is not ValueKind.MODEL or not _halves(program, call.node):
            continue
        steps = _steps(program, call.node, call.order)
        loaded = steps[-1]
        name = dotted(loaded.func) or ""
        if last_name(name) not in _LOADED or not any(each in name for each in _LARGE) or _sets_dtype(loaded):
            continue
        before = steps[1:-1]
        if any(_moves_to_gpu(program, each) for each in before) and not any(
            _halves(program, each) for each in before
        ):
            yield Problem(
                node=call.node,
                message="The model is moved to the GPU in full precision before it is converted, so the GPU needs memory for all "
                "weights in full precision",
                help="Load the model with `torch_dtype=`, or convert it before moving it to the GPU",
            )


def _steps(program: Program, node: cst.Call, order: int) -> list[cst.Call]:
    """Return the calls that created and changed a model, such as `half()`, `cuda()` and `from_pretrained(name)`.

    The last call comes first.
    """
    steps = [node]
    for _ in range(8):
        inner = receiver(steps[-1])
        if isinstance(inner, cst.Call):
            if method_name(steps[-1]) in _LOADED:
                break
            steps.append(inner)
            continue
        path = dotted(inner)
        if path is None or method_name(steps[-1]) in _LOADED:
            break
        made = _last_change(program, path, steps[-1], order)
        if made is None:
            break
        order, expression = made
        steps.append(expression)
    return steps


def _last_change(program: Program, path: str, node: cst.Call, order: int) -> tuple[int, cst.Call] | None:
    """Return the last assignment to a name before a call, or the last call that changes the model in place."""
    current = program.call_of(node)
    if current is None:
        return None
    stores: list[tuple[int, cst.Call]] = [
        (each.order, each.expression)
        for each in program.stores
        if isinstance(each, StoreFact)
        and each.target == path
        and each.function is current.function
        and each.order < order
        and isinstance(each.expression, cst.Call)
        and not program.inside(node, each.node)
    ]
    changes = [
        (each.order, each.node)
        for each in program.calls
        if each.function is current.function
        and each.order < order
        and each.method in SELF_METHODS
        and dotted(receiver(each.node)) == path
        and isinstance(program.parent.get(each.node), cst.Expr)
        and each.node is not node
    ]
    return max([*stores, *changes], key=lambda each: each[0], default=None)


def _halves(program: Program, node: cst.Call) -> bool:
    """Return True if a call converts a model to half precision, as in `model.half()`, `model.bfloat16()` and
    `model.to(torch.float16)`.
    """
    if method_name(node) in {"half", "bfloat16"}:
        return True
    if method_name(node) != "to" or len(node.args) != 1:
        return False
    return program.imports.qualified(node.args[0].value) in _HALF


def _moves_to_gpu(program: Program, node: cst.Call) -> bool:
    """Return True if a call only moves a model to the GPU, as in `model.cuda()` and `model.to(device)` without a
    dtype.
    """
    if method_name(node) == "cuda":
        return True
    given = keyword(node, "device") or next(iter(positional(node)), None)
    if method_name(node) != "to" or given is None or len(node.args) != 1:
        return False
    text = string_value(given.value)
    if text is not None:
        return text.startswith("cuda")
    path = last_name(dotted(given.value) or "")
    return ("device" in path or path == "dev") and program.uses_gpu


def _sets_dtype(node: cst.Call) -> bool:
    names = [each.keyword.value for each in node.args if each.keyword is not None]
    return any("dtype" in name or "quant" in name or name.startswith("load_in_") for name in names) or any(
        each.star for each in node.args
    )
