"""Values of fake tensors that do not depend on the model: labels and masks of a batch, positions, anchors, noise.

A tensor with known values has a host copy with data. If all arguments of an operation have values, the operation also
runs on the host copies. An operation that selects elements (`x[mask]`, `nonzero`, `bincount`) therefore returns a
result of the real size, and a check (`mask.all()`) returns the real value. The values of tensors that depend on a
parameter, and of tensors larger than `MAX_TRACKED_BYTES`, are unknown.

Each host copy belongs to a storage, not to a tensor, so views and in-place operations need no special cases. Drawing
random values for these tensors does not advance the host's generator.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from legroom.observe.dispatch.operations import overloads
from legroom.observe.dispatch.storages import tensors_in

MAX_TRACKED_BYTES = 4 << 20
MAX_FILLED_BYTES = 64 << 10
"""The maximum size of tracked tensors that are filled without reading another tensor (`zeros_like`). Most of these
tensors are optimizer state or gradients, whose values are never read.
"""

Tensor = torch.Tensor


class KnownValues:
    def __init__(self, fake_like: Callable[[Tensor], Tensor]) -> None:
        self._fake_like = fake_like
        self._host_copies: dict[int, tuple[weakref.ref[Any], torch.UntypedStorage]] = {}

    def of(self, tensor: Any) -> Tensor | None:
        """Return a host tensor with the values of this tensor, or None if the values are unknown. The host copies of a
        tensor and its views share memory.
        """
        if not isinstance(tensor, FakeTensor):
            return None if _is_larger(tensor, MAX_TRACKED_BYTES) else tensor
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        copy = self._host_copies.get(storage._cdata)
        if copy is None or copy[0]() is not storage or storage.nbytes() > copy[1].nbytes():
            return None
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(copy[1], tensor.storage_offset(), tensor.shape, tensor.stride())

    def set(self, tensor: Any, values: Tensor) -> None:
        """Set the values of `tensor`. No other code may write to the memory of `values`."""
        if tensor.layout is not torch.strided or values.layout is not torch.strided:
            return
        if values.device.type == "meta":  # symbolic zeros of forward-mode derivatives
            return
        if tensor.stride() != values.stride() or tensor.storage_offset() != values.storage_offset():
            same_strides = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            values = same_strides.copy_(values)
        storage = tensor.untyped_storage()
        key = storage._cdata
        if values.untyped_storage().nbytes() >= storage.nbytes():
            self._host_copies[key] = (
                weakref.ref(storage, functools.partial(_forget, self._host_copies, key)),
                values.untyped_storage(),
            )

    def propagate(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Run an operation that returned the fake `result` again, on the known values of its arguments. If the
        operation cannot run on values, discard the values that it overwrote.
        """
        values = self._with_values(func, args, kwargs, result)
        if values is not None:
            try:
                self._set_all(result, _computed(func, *values))
            except (RuntimeError, IndexError, ValueError, NotImplementedError):
                pass
            else:
                return
        self.forget(_written(func, args, kwargs))

    def forget(self, tensors: Any) -> None:
        for tensor in tensors_in(tensors):
            if isinstance(tensor, FakeTensor) and tensor.layout is torch.strided:
                self._host_copies.pop(tensor.untyped_storage()._cdata, None)

    def evaluate(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation whose result shape depends on values, or None if the values are unknown."""
        if func in _SELECTIONS:
            return self._select(func, args, kwargs)
        values = self._with_values(func, args, kwargs, None)
        if values is None:
            return None
        computed = _computed(func, *values)
        if isinstance(computed, Tensor):
            return self._fake_with_values(computed)
        if isinstance(computed, tuple | list):
            return type(computed)(self._fake_with_values(one) for one in computed)
        return computed  # a number

    def _select(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a selection by masks as a selection by indices, so that only the values of the masks must be known."""
        if func is _BY_MASK:
            source, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
            return self._select(_INDEX, (source, [mask]), {})
        indices: list[Any] = []
        for index in args[1]:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                indices.append(index)
                continue
            values = self.of(index)
            if values is None:
                return None
            indices += (self._fake_with_values(one.contiguous()) for one in values.nonzero().unbind(1))
        out = func(args[0], indices, *args[2:], **kwargs)
        self.propagate(func, (args[0], indices, *args[2:]), kwargs, out)
        return out

    def _fake_with_values(self, values: Tensor) -> Tensor:
        fake = self._fake_like(values)
        self.set(fake, values)
        return fake

    def _set_all(self, result: Any, computed: Any) -> None:
        for tensor, values in zip(_tensors(result), _tensors(computed), strict=True):
            if isinstance(tensor, FakeTensor) and self.of(tensor) is None:
                if tensor.shape != values.shape or tensor.dtype != values.dtype:
                    return
                self.set(tensor, values)

    def _with_values(
        self, func: Any, args: Any, kwargs: dict[str, Any], result: Any
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """Return the arguments, with fake tensors replaced by their values. Return None if the values of a fake tensor
        are unknown, or if the result is too large.
        """
        if id(func) in _UNINITIALIZED or _communicates(func):
            return None
        fills = id(func) in _FILLS
        most = MAX_FILLED_BYTES if fills else MAX_TRACKED_BYTES
        if result is not None and any(_is_larger(tensor, most) for tensor in _tensors(result)):
            return None
        try:
            new_args = [self._value(value, fills) for value in args]
            new_kwargs = {name: self._value(value, fills) for name, value in kwargs.items()}
        except _UnknownError:
            return None
        return new_args, new_kwargs

    def _value(self, value: Any, fills: bool) -> Any:
        if isinstance(value, Tensor):
            known = self.of(value)
            if known is None and fills and not _is_larger(value, MAX_FILLED_BYTES):
                known = torch.empty(value.shape, dtype=value.dtype)
            if known is None:
                raise _UnknownError
            return known
        if type(value) in (list, tuple):
            return type(value)(self._value(one, fills) for one in value)
        return value


class _UnknownError(Exception):
    pass


def needs_values(func: Any, args: Any) -> bool:
    """Return whether an operation returns a number, or a result whose shape depends on the values of the arguments."""
    if func in _SELECTIONS:
        return func is _BY_MASK or any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
    return _is_dependent(func)


@functools.cache
def _is_dependent(func: Any) -> bool:
    tags = getattr(func, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


@functools.cache
def _communicates(func: Any) -> bool:
    """Return whether an operation communicates with other ranks, which do not exist in a trace. The fake process group
    of a single rank may return memory that does not belong to a tensor.
    """
    return "c10d" in getattr(func, "namespace", "")


def _computed(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        state = torch.random.get_rng_state()
        try:
            return func(*args, **kwargs)
        finally:
            torch.random.set_rng_state(state)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for index, name in _written_arguments(func):
        value = args[index] if index < len(args) else kwargs.get(name)
        yield from _tensors(value)


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return ()
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or (argument.name in _STATISTICS and "batch_norm" in schema.name)
    )


_STATISTICS = ("running_mean", "running_var")


def _is_larger(tensor: Tensor, most: int) -> bool:
    """Return whether a tensor is too large to track its values. Sparse tensors also count as too large."""
    return tensor.layout is not torch.strided or tensor.nbytes > most


def _tensors(value: Any) -> Iterator[Tensor]:
    return tensors_in((value,))


def _forget(copies: dict[int, Any], key: int, reference: Any) -> None:
    if key in copies and copies[key][0] is reference:
        del copies[key]


_INDEX, _BY_MASK = torch.ops.aten.index.Tensor, torch.ops.aten.masked_select.default
_SELECTIONS = {_INDEX, _BY_MASK}
_FILLS = overloads(
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_full", "fill_", "zero_"
)  # fmt: skip
_UNINITIALIZED = overloads(
    "empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided"
)
