"""Storages on a device, followed by weak references, and how to get at one."""

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from legroom.memory.events import Category, Frame, Phase


class Block(Protocol):
    """A piece of device memory in use."""

    @property
    def size(self) -> int: ...


class Live(weakref.ref):  # type: ignore[type-arg]
    """A storage on a device: a weak reference that knows what it watches (one object for each, as there are many)."""

    __slots__ = ("block", "category", "device", "frame", "id", "key", "nbytes", "phase", "step")
    block: Block | None
    category: Category
    device: int
    frame: Frame | None
    id: int
    key: int
    nbytes: int
    phase: Phase
    step: int


def storage_of(tensor: Any) -> Any:
    """A tensor's storage, or None for one that has none (functional wrappers). A sparse tensor's is its values'."""
    try:
        return tensor.untyped_storage()
    except ValueError:  # a parameter of a lazy module answers nothing until its shape is known
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, AttributeError):
        return _storage_of_values(tensor)


def _storage_inside(tensor: Any) -> Any:
    """Of the tensor that one of `torch.func`'s transforms (`vmap`, `jvp`, `hessian`) has wrapped. Without torch's private functions for
    that it has none, and what such a function makes from nothing is taken for the host's."""
    functions: Any = getattr(torch._C, "_functorch", None)
    is_wrapped = getattr(functions, "is_functorch_wrapped_tensor", None)
    if is_wrapped is None or not isinstance(tensor, torch.Tensor) or not is_wrapped(tensor):
        return None
    return storage_of(functions.get_unwrapped(tensor))


def _storage_of_values(tensor: Any) -> Any:
    """Of what a sparse tensor is made of, the values; its indices are not counted where an operation made them."""
    layout = getattr(tensor, "layout", torch.strided)
    if layout is torch.strided:
        return _storage_inside(tensor)
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return (tensor._values() if layout is torch.sparse_coo else tensor.values()).untyped_storage()
    except (NotImplementedError, RuntimeError, AttributeError):
        return None


def is_imagined(out: Any, mode: Any) -> bool:
    """Whether a result has no data, and is no stand-in of `mode` (a fake mode, or None): torch only worked out its shape.

    It does that for instance to place the results of operations on sharded tensors, with the whole tensors' sizes.
    """
    first = out if isinstance(out, torch.Tensor) else next(tensors_in(out), None) if out else None
    return isinstance(first, torch._subclasses.FakeTensor) and first.fake_mode is not mode


def tensors_in(value: Any, depth: int = 6) -> Iterator[torch.Tensor]:
    """The tensors among these values, and in tuples, lists and mappings among them, in order."""
    for item in value:
        if isinstance(item, torch.Tensor):
            yield item
        elif depth and isinstance(item, tuple | list):
            yield from tensors_in(item, depth - 1)
        elif depth and hasattr(item, "values") and callable(item.values):
            yield from tensors_in(item.values(), depth - 1)
