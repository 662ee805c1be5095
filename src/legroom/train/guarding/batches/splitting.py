"""A batch cut along its rows, and results of the pieces put together again.

A batch is whatever a training function takes: tensors, and tuples, lists, dicts, dataclasses and mappings of them (a
`BatchEncoding`), nested as deep as they are. Which parts have rows is decided by size: the number of rows is what most
tensors agree on, and whatever has that many along `batch_dim` (a tensor), or that many items (a list without such tensors),
is cut. The rest, a mask for all rows, a temperature, passes through to every piece.
"""

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from legroom.errors import UsageError


@dataclasses.dataclass(slots=True)
class Batch:
    """The arguments of a training function."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    batch_dim: int = 0
    whole: frozenset[int | str] = frozenset()
    """Arguments that are never cut, by position or name, though their size looks like rows."""
    rows: int = dataclasses.field(init=False)
    _of_samples: bool = dataclasses.field(init=False)
    """Whether lists with one item per row make up the batch."""

    def __post_init__(self) -> None:
        values = [value for key, value in self._parts() if key not in self.whole]
        lengths = [length for value in values for length in _lists_of_samples(value)]
        self._of_samples = bool(lengths)
        self.rows = lengths[0] if lengths else _rows(values, self.batch_dim)

    def piece(self, start: int, stop: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with rows `start` to `stop` alone. Tensors are views: nothing is copied."""
        if start == 0 and stop == self.rows:
            return self.arguments, self.named
        cut = {
            key: value if key in self.whole else self._cut(value, start, stop) for key, value in self._parts()
        }
        return tuple(cut[index] for index in range(len(self.arguments))), {
            name: cut[name] for name in self.named
        }

    def _cut(self, value: Any, start: int, stop: int) -> Any:
        if isinstance(value, torch.Tensor):
            return value.narrow(self.batch_dim, start, stop - start) if self._has_rows(value) else value
        if (
            isinstance(value, list | tuple)
            and len(value) == self.rows
            and not _is_named_tuple(value)
            and (self._of_samples or not any(self._has_rows(tensor) for tensor in _tensors(value)))
        ):
            return type(value)(value[start:stop])
        return _rebuilt(value, lambda item: self._cut(item, start, stop))

    def _has_rows(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() > self.batch_dim and tensor.shape[self.batch_dim] == self.rows

    def _parts(self) -> Iterator[tuple[int | str, Any]]:
        yield from enumerate(self.arguments)
        yield from self.named.items()


def _rows(values: Sequence[Any], batch_dim: int) -> int:
    counts: Counter[int] = Counter()
    for tensor in _tensors(values):
        if tensor.is_nested or tensor.layout != torch.strided:
            raise UsageError(
                "the batch holds a nested or sparse tensor, whose rows cannot be cut: pass padded or dense tensors"
            )
        if tensor.dim() > batch_dim:
            counts[tensor.shape[batch_dim]] += 1
    if not counts:
        raise UsageError(
            f"nothing in the batch can be split: no tensor among the arguments has a dimension {batch_dim}. "
            "Pass the batch's tensors as arguments, after the function"
        )
    rows = max(counts, key=lambda size: counts[size])
    if rows == 0:
        raise UsageError("the batch is empty: its tensors have 0 rows")
    return rows


def _lists_of_samples(value: Any) -> Iterator[int]:
    """Lists with one dict per sample, as detection models take: their length is the number of rows."""
    if isinstance(value, list | tuple) and not _is_named_tuple(value):
        if value and all(isinstance(item, Mapping) for item in value):
            yield len(value)
        else:
            for item in value:
                yield from _lists_of_samples(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _lists_of_samples(item)


def joined(results: Sequence[Any], sizes: Sequence[int], batch_dim: int = 0) -> Any:
    """What a function gave for pieces of `sizes` rows, as it would have given for all rows.

    Tensors with rows are concatenated, lists with one item per row are chained, single numbers become the mean over rows.
    """
    first = results[0]
    if len(results) == 1 or first is None:
        return first
    if isinstance(first, torch.Tensor):
        if first.dim() == 0:
            return _mean(results, sizes)
        if all(
            result.dim() > batch_dim and result.shape[batch_dim] == size
            for result, size in zip(results, sizes, strict=True)
        ):
            return torch.cat(list(results), dim=batch_dim)
        raise UsageError(
            f"results of {sizes[0]} rows have shape {tuple(first.shape)}: dimension {batch_dim} is not the rows, so they "
            "cannot be put together. Return a tensor with one entry per row, or a single number"
        )
    if isinstance(first, bool | str | bytes):
        if all(result == first for result in results):
            return first
        raise UsageError(
            f"the pieces of the batch gave different {type(first).__name__} values: return tensors or numbers"
        )
    if isinstance(first, int | float):
        return _mean(results, sizes)
    if isinstance(first, list) and all(
        len(result) == size for result, size in zip(results, sizes, strict=True)
    ):
        return [item for result in results for item in result]
    if not _is_container(first):
        raise UsageError(
            f"results of type {type(first).__name__} cannot be put together: return tensors, numbers, or containers of them"
        )
    streams = [iter(_children(result)) for result in results]
    return _rebuilt(first, lambda _item: joined([next(stream) for stream in streams], sizes, batch_dim))


def _mean(results: Sequence[Any], sizes: Sequence[int]) -> Any:
    rows = sum(sizes)
    return sum(result * (size / rows) for result, size in zip(results, sizes, strict=True))


def moved(value: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """`value` with its tensors on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    return _rebuilt(value, lambda item: moved(item, device, non_blocking=non_blocking))


# --- walking containers: one place knows how each kind is taken apart and made again


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in _children(value):
            yield from _tensors(item)


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) or _is_dataclass(value)


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif _is_dataclass(value):
        yield from (getattr(value, field.name) for field in dataclasses.fields(value))


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container of the same kind with each child changed; anything else as it is."""
    if isinstance(value, Mapping):
        items = {name: change(item) for name, item in value.items()}
        if type(value) is dict:
            return items
        made: Any = copy.copy(value)
        try:
            for name, item in items.items():  # not update(): some, a model's outputs, refuse it
                made[name] = item
        except (AttributeError, TypeError):
            return items
        return made
    if _is_named_tuple(value):
        return type(value)(*(change(item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(change(item) for item in value)
    if _is_dataclass(value):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, change(getattr(value, field.name)))
        return made
    return value
