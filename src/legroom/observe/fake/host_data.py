"""Creates large random tensors on the host without filling them, which saves time and memory.

A script may create its batches with `torch.randn(size, ...)` on the host. In a trace of a large batch size, filling
these batches would take most of the time. The values of large tensors are not tracked (see `known_values`), so they are
not needed. Only the beginning of a large random tensor is therefore filled. The rest contains zeros, and the operating
system reserves physical memory for it only when a program writes to it.
"""

from typing import Any

import torch

from legroom.observe.dispatch.operations import overloads

LARGE_BYTES = 64 << 20
"""Tensors below this size are filled. For larger tensors, the C library requests new pages, which contain zeros."""
FILLED_ELEMENTS = 1 << 16

_NORMAL, _UNIFORM = overloads("randn", "randn_like"), overloads("rand", "rand_like")
_IN_PLACE = overloads("normal_", "uniform_", "exponential_", "bernoulli_")


def run_on_host(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on host tensors, and fill only the beginning of a large random tensor."""
    number = id(func)
    if number in _IN_PLACE:
        beginning = _beginning(args[0])
        if beginning is not None:
            func(beginning, *args[1:], **kwargs)
            return args[0]
    elif number in _NORMAL or number in _UNIFORM:
        empty = _empty(args[0], kwargs)
        beginning = None if empty is None else _beginning(empty)
        if beginning is not None:
            generator = kwargs.get("generator")
            fill = beginning.normal_ if number in _NORMAL else beginning.uniform_
            fill(generator=generator)
            return empty
    return func(*args, **kwargs)


def _empty(shape: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return an uninitialized tensor as the result of a factory function. Return None if the tensor is small or is not
    a plain float tensor, because it must then be filled.
    """
    options = {name: kwargs[name] for name in ("dtype", "pin_memory") if kwargs.get(name) is not None}
    if kwargs.get("names") is not None or kwargs.get("layout") not in (None, torch.strided):
        return None
    if str(kwargs.get("device") or "cpu") != "cpu":
        return None
    if type(shape) is torch.Tensor and shape.device.type == "cpu" and shape.layout is torch.strided:
        like = torch.empty_like(shape, **options) if shape.nbytes >= LARGE_BYTES else None
        return like if like is not None and like.is_contiguous() else None
    if isinstance(shape, list | tuple):
        dtype = options.get("dtype") or torch.get_default_dtype()
        if torch.Size(shape).numel() * dtype.itemsize >= LARGE_BYTES:
            return torch.empty(shape, **options)
    return None


def _beginning(tensor: torch.Tensor) -> torch.Tensor | None:
    if (
        tensor.nbytes < LARGE_BYTES
        or not tensor.is_floating_point()
        or tensor.device.type != "cpu"
        or not tensor.is_contiguous()
    ):
        return None
    return tensor.view(-1)[:FILLED_ELEMENTS]
