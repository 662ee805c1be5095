"""Reads the sizes of the tensors in the user's variables and attributes, to find a tensor that grows."""

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch

from legroom.observe.dispatch.storages import storage_of
from legroom.observe.holders.python_names import LEAVES, attributes_of, locals_of
from legroom.observe.source.loaded_modules import user_modules
from legroom.observe.source.user_files import is_user_file


class NamedTensor(NamedTuple):
    name: str
    stored_as: str
    is_attribute: bool
    file: str
    function: str
    owner: int = 0
    """The `id` of the object that has the attribute, or 0 for a variable."""


def named_sizes(
    frame: FrameType | None, is_relevant: Callable[[torch.Tensor], bool] = lambda tensor: True
) -> dict[NamedTensor, int]:
    """Return the size in bytes of each tensor in the variables of running functions and of the user's modules."""
    sizes: dict[NamedTensor, int] = {}
    for named, value in _variables(frame):
        for each, tensor in _tensors_within(named, value, 3):
            storage = storage_of(tensor)
            if storage is not None and is_relevant(tensor):
                sizes[each] = max(storage.nbytes(), sizes.get(each, 0))
    return sizes


def _variables(frame: FrameType | None) -> Iterator[tuple[NamedTensor, Any]]:
    seen: set[int] = set()
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            if code.co_flags & inspect.CO_OPTIMIZED:
                for name, value in locals_of(frame):
                    yield NamedTensor(name, name, False, code.co_filename, code.co_name), value
            if id(frame.f_globals) not in seen:
                seen.add(id(frame.f_globals))
                yield from _variables_in(frame.f_globals, code.co_filename)
        frame = frame.f_back
    for file, module in user_modules():
        if id(module.__dict__) not in seen:
            yield from _variables_in(module.__dict__, file)


def _variables_in(namespace: dict[str, Any], file: str) -> Iterator[tuple[NamedTensor, Any]]:
    for name, value in list(namespace.items()):
        if not isinstance(value, LEAVES) and isinstance(name, str) and not name.startswith("__"):
            yield NamedTensor(name, name, False, file, ""), value


def _tensors_within(named: NamedTensor, value: Any, depth: int) -> Iterator[tuple[NamedTensor, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield named, value
        return
    if not depth or isinstance(value, LEAVES):
        return
    if isinstance(value, dict):
        if len(value) <= 64:
            for key, item in list(value.items()):
                if isinstance(key, str):
                    yield from _tensors_within(
                        named._replace(name=f'{named.name}["{key[:40]}"]'), item, depth - 1
                    )
        return
    if isinstance(value, list | tuple):
        if len(value) <= 64:
            for position, item in enumerate(list(value)):
                yield from _tensors_within(named._replace(name=f"{named.name}[{position}]"), item, depth - 1)
        return
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not is_user_file(file):
        return
    attributes = attributes_of(value)
    for groups in (attributes, (attributes or {}).get("_buffers")):
        if isinstance(groups, dict):
            for key, item in list(groups.items()):
                if isinstance(key, str):
                    inner = NamedTensor(f"{named.name}.{key}", key, True, file, "", id(value))
                    yield from _tensors_within(inner, item, depth - 1)
