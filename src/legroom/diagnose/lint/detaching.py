"""Determines how to store a value without its graph."""

import libcst as cst

from legroom.diagnose.lint.edits import Edit, append_to
from legroom.diagnose.lint.flow.facts import Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, literal_key, method_name, names_in, path_of, receiver
from legroom.diagnose.lint.flow.values import ValueKind, split_words
from legroom.diagnose.lint.proofs import can_be_detached

DETACH, COPY = ".detach()", ".detach().clone()"
_MAX_DEPTH = 6
_PARTS = split_words(
    "as_strided chunk diagonal dsplit hsplit narrow select split split_with_sizes tensor_split unbind unfold vsplit"
)
"""Methods that return a view of one slice of a tensor."""
_SAME_STORAGE = split_words(
    "adjoint bfloat16 contiguous cuda data detach double expand expand_as flatten float half mH mT movedim permute ravel "
    "reshape squeeze swapaxes swapdims H T t to transpose type_as unflatten unsqueeze view view_as"
)
"""Methods and attributes whose result may share the storage of the tensor."""


def parts_with_graph(
    program: Program, expression: cst.BaseExpression, *, but: str = ""
) -> list[cst.BaseExpression]:
    """Return the smallest subexpressions of a stored expression that have a graph.

    The path `but` and items of this path are skipped.
    """
    if but and path_of(expression) == but:  # or an item of `but`
        return []
    if isinstance(expression, cst.BinaryOperation):
        parts = [
            *parts_with_graph(program, expression.left, but=but),
            *parts_with_graph(program, expression.right, but=but),
        ]
        is_separate = not but or but not in names_in(expression)
        return [expression] if is_separate and len(parts) > 1 else parts
    if isinstance(expression, (cst.Tuple, cst.List)):
        return [
            part for each in expression.elements for part in parts_with_graph(program, each.value, but=but)
        ]
    if isinstance(expression, cst.IfExp):
        sides = (expression.body, expression.orelse)
        return [part for side in sides for part in parts_with_graph(program, side, but=but)]
    if isinstance(expression, cst.Call) and but and but in names_in(expression):
        operands = (receiver(expression), *(each.value for each in expression.args))
        return [
            part for each in operands if each is not None for part in parts_with_graph(program, each, but=but)
        ]
    if isinstance(expression, cst.Call) and dotted(expression.func) == "dict":
        return [part for each in expression.args for part in parts_with_graph(program, each.value, but=but)]
    if isinstance(expression, cst.Dict):
        return [
            part for each in expression.elements for part in parts_with_graph(program, each.value, but=but)
        ]
    return [expression] if program.value(expression).has_graph else []


def detach_edits(program: Program, store: StoreFact, target: str) -> tuple[list[Edit], bool]:
    """Return the edits that store the value without its graph, and True if they are safe.

    The fix adds `.detach()` and not `.item()`: a sum of Python numbers is rounded differently from a sum of tensors. A
    copy is never a safe fix, because later in-place changes to the original do not change the copy.
    """
    parts = parts_with_graph(program, store.expression, but=target if store.uses_old_value else "")
    if not parts or any(program.value(part).kind is not ValueKind.GRAPH for part in parts):
        return [], False
    if any(_is_one_of_several(part, store) for part in parts):
        return [], False
    calls = [detaching_call(program, part, store) for part in parts]
    edits = [edit for part, call in zip(parts, calls, strict=True) for edit in append_to(program, part, call)]
    return edits, COPY not in calls and can_be_detached(program, parts, store)


def detaching_call(
    program: Program, part: cst.BaseExpression, store: StoreFact, function: Function | None = None
) -> str:
    """Return `.detach()`, or `.detach().clone()` for a view, because a detached view keeps the whole storage alive."""
    if _keeps_storage(program, part, store) and may_be_view(program, part, function or store.function):
        return COPY
    return DETACH


def _keeps_storage(program: Program, part: cst.BaseExpression, store: StoreFact) -> bool:
    """Return True if the expression itself is collected, and not a result computed from it."""
    if store.how == "item" and store.previous.is_tensor:
        return False
    collected = store.how in {"append", "item"}
    if part is store.expression or not program.inside(part, store.expression):
        return collected
    for outer in program.ancestors(part):
        if isinstance(outer, (cst.Tuple, cst.List, cst.Dict, cst.ListComp)):
            collected = True
        elif (isinstance(outer, cst.Call) and dotted(outer.func) != "dict") or (
            isinstance(outer, cst.BinaryOperation) and not collected
        ):
            return False
        if outer is store.expression:
            break
    return collected


def may_be_view(
    program: Program, node: cst.BaseExpression, function: Function, seen: frozenset[str] = frozenset()
) -> bool:
    if isinstance(node, cst.Subscript):
        return literal_key(node) is None and program.value(node.value).kind is not ValueKind.CONTAINER
    if isinstance(node, cst.IfExp):
        return any(may_be_view(program, each, function, seen) for each in (node.body, node.orelse))
    if isinstance(node, cst.Attribute) and node.attr.value in _SAME_STORAGE:
        return may_be_view(program, node.value, function, seen)
    if isinstance(node, cst.Call):
        return _returns_view(program, node, function, seen)
    path = dotted(node)
    key = f"{function.qualified_name}:{path}"
    if path is None or key in seen or len(seen) > _MAX_DEPTH:
        return False
    if any(
        path in loop.bound and loop.iterable.is_tensor for loop in program.loops if loop.function is function
    ):
        return True  # for row in output:
    return any(
        each.target == path
        and each.function is function
        and each.how == "assign"
        and may_be_view(program, each.expression, function, seen | {key})
        for each in program.stores
    )


def _returns_view(program: Program, call: cst.Call, function: Function, seen: frozenset[str]) -> bool:
    name = method_name(call) or ""
    qualified = program.imports.qualified(call.func) or ""
    if qualified.startswith("torch.") and qualified.count(".") == 1:
        owner = call.args[0].value if call.args else None
    else:
        owner = receiver(call)
    if owner is not None and name in _PARTS:
        return True
    if owner is not None and name in _SAME_STORAGE:
        return may_be_view(program, owner, function, seen)
    fact = program.call_of(call)
    called = fact.local if fact is not None else None
    if called is None or f"{called.qualified_name}()" in seen or len(seen) > _MAX_DEPTH:
        return False
    return any(
        may_be_view(program, each, called, seen | {f"{called.qualified_name}()"})
        for each in called.returned_nodes
    )


def _is_one_of_several(part: cst.BaseExpression, store: StoreFact) -> bool:
    """Return True for the variable of a loop over a literal list, whose items may not all be tensors."""
    return any(
        isinstance(loop.node, cst.For)
        and isinstance(loop.node.iter, (cst.Tuple, cst.List))
        and bool(names_in(part) & loop.bound)
        for loop in store.loops
    )
