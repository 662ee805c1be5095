"""A chain of objects, from a name to a tensor, as a person would write it: `trainer.history`, a list of 412 items.

On the way stand several containers, and mostly one of them grows. Where it is known at which turn tensors were made, that is the
innermost one that has tensors of the most turns; else the largest.
"""

import gc
from collections import deque
from collections.abc import Iterator, Mapping
from functools import _lru_cache_wrapper
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    TracebackType,
)
from typing import Any, NamedTuple

import torch
from torch import nn

from legroom.observe.dispatch.attribution import is_user_file
from legroom.observe.holders.python_names import CONTAINERS, Root, attributes_of, file_of, key_of
from legroom.observe.source.files import line_of_function
from legroom.observe.source.storing_lines import limits_itself

GENERATORS = (GeneratorType, CoroutineType, AsyncGeneratorType)
_OF_MODULES = ("_modules", "_parameters", "_buffers")
_LARGE = 1025
"""A cache of more entries than that does not limit anything."""
_TURNS_IN_ATTRIBUTES = 3
"""An object's attributes are a container if they hold tensors of so many turns."""


class StoredName(NamedTuple):
    """A variable or attribute on the way to an object."""

    name: str
    """As a person would write it, from the root on: `node.parent`."""
    stored_as: str
    is_attribute: bool
    file: str | None
    function: str
    owner: type | None = None
    """The class of the object whose attribute it is."""

    @property
    def classes(self) -> frozenset[str]:
        """The names of that class and of all it derives from."""
        return (
            frozenset(each.__name__ for each in self.owner.__mro__) if self.owner is not None else frozenset()
        )


class HolderPath(NamedTuple):
    """How a name in the program leads to an object."""

    name: str
    """As a person would write it: `losses`, `trainer.history`, `Probe.seen`; "" where no name leads there."""
    stored_as: str
    """The last name on the way: the variable or attribute into which things are put."""
    is_attribute: bool
    """Whether `stored_as` is an attribute."""
    how: str
    """`container`, `variable`, `cache`, `exception`, `closure`, `generator`, `cycle` or `unknown`."""
    described: str
    """What the object of that name is: `list, 412 items`."""
    length: int
    """How many items; 0 for what is no container."""
    bounded: bool
    """Whether the container limits itself (`deque(maxlen=...)`, `lru_cache(maxsize=...)`)."""
    file: str | None
    """Where the name lives."""
    function: str
    """The function whose local it is; "" for globals and attributes."""
    line: int
    """Where that function is now, or where what keeps it is defined; 0 where unknown."""
    names: tuple[StoredName, ...]
    """Every name on the way, the nearest to the object first."""
    contents: frozenset[int]
    """`id` of everything in the container, one level down and within tuples: to see what else it explains."""
    container: int = 0
    """`id` of the container itself; 0 where there is none."""
    is_mapping: bool = False
    """Whether the container finds things by keys that come again: then it may only be filling."""
    turns: int = 0
    """Of how many turns it is known to have tensors."""
    keys: tuple[str, ...] = ()
    """The plain keys on the way."""
    aliases: tuple[StoredName, ...] = ()
    """Other names that the same object has in running functions: what one gave another as an argument."""
    classes: frozenset[str] = frozenset()
    """Whose attribute it is: the class and all it derives from."""
    within_bounded: bool = False
    """Whether, within the container, the object lies in another one that limits itself."""
    of_models: bool = False
    """Whether the container's items are models, or have one."""
    by_iterator: bool = False
    """Whether an iterator of Python's own (`itertools.cycle`) fills it: then the line that makes that iterator is the one to name."""


NO_ONE = HolderPath("", "", False, "unknown", "", 0, False, None, "", 0, (), frozenset())
"""No path was found."""


class _Step(NamedTuple):
    """How one object leads to the next."""

    text: str
    attribute: str = ""
    key: str = ""
    owner: type | None = None


class _Grown(NamedTuple):
    """A container on the way, and the name by which it is known."""

    container: Any
    named: StoredName
    turns: int
    length: int


