"""Narrows the possible values of a name by tests such as `if torch.is_tensor(x)`.

After `if torch.is_tensor(x)`, `x` is a tensor in the `if` branch and not in the `else` branch.
"""

import libcst as cst

from legroom.diagnose.lint.flow.syntax import dotted, last_name, names_in, string_value
from legroom.diagnose.lint.flow.values import PLAIN, UNKNOWN, Value, ValueKind

_TENSOR_ATTRIBUTES = {"item", "detach", "requires_grad", "grad_fn", "backward", "cpu", "numpy"}
"""Attributes that programs check with `hasattr` to test for a tensor."""
_TENSORS = (ValueKind.GRAPH, ValueKind.TENSOR, ValueKind.UNKNOWN)
_PARAMETERS = (ValueKind.PARAMETER,)
_MODELS = (ValueKind.MODEL,)


def narrowed_names(test: cst.BaseExpression, names: dict[str, Value], *, holds: bool) -> dict[str, Value]:
    """Return the names that cannot be tensors or models if the result of `test` is `holds`, each with its value in
    that branch.
    """
    path, kinds = _tested(test, holds=not holds)
    if path is not None and names.get(path, UNKNOWN).kind in kinds:
        return {path: PLAIN}
    path, kinds = _tested(test, holds=holds)
    if path is None or kinds not in (_TENSORS, _PARAMETERS) or "hasattr" in names_in(test):
        return {}  # models have some attributes of tensors, such as `cpu`
    return {path: UNKNOWN} if names.get(path, UNKNOWN).kind is ValueKind.MODEL else {}


def leaves(body: cst.BaseSuite) -> bool:
    """Return True if a block ends with `return`, `raise`, `continue` or `break`."""
    last = body.body[-1] if body.body else None
    last = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(last, (cst.Return, cst.Raise, cst.Continue, cst.Break))


def _tested(test: cst.BaseExpression, *, holds: bool) -> tuple[str | None, tuple[ValueKind, ...]]:
    """Return the path that must be a tensor, a parameter or a model if the result of `test` is `holds`, and its
    possible kinds.
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _tested(test.expression, holds=not holds)
    if not holds or not isinstance(test, cst.Call) or not test.args:
        return None, ()
    tested = dotted(test.args[0].value)
    called = last_name(dotted(test.func) or "")
    if called == "is_tensor":
        return tested, _TENSORS
    if called == "hasattr" and len(test.args) > 1 and string_value(test.args[1].value) in _TENSOR_ATTRIBUTES:
        return tested, _TENSORS
    if called == "isinstance" and len(test.args) > 1:
        classes = {last_name(path) for path in names_in(test.args[1].value)}
        if not classes.isdisjoint({"Module", "PreTrainedModel"}):
            return tested, _MODELS
        return tested, _TENSORS if "Tensor" in classes else _PARAMETERS if "Parameter" in classes else ()
    return None, ()
