"""Checks indices and labels before a GPU kernel uses them, so an out-of-range value raises an exception at the right
line.

A kernel that reads a label out of range triggers a device-side assert. The error is reported later, at a different
line, and the process cannot use CUDA afterwards. `IndexChecks` therefore compares the values on the device before each
operation that takes indices. If a value is out of range, the operation runs on the CPU, where it raises an exception
whose message contains the value. Each check synchronizes with the GPU, so use `IndexChecks` only for debugging.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

Bounds = tuple[torch.Tensor, float, float, int | None]
"""A tensor, its lowest and highest allowed value, and one extra allowed value (`ignore_index`)."""


class IndexChecks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that checks the indices of operations on `device_type`, for the thread that entered it."""

    def __init__(self, device_type: str = "cuda") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device_type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        bounds = _BOUNDS.get(getattr(func, "_opname", "") or func.__name__.partition(".")[0])
        if bounds is not None:
            for tensor, low, high, extra in bounds(args, kwargs):
                if tensor.device.type == self._device_type and _is_outside(tensor, low, high, extra):
                    _fail(func, args, kwargs, tensor, low, high)
        return func(*args, **kwargs)


def _is_outside(tensor: torch.Tensor, low: float, high: float, extra: int | None) -> bool:
    if tensor.numel() == 0:
        return False
    inside = (tensor >= low) & (tensor <= high)
    if extra is not None:
        inside |= tensor == extra
    return not bool(inside.all())


def _fail(func: Any, args: Any, kwargs: Any, tensor: torch.Tensor, low: float, high: float) -> NoReturn:
    """Raise the exception that the CPU raises for the same operation. Add the allowed range as a note."""
    found = f"{tensor.min().item()} to {tensor.max().item()}"
    message = f"{func._opname} received values from {found}, but the allowed range is {low:g} to {high:g}"
    try:
        func(*_on_host(args), **_on_host(kwargs))
    except Exception as error:
        error.add_note(f"legroom: {message}. Without this check, the GPU reports a device-side assert later.")
        raise
    raise IndexError(message)


def _on_host(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), value)


# --- the checked operations and their bounds


def _embedding(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    yield args[1], 0, args[0].shape[0] - 1, None


def _nll_loss(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    values, target = args[0], args[1]
    classes = values.shape[1] if values.dim() > 1 else values.shape[0]
    ignored = args[4] if len(args) > 4 else kwargs.get("ignore_index", -100)
    yield target, 0, classes - 1, ignored


def _gather(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    values, dimension, index = args[0], args[1], args[2]
    if isinstance(index, torch.Tensor) and values.dim():
        yield index, 0, values.shape[dimension] - 1, None


def _index(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    # Negative indices count from the end.
    for dimension, index in enumerate(args[1]):
        if index is None:
            continue
        if index.dtype in (torch.bool, torch.uint8):
            return  # a mask with n dimensions indexes n dimensions
        size = args[0].shape[dimension]
        yield index, -size, size - 1, None


def _binary_cross_entropy(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    yield args[0], 0, 1, None
    yield args[1], 0, 1, None


def _multinomial(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    # Weights must not be negative, NaN or infinite.
    yield args[0], 0, torch.finfo(args[0].dtype).max, None


_BOUNDS: dict[str, Callable[[Sequence[Any], Any], Iterator[Bounds]]] = {
    "embedding": _embedding,
    "_embedding_bag": _embedding,
    "nll_loss_forward": _nll_loss,
    "nll_loss2d_forward": _nll_loss,
    **dict.fromkeys(
        ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "index_select"),
        _gather,
    ),
    **dict.fromkeys(
        ("index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_"), _gather
    ),
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_"), _index),
    "binary_cross_entropy": _binary_cross_entropy,
    "multinomial": _multinomial,
}
checked_operations = frozenset(_BOUNDS)
