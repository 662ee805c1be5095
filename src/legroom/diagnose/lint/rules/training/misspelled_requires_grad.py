"""LG309: An assignment does not freeze the parameters

## What it detects
The rule checks for an assignment to an attribute whose name resembles `requires_grad`, such as
`parameter.require_grad = False`. The rule also checks for `requires_grad = False` on a module, such as
`model.backbone.requires_grad = False`.

## Why this is a problem
Python adds the attribute to the object without an error, and PyTorch ignores it. The parameters still require gradients:
the step saves the activations of the whole model, allocates a gradient for each parameter, and may train parameters that
should stay fixed.

## Example
```python
for parameter in model.backbone.parameters():
    parameter.require_grad = False
model.embedding.requires_grad = False    # a module, not a parameter
```

## Use instead
```python
model.backbone.requires_grad_(False)     # all parameters of the module
model.embedding.requires_grad_(False)
```

## Fix safety
The fix corrects the name, or calls `requires_grad_`. The fix is unsafe, because it changes which parameters are trained.
"""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

import libcst as cst

from legroom.diagnose.lint.edits import Edit, replace
from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, method_name, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG309"
_NAME = "requires_grad"
_MIN_SIMILARITY = 0.75
_KERAS_NAME = "trainable"
_MODULES = re.compile(
    r"^(?:backbone|encoder|decoder|features|classifier|fc\d?|layer\d|head|embeddings?|bert|roberta|unet|vae|text_encoder|vision_model)$"
)
"""Names of submodules. An attribute with another name, such as `logit_scale`, may be a parameter."""
_ITERATORS = {"children", "modules", "named_children", "named_modules"}


def check(program: Program) -> Iterator[Problem]:
    for store in program.stores:
        owner, _, name = store.target.rpartition(".")
        if store.how != "assign" or owner in {"", "self", "cls"} or not _is_bool(store):
            continue
        if name == _NAME and _is_module(program, store, owner):
            yield Problem(
                node=store.node,
                message=f"`{owner}` is a module, and setting `requires_grad` on a module does not change its parameters",
                help=f"Call `{owner}.requires_grad_({program.source(store.expression)})`",
                edits=_call(program, store, owner),
                safe=False,
            )
        elif _resembles(name) and _is_parameter(program, store, owner):
            yield Problem(
                node=store.node,
                message=f"PyTorch ignores the attribute `{name}`, so the parameters still require gradients",
                help=f"Set `{_NAME}`",
                edits=_renamed(program, store),
                safe=False,
            )


def _is_bool(store: StoreFact) -> bool:
    return dotted(store.expression) in {"True", "False"}


def _resembles(name: str) -> bool:
    if name in {_NAME, "grad", "retains_grad"}:
        return False
    return name == _KERAS_NAME or SequenceMatcher(None, name, _NAME).ratio() >= _MIN_SIMILARITY


def _is_parameter(program: Program, store: StoreFact, owner: str) -> bool:
    """Return True for the variable of a loop over parameters, for a tensor, and for a weight or bias."""
    if last_name(owner) in {"weight", "bias"} or last_name(store.target) != _KERAS_NAME:
        kinds = (ValueKind.PARAMETER, ValueKind.TENSOR, ValueKind.MODEL)
        known = store.function.environment.get(owner)
        if last_name(owner) in {"weight", "bias"} or (known is not None and known.kind in kinds):
            return True
    return _is_iterated(program, store, owner, {"parameters", "named_parameters"})


def _is_module(program: Program, store: StoreFact, owner: str) -> bool:
    if _is_iterated(program, store, owner, _ITERATORS):
        return True
    known = store.function.environment.get(owner)
    target = store.node.targets[0].target if isinstance(store.node, cst.Assign) else None
    if isinstance(target, cst.Attribute) and program.value(target.value).kind is not ValueKind.MODEL:
        return False  # after `elif isinstance(module, Parameter)`
    if store.handler is not None:
        return False  # the handler of an object without `parameters`
    if known is not None and known.kind is not ValueKind.MODEL:
        return False
    if known is not None and (known.trainable or known.frozen):
        return True
    return "." in owner and _MODULES.search(last_name(owner)) is not None


def _is_iterated(program: Program, store: StoreFact, owner: str, methods: set[str]) -> bool:
    """Return True if the innermost loop that binds the name `owner` iterates over the result of one of the
    `methods`.
    """
    loop = next((each for each in reversed(store.loops) if owner in each.bound), None)
    return (
        loop is not None
        and isinstance(loop.node, cst.For)
        and any(isinstance(node, cst.Call) and method_name(node) in methods for node in walk(loop.node.iter))
    )


def _renamed(program: Program, store: StoreFact) -> tuple[Edit, ...]:
    target = store.node.targets[0].target if isinstance(store.node, cst.Assign) else None
    if not isinstance(target, cst.Attribute) or target.attr.value == _KERAS_NAME:
        return ()
    return (replace(program, target.attr, _NAME),)


def _call(program: Program, store: StoreFact, owner: str) -> tuple[Edit, ...]:
    if not isinstance(store.node, cst.Assign) or len(store.node.targets) != 1:
        return ()
    return (replace(program, store.node, f"{owner}.requires_grad_({program.source(store.expression)})"),)
