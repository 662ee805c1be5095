"""Changes the size of a batch by repeating or dropping samples."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from legroom.observe.dispatch.storages import tensors_in
from legroom.observe.fake.host_data import LARGE_BYTES


def sample_list_depth(batch: Any, full: int | None) -> int | None:
    """Return the depth of the lists with one item per sample, or None if the batch has no such lists.

    For example, the depth is 1 in a detection batch `(images, targets)`, whose images differ in size. `full` is the batch
    size of the DataLoader. The depth is None if a tensor has this size as its first dimension.
    """
    if full is None or any(tensor.dim() and tensor.shape[0] == full for tensor in tensors_in((batch,))):
        return None
    level = [batch]
    for depth in range(2):
        if any(isinstance(value, list | tuple) and len(value) == full for value in level):
            return depth
        level = [item for value in level for item in _items(value)]
    return None


def batch_size_of(batch: Any, depth: int | None = None) -> int | None:
    """Return the length of the lists at `depth` (see `sample_list_depth`). If `depth` is None, return the most common
    first dimension of the tensors in the batch, or None if the batch has no tensors.
    """
    if depth is not None:
        level = [batch] if depth == 0 else list(_items(batch))
        return max((len(value) for value in level if isinstance(value, list | tuple)), default=None)
    counts: dict[int, int] = {}
    for tensor in tensors_in((batch,)):
        if tensor.dim():
            counts[tensor.shape[0]] = counts.get(tensor.shape[0], 0) + 1
    return max(counts, key=lambda size: (counts[size], size)) if counts else None


def full_batch_size(loader: Any) -> int | None:
    """Return the batch size of a DataLoader or of its batch sampler, or None if it has no fixed batch size."""
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if type(size) is int and size > 0 else None


def sample_shapes(batch: Any) -> tuple[torch.Size, ...]:
    """Return the shapes of the tensors without the batch dimension. The shapes differ between batches if each batch is
    padded to its longest sample.
    """
    return tuple(tensor.shape[1:] for tensor in tensors_in((batch,)))


def resized(batch: Any, size: int, depth: int | None = None) -> Any:
    """Return a copy of `batch` with `size` samples. Values whose length differs from the batch size are not changed."""
    current = batch_size_of(batch, depth)
    if current is None or current == size or current == 0:
        return batch
    samples = [index % current for index in range(size)]
    return _resized(batch, current, samples, depth)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _resized_tensor(value: torch.Tensor, samples: list[int]) -> torch.Tensor:
    current, size = value.shape[0], len(samples)
    if size <= current:
        return value[:size]
    if value.nbytes // current * size < LARGE_BYTES or value.device.type != "cpu":
        return value[torch.tensor(samples)]
    larger = value.new_empty(
        (size, *value.shape[1:])
    )  # the other values are zeros, which use no memory until they are written
    larger[:current] = value
    return larger


def _resized(value: Any, current: int, samples: list[int], depth: int | None) -> Any:
    inner = None if depth is None else depth - 1
    if isinstance(value, torch.Tensor):
        return _resized_tensor(value, samples) if value.dim() and value.shape[0] == current else value
    if isinstance(value, Mapping):
        items = {name: _resized(item, current, samples, inner) for name, item in value.items()}
        try:
            return type(value)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_resized(item, current, samples, inner) for item in value))
    if isinstance(value, list | tuple):
        has_samples = depth == 0 or not any(isinstance(item, torch.Tensor) for item in value)
        if len(value) == current and has_samples:
            return type(value)(value[index] for index in samples)
        return type(value)(_resized(item, current, samples, inner) for item in value)
    return value
