"""Tracks live storages by weak references, and provides access to the storage of a tensor."""

import functools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from legroom.memory.event_base import Category, Frame, Phase


class AllocatedBlock(Protocol):
    @property
    def size(self) -> int: ...


class LiveStorage(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage on a device, with the known properties of the storage. Attributes of the reference
    use less memory than a second object, and a program has many storages.
    """

    __slots__ = ("block", "category", "device", "frame", "id", "key", "nbytes", "phase", "step")
    block: AllocatedBlock | None
    category: "Category"
    device: int
    frame: "Frame | None"
    id: int
    key: int
    nbytes: int
    phase: "Phase"
    step: int


def storage_of(tensor: Any) -> Any:
    """Return a tensor's storage, or None if the tensor has no storage (functional wrappers). For a sparse tensor,
    return the storage of its values.
    """
    try:
        return tensor.untyped_storage()
    except ValueError:  # a parameter of a lazy module has no storage until its shape is known
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, AttributeError):
        return _storage_of_values(tensor)


_wrappers: set[type] = set()


def is_wrapper(kind: type) -> bool:
    """Return whether tensors of this class store their data in other tensors (`DTensor`, jagged nested tensors)."""
    return kind in _wrappers or _can_flatten(kind)


def note_wrapper(kind: type) -> None:
    if not kind.__module__.startswith(
        "torch."
    ):  # torch's own classes implement `__tensor_flatten__` or have no data
        _wrappers.add(kind)


@functools.cache
def _can_flatten(kind: type) -> bool:
    return hasattr(kind, "__tensor_flatten__")


def inner_tensor(tensor: Any) -> Any:
    """Return the first tensor inside a wrapper tensor, or None if `tensor` is not a wrapper."""
    kind: Any = type(tensor)
    if kind in _PLAIN or not is_wrapper(kind):
        return None
    local = getattr(tensor, "_local_tensor", None)
    if local is None:
        if _can_flatten(kind):
            local = next((getattr(tensor, name, None) for name in tensor.__tensor_flatten__()[0]), None)
        else:
            local = next((value for value in vars(tensor).values() if isinstance(value, torch.Tensor)), None)
    return local


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _storage_of_wrapped(tensor: Any) -> Any:
    """Return the storage of a tensor wrapped by a `torch.func` transform (`vmap`, `jvp`, `hessian`).

    If torch's private functions for these tensors are missing, the result is None, and tensors that a `torch.func`
    transform creates are treated as host memory.
    """
    functions: Any = getattr(torch._C, "_functorch", None)
    is_wrapped = getattr(functions, "is_functorch_wrapped_tensor", None)
    if is_wrapped is None or not isinstance(tensor, torch.Tensor) or not is_wrapped(tensor):
        return None
    return storage_of(functions.get_unwrapped(tensor))


def _storage_of_values(tensor: Any) -> Any:
    layout = getattr(tensor, "layout", torch.strided)
    if layout is torch.strided:
        return _storage_of_wrapped(tensor)
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return (tensor._values() if layout is torch.sparse_coo else tensor.values()).untyped_storage()
    except (NotImplementedError, RuntimeError, AttributeError):
        return None


def is_shape_inference(out: Any, mode: Any) -> bool:
    """Return whether a result is a fake tensor from a mode other than `mode`, which means that torch only computed its
    shape.

    For example, torch computes the shapes of full tensors to decide how to shard the results of an operation.
    """
    first = out if isinstance(out, torch.Tensor) else next(tensors_in(out), None) if out else None
    return isinstance(first, torch._subclasses.FakeTensor) and first.fake_mode is not mode


def tensors_in(value: Any, depth: int = 6) -> Iterator[torch.Tensor]:
    for item in value:
        if isinstance(item, torch.Tensor):
            yield item
        elif depth and isinstance(item, tuple | list):
            yield from tensors_in(item, depth - 1)
        elif depth and hasattr(item, "values") and callable(item.values):
            yield from tensors_in(item.values(), depth - 1)
