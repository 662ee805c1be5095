"""Indices and labels checked before the GPU sees them, so that what is out of range is an exception at its true line.

A kernel that meets a label out of range asserts on the device: the error arrives later, at another line, and the GPU answers nothing
more in that process, so nothing can be looked at any longer. Hence it is looked at before: each operation that takes
indices is preceded by a comparison on the device, and if that fails the operation is run on the CPU instead, whose
exception names the value. This waits for the GPU at each such operation: a means of finding a bug, not of training.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

Bounds = tuple[torch.Tensor, float, float, int | None]
"""A tensor, its lowest and highest allowed value, and a value that is allowed besides."""


class IndexChecks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, operations of this thread on `device_type` are checked first."""

    def __init__(self, device_type: str = "cuda") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device_type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        bounds = _CHECKS.get(getattr(func, "_opname", "") or func.__name__.partition(".")[0])
        if bounds is not None:
            for tensor, low, high, besides in bounds(args, kwargs):
                if tensor.device.type == self._device_type and _outside(tensor, low, high, besides):
                    _fail(func, args, kwargs, tensor, low, high)
        return func(*args, **kwargs)


def _outside(tensor: torch.Tensor, low: float, high: float, besides: int | None) -> bool:
    if tensor.numel() == 0:
        return False
    inside = (tensor >= low) & (tensor <= high)
    if besides is not None:
        inside |= tensor == besides
    return not bool(inside.all())


def _fail(func: Any, args: Any, kwargs: Any, tensor: torch.Tensor, low: float, high: float) -> NoReturn:
    """Raise what the CPU raises for the same operation, with the figures."""
    found = f"{tensor.min().item()} to {tensor.max().item()}"
    allowed = f"{low:g} to {high:g}"
    sentence = f"{func._opname} was given values from {found}, and only {allowed} are allowed"
    try:
        func(*_on_host(args), **_on_host(kwargs))
    except Exception as error:
        error.add_note(f"legroom: {sentence}; the GPU would have failed later, with a device-side assert.")
        raise
    raise IndexError(sentence)


def _on_host(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), value)


# --- which operations, and what they allow


def _rows(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    """embedding(weight, indices)"""
    yield args[1], 0, args[0].shape[0] - 1, None


def _labels(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    """nll_loss_forward(input, target, weight, reduction, ignore_index)"""
    values, target = args[0], args[1]
    classes = values.shape[1] if values.dim() > 1 else values.shape[0]
    ignored = args[4] if len(args) > 4 else kwargs.get("ignore_index", -100)
    yield target, 0, classes - 1, ignored


def _along(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    """gather(self, dim, index) and those like it"""
    values, dimension, index = args[0], args[1], args[2]
    if isinstance(index, torch.Tensor) and values.dim():
        yield index, 0, values.shape[dimension] - 1, None


def _brackets(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    """index(self, [indices]): negative ones count from the end"""
    for dimension, index in enumerate(args[1]):
        if index is None:
            continue
        if index.dtype in (torch.bool, torch.uint8):
            return  # a mask takes as many dimensions as it has
        size = args[0].shape[dimension]
        yield index, -size, size - 1, None


def _probabilities(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    """binary_cross_entropy(input, target)"""
    yield args[0], 0, 1, None
    yield args[1], 0, 1, None


def _weights(args: Sequence[Any], kwargs: Any) -> Iterator[Bounds]:
    """multinomial(weights): neither negative nor nan nor infinite"""
    yield args[0], 0, torch.finfo(args[0].dtype).max, None


_CHECKS: dict[str, Callable[[Sequence[Any], Any], Iterator[Bounds]]] = {
    "embedding": _rows,
    "_embedding_bag": _rows,
    "nll_loss_forward": _labels,
    "nll_loss2d_forward": _labels,
    **dict.fromkeys(
        ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "index_select"),
        _along,
    ),
    **dict.fromkeys(
        ("index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_"), _along
    ),
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_"), _brackets),
    "binary_cross_entropy": _probabilities,
    "multinomial": _weights,
}
