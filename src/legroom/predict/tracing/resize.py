"""A batch of another size, made of one that a loader gave: rows are repeated or left out."""

from collections.abc import Mapping
from typing import Any

import torch

from legroom.observe.dispatch.storages import tensors_in


def batch_size_of(batch: Any) -> int | None:
    """The number of rows that most tensors of a batch agree on; None where there is no tensor."""
    counts: dict[int, int] = {}
    for tensor in tensors_in((batch,)):
        if tensor.dim():
            counts[tensor.shape[0]] = counts.get(tensor.shape[0], 0) + 1
    return max(counts, key=lambda size: (counts[size], size)) if counts else None


def row_shapes(batch: Any) -> tuple[torch.Size, ...]:
    """What its tensors are like but for the number of rows. Batches that are padded to their longest row differ in it."""
    return tuple(tensor.shape[1:] for tensor in tensors_in((batch,)))


def resized(batch: Any, size: int) -> Any:
    """`batch` with `size` rows: whatever has as many rows as the batch is cut or repeated, the rest passes through."""
    now = batch_size_of(batch)
    if now is None or now == size or now == 0:
        return batch
    rows = [row % now for row in range(size)]
    return _resized(batch, now, rows)


def _resized(value: Any, now: int, rows: list[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return value[torch.tensor(rows)] if value.dim() and value.shape[0] == now else value
    if isinstance(value, Mapping):
        items = {name: _resized(item, now, rows) for name, item in value.items()}
        try:
            return type(value)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_resized(item, now, rows) for item in value))
    if isinstance(value, list | tuple):
        if len(value) == now and not any(isinstance(item, torch.Tensor) for item in value):
            return type(value)(value[row] for row in rows)
        return type(value)(_resized(item, now, rows) for item in value)
    return value
