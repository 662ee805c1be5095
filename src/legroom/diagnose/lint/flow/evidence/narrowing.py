"""Narrows the possible values of a name by tests such as `if torch.is_tensor(x)`.

After `if torch.is_tensor(x)`, `x` is a tensor in the `if` branch and not in the `else` branch.
"""

import libcst as cst

from legroom.diagnose.lint.flow.syntax import dotted, last_name, names_in, string_value
from legroom.diagnose.lint.flow.values import PLAIN, Value, ValueKind

_TENSOR_ATTRIBUTES = {"item", "detach", "requires_grad", "grad_fn", "backward", "cpu", "numpy"}
"""Attributes that programs check with `hasattr` to test for a tensor."""


def without_tensors(test: cst.BaseExpression, names: dict[str, Value], *, holds: bool) -> dict[str, Value]:
    """Return the names that cannot be tensors if the result of `test` is `holds`, each with its value in that branch."""
    found: dict[str, Value] = {}
    for path in _tested(test, holds=not holds):
        known = names.get(path)
        if known is None or known.kind in (ValueKind.GRAPH, ValueKind.TENSOR, ValueKind.UNKNOWN):
            found[path] = PLAIN
    return found


def _tested(test: cst.BaseExpression, *, holds: bool) -> set[str]:
    """Return the paths that must be tensors if the result of `test` is `holds`."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _tested(test.expression, holds=not holds)
    if not holds or not isinstance(test, cst.Call) or not test.args:
        return set()
    tested = dotted(test.args[0].value)
    called = last_name(dotted(test.func) or "")
    if tested is None:
        return set()
    if called == "is_tensor":
        return {tested}
    if called == "hasattr" and len(test.args) > 1 and string_value(test.args[1].value) in _TENSOR_ATTRIBUTES:
        return {tested}
    if called == "isinstance" and len(test.args) > 1:
        classes = {last_name(path) for path in names_in(test.args[1].value)}
        return {tested} if "Tensor" in classes else set()
    return set()
