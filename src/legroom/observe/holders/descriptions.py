"""Describes a chain of references from a name to a tensor as in source code (`trainer.history`, a list of 412 items).

The chain may contain several containers, but usually only one container grows. If the iteration that created each
tensor is known, the growing container is the innermost container with tensors from the most iterations. If the
iterations are unknown, the growing container is the longest container.
"""

import gc
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import _lru_cache_wrapper, partial
from itertools import pairwise
from threading import Thread
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

from legroom.observe.holders.python_names import CONTAINERS, attributes_of, file_of, key_of
from legroom.observe.holders.variables import Root
from legroom.observe.source.files import line_of_cache
from legroom.observe.source.passing_calls import Callback
from legroom.observe.source.storing_lines import class_limits_itself
from legroom.observe.source.user_files import is_user_file

GENERATORS = (GeneratorType, CoroutineType, AsyncGeneratorType)
_MODULE_DICTS = ("_modules", "_parameters", "_buffers")
_UNBOUNDED_SIZE = 1025
"""A cache with at least this `maxsize` is treated as unbounded."""
_DEFAULT_SIZE = 128
"""The default `maxsize` of `lru_cache`. The program did not choose this limit, and it is too large for models."""
_SPARSE = 1.3
"""An integer attribute next to a dict counts as the number of possible keys if it is at least this many times the
length of the dict. A smaller integer may be a counter of the items.
"""
_MAX_SLOTS = 10_000_000
"""Integer keys above this value are treated as addresses or hash values, not as indices."""
_MIN_ITERATIONS_IN_ATTRIBUTES = 3
"""The attributes of an object count as a container if they contain tensors from this many iterations."""


class StoredName(NamedTuple):
    name: str
    """The path from the root, as in source code (`node.parent`)."""
    stored_as: str
    is_attribute: bool
    file: str | None
    function: str
    owner: type | None = None

    @property
    def classes(self) -> frozenset[str]:
        return (
            frozenset(each.__name__ for each in self.owner.__mro__) if self.owner is not None else frozenset()
        )


class HolderPath(NamedTuple):
    name: str
    """The path as in source code (`losses`, `trainer.history`, `Probe.seen`), or "" if no name references the
    object.
    """
    stored_as: str
    """The last name on the path: the variable or attribute in which items are stored."""
    is_attribute: bool
    how: str
    """The kind of holder: `container`, `variable`, `cache`, `exception`, `closure`, `generator`, `cycle` or
    `unknown`.
    """
    described: str
    length: int
    bounded: bool
    """True if the container limits its own length (`deque(maxlen=...)`, `lru_cache(maxsize=...)`)."""
    file: str | None
    function: str
    line: int
    """For a local variable, the line that its function is running. For any other holder, the line that defines the
    holder. The value is 0 if the line is unknown.
    """
    names: tuple[StoredName, ...]
    """Every name on the path. The name closest to the object comes first."""
    contents: frozenset[int]
    """The `id`s of the container's items, including nested items, which identify other tensors in the same container.
    """
    container: int = 0
    is_mapping: bool = False
    """True if the container is a dict, a set or a cache in which the same entry may be stored again. Such a container
    can stop growing.
    """
    iterations: int = 0
    keys: tuple[str, ...] = ()
    """The keys on the path that are literals in the source code."""
    aliases: tuple[StoredName, ...] = ()
    """Other names for the first object on the path in the functions on the call stack, for example parameters."""
    classes: frozenset[str] = frozenset()
    """The names of the class that has the attribute and of its base classes."""
    inside_bounded: bool = False
    """True if a bounded container inside this container, such as `deque(maxlen=...)`, contains the object."""
    contains_models: bool = False
    filled_by_iterator: bool = False
    """True if an `itertools` iterator (`cycle`) fills the container. If so, the line that creates the iterator is
    reported.
    """
    has_small_limit: bool = False
    """True if the container limits its length to a small number of items (`deque(maxlen=100)`)."""
    fills_slots: bool = False
    """True if the container fills a fixed range of indices that is not full yet, like a dataset cache in the first
    epoch.
    """
    contains_tokens: bool = False
    """Whether all items are integer tensors with one element, such as the tokens of a generated text."""
    callback: Callback | None = None
    """The user's function that a library stores in a container, such as a hook. If a thread retains the object, this
    is the function that the thread runs. If a variable of a function retains the object, this is the function, if it is
    defined several times.
    """
    nested_functions: int = 0
    """The number of functions with the same code that refer to each other, as in `step = wrap(step)`."""
    is_full: bool = False
    """Whether the container limits its own length and has reached this limit."""
    owner_sizes: tuple[tuple[str, int], ...] = ()
    """The integer attributes of the object that has the container, such as `capacity`."""
    is_truncated: bool = False
    """True if the path was too long to reach a name, as in a list of linked nodes."""
    attributes: int = 0
    """The `id` of the dict that refers to the object: a dict of the program, or the attributes or buffers of an instance."""
    traced_attribute: str = ""
    """The attribute to trace, if `container` is the dict of the attributes of an object, otherwise ""."""

    @property
    def repeated_key(self) -> str:
        """The key through which nested dicts refer to each other (`info["previous"]["previous"]`), or ""."""
        return next((key for key in self.keys if self.keys.count(key) > 1), "")


