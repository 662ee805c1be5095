"""LG111: A cache keeps the tensors of every call alive

## What it detects
The rule reports `lru_cache` and `cache` in the following cases:

- The cached function is a method of an `nn.Module`, or a method that returns tensors.
- The cached function is the `__getitem__` method of a dataset.
- The cached function takes tensors, and the cache has no explicit `maxsize`.
- The cached function takes models that a loop creates, such as a loop over folds, and the cache has no explicit
  `maxsize`.
- The cached function returns tensors, and the cache has no limit (`cache`, `maxsize=None`).

## Why this is a problem
`functools.lru_cache` stores the arguments and the result of every distinct call. The cache compares tensors
by identity, so each call with a new tensor adds an entry. The cache of a method also stores `self`, so the
cache keeps the whole model alive.

If a mask or lookup table depends only on sizes, store it with `register_buffer`. Alternatively, set a small `maxsize`
for the cache.

## Example
```python
@lru_cache(maxsize=None)
def embed(self, tokens): ...
```

## Use instead
```python
self.cache = {}                          # per object: use values as keys, store detached results, clear it per epoch
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, keyword, last_name, positional, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG111"
_CACHES = {"functools.lru_cache", "functools.cache", "lru_cache", "cache"}


def check(program: Program) -> Iterator[Problem]:
    for function in program.functions.values():
        if not isinstance(function.node, cst.FunctionDef):
            continue
        for decorator in function.node.decorators:
            called = (
                decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
            )
            if (program.imports.qualified(called) or "") not in _CACHES:
                continue
            retained = _retained(program, function, decorator.decorator)
            if retained:
                yield _problem(decorator.decorator, function, retained)
    for function, node, maker in _wrapped(program):
        retained = _retained(program, function, maker)
        if retained:
            yield _problem(node, function, retained)


def _problem(node: cst.CSTNode, function: Function, retained: str) -> Problem:
    return Problem(
        node=node,
        message=f"The cache of `{function.name}` retains {retained}",
        help="Use a dict whose keys are not tensors and clear the dict regularly, or register a buffer",
    )


def _wrapped(program: Program) -> Iterator[tuple[Function, cst.Call, cst.BaseExpression]]:
    """Yield the functions in `lru_cache(maxsize=None)(compute)` and `cache(self.compute)`."""
    for call in program.calls:
        maker = call.node.func.func if isinstance(call.node.func, cst.Call) else call.node.func
        if (program.imports.qualified(maker) or "") not in _CACHES or not call.node.args:
            continue
        path = dotted(call.node.args[0].value) or ""
        function = program.function_named(path, call.function)
        if function is None and path.startswith("self."):
            function = program.method(call.function.class_name, path.removeprefix("self."))
        if function is not None:
            yield function, call.node, call.node.func


def _retained(program: Program, function: Function, decorator: cst.BaseExpression) -> str:
    is_method = function.class_name is not None and function.parameters[:1] == ("self",)
    if is_method and program.is_module_class(function.class_name):
        return "the module, and the arguments and results of every call"
    if _is_small(decorator):
        return ""
    if function.name == "__getitem__" and function.class_name is not None:
        return "every sample that the dataset has returned"
    given = any(value.is_tensor for site in function.call_sites for value in site.values.values())
    if (_takes_tensors(function) or given) and not _is_limited(decorator):
        return "every tensor argument"
    if _receives_new_models(program, function) and not _is_limited(decorator):
        return "every model that is passed to it"
    if _has_only_settings(function):
        return ""
    if _returns_tensors(program, function) and (is_method or _is_unlimited(decorator)):
        return "every returned tensor" + (" and `self`" if is_method else "")
    return ""


def _takes_tensors(function: Function) -> bool:
    assert isinstance(function.node, cst.FunctionDef)
    for parameter in function.node.params.params:
        if parameter.annotation is not None:
            for each in walk(parameter.annotation):
                if isinstance(each, cst.Name) and each.value.endswith("Tensor"):
                    return True
    return False


def _receives_new_models(program: Program, function: Function) -> bool:
    """Return True if a loop, such as a loop over folds, creates the models that are passed to a function."""
    return any(
        store.value.kind is ValueKind.MODEL
        and store.target in {dotted(each.value) for each in site.call.args}
        and (store.loops or any(outer.loops for outer in store.function.call_sites))
        for site in function.call_sites
        for store in program.stores
        if store.function is site.caller and store.how == "assign"
    )


def _returns_tensors(program: Program, function: Function) -> bool:
    if any(each.is_tensor for each in (function.returns, *function.returns.contents)):
        return True
    returned = {each for node in function.returned_nodes for each in walk(node)}
    return function.returns.kind is ValueKind.UNKNOWN and any(
        call.node in returned and call.result.is_tensor for call in program.calls
    )


def _has_only_settings(function: Function) -> bool:
    """Return True if the arguments are the device, the dtype and settings with a default, which rarely change."""
    assert isinstance(function.node, cst.FunctionDef)
    return all(
        each.default is not None or each.name.value in {"device", "dtype"}
        for each in function.node.params.params
    )


def _is_small(decorator: cst.BaseExpression) -> bool:
    limit = _limit(decorator)
    return isinstance(limit, cst.Integer) and int(limit.value) <= _SMALL


_SMALL = 16
"""A cache with this limit keeps only a few results alive."""


def _is_unlimited(decorator: cst.BaseExpression) -> bool:
    if not isinstance(decorator, cst.Call):
        return last_name(dotted(decorator) or "") == "cache"
    return dotted(_limit(decorator)) == "None"


def _is_limited(decorator: cst.BaseExpression) -> bool:
    """Return True if the code sets a limit. The default limit of `lru_cache` does not count."""
    limit = _limit(decorator)
    return limit is not None and dotted(limit) != "None"


def _limit(decorator: cst.BaseExpression) -> cst.BaseExpression | None:
    if not isinstance(decorator, cst.Call):
        return None
    given = keyword(decorator, "maxsize") or next(iter(positional(decorator)), None)
    return given.value if given is not None else None