def in_words(root: Root, chain: list[Any], made: Mapping[int, int]) -> HolderPath:
    """`chain`: from what the root names to the target. `made`: `id` of a tensor → the turn in which it was made."""
    line, how = root.line, root.how
    named = StoredName(
        root.name, root.name.rpartition(".")[2], root.is_attribute, root.file, root.function, root.owner
    )
    names, keys = [named], list[str]()
    candidates: list[_Grown] = []
    cache: Any = None
    for position, item in enumerate(chain):
        if isinstance(item, BaseException | TracebackType | FrameType) and how in ("variable", "closure"):
            how = "exception"
        if isinstance(item, _lru_cache_wrapper):
            code = getattr(item.__wrapped__, "__code__", None)
            if isinstance(code, CodeType):
                how, line = "cache", line_of_function(code.co_filename, code.co_name, code.co_firstlineno)
                named = StoredName(code.co_name, code.co_name, False, code.co_filename, code.co_name)
                cache = item
                candidates.clear()
                break
        if isinstance(item, GENERATORS) and how == "variable":
            how = "generator"
        if how == "exception" and isinstance(item, FrameType):
            break
        owner = chain[position - 1] if position else None
        if position > 1 and _is_namespace_of(owner, chain[position - 2]):
            owner = chain[position - 2]
        candidate = _candidate(item, owner, named, made)
        if candidate is not None:
            candidates.append(candidate)
        following = chain[position + 1] if position + 1 < len(chain) else None
        if following is None:
            break
        step = _step(item, following, owner)
        if step is None:
            continue
        if step.key:
            keys.append(step.key)
        named = named._replace(name=named.name + step.text)
        if step.attribute:
            line = 0 if step.owner is not None else line
            named = StoredName(named.name, step.attribute, True, file_of(step.owner) if step.owner else named.file, "", step.owner)  # fmt: skip
        names.append(named)
    grown = _most_likely(candidates)
    best = grown.named if grown is not None else named
    container = grown.container if grown is not None else None
    if container is not None and how == "variable":
        how = "container"
    described, length, bounded = _described(grown) if grown is not None else (_kind(chain), 0, False)
    if cache is not None:
        length, bounded = cache.cache_info().currsize, (cache.cache_info().maxsize or _LARGE) < _LARGE
    return HolderPath(
        best.name, best.stored_as, best.is_attribute, how, described, length,
        bounded, best.file, best.function, line,
        tuple(reversed(names)), frozenset(_contents(container)) if container is not None else frozenset(),
        id(container) if container is not None else 0, isinstance(container, dict | set | frozenset) or (cache is not None and _has_keys_by_value(cache)),
        grown.turns if grown is not None else 0, tuple(keys), (), best.classes, _limits_within(grown, candidates), _has_models(container),
        any(type(each).__module__ == "itertools" for each in chain),
    )  # fmt: skip


def _candidate(item: Any, owner: Any, named: StoredName, made: Mapping[int, int]) -> _Grown | None:
    if not isinstance(item, CONTAINERS):
        attributes = attributes_of(item) if made and not isinstance(item, nn.Module) else None
        if attributes is None or len(attributes) < _TURNS_IN_ATTRIBUTES:
            return None
        turns = {made[id(each)] for each in attributes.values() if id(each) in made}
        return (
            _Grown(attributes, named, len(turns), len(attributes))
            if len(turns) >= _TURNS_IN_ATTRIBUTES
            else None
        )
    if _is_namespace_of(item, owner):
        return None
    turns = {made[each] for each in _contents(item) if each in made} if made else set()
    length = len(item)
    if _is_of_module(item, owner) and len(turns) < 2 and not isinstance(owner, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):  # fmt: skip
        return None  # the layers of a model
    return _Grown(item, named, len(turns), length)


def _most_likely(candidates: list[_Grown]) -> _Grown | None:
    """Outermost first they come. The innermost that has tensors of many turns, has room for them (a dict of two lists has those of as
    many turns as the lists) and can be filled (a tuple may have a state and the one before). Where turns say nothing, the longest."""
    if not candidates:
        return None
    most = max(each.turns for each in candidates)
    if most < 2:
        return max(candidates, key=lambda each: each.length)
    many = [each for each in candidates if each.turns >= max(2, 0.75 * most)]
    roomy = [each for each in many if each.length >= 0.8 * each.turns]
    fillable = [each for each in roomy if not isinstance(each.container, tuple | frozenset)]
    return (fillable or roomy or many)[-1]


