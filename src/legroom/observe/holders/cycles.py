"""Finds the attribute, variable or function that closes a reference cycle."""

import gc
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from legroom.observe.holders.python_names import attributes_of, file_of, locals_of
from legroom.observe.source.storing_lines import find_usage

MAX_CYCLE_LENGTH = 9
"""The maximum number of references that the search for a cycle follows. The limit is higher than two, because a cycle
of two objects may include their dicts, a list, a closure and its cell.
"""
MAX_CYCLE_OBJECTS = 10_000
_NOT_IN_CYCLES = (ModuleType, CodeType, type, str, int, float, torch.Tensor)


def closing_name(owner: Any) -> str | None:
    """Return the name of the attribute, local variable or inner function through which an object references itself.
    Return None if the object is not in a cycle.
    """
    if isinstance(owner, FrameType):
        return next((name for name, value in locals_of(owner) if _references(value, owner)), None)
    if isinstance(owner, FunctionType):
        return owner.__name__ if _references(owner.__closure__, owner) else None
    attributes = attributes_of(owner) or {}
    return next((name for name, value in attributes.items() if _references(value, owner)), None)


def completing_attribute(owner: Any, name: str) -> tuple[type, str]:
    """Return the attribute whose assignment completes a reference cycle, and the class that has the attribute. The
    cycle starts with the attribute `name` of `owner`. The attribute that is assigned last completes the cycle. A
    constructor assigns the object that it receives (`self.parent = parent`) before its caller assigns the new object
    (`self.child = Child(self)`).
    """
    attributes = [(type(owner), name)]
    chain = [owner, *_chain_to((attributes_of(owner) or {}).get(name), owner)]
    for position, item in enumerate(chain[1:-1], start=1):
        following = chain[position + 1 : position + 3]  # the namespace of an object may be between them
        held = attributes_of(item) or {}
        attributes += [
            (type(item), key) for key, value in held.items() if any(value is one for one in following)
        ]
    for kind, attribute in attributes:
        classes = frozenset(each.__name__ for each in kind.__mro__)
        usage = find_usage(attribute, is_attribute=True, file=file_of(kind), classes=classes)
        if any(each.constructs for each in usage.statements):
            return kind, attribute
    return attributes[0]


def _references(value: Any, owner: Any) -> bool:
    return bool(_chain_to(value, owner))


def _chain_to(value: Any, owner: Any) -> list[Any]:
    seen: set[int] = set()
    levels = [[value]]
    for _ in range(MAX_CYCLE_LENGTH):
        if any(each is owner for each in levels[-1]):
            chain = [owner]
            for level in reversed(levels[:-1]):
                chain.append(
                    next(each for each in level if any(one is chain[-1] for one in gc.get_referents(each)))
                )
            return chain[::-1]
        seen.update(map(id, levels[-1]))
        if len(seen) > MAX_CYCLE_OBJECTS:
            return []
        levels.append([
            each
            for each in gc.get_referents(*levels[-1])
            if id(each) not in seen and not isinstance(each, _NOT_IN_CYCLES) and not _is_module_namespace(each)
        ])  # fmt: skip
    return []


def _is_module_namespace(item: Any) -> bool:
    """Return whether an object is the dict of a module's variables. Each function refers to it, and its objects are not
    part of a cycle, because the module keeps them alive.
    """
    return isinstance(item, dict) and "__builtins__" in item
