"""What a test says of the names in it: after `if torch.is_tensor(x)`, `x` is a tensor in one branch and none in the other."""

import libcst as cst

from legroom.diagnose.lint.flow.syntax import dotted, last_name, names_in, string_value
from legroom.diagnose.lint.flow.values import PLAIN, Value, ValueKind

_OF_TENSORS = {"item", "detach", "requires_grad", "grad_fn", "backward", "cpu", "numpy"}
"""Attributes by which people ask whether something is a tensor."""


def without_tensors(test: cst.BaseExpression, names: dict[str, Value], *, holds: bool) -> dict[str, Value]:
    """The names that cannot be tensors where a test came out so (`holds`: true), each with what it is then."""
    found: dict[str, Value] = {}
    for path in _tested(test, holds=not holds):
        known = names.get(path)
        if known is None or known.kind in (ValueKind.GRAPH, ValueKind.TENSOR, ValueKind.UNKNOWN):
            found[path] = PLAIN
    return found


def _tested(test: cst.BaseExpression, *, holds: bool) -> set[str]:
    """The paths that are asked to be tensors, where a test that comes out as `holds` is what says so."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _tested(test.expression, holds=not holds)
    if not holds or not isinstance(test, cst.Call) or not test.args:
        return set()
    asked = dotted(test.args[0].value)
    called = last_name(dotted(test.func) or "")
    if asked is None:
        return set()
    if called == "is_tensor":
        return {asked}
    if called == "hasattr" and len(test.args) > 1 and string_value(test.args[1].value) in _OF_TENSORS:
        return {asked}
    if called == "isinstance" and len(test.args) > 1:
        classes = {last_name(path) for path in names_in(test.args[1].value)}
        return {asked} if "Tensor" in classes else set()
    return set()
