"""Facts about an operation that the recorder needs before and after the operation runs. These facts are determined once
per operation."""

from typing import Any

from torch._ops import OpOverload

from legroom.observe.dispatch import device_mismatch
from legroom.observe.dispatch.operations import overloads


class OperationFacts:
    """Facts about one operation."""

    __slots__ = (
        "call",
        "checks_in_place",
        "device_position",
        "func",
        "is_detach",
        "last_result_on_host",
        "only_aliases",
        "resizes",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        """Stored so that its `id` is not reused."""
        self.call = func._op if type(func) is OpOverload and hasattr(func, "_op") else func
        """Runs the operation. `_op` is private to torch; it saves a call of a Python function."""
        self.only_aliases = _only_aliases(func)
        """Whether every result shares the memory of an input, as for views and in-place operations."""
        self.is_detach = id(func) in _DETACH
        self.resizes = id(func) in _RESIZING
        self.checks_in_place = id(func) in device_mismatch.IN_PLACE
        """Whether the operation allocates nothing but rejects inputs on several devices."""
        self.last_result_on_host = id(func) in device_mismatch.LAST_RESULT_ON_HOST
        self.device_position = _device_position(func)
        """The position of the argument `device` of an operator that a library registered, or None. torch's own
        operators take it by name."""


FACTS: dict[int, OperationFacts] = {}
"""By `id` of the operation, because hashing one calls into Python."""


def facts_of(func: Any) -> OperationFacts:
    known = FACTS.get(id(func))
    if known is None:
        known = FACTS[id(func)] = OperationFacts(func)
    return known


def _only_aliases(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    returns = getattr(schema, "returns", None)
    return returns is not None and all(each.alias_info is not None for each in returns)


def _device_position(func: Any) -> int | None:
    if type(func) is not OpOverload or func.namespace == "aten":
        return None
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "device" and not argument.kwarg_only:
            return position
    return None


_DETACH = overloads("detach")
_RESIZING = overloads("resize_", "resize_as_", "set_")
