"""Recognizes expressions that use a given name: the name itself, or an item, the length or a slice of its value."""

import ast

from legroom.observe.source.files import COMPREHENSIONS
from legroom.observe.source.syntax import (
    called_name,
    is_same,
    is_selective,
    is_self,
    is_sliced,
    is_zero_or_one,
    receiver_of,
)

_SELECTING_FUNCTIONS = {"nlargest", "nsmallest", "topk", "narrow", "islice", "sample"}
_SIZES = {"qsize", "shape", "size", "numel", "nbytes"}


class SourceName:
    def __init__(self, name: str, is_attribute: bool) -> None:
        self.in_unrelated_class = False
        """Whether the current code is in a class that does not have the attribute. In such a class, `self` is a
        different object."""
        self._name = name
        self._is_attribute = is_attribute

    def is_it(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Starred) or (isinstance(node, ast.Attribute) and node.attr == "data"):
            return self.is_it(node.value) or (
                self._is_attribute and self._name == "data" and self._is_own(node)
            )
        return self._is_own(node)

    def _is_own(self, node: ast.AST) -> bool:
        if not self._is_attribute:
            return isinstance(node, ast.Name) and node.id == self._name
        if not isinstance(node, ast.Attribute) or not is_same(node.attr, self._name):
            return False
        return not (self.in_unrelated_class and is_self(node.value))

    def is_item(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript) and (self.is_it(node.value) or self.is_item(node.value))

    def is_default_item(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("setdefault", "get")
            and (self.is_it(node.func.value) or self.is_item(node.func.value))
        )

    def is_truncated(self, value: ast.expr) -> bool:
        """Return whether the new value of the name has a limited size. The size is limited if the new value is a slice
        of the old value. The size is also limited if only the largest or most recent items are kept.
        """
        if isinstance(value, ast.Subscript) and _slices_other_dimension(value):
            return False
        if isinstance(value, ast.Subscript) and (is_sliced(value) or self.is_it(value.value)):
            return True
        receiver = receiver_of(value)  # `torch.cat([queue, new])[-512:].clone()`
        if isinstance(receiver, ast.Subscript) and is_sliced(receiver) and self.is_within(receiver):
            return True
        for inner in ast.walk(value):
            if isinstance(inner, ast.Subscript) and self.is_it(inner.value) and is_sliced(inner):
                return True
            if called_name(inner) in _SELECTING_FUNCTIONS and self.is_within(inner):
                return True
            if isinstance(inner, COMPREHENSIONS) and any(
                self.is_within(each.iter) and any(is_selective(test, each.target) for test in each.ifs)
                for each in inner.generators
            ):
                return True
        return False

    def is_within(self, node: ast.AST) -> bool:
        return any(map(self.is_it, ast.walk(node)))

    def is_it_or_item(self, node: ast.AST) -> bool:
        return self.is_it(node) or self.is_item(node)

    def is_view(self, node: ast.Call) -> bool:
        return (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in ("values", "items")
            and self.is_it(node.func.value)
        )

    def is_length(self, side: ast.expr) -> bool:
        """Return whether an expression depends on the length of the container, as in `len(name)`, `name.qsize()`,
        `name.shape[0]`, `name.size(0)`, and `len(self)` in the class that has the attribute. `len(name) % 100` does not
        limit the length, so the result is False.
        """
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod):
            return False
        if called_name(side) == "sum" and self.is_within(side):
            return any(isinstance(node, ast.Name) and node.id == "len" for node in ast.walk(side))
        for node in ast.walk(side):
            if isinstance(node, ast.Attribute) and node.attr in _SIZES and self.is_it(node.value):
                return True
            if called_name(node) == "len" and isinstance(node, ast.Call) and node.args:
                argument = node.args[0]
                of_self = self._is_attribute and not self.in_unrelated_class and is_self(argument)
                if self.is_it(argument) or self.is_item(argument) or of_self:
                    return True
        return False

    def when_long(self, comparison: ast.Compare, tested: ast.If | ast.While) -> list[ast.stmt]:
        """Return the statements that run if the container is long: the body of `if len(name) > limit:`, or the `else`
        branch of `if len(name) < limit:`. If the direction of the comparison is not clear, the body is returned.
        """
        parts = tested.test.values if isinstance(tested.test, ast.BoolOp) else [tested.test]
        operator = comparison.ops[0]
        if comparison not in parts or not isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            return tested.body
        is_greater = isinstance(operator, ast.Gt | ast.GtE)
        return tested.body if self.is_length(comparison.left) == is_greater else tested.orelse

    def exact_limit(self, test: ast.expr) -> str:
        """Return the limit in a condition `len(name) == limit` as a name or a number, or "" for another condition."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
            return ""
        for length, limit in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            if self.is_length(length) and not is_zero_or_one(limit):
                if isinstance(limit, ast.Constant) and type(limit.value) is int:
                    return str(limit.value)
                return limit.id if isinstance(limit, ast.Name) else getattr(limit, "attr", "")
        return ""

    def tests_for_it(self, test: ast.expr) -> bool:
        """Return whether a condition checks that the name has no value yet, as in `bank is None`, `not hasattr(self,
        "bank")`, `"bank" not in store`, `not bank` and `bank.numel() == 0`.
        """
        for node in ast.walk(test):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                if any(map(self.is_it_or_item, sides)) and any(isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in node.ops):  # fmt: skip
                    return True
                if any(map(self.is_length, sides)) and any(map(is_zero_or_one, sides)):
                    return True
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and self.is_it(node.operand):
                return True
            elif isinstance(node, ast.Call) and called_name(node) in ("hasattr", "getattr"):
                attribute = node.args[1] if len(node.args) > 1 else None
                if isinstance(attribute, ast.Constant) and attribute.value == self._name:
                    return True
        return self.is_it(test)


def _slices_other_dimension(value: ast.Subscript) -> bool:
    """Return whether tensors are concatenated along one dimension and the result is sliced along another, as in
    `torch.cat([queue, keys], 0)[:, :64]`.
    """
    call = value.value
    if not isinstance(call, ast.Call) or called_name(call) not in ("cat", "concat", "concatenate"):
        return False
    given = [each.value for each in call.keywords if each.arg in ("dim", "axis")] or call.args[1:2]
    dimension = given[0].value if given and isinstance(given[0], ast.Constant) else 0 if not given else None
    parts = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
    if not isinstance(dimension, int) or any(
        isinstance(part, ast.Constant) and part.value is Ellipsis for part in parts
    ):
        return False
    slices = [part for part in parts if isinstance(part, ast.Slice)]
    if len(slices) < len(parts) or dimension < 0:
        return False
    return dimension >= len(slices) or (slices[dimension].lower is None and slices[dimension].upper is None)
