"""LG504: Tensors on the GPU are sent as Python objects

## What it detects
The rule checks for `all_gather_object` and `gather_object` with tensors that a model computed, or that the program moved
to the GPU.

## Why this is a problem
These functions pickle the object. A pickled tensor keeps its device: each process loads the tensors of all processes
onto the GPUs that they came from. Every process therefore creates a CUDA context on every GPU in the machine and
allocates memory there. The pickled bytes are also copied to the GPU.

## Example
```python
results = [None] * world_size
dist.all_gather_object(results, {"ids": ids, "masks": model(images)})
```

## Use instead
```python
results = [None] * world_size
dist.all_gather_object(results, {"ids": ids, "masks": model(images).cpu()})
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import contained_parts, dotted, keyword, last_name, positional
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG504"


def check(program: Program) -> Iterator[Problem]:
    reported: set[cst.CSTNode] = set()
    for call in program.calls:
        sent = _sent_object(call)
        for part in _parts(program, sent, call.function) if sent is not None else ():
            if part not in reported and _is_on_gpu(program, part):
                reported.add(part)
                yield Problem(
                    node=part,
                    message=f"`{last_name(call.name or '')}` sends a GPU tensor, and every receiving process loads the tensor onto the "
                    "sender's GPU",
                    help="Copy the tensor to host memory first: add `.cpu()`",
                )
                break


def _sent_object(call: CallFact) -> cst.BaseExpression | None:
    name, given = call.name or "", positional(call.node)
    if not name.startswith("torch.distributed."):
        return None
    if name.endswith(".all_gather_object"):
        sent = keyword(call.node, "obj") or (given[1] if len(given) > 1 else None)
    elif name.endswith(".gather_object"):
        sent = keyword(call.node, "obj") or (given[0] if given else None)
    else:
        sent = None
    return sent.value if sent is not None else None


def _parts(
    program: Program, node: cst.BaseExpression, function: Function, depth: int = 0
) -> Iterator[cst.BaseExpression]:
    """Yield the expressions in the sent object.

    For a name, the expression in its last assignment is used. For a parameter, the arguments of the callers are used.
    """
    parts = contained_parts(node)
    path = dotted(node)
    if parts and depth < 4:
        for each in parts:
            yield from _parts(program, each, function, depth + 1)
    elif path is not None and depth < 4 and program.value(node).kind is not ValueKind.TENSOR:
        made = [each for each in program.stores if each.target == path and each.function is function]
        if made and made[-1].how == "assign":
            yield from _parts(program, made[-1].expression, function, depth + 1)
        elif not made:
            for site in function.call_sites:
                for name, argument in function.receives(site.call):
                    if name == path:
                        yield from _parts(program, argument.value, site.caller, depth + 1)
    else:
        yield node


def _is_on_gpu(program: Program, node: cst.BaseExpression) -> bool:
    value = program.value(node)
    if value.host or not (value.kind is ValueKind.TENSOR or value.kind is ValueKind.GRAPH):
        return False
    if not program.uses_gpu:
        return False
    path = dotted(node)
    made = [each.expression for each in program.stores if each.target == path] if path else [node]
    return bool(made) and all(_is_computed(program, each) for each in made)


def _is_computed(program: Program, node: cst.BaseExpression) -> bool:
    """Return True for the result of a model, but not for `torch.tensor(...)`, which may be in host memory."""
    call = program.call_of(node)
    if call is None:
        return False
    if call.method == "cuda" or call.receiver.kind is ValueKind.MODEL:
        return True
    return call.local is not None and any(
        each.function is call.local and each.receiver.kind is ValueKind.MODEL for each in program.calls
    )
