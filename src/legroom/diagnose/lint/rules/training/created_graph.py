"""LG109: create_graph=True keeps the graph of the gradients alive

## What it detects
The rule reports `create_graph=True` in the following cases:

- `create_graph=True` is passed to `backward`.
- `create_graph=True` is passed to `torch.autograd.grad`, but nothing computes a second derivative: no other backward
  pass uses the gradients, and the function neither returns them nor passes them to other code.
- A function returns gradients that were computed with `create_graph=True`, but only evaluation code calls the function.
- A call passes `True` for a parameter that the function uses as `create_graph`, but the program never differentiates
  the result.

## Why this is a problem
With `create_graph=True`, gradients have their own graph, so all activations of the step and the intermediate results of
the backward pass stay allocated. After `backward(create_graph=True)`, each parameter references its gradient, the
gradient references its graph, and the graph references the parameter. Python's garbage collector cannot free this
reference cycle, because parts of it are C++ objects. The memory stays allocated until the program sets `.grad` to None.

## Example
```python
loss.backward(create_graph=True)
penalty = sum(p.grad.norm() for p in model.parameters())

gradients = torch.autograd.grad(loss, parameters, create_graph=True)   # only for a gradient norm
print(sum(gradient.norm().item() for gradient in gradients))
```

## Use instead
```python
gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
penalty = sum(gradient.norm() for gradient in gradients)   # no parameter references these gradients

gradients = torch.autograd.grad(loss, parameters)          # no second derivative, no graph
print(sum(gradient.norm().item() for gradient in gradients))
```

## Fix safety
No automatic fix is available. If you do not need second derivatives, remove `create_graph=True`. If another backward
pass uses the same loss, use `retain_graph=True` instead.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_true,
    keyword,
    last_name,
    names_in,
    names_with_graph,
    walk,
)
from legroom.diagnose.lint.flow.values import EVALUATION_NAMES, ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG109"
_HARMLESS = frozenset(
    [
        "print",
        "float",
        "int",
        "len",
        "str",
        "sum",
        "max",
        "min",
        "zip",
        "enumerate",
        "list",
        "tuple",
        "append",
        "extend",
        "isinstance",
        "tqdm",
        "range",
    ]
)
"""Functions that run no backward pass through their arguments."""


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        passed = _passed_to_create_graph(program, call)
        if passed is not None and _is_only_read(program, call.node):
            yield _unneeded(passed)
        argument = keyword(call.node, "create_graph")
        if argument is None or not is_true(argument):
            continue
        if call.method in {"backward", "manual_backward"}:
            yield Problem(
                node=argument,
                message="`create_graph=True` creates a reference cycle between parameters and gradients, so the memory of the step "
                "stays allocated until `.grad` is set to None",
                help="Use `torch.autograd.grad(..., create_graph=True)`, or remove `create_graph=True` if "
                "you need no second derivative",
            )
        elif (call.name or "").endswith("autograd.grad") and not _may_be_differentiated(program, call):
            yield _unneeded(argument)


def _unneeded(argument: cst.Arg) -> Problem:
    return Problem(
        node=argument,
        message="`create_graph=True` keeps all activations and the graph of the gradients alive, but nothing "
        "computes a second derivative",
        help="Remove `create_graph=True`. If another backward pass uses the same loss, use `retain_graph=True`",
    )


def _passed_to_create_graph(program: Program, call: CallFact) -> cst.Arg | None:
    """Return the argument `True` of a call if the called function uses it as `create_graph`."""
    if call.local is None:
        return None
    given = {name: each for name, each in call.local.receives(call.node) if is_true(each)}
    if not given:
        return None
    for inner in program.calls:
        argument = keyword(inner.node, "create_graph") if inner.function is call.local else None
        if argument is not None and (inner.name or "").endswith("autograd.grad"):
            return given.get(dotted(argument.value) or "")
    return None


def _may_be_differentiated(program: Program, call: CallFact, depth: int = 0) -> bool:
    function = call.function
    if _is_only_read(program, call.node):
        return False
    names = _derived_names(program, call)
    if names is None:
        return True
    if any(
        names & names_with_graph(each) and _may_have_graph(program, each) for each in function.returned_nodes
    ) and not _is_only_evaluated(program, function, depth):
        return True
    if any(
        isinstance(node, cst.Yield) and names & names_with_graph(node)
        for node in walk(function.body, into_functions=False)
    ):
        return True
    if _is_read_in_nested_function(program, function, names):
        return True
    return any(
        other.function is function and other is not call and _may_differentiate(program, other, names)
        for other in program.calls
    )


def _is_only_read(program: Program, node: cst.CSTNode) -> bool:
    """Return True if the program uses a result only without its graph, as in `slopes(x).norm().tolist()`."""
    parent = program.parent.get(node)
    while isinstance(parent, (cst.Attribute, cst.Call, cst.Subscript)):
        if isinstance(parent, cst.Call) and parent.func is not node:
            return False
        if isinstance(parent, cst.Attribute) and parent.attr.value in {"item", "tolist", "detach", "numpy"}:
            return True
        node, parent = parent, program.parent.get(parent)
    return False


def _is_only_evaluated(program: Program, function: Function, depth: int) -> bool:
    calls = [each for each in program.calls if each.local is function]
    return (
        bool(calls)
        and depth < _MAX_DEPTH
        and function.name not in program.passed_names
        and all(
            EVALUATION_NAMES.search(each.function.name)
            and not _may_be_differentiated(program, each, depth + 1)
            for each in calls
        )
    )


_MAX_DEPTH = 3


def _derived_names(program: Program, call: CallFact) -> set[str] | None:
    """Return the names of the gradients and of all values computed from them, or None if the gradients leave the
    function.
    """
    names: set[str] = set()
    is_assigned = isinstance(program.parent.get(call.node), cst.Expr)
    for _ in range(4):
        before = len(names)
        for store in program.stores:
            if store.function is not call.function:
                continue
            is_made_here = program.inside(call.node, store.expression)
            is_assigned |= is_made_here
            uses = is_made_here or bool(names & names_with_graph(store.expression))
            if not uses or store.no_grad or not _may_have_graph(program, store.expression):
                continue
            if last_name(store.target) == "grad" and "." in store.target:
                if _reads_grad(program, call.function):
                    return None
                continue  # p.grad = gradient, for the optimizer
            is_rebound = store.how == "assign" and store.target in call.function.parameters
            if "." in store.target or not (is_rebound or call.function.owns(store.target)):
                return None
            names.add(store.target)
        for loop in program.loops:
            if loop.function is not call.function or not isinstance(loop.node, cst.For):
                continue
            if names & names_in(loop.node.iter) or program.inside(call.node, loop.node.iter):
                is_assigned = True
                names |= loop.bound
        if len(names) == before:
            break
    return names if is_assigned else None


def _reads_grad(program: Program, function: Function) -> bool:
    """Return True if a function reads `.grad`, from which it may compute a loss."""
    return any(
        isinstance(node, cst.Attribute)
        and node.attr.value == "grad"
        and not isinstance(program.parent.get(node), (cst.AssignTarget, cst.Attribute))
        and (dotted(node) or "") not in {"torch.autograd.grad", "autograd.grad"}
        for node in walk(function.body)
    )


def _may_have_graph(program: Program, node: cst.BaseExpression) -> bool:
    value = program.value(node)
    return value.has_graph or value.kind in (ValueKind.UNKNOWN, ValueKind.CONTAINER)


def _may_differentiate(program: Program, call: CallFact, names: set[str]) -> bool:
    read = names_with_graph(call.node)
    if not names & read or call.no_grad:
        return False
    name = call.name or ""
    if call.method in {"backward", "manual_backward"} or name.endswith("autograd.grad"):
        return True
    if name.startswith(("torch.", "numpy.", "math.")) or last_name(name) in _HARMLESS:
        return False
    if call.receiver.is_tensor or call.receiver.kind is ValueKind.CONTAINER or call.method in _HARMLESS:
        return False
    if call.receiver.kind is ValueKind.CRITERION and call.local is None:
        return False
    return any(
        names & names_with_graph(argument.value) and (value.has_graph or value.kind is ValueKind.UNKNOWN)
        for argument, value in zip(call.node.args, call.arguments, strict=True)
    )


def _is_read_in_nested_function(program: Program, function: Function, names: set[str]) -> bool:
    return any(
        bool((names - other.local_names - set(other.parameters)) & names_in(other.body))
        for other in program.functions.values()
        if other.outer is function and other is not function
    )
