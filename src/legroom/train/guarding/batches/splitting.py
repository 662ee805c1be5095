"""Splits a batch along its batch dimension, and concatenates the results of micro-batches.

A batch consists of the arguments of a training function: tensors, or nested containers of tensors such as tuples,
dicts, dataclasses or a `BatchEncoding`. The batch size is the most common size of the tensors in `batch_dim`. A tensor
with this size in `batch_dim` is split. A list with one item per sample is split if it contains no tensor that is split
itself. All other values, such as a mask for all samples or a temperature, are passed unsplit to every micro-batch.
"""

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from legroom.errors import UsageError


@dataclasses.dataclass(slots=True)
class BatchArguments:
    """The arguments of a training function, which can be split into micro-batches."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    batch_dim: int = 0
    unsplit: frozenset[int | str] = frozenset()
    """The positions and names of the arguments that are never split, even if their size equals the batch size."""
    batch_size: int = dataclasses.field(init=False)
    _has_lists_of_samples: bool = dataclasses.field(init=False)
    """True if the batch consists of lists with one item per sample."""

    def __post_init__(self) -> None:
        values = [value for key, value in self._parts() if key not in self.unsplit]
        lengths = [length for value in values for length in _lists_of_samples(value)]
        self._has_lists_of_samples = bool(lengths)
        self.batch_size = lengths[0] if lengths else _batch_size(values, self.batch_dim)

    def slice(self, start: int, stop: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for samples `start` to `stop`. The tensors are views and are not copied."""
        if start == 0 and stop == self.batch_size:
            return self.arguments, self.named
        sliced = {
            key: value if key in self.unsplit else self._slice(value, start, stop)
            for key, value in self._parts()
        }
        return tuple(sliced[index] for index in range(len(self.arguments))), {
            name: sliced[name] for name in self.named
        }

    def _slice(self, value: Any, start: int, stop: int) -> Any:
        if isinstance(value, torch.Tensor):
            return value.narrow(self.batch_dim, start, stop - start) if self._has_batch_dim(value) else value
        if (
            isinstance(value, list | tuple)
            and len(value) == self.batch_size
            and not _is_named_tuple(value)
            and (
                self._has_lists_of_samples
                or not any(self._has_batch_dim(tensor) for tensor in _tensors(value))
            )
        ):
            return type(value)(value[start:stop])
        return _map_children(value, lambda item: self._slice(item, start, stop))

    def _has_batch_dim(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() > self.batch_dim and tensor.shape[self.batch_dim] == self.batch_size

    def _parts(self) -> Iterator[tuple[int | str, Any]]:
        yield from enumerate(self.arguments)
        yield from self.named.items()


def _batch_size(values: Sequence[Any], batch_dim: int) -> int:
    counts: Counter[int] = Counter()
    for tensor in _tensors(values):
        if tensor.is_nested or tensor.layout != torch.strided:
            raise UsageError(
                "The batch contains a nested or sparse tensor, which cannot be split. Pass padded or dense tensors."
            )
        if tensor.dim() > batch_dim:
            counts[tensor.shape[batch_dim]] += 1
    if not counts:
        raise UsageError(
            f"The batch cannot be split, because no tensor among the arguments has dimension {batch_dim}. "
            "Pass the tensors of the batch as arguments after the function."
        )
    batch_size = max(counts, key=lambda size: counts[size])
    if batch_size == 0:
        raise UsageError("The batch is empty: its tensors have 0 samples.")
    return batch_size


def _lists_of_samples(value: Any) -> Iterator[int]:
    """Yield the length of each list that contains one dict per sample, which is the format of targets for detection
    models."""
    if isinstance(value, list | tuple) and not _is_named_tuple(value):
        if value and all(isinstance(item, Mapping) for item in value):
            yield len(value)
        else:
            for item in value:
                yield from _lists_of_samples(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _lists_of_samples(item)


def concatenate_results(results: Sequence[Any], sizes: Sequence[int], batch_dim: int = 0) -> Any:
    """Combine the results of micro-batches with `sizes` samples into the result for the whole batch.

    Tensors with a batch dimension are concatenated, and lists with one item per sample are chained. Single integers are
    counts, which are summed. Other single numbers are averaged over the samples.
    """
    first = results[0]
    if len(results) == 1 or first is None:
        return first
    if isinstance(first, torch.Tensor):
        if first.dim() == 0:
            is_count = all(not result.is_floating_point() and not result.is_complex() for result in results)
            return sum(results) if is_count else _mean(results, sizes)
        if all(
            result.dim() > batch_dim and result.shape[batch_dim] == size
            for result, size in zip(results, sizes, strict=True)
        ):
            return torch.cat(list(results), dim=batch_dim)
        raise UsageError(
            f"The result for a micro-batch of size {sizes[0]} has shape {tuple(first.shape)}. Dimension {batch_dim} is not the "
            "batch dimension, so results cannot be concatenated. Return one entry per sample, or a single number."
        )
    if isinstance(first, bool | str | bytes):
        if all(result == first for result in results):
            return first
        raise UsageError(
            f"The micro-batches returned different {type(first).__name__} values. Return tensors or numbers."
        )
    if isinstance(first, int | float):
        return sum(results) if all(isinstance(each, int) for each in results) else _mean(results, sizes)
    if isinstance(first, list) and all(
        len(result) == size for result, size in zip(results, sizes, strict=True)
    ):
        return [item for result in results for item in result]
    if hasattr(first, "__dict__") and not _is_container(first):
        combined = copy.copy(first)
        for name in vars(first):
            values = [getattr(result, name) for result in results]
            setattr(combined, name, concatenate_results(values, sizes, batch_dim))
        return combined
    if not _is_container(first):
        raise UsageError(
            f"Results of type {type(first).__name__} cannot be combined. Return tensors, numbers, or "
            "containers of tensors and numbers."
        )
    streams = [iter(_children(result)) for result in results]
    return _map_children(
        first, lambda _item: concatenate_results([next(stream) for stream in streams], sizes, batch_dim)
    )


def _mean(results: Sequence[Any], sizes: Sequence[int]) -> Any:
    batch_size = sum(sizes)
    return sum(result * (size / batch_size) for result, size in zip(results, sizes, strict=True))


def to_device(value: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    return _map_children(value, lambda item: to_device(item, device, non_blocking=non_blocking))


def result_to_device(value: Any, device: torch.device) -> Any:
    """Return a result of a model with its tensors on `device`. The result may be an object with tensors as attributes."""
    if isinstance(value, torch.Tensor | type) or _is_container(value) or not hasattr(value, "__dict__"):
        return to_device(value, device)
    moved = copy.copy(value)
    for name, item in vars(value).items():
        setattr(moved, name, result_to_device(item, device))
    return moved


# --- traversal of containers


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


def _map_children(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each item of a container, and return a container of the same type. Return a value that is not a
    container unchanged.
    """
    if isinstance(value, Mapping):
        items = {name: change(item) for name, item in value.items()}
        if type(value) is dict:
            return items
        result: Any = copy.copy(value)
        try:
            for name, item in items.items():  # transformers' ModelOutput rejects update()
                result[name] = item
        except (AttributeError, TypeError):
            return items
        return result
    if _is_named_tuple(value):
        return type(value)(*(change(item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(change(item) for item in value)
    if _is_dataclass(value):
        result = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(result, field.name, change(getattr(value, field.name)))
        return result
    return value