NO_HOLDER = HolderPath("", "", False, "unknown", "", 0, False, None, "", 0, (), frozenset())


class _Step(NamedTuple):
    text: str
    attribute: str = ""
    key: str = ""
    owner: type | None = None


class _Candidate(NamedTuple):
    container: Any
    named: StoredName
    iterations: int
    length: int


def describe_path(root: Root, chain: list[Any], created_in: Mapping[int, int]) -> HolderPath:
    """Describe a path as a `HolderPath`. `chain` contains the objects on the path, from the value of the root name to
    the target. `created_in` maps the `id` of a tensor to the iteration that created it.
    """
    line, how = root.line, root.how
    named = StoredName(
        root.name, root.name.rpartition(".")[2], root.is_attribute, root.file, root.function, root.owner
    )
    names, keys = [named], list[str]()
    candidates: list[_Candidate] = []
    cache: Any = None
    is_value = True
    """Whether `named` refers to the current item itself, so that an index can follow the name."""
    for position, item in enumerate(chain):
        if isinstance(item, BaseException | TracebackType | FrameType) and how in ("variable", "closure"):
            how = "exception"
        if isinstance(item, _lru_cache_wrapper):
            code = getattr(item.__wrapped__, "__code__", None)
            if isinstance(code, CodeType):
                how, line = "cache", line_of_cache(code.co_filename, code.co_name, code.co_firstlineno)
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
        candidate = _candidate(item, owner, named, created_in)
        if candidate is not None:
            candidates.append(candidate)
        following = chain[position + 1] if position + 1 < len(chain) else None
        if following is None:
            break
        step = _step(item, following, owner)
        if step is None:
            index = _index_of(item, following) if is_value else ""
            named, is_value = named._replace(name=named.name + index), bool(index)
            continue
        is_value = True
        if step.key:
            keys.append(step.key)
        named = named._replace(name=named.name + step.text)
        if step.attribute:
            line = 0 if step.owner is not None else line
            named = StoredName(named.name, step.attribute, True, file_of(step.owner) if step.owner else named.file, "", step.owner)  # fmt: skip
        names.append(named)
    growing = _most_likely(candidates)
    best = growing.named if growing is not None else named
    container = growing.container if growing is not None else None
    if container is not None and how == "variable":
        how = "container"
    described, length, bounded = _describe(growing) if growing is not None else (_kind(chain), 0, False)
    if cache is not None:
        length, bounded = cache.cache_info().currsize, _is_bounded(cache, chain)
    # Threads that never end: each thread retains a few objects.
    thread = root.thread if length < root.threads else None
    if thread is None and root.file is not None and not is_user_file(root.file):
        thread = _thread_function(chain)  # only the list of all threads retains the object
        best = best._replace(name=thread.name, stored_as=thread.name) if thread is not None else best
    if thread is not None:
        how, bounded = "thread", False
    return HolderPath(
        best.name, best.stored_as, best.is_attribute, how, described, length,
        bounded, best.file, best.function, line,
        tuple(reversed(names)), frozenset(_contents(container)) if container is not None else frozenset(),
        id(container) if container is not None else 0, isinstance(container, dict | set | frozenset) or (cache is not None and _has_keys_by_value(cache)),
        growing.iterations if growing is not None else 0, tuple(keys), (), best.classes, _is_inside_bounded(growing, candidates), _has_models(container),
        any(type(each).__module__ == "itertools" for each in chain), _has_small_limit(container),
        _fills_slots(container, chain), _has_tokens(container), thread or registered_callback(chain),
        max(Counter(each.__code__ for each in chain if isinstance(each, FunctionType)).values(), default=0),
        isinstance(container, deque) and len(container) == container.maxlen, _sizes_of_owner(container, chain),
        attributes=_attributes_at_end(chain),
    )  # fmt: skip