def _limits_within(grown: _Grown | None, candidates: list[_Grown]) -> bool:
    """Whether one of the containers within the one that grows limits itself."""
    if grown is None:
        return False
    position = next(number for number, each in enumerate(candidates) if each is grown)
    return any(
        isinstance(each.container, deque) and each.container.maxlen is not None
        for each in candidates[position + 1 :]
    )


def _has_models(container: Any) -> bool:
    values = container.values() if isinstance(container, dict) else container or ()
    for value in list(values)[:4]:
        parts = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, tuple | list)
            else (value,)
        )
        if any(isinstance(part, nn.Module) for part in parts):
            return True
    return False


def _has_keys_by_value(cache: Any) -> bool:
    """Whether calls can find what an earlier call left: a tensor among the arguments is another one each time."""
    entries = next((each for each in gc.get_referents(cache) if isinstance(each, dict)), {})
    return not any(
        isinstance(part, torch.Tensor)
        for key in list(entries)[:4]
        for part in (key if isinstance(key, list | tuple) else (key,))
    )


def _kind(chain: list[Any]) -> str:
    last = chain[-1] if chain else None
    return "tensor" if isinstance(last, torch.Tensor) else type(last).__name__


def _described(grown: _Grown) -> tuple[str, int, bool]:
    container, length = grown.container, grown.length
    bounded = isinstance(container, deque) and container.maxlen is not None
    file = file_of(type(container))
    bounded = bounded or (
        file is not None and is_user_file(file) and limits_itself(file, type(container).__name__)
    )
    items = f"{length:,} item{'s' if length != 1 else ''}"
    return f"{type(container).__name__}, {items}", length, bounded


def _contents(container: Any, depth: int = 2) -> Iterator[int]:
    values = container.values() if isinstance(container, dict) else container
    for value in list(values):
        yield id(value)
        if depth and isinstance(value, tuple | list | dict) and len(value) < 1000:
            yield from _contents(value, depth - 1)
        elif depth and not isinstance(value, torch.Tensor):
            attributes = attributes_of(value)
            if attributes is not None and len(attributes) < 100:
                yield from (id(each) for each in attributes.values())


# --- single steps ----------------------------------------------------------------------------------------------------


def _step(item: Any, following: Any, owner: Any) -> _Step | None:
    """How `item`, which `owner` led to, leads to `following`; None where that adds nothing to the name."""
    if _is_namespace_of(item, owner):
        return _attribute(owner, following)
    if isinstance(item, dict):
        key = key_of(item, following)
        if key is None:
            return None
        if _is_of_module(item, owner):  # model.layer, not model._modules["layer"]
            return _Step(f".{key}", key, owner=type(owner))
        return _Step(f'["{key[:40]}"]', key=key)
    if isinstance(
        item,
        (*CONTAINERS, MethodType, CellType, FunctionType, TracebackType, FrameType, BaseException, type),
    ):
        return None
    if isinstance(following, dict) and _is_of_module(following, item):
        return None
    return _attribute(item, following)


def _attribute(owner: Any, following: Any) -> _Step | None:
    if isinstance(following, dict) and _is_of_module(following, owner):
        return None
    attributes = attributes_of(owner)
    key = key_of(attributes, following) if attributes is not None else None
    return _Step(f".{key}", key, owner=type(owner)) if key is not None else None


def _is_of_module(item: Any, owner: Any) -> bool:
    """Whether a dict is where a module keeps its parameters, buffers or submodules."""
    return isinstance(owner, nn.Module) and any(item is owner.__dict__.get(name) for name in _OF_MODULES)


def _is_namespace_of(item: Any, owner: Any) -> bool:
    """Whether a dict is an instance's attributes rather than a container of the user's."""
    return isinstance(item, dict) and owner is not None and attributes_of(owner) is item
