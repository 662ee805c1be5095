"""Caches the result shapes of operations on fake tensors.

The layers of a model and the steps of a loop repeat the same operations, and the cache of torch's fake mode is slow.
The key of this cache is the operation and the metadata of its arguments. Three kinds of results are cached: new memory,
views of the first argument, and the first argument itself, modified in place. An operation runs in fake mode if its
result shapes depend on values, or if its arguments include real tensors, other layouts or complex numbers.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from legroom.observe.dispatch.operations import overloads
from legroom.observe.dispatch.storages import tensors_in


class ShapeCache:
    """Runs operations in a fake mode, once for each combination of an operation and argument metadata."""

    def __init__(self, mode: FakeTensorMode, run: Callable[[Any, Any, dict[str, Any]], Any]) -> None:
        self._mode, self._run = mode, run
        self._known: dict[tuple[Any, ...], _Result | None] = {}

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        key = _key(func, args, kwargs) if _is_regular(func) else None
        if key is None:
            return self._run(func, args, kwargs)
        known = self._known.get(key, _UNSEEN)
        if known is _UNSEEN:
            result = self._run(func, args, kwargs)
            self._known[key] = _cacheable(result, args)
            return result
        if known is None:
            return self._run(func, args, kwargs)
        if known.kind is not None:
            return known.kind(self._create(one, args) for one in known.tensors)
        return self._create(known.tensors[0], args)

    def _create(self, tensor: "_TensorMeta | None", args: Any) -> Any:
        if tensor is None:
            return None
        if tensor.is_first:
            return args[0]
        if tensor.offset is not None and torch.is_inference_mode_enabled() and not args[0].is_inference():
            with torch.inference_mode(False):  # a view of a normal tensor must be a normal tensor
                return self._new(tensor, args)
        return self._new(tensor, args)

    def _new(self, meta: "_TensorMeta", args: Any) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            tensor = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")
            if meta.offset is not None:
                tensor.set_(args[0].untyped_storage(), meta.offset, meta.shape, meta.stride)
        return FakeTensor(self._mode, tensor, meta.device)


class _TensorMeta(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int | None
    """The storage offset if the tensor is a view of the first argument, or None for new memory."""
    is_first: bool


class _Result(NamedTuple):
    tensors: tuple[_TensorMeta | None, ...]
    kind: type | None
    """The type of the result if it contains several tensors (`list` or `tuple`), or None for a single tensor."""


_UNSEEN: Any = object()


@functools.cache
def _is_regular(func: Any) -> bool:
    """Return whether the metadata of the arguments alone determines the result shapes, according to the schema of the
    operation.
    """
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    if set(func.tags) & _IRREGULAR:
        return False
    arguments, returned = func._schema.arguments, func._schema.returns
    written = [argument for argument in arguments if argument.alias_info and argument.alias_info.is_write]
    if written:  # only the first argument may be written in place
        return written == [arguments[0]] and len(returned) == 1 and id(func) not in _REPLACES_STORAGE
    return bool(returned) and all(str(one.type) in ("Tensor", "List[Tensor]") for one in returned)


_IRREGULAR = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
}
_REPLACES_STORAGE = overloads("set_", "resize_", "resize_as_")


def _key(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return the cache key, which contains all properties of the arguments that affect the result shapes. Return None
    if an argument cannot be part of a key.
    """
    key: list[Any] = [id(func), torch.get_default_dtype()]  # operations are never freed
    if not all(map(functools.partial(_append, key), args)):
        return None
    for name, value in kwargs.items():
        key.append(name)
        if not _append(key, value):
            return None
    return tuple(key)


def _append(key: list[Any], value: Any) -> bool:
    kind = type(value)
    if kind is FakeTensor:
        if value.layout is not torch.strided or value.constant is not None or value.dtype.is_complex:
            return False
        key += (value.dtype, value.shape, value.stride(), value.storage_offset(), value.fake_device)
        return True
    if kind in _PLAIN:
        key += (kind, value)
        return True
    if kind is list or kind is tuple:
        key += (kind, len(value))
        return all(map(functools.partial(_append, key), value))
    return False


_PLAIN = frozenset(
    (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)


def _cacheable(result: Any, args: Any) -> _Result | None:
    """Return the metadata of a result. Return None unless each tensor is new memory, a view of the first argument, or
    the first argument itself.
    """
    kind = type(result) if isinstance(result, list | tuple) else None
    outputs = result if kind is not None else [result]
    if kind not in (None, list, tuple) or not all(one is None or type(one) is FakeTensor for one in outputs):
        return None
    first = args[0] if args and type(args[0]) is FakeTensor else None
    storages = {_storage(value) for value in tensors_in(args)}
    tensors: list[_TensorMeta | None] = []
    for one in outputs:
        if one is None:
            tensors.append(None)
            continue
        if one.layout is not torch.strided or one.dtype.is_complex or one.requires_grad:
            return None
        storage, offset = _storage(one), None
        if first is not None and one is not first and storage == _storage(first):
            offset = one.storage_offset()
        elif one is not first:
            if storage in storages or one.untyped_storage().nbytes() != _bytes_of(one):
                return None
            storages.add(storage)
        tensors.append(
            _TensorMeta(tuple(one.shape), one.stride(), one.dtype, one.fake_device, offset, one is first)
        )
    return _Result(tuple(tensors), kind)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes_of(tensor: torch.Tensor) -> int:
    """Return the size of a storage that contains exactly this tensor, or -1 if the tensor has a storage offset."""
    if tensor.storage_offset():
        return -1
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.dtype.itemsize