def _candidate(item: Any, owner: Any, named: StoredName, created_in: Mapping[int, int]) -> _Candidate | None:
    if not isinstance(item, CONTAINERS):
        attributes = attributes_of(item) if created_in and not isinstance(item, nn.Module) else None
        if attributes is None or len(attributes) < _MIN_ITERATIONS_IN_ATTRIBUTES:
            return None
        iterations = {created_in[id(each)] for each in attributes.values() if id(each) in created_in}
        return (
            _Candidate(attributes, named, len(iterations), len(attributes))
            if len(iterations) >= _MIN_ITERATIONS_IN_ATTRIBUTES
            else None
        )
    if _is_namespace_of(item, owner) or any(isinstance(each, CellType) for each in list(item)[:1]):
        return None  # the attributes of an object, or the closure of a function
    iterations = {created_in[each] for each in _contents(item) if each in created_in} if created_in else set()
    length = len(item)
    if _is_module_dict(item, owner) and len(iterations) < 2 and not isinstance(owner, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):  # fmt: skip
        return None  # the layers of a model
    return _Candidate(item, named, len(iterations), length)


def _most_likely(candidates: list[_Candidate]) -> _Candidate | None:
    """Return the container that grows. `candidates` is ordered from the outermost to the innermost container.

    The growing container is the innermost container that can grow, has tensors from many iterations, and is long enough
    for these tensors. For example, a dict with two growing lists contains tensors from many iterations, but only the
    lists grow. A tuple cannot grow, but it may contain the previous state, which keeps all earlier states alive. If the
    iterations are unknown, the longest container is returned, except a dict of lists of which only one contains
    tensors.
    """
    if not candidates:
        return None
    most = max(each.iterations for each in candidates)
    if most < 2:
        grouping = {id(outer) for outer, inner in pairwise(candidates) if _only_groups(outer, inner)}
        return max((each for each in candidates if id(each) not in grouping), key=lambda each: each.length)
    many = [each for each in candidates if each.iterations >= max(2, 0.75 * most)]
    long_enough = [each for each in many if each.length >= 0.8 * each.iterations]
    if not long_enough:  # a dict of a few lists: each list has the tensors of some iterations
        fewer = [
            each for each in candidates if each.iterations >= max(_MIN_ITERATIONS_IN_ATTRIBUTES, most / 8)
        ]
        long_enough = [each for each in fewer if each.length >= 0.8 * each.iterations]
    if not long_enough:  # the same, but only the newest items of each list are known
        long_enough = [each for each in candidates if each.iterations and each.length >= most]
    mutable = [each for each in long_enough if not isinstance(each.container, tuple | frozenset)]
    return (mutable or long_enough or many)[-1]


def _only_groups(outer: _Candidate, inner: _Candidate) -> bool:
    """Return whether only one value of a container contains tensors, as in `logs = {"loss": [0.5], "codes": [z]}`."""
    values = list(outer.container.values() if isinstance(outer.container, dict) else outer.container)
    return (
        inner.length > 1
        and len(values) < 1000
        and any(each is inner.container for each in values)
        and not any(_contains_tensor(each) for each in values if each is not inner.container)
    )


