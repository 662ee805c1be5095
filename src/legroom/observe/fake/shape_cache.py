"""What operations on data-less tensors came to before, so that the same shapes need not be worked out again.

A model's layers repeat, its steps too, and torch's fake mode takes longest to find out that it knows a case already. Here a case
is an operation and what its arguments look like. Remembered are results of three kinds, each checked against the
first such call: new memory, views of the first argument, and the first argument itself, changed in place. Everything
else (values that decide shapes, real tensors among the arguments, other layouts, complex numbers) takes fake mode's way.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from legroom.observe.dispatch.operations import overloads
from legroom.observe.dispatch.storages import tensors_in


class ShapeMemory:
    """Runs operations in a fake mode, each case once."""

    def __init__(self, mode: FakeTensorMode, run: Callable[[Any, Any, dict[str, Any]], Any]) -> None:
        self._mode, self._run = mode, run
        self._known: dict[tuple[Any, ...], _Result | None] = {}
        """None: such a case cannot be remembered."""

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        key = _case(func, args, kwargs) if _is_regular(func) else None
        if key is None:
            return self._run(func, args, kwargs)
        known = self._known.get(key, _UNSEEN)
        if known is _UNSEEN:
            result = self._run(func, args, kwargs)
            self._known[key] = _remembered(result, args)
            return result
        if known is None:
            return self._run(func, args, kwargs)
        if known.kind is not None:
            return known.kind(self._made(one, args) for one in known.parts)
        return self._made(known.parts[0], args)

    def _made(self, part: "_Part | None", args: Any) -> Any:
        if part is None:
            return None
        if part.is_first:
            return args[0]
        if part.offset is not None and torch.is_inference_mode_enabled() and not args[0].is_inference():
            with torch.inference_mode(False):  # a view is of its base's kind: torch refuses another
                return self._new(part, args)
        return self._new(part, args)

    def _new(self, part: "_Part", args: Any) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            tensor = torch.empty_strided(part.shape, part.stride, dtype=part.dtype, device="meta")
            if part.offset is not None:
                tensor.set_(args[0].untyped_storage(), part.offset, part.shape, part.stride)
        return FakeTensor(self._mode, tensor, part.device)


class _Part(NamedTuple):
    """One tensor of a result."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int | None
    """Of a view of the first argument; None: memory of its own."""
    is_first: bool
    """Whether it is the first argument itself."""


class _Result(NamedTuple):
    parts: tuple[_Part | None, ...]
    kind: type | None
    """Of a result that is a list or a tuple."""


_UNSEEN: Any = object()


@functools.cache
def _is_regular(func: Any) -> bool:
    """Whether the shapes of an operation's results follow from those of its arguments, as far as its schema tells."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    if set(func.tags) & _IRREGULAR:
        return False
    arguments, returned = func._schema.arguments, func._schema.returns
    written = [argument for argument in arguments if argument.alias_info and argument.alias_info.is_write]
    if written:  # in place, and its first argument alone
        return written == [arguments[0]] and len(returned) == 1 and id(func) not in _MOVES_MEMORY
    return bool(returned) and all(str(one.type) in ("Tensor", "List[Tensor]") for one in returned)


_IRREGULAR = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
}
_MOVES_MEMORY = overloads("set_", "resize_", "resize_as_")


def _case(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """An operation and all that its results' shapes depend on; None where that is not plain to see."""
    parts: list[Any] = [id(func), torch.get_default_dtype()]  # operations live for ever
    if not all(map(functools.partial(_describe, parts), args)):
        return None
    for name, value in kwargs.items():
        parts.append(name)
        if not _describe(parts, value):
            return None
    return tuple(parts)


def _describe(parts: list[Any], value: Any) -> bool:
    kind = type(value)
    if kind is FakeTensor:
        if value.layout is not torch.strided or value.constant is not None or value.dtype.is_complex:
            return False
        parts += (value.dtype, value.shape, value.stride(), value.storage_offset(), value.fake_device)
        return True
    if kind in _PLAIN:
        parts += (kind, value)
        return True
    if kind is list or kind is tuple:
        parts += (kind, len(value))
        return all(map(functools.partial(_describe, parts), value))
    return False


_PLAIN = frozenset(
    (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)


def _remembered(result: Any, args: Any) -> _Result | None:
    """What a result is made of; None where it is none of the three kinds."""
    kind = type(result) if isinstance(result, list | tuple) else None
    outputs = result if kind is not None else [result]
    if kind not in (None, list, tuple) or not all(one is None or type(one) is FakeTensor for one in outputs):
        return None
    first = args[0] if args and type(args[0]) is FakeTensor else None
    storages = {_storage(value) for value in tensors_in(args)}
    parts: list[_Part | None] = []
    for one in outputs:
        if one is None:
            parts.append(None)
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
        parts.append(_Part(tuple(one.shape), one.stride(), one.dtype, one.fake_device, offset, one is first))
    return _Result(tuple(parts), kind)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes_of(tensor: torch.Tensor) -> int:
    """Of memory that holds this tensor and nothing else, from its first element on."""
    if tensor.storage_offset():
        return -1
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.dtype.itemsize
