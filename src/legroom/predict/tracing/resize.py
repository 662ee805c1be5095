"""Changes the size of a batch by repeating or dropping samples."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from legroom.observe.dispatch.storages import tensors_in
from legroom.observe.fake.host_data import LARGE_BYTES


def sample_list_depth(batch: Any, full: int | None) -> int | None:
    """Return the depth of the lists with one item per sample, or None if the batch has no such lists.

    For example, the depth is 1 in a detection batch `(images, targets)`, whose images differ in size, and 0 in a list of
    pairs `(image, target)`. `full` is the batch size of the DataLoader.
    """
    if full is None:
        return None
    can_be_outer, can_be_inner = _is_list_of_samples(batch, full), _has_lists_of_samples(batch, full)
    if can_be_outer and can_be_inner:  # the lists of samples contain items of the same type
        return int(all(_have_same_type(value) for value in _items(batch) if _has_length(value, full)))
    return 0 if can_be_outer else 1 if can_be_inner else None


def _is_list_of_samples(batch: Any, full: int) -> bool:
    if not _has_length(batch, full) or not _have_same_type(batch):
        return False
    stacked = [_is_stacked(tensor, full) for tensor in tensors_in((batch,))]
    # A batch of stacked tensors may contain other tensors, such as the boxes of all images.
    is_of_tensors = any(isinstance(item, torch.Tensor) for item in batch)
    return not (any(stacked) if is_of_tensors else stacked and all(stacked))


def _has_lists_of_samples(batch: Any, full: int) -> bool:
    lists = [value for value in _items(batch) if _has_length(value, full)]
    stacked = [_is_stacked(tensor, full) for tensor in tensors_in((lists,))]
    if not all(stacked):
        return True
    # The first dimension of a sample can be equal to the batch size, such as the 3 channels of an image. The default
    # `collate_fn` creates no tuples and no lists of numbers, and a list of dicts rarely has the length of the batch.
    others = [value for value in _items(batch) if not _has_length(value, full)]
    return not any(_is_stacked(tensor, full) for tensor in tensors_in((others,))) and any(
        not stacked or type(value) is tuple or isinstance(item, Mapping | int | float)
        for value in lists
        for item in value
    )


def _has_length(value: Any, full: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == full


def _have_same_type(values: Iterable[Any]) -> bool:
    kinds = {
        (type(value), *(value if isinstance(value, Mapping) else ())) for value in values if value is not None
    }
    return len(kinds) == 1


def _is_stacked(tensor: torch.Tensor, full: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == full


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


def resized(batch: Any, size: int, depth: int | None = None, *, on_host: bool = False) -> Any:
    """Return a copy of `batch` with `size` samples. Values whose length differs from the batch size are not changed.

    With `on_host`, the new tensors are CPU tensors, so a batch that is larger than the current GPU can be created.
    """
    current = batch_size_of(batch, depth)
    if current is None or current == size or current == 0:
        return batch
    samples = [index % current for index in range(size)]
    return _resized(batch, current, samples, depth, _resized_on_host if on_host else _resized_tensor)


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


def _resized_on_host(value: torch.Tensor, samples: list[int]) -> torch.Tensor:
    return _resized_tensor(value.cpu(), samples)


_ResizeTensor = Callable[[torch.Tensor, list[int]], torch.Tensor]


def _resized(value: Any, current: int, samples: list[int], depth: int | None, resize: _ResizeTensor) -> Any:
    inner = None if depth is None else depth - 1
    if isinstance(value, torch.Tensor):
        return resize(value, samples) if value.dim() and value.shape[0] == current else value
    if isinstance(value, Mapping):
        items = {name: _resized(item, current, samples, inner, resize) for name, item in value.items()}
        try:
            return type(value)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_resized(item, current, samples, inner, resize) for item in value))
    if isinstance(value, list | tuple):
        has_samples = depth == 0 or (depth != 1 and not any(isinstance(item, torch.Tensor) for item in value))
        if len(value) == current and has_samples:
            return type(value)(value[index] for index in samples)
        return type(value)(_resized(item, current, samples, inner, resize) for item in value)
    return value