def _contains_tensor(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return any(isinstance(each, torch.Tensor) for each in (value, *list(values)[:1000]))


def _is_inside_bounded(growing: _Candidate | None, candidates: list[_Candidate]) -> bool:
    if growing is None:
        return False
    position = next(number for number, each in enumerate(candidates) if each is growing)
    return any(
        isinstance(each.container, deque) and each.container.maxlen is not None
        for each in candidates[position + 1 :]
    )


def _has_models(container: Any) -> bool:
    for value in list(container.values() if isinstance(container, dict) else container or ())[:4]:
        parts = [value]
        if isinstance(value, dict):
            parts += value.values()
        elif isinstance(value, tuple | list):
            parts += value
        if any(isinstance(part, nn.Module) or _is_state_dict(part) for part in parts):
            return True
    return False


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(key, str) and isinstance(each, torch.Tensor) for key, each in value.items())
        and any("." in key for key in value)
    )


def _has_small_limit(container: Any) -> bool:
    return isinstance(container, deque) and (container.maxlen or _UNBOUNDED_SIZE) < _UNBOUNDED_SIZE


def _fills_slots(container: Any, chain: list[Any]) -> bool:
    """Return whether the keys of a dict are indices in a fixed range, and some of these indices are still missing. Keys
    count as indices if they are in random order with gaps, or if they are below a size that is stored in the same
    object as the dict.
    """
    if not isinstance(container, dict) or not container or not all(type(key) is int for key in container):
        return False
    highest, enough = max(container) + 1, _SPARSE * len(container)
    if len(container) < highest < _MAX_SLOTS and list(container) != sorted(container):
        return True
    for item in chain:
        attributes = attributes_of(item) or {}
        if any(value is container for value in attributes.values()):
            sizes = [value for value in attributes.values() if type(value) is int]
            sizes += [len(value) for value in attributes.values() if isinstance(value, list | tuple)]
            return any(enough <= size < _MAX_SLOTS and highest <= size for size in sizes)
    return False


def _sizes_of_owner(container: Any, chain: list[Any]) -> tuple[tuple[str, int], ...]:
    for item in chain if container is not None else ():
        attributes = attributes_of(item) or {}
        if any(value is container for value in attributes.values()):
            return tuple((name, value) for name, value in attributes.items() if type(value) is int)
    return ()


def _attributes_at_end(chain: list[Any]) -> int:
    owner = chain[-2] if len(chain) > 1 else None
    try:
        return id(owner if isinstance(owner, dict) else object.__getattribute__(owner, "__dict__"))
    except (AttributeError, TypeError):
        return 0


def _has_tokens(container: Any) -> bool:
    values = list(container.values() if isinstance(container, dict) else container or ())
    return bool(values) and all(
        isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_floating_point()
        for value in values
    )


def _is_bounded(cache: Any, chain: list[Any]) -> bool:
    """Return whether the `maxsize` of a cache limits its memory. A cache that retains models, or tensors that no later
    call can find, is bounded only if the program chose a small `maxsize`.
    """
    size = cache.cache_info().maxsize or _UNBOUNDED_SIZE
    if size < _DEFAULT_SIZE or size >= _UNBOUNDED_SIZE:
        return bool(size < _DEFAULT_SIZE)
    retained = (*chain, *_arguments_in(cache))
    return _has_keys_by_value(cache) and not any(
        isinstance(each, nn.Module | nn.Parameter) for each in retained
    )


def _has_keys_by_value(cache: Any) -> bool:
    """Return whether a later call can find an entry of the cache. Tensors are compared by identity, so an entry with a
    tensor among its arguments is never found again.
    """
    return not any(isinstance(each, torch.Tensor) for each in _arguments_in(cache))


def _arguments_in(cache: Any) -> list[Any]:
    """Return the arguments of the first few entries of a cache."""
    entries = next((each for each in gc.get_referents(cache) if isinstance(each, dict)), {})
    return [part for key in list(entries)[:4] for part in (key if isinstance(key, list | tuple) else (key,))]


