"""LG314: del does not free the model

## What it detects
The rule checks for `del` before `gc.collect()` or `empty_cache()` in the following cases:

- A function deletes its parameter, but a variable in the caller still refers to the object.
- The program deletes a list of models, but other variables still refer to the models.

## Why this is a problem
`del` deletes one name. Python frees an object only when no name, container or attribute refers to it. The model therefore
stays on the GPU, and `empty_cache()` cannot free it.

## Example
```python
def free(model):
    del model                            # deletes only the name in this function
    torch.cuda.empty_cache()

free(model)
```

## Use instead
```python
del model
torch.cuda.empty_cache()
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import contained_parts, dotted, last_name, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG314"


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("empty_cache", "collect"):
        return
    for function in program.functions.values():
        deleted = [node for node in walk(function.body, into_functions=False) if isinstance(node, cst.Del)]
        names = {path for node in deleted for path in _targets(node)}
        for node in deleted:
            if not _frees_cache_after(program, function, node):
                continue
            for path in _targets(node):
                kept = _name_in_caller(program, function, path) or _name_of_element(
                    program, function, path, names
                )
                if kept is not None:
                    yield Problem(
                        node=node,
                        message=f"`del {path}` frees nothing, because `{kept}` still refers to the model",
                        help=f"Delete `{kept}` where it is defined",
                    )


def _targets(node: cst.Del) -> list[str]:
    target = node.target
    parts = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
    return [path for each in parts if (path := dotted(each)) is not None and "." not in path]


def _frees_cache_after(program: Program, function: Function, node: cst.Del) -> bool:
    return any(
        call.function is function
        and call.order > program.order[node]
        and last_name(call.name or call.method or "") in {"empty_cache", "collect"}
        for call in program.calls
    )


def _name_in_caller(program: Program, function: Function, path: str) -> str | None:
    """Return the variable in the caller that still refers to the object after the call."""
    if path not in function.parameters or any(
        store.target == path and store.function is function for store in program.stores
    ):
        return None
    for site in function.call_sites:
        for name, argument in function.receives(site.call):
            given = dotted(argument.value)
            if name != path or given is None or site.values.get(name) is None:
                continue
            if site.values[name].kind is not ValueKind.MODEL:
                continue
            order = program.order[site.call]
            later = [
                each.target
                for each in program.releases
                if each.function is site.caller and each.order > order
            ]
            later += [
                each.target for each in program.stores if each.function is site.caller and each.order > order
            ]
            return None if given in later else given
    return None


def _name_of_element(program: Program, function: Function, path: str, deleted: set[str]) -> str | None:
    """Return the variable that refers to a model in a deleted list."""
    made = [each for each in program.stores if each.target == path and each.function is function]
    if len(made) != 1 or made[0].how != "assign" or not isinstance(made[0].expression, (cst.List, cst.Tuple)):
        return None
    for part in contained_parts(made[0].expression):
        name = dotted(part)
        if name is None or name in deleted or program.value(part).kind is not ValueKind.MODEL:
            continue
        if not any(each.target == name and each.order > made[0].order for each in program.stores):
            return name
    return None
