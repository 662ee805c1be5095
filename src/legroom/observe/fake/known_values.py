"""Values of data-less tensors that do not come from the model: a batch's labels and masks, positions, anchors, noise.

Such a tensor has a twin with data on the host, and an operation whose arguments all have values is run on the twins too. So a
selection (`x[mask]`, `nonzero`, `bincount`) has the size that it has in the run, and a question (`mask.all()`) its true answer. What
depends on a parameter has no values, nor has anything larger than `LARGEST`: both are left to whoever asks.

A twin belongs to a storage rather than to a tensor, so views and changes in place need no care of their own. Noise is drawn
without touching the host's own generator.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from legroom.observe.dispatch.operations import overloads
from legroom.observe.dispatch.storages import tensors_in

LARGEST = 4 << 20
"""Bytes of one tensor whose values are followed."""
LARGEST_BY_SHAPE = 64 << 10
"""The same for tensors that get their values whatever another one's are: most are an optimizer's state or a gradient, and nobody
asks for them."""

Tensor = torch.Tensor


class KnownValues:
    """The twins of tensors without data."""

    def __init__(self, without_data: Callable[[Tensor], Tensor]) -> None:
        """`without_data`: makes a tensor like the one given, but without its data."""
        self._without_data = without_data
        self._twins: dict[int, tuple[weakref.ref[Any], torch.UntypedStorage]] = {}

    def of(self, tensor: Any) -> Tensor | None:
        """A tensor with the values of this one, sharing memory with its other views' twins; None where they are not known."""
        if not isinstance(tensor, FakeTensor):
            return None if _is_larger(tensor, LARGEST) else tensor
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        twin = self._twins.get(storage._cdata)
        if twin is None or twin[0]() is not storage or storage.nbytes() > twin[1].nbytes():
            return None
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(twin[1], tensor.storage_offset(), tensor.shape, tensor.stride())

    def note(self, tensor: Any, values: Tensor) -> None:
        """A tensor without data that has these values, in memory that nobody else writes to."""
        if tensor.layout is not torch.strided or values.layout is not torch.strided:
            return
        if values.device.type == "meta":  # zeros that forward derivatives only speak of
            return
        if tensor.stride() != values.stride() or tensor.storage_offset() != values.storage_offset():
            fitting = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            values = fitting.copy_(values)
        storage = tensor.untyped_storage()
        key = storage._cdata
        if values.untyped_storage().nbytes() >= storage.nbytes():
            self._twins[key] = (
                weakref.ref(storage, functools.partial(_forget, self._twins, key)),
                values.untyped_storage(),
            )

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """An operation has run on shapes and gave `result`: run it on values as well, or forget what it wrote over."""
        values = self._with_values(func, args, kwargs, result)
        if values is not None:
            try:
                self._note_all(result, _computed(func, *values))
            except (RuntimeError, IndexError, ValueError, NotImplementedError):
                pass
            else:
                return
        self.forget(_written(func, args, kwargs))

    def forget(self, tensors: Any) -> None:
        """Whatever values these tensors had, they have others now."""
        for tensor in tensors_in(tensors):
            if isinstance(tensor, FakeTensor) and tensor.layout is torch.strided:
                self._twins.pop(tensor.untyped_storage()._cdata, None)

    def result_of(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What an operation gives whose result's shape depends on values; None where these are not known."""
        if func in _SELECTIONS:
            return self._selected(func, args, kwargs)
        values = self._with_values(func, args, kwargs, None)
        if values is None:
            return None
        computed = _computed(func, *values)
        if isinstance(computed, Tensor):
            return self._made_like(computed)
        if isinstance(computed, tuple | list):
            return type(computed)(self._made_like(one) for one in computed)
        return computed  # a number: the answer to a question

    def _selected(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A selection by masks, as one by the places that they stand for: the values selected from need not be known."""
        if func is _BY_MASK:
            chosen, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
            return self._selected(_INDEX, (chosen, [mask]), {})
        places: list[Any] = []
        for index in args[1]:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                places.append(index)
                continue
            values = self.of(index)
            if values is None:
                return None
            places += (self._made_like(one.contiguous()) for one in values.nonzero().unbind(1))
        out = func(args[0], places, *args[2:], **kwargs)
        self.follow(func, (args[0], places, *args[2:]), kwargs, out)
        return out

    def _made_like(self, values: Tensor) -> Tensor:
        made = self._without_data(values)
        self.note(made, values)
        return made

    def _note_all(self, result: Any, computed: Any) -> None:
        for tensor, values in zip(_tensors(result), _tensors(computed), strict=True):
            if isinstance(tensor, FakeTensor) and self.of(tensor) is None:
                if tensor.shape != values.shape or tensor.dtype != values.dtype:
                    return
                self.note(tensor, values)

    def _with_values(
        self, func: Any, args: Any, kwargs: dict[str, Any], result: Any
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments with values in the place of tensors without data; None where one has none, or the result is too large."""
        if id(func) in _UNFILLED:
            return None
        by_shape = id(func) in _BY_SHAPE
        most = LARGEST_BY_SHAPE if by_shape else LARGEST
        if result is not None and any(_is_larger(tensor, most) for tensor in _tensors(result)):
            return None
        try:
            given = [self._value(value, by_shape) for value in args]
            named = {name: self._value(value, by_shape) for name, value in kwargs.items()}
        except _UnknownError:
            return None
        return given, named

    def _value(self, value: Any, by_shape: bool) -> Any:
        if isinstance(value, Tensor):
            known = self.of(value)
            if known is None and by_shape and not _is_larger(value, LARGEST_BY_SHAPE):
                known = torch.empty(value.shape, dtype=value.dtype)
            if known is None:
                raise _UnknownError
            return known
        if type(value) in (list, tuple):
            return type(value)(self._value(one, by_shape) for one in value)
        return value


class _UnknownError(Exception):
    """A tensor has no values."""


def needs_values(func: Any, args: Any) -> bool:
    """Whether the shape of an operation's result, or an answer in Python, depends on the values of its arguments."""
    if func in _SELECTIONS:
        return func is _BY_MASK or any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
    return _is_dependent(func)


@functools.cache
def _is_dependent(func: Any) -> bool:
    tags = getattr(func, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


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
    """The tensors that an operation writes over."""
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
"""Arguments that batch norms write to although their schemas do not say so."""


def _is_larger(tensor: Tensor, most: int) -> bool:
    """Sparse ones are never followed, whatever their size."""
    return tensor.layout is not torch.strided or tensor.nbytes > most


def _tensors(value: Any) -> Iterator[Tensor]:
    return tensors_in((value,))


def _forget(twins: dict[int, Any], key: int, reference: Any) -> None:
    if key in twins and twins[key][0] is reference:
        del twins[key]


_INDEX, _BY_MASK = torch.ops.aten.index.Tensor, torch.ops.aten.masked_select.default
_SELECTIONS = {_INDEX, _BY_MASK}
_BY_SHAPE = overloads(
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_full", "fill_", "zero_"
)  # fmt: skip
_UNFILLED = overloads(
    "empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided"
)