def registered_callback(chain: list[Any]) -> Callback | None:
    """Return the user's function on the path that a library stores in its own container, such as a hook. If no Python
    object refers to the container, it belongs to a C++ object, such as an autograd node.
    """
    for position, item in enumerate(chain[:-1]):
        code = _code_of(chain[position + 1]) if isinstance(item, CONTAINERS) else None
        if code is None or not is_user_file(code.co_filename):
            continue
        owners = [each for each in chain[max(position - 2, 0) : position] if not isinstance(each, CONTAINERS)]
        if not position or (owners and not is_user_file(file_of(type(owners[-1])) or "")):
            return Callback(code.co_name, code.co_filename, code.co_firstlineno)
        return None
    return None


def _code_of(item: Any) -> CodeType | None:
    """Return the code of a function, a bound method or a `functools.partial`."""
    if isinstance(item, partial):
        return _code_of(item.func)
    function = item.__func__ if isinstance(item, MethodType) else item
    return function.__code__ if isinstance(function, FunctionType) else None


def _thread_function(chain: list[Any]) -> Callback | None:
    """Return the function of the running thread on the path."""
    for item in chain:
        if isinstance(item, Thread):
            code = _code_of((attributes_of(item) or {}).get("_target"))
            if code is not None and is_user_file(code.co_filename):
                return Callback(code.co_name, code.co_filename, code.co_firstlineno)
    return None


def _kind(chain: list[Any]) -> str:
    last = chain[-1] if chain else None
    return "tensor" if isinstance(last, torch.Tensor) else type(last).__name__


def _describe(growing: _Candidate) -> tuple[str, int, bool]:
    container, length = growing.container, growing.length
    bounded = isinstance(container, deque) and container.maxlen is not None
    file = file_of(type(container))
    bounded = bounded or (
        file is not None and is_user_file(file) and class_limits_itself(file, type(container).__name__)
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
                yield from _contents(attributes, depth - 1)


# --- the steps of a path ----------------------------------------------------------------------------------------------------


def _step(item: Any, following: Any, owner: Any) -> _Step | None:
    """Describe the reference from `item` to `following`, for example as an attribute or a key. `owner` precedes `item`
    on the path. Return None if the displayed path omits this reference.
    """
    if _is_namespace_of(item, owner):
        return _attribute(owner, following)
    if isinstance(item, dict):
        key = key_of(item, following)
        if key is None:
            return None
        if _is_module_dict(item, owner):  # model.layer, not model._modules["layer"]
            return _Step(f".{key}", key, owner=type(owner))
        return _Step(f'["{key[:40]}"]', key=key)
    if isinstance(
        item,
        (*CONTAINERS, MethodType, CellType, FunctionType, TracebackType, FrameType, BaseException, type),
    ):
        return None
    if isinstance(following, dict) and _is_module_dict(following, item):
        return None
    return _attribute(item, following)


def _index_of(item: Any, following: Any) -> str:
    """Return the index of an object in a list or tuple, as in source code, or "" if it has none."""
    if not isinstance(item, list | tuple | deque) or isinstance(following, CellType):
        return ""
    index = next((number for number, each in enumerate(list(item)) if each is following), None)
    return f"[{index}]" if index is not None else ""


def _attribute(owner: Any, following: Any) -> _Step | None:
    if isinstance(following, dict) and _is_module_dict(following, owner):
        return None
    attributes = attributes_of(owner)
    key = key_of(attributes, following) if attributes is not None else None
    return _Step(f".{key}", key, owner=type(owner)) if key is not None else None


def _is_module_dict(item: Any, owner: Any) -> bool:
    return isinstance(owner, nn.Module) and any(item is owner.__dict__.get(name) for name in _MODULE_DICTS)


def _is_namespace_of(item: Any, owner: Any) -> bool:
    """Return whether a dict contains the attributes of an instance. The user did not create such a dict as a container."""
    return isinstance(item, dict) and owner is not None and attributes_of(owner) is item
