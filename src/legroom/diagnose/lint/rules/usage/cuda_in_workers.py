"""LG305: A dataset moves samples to the GPU in worker processes

## What it detects
The rule checks for `.cuda()` or `.to("cuda")` in the `__getitem__` method of a dataset or in a `collate_fn`, if the file
creates a `DataLoader` with `num_workers`.

## Why this is a problem
Each worker process that uses CUDA creates its own CUDA context, which uses several hundred MiB of GPU memory. The
default start method `fork` does not support CUDA in worker processes at all: the loader fails with `Cannot
re-initialize CUDA in forked subprocess`.

## Example
```python
class Images(Dataset):
    def __getitem__(self, index):
        return self.images[index].cuda()
loader = DataLoader(Images(), num_workers=4)
```

## Use instead
```python
class Images(Dataset):
    def __getitem__(self, index):
        return self.images[index]
loader = DataLoader(Images(), num_workers=4, pin_memory=True)
for images in loader:
    images = images.to("cuda", non_blocking=True)
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, keyword, last_name, positional, string_value, walk
from legroom.diagnose.lint.rule import Problem

CODE = "LG305"


def check(program: Program) -> Iterator[Problem]:
    if not any(_has_workers(call) for call in program.calls):
        return
    loading = _loading_functions(program)
    for call in program.calls:
        if call.function not in loading:
            continue
        if call.method == "cuda" or (call.method == "to" and is_gpu(program, call.node)):
            yield Problem(
                node=call.node,
                message="The dataset uses the GPU in worker processes, and each worker creates its own CUDA context",
                help="Return tensors in host memory, and move each batch to the GPU in the training loop",
            )


def _loading_functions(program: Program) -> set[Function]:
    """Return the functions that run in workers: `__getitem__`, `collate_fn` and the functions that they call."""
    loading = {
        function
        for function in program.functions.values()
        if function.name == "__getitem__" and _is_dataset(program, function.class_name)
    }
    for call in program.calls:
        given = keyword(call.node, "collate_fn") if _has_workers(call) else None
        if given is not None:
            loading |= _called_functions(program, given.value, call.function)
    for _ in range(3):
        loading |= {
            call.local for call in program.calls if call.local is not None and call.function in loading
        }
    return {function for function in loading if function.name != "__init__"}


def _called_functions(
    program: Program, node: cst.BaseExpression, scope: Function, depth: int = 0
) -> set[Function]:
    """Return the functions that a `collate_fn` runs, such as `function` for `partial(function, ...)`."""
    path = dotted(node) or ""
    found = program.function_named(path, scope)
    if found is not None:
        return {found}
    if isinstance(node, cst.Call):
        made = program.method(dotted(node.func), "__call__")
        if made is not None:  # collate_fn=Collate()
            return {made}
        if last_name(dotted(node.func) or "") == "partial" and positional(node):
            return _called_functions(program, positional(node)[0].value, scope, depth + 1)
    if path and depth < 3:
        return {
            function
            for each in program.stores
            if each.target == path and each.how == "assign"
            for function in _called_functions(program, each.expression, each.function, depth + 1)
        }
    return set()


def _has_workers(call: CallFact) -> bool:
    workers = keyword(call.node, "num_workers")
    if not (call.name or "").endswith("DataLoader") or workers is None:
        return False
    return not (isinstance(workers.value, cst.Integer) and int(workers.value.value) == 0)


def _is_dataset(program: Program, class_name: str | None) -> bool:
    known = program.classes.get(class_name or "")
    return known is not None and any(last_name(base).endswith(("Dataset", "Folder")) for base in known.bases)


def is_gpu(program: Program, call: cst.Call) -> bool:
    """Return True if the device is always a GPU: `"cuda"`, or a variable with the value `torch.device("cuda")`."""
    given = positional(call)[0].value if positional(call) else None
    path = dotted(given) if given is not None else None
    made = program.assigned(path)
    return given is not None and (
        _names_gpu(given) or (bool(made) and all(_names_gpu(each) for each in made))
    )


def _names_gpu(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.IfExp):
        return False
    return any((string_value(each) or "").startswith("cuda") for each in walk(node))
