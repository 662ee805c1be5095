"""Which of its attention kernels CUDA picks: cuDNN, flash, memory-efficient, or plain mathematics.

Source: ATen/native/transformers/cuda/sdp_utils.cpp. The kernels are tried in an order (cuDNN first on Hopper and
Blackwell, flash first elsewhere), and the first whose conditions hold is taken. It decides what is saved for the
backward pass: the plain one keeps matrices of queries × keys, the others only a row of sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec


class Backend(Enum):
    """torch's own numbers, as `torch.nn.attention.SDPBackend` has them."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


@dataclass(frozen=True, slots=True)
class Request:
    """What one call of `scaled_dot_product_attention` asks for."""

    query: Any
    key: Any
    value: Any
    mask: Any
    dropout: float
    causal: bool
    grouped: bool

    @property
    def needs_grad(self) -> bool:
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def choose(request: Request, gpu: GpuSpec, release: tuple[int, int]) -> Backend:
    """The kernel that torch `release` picks on `gpu`."""
    tests: dict[Backend, Callable[[], bool]] = {
        Backend.CUDNN: lambda: _cudnn(request, gpu, release),
        Backend.FLASH: lambda: _flash(request, gpu),
        Backend.EFFICIENT: lambda: _efficient(request, gpu, release),
        Backend.MATH: lambda: True,
    }
    for backend in _order(gpu):
        if _enabled(backend) and tests[backend]():
            return backend
    return Backend.MATH


def _order(gpu: GpuSpec) -> list[Backend]:
    """The user's order (`sdpa_kernel(..., set_priority=True)`) where there is one, else CUDA's default.

    Without torch's private getter the user's order is not known, and the default is taken.
    """
    ask: Any = getattr(torch._C, "_get_sdp_priority_order", None)
    known = {backend.value: backend for backend in Backend}
    order = [known[number] for number in (ask() if ask else ()) if number in known]
    if order and order != _TORCH_DEFAULT:
        return order + [backend for backend in Backend if backend not in order]
    if gpu.capability[0] in (9, 10):
        return [Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT, Backend.MATH]
    return [Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN]


_TORCH_DEFAULT = [Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN]


def _enabled(backend: Backend) -> bool:
    """Whether `sdpa_kernel` or `torch.backends.cuda` leaves it switched on."""
    ask: dict[Backend, Any] = {
        Backend.FLASH: torch.backends.cuda.flash_sdp_enabled,
        Backend.EFFICIENT: torch.backends.cuda.mem_efficient_sdp_enabled,
        Backend.MATH: torch.backends.cuda.math_sdp_enabled,
        Backend.CUDNN: torch.backends.cuda.cudnn_sdp_enabled,
    }
    return bool(ask[backend]())


def _cudnn(request: Request, gpu: GpuSpec, release: tuple[int, int]) -> bool:
    query, value = request.query, request.value
    widths = query.shape[-1], value.shape[-1]
    return (
        gpu.capability >= (8, 0)
        and _dense(request)
        and query.dtype in (torch.float16, torch.bfloat16)
        and _mask_fits(request)
        and max(widths) <= _cudnn_width(gpu, release)
        and not any(width % 8 for width in widths)
        and request.key.shape[-2] != 1
        and not (request.dropout and query.shape[-2] == 1)
        # From 2.12 on: cuDNN rounds the probability to sixteenths, so torch sends others elsewhere.
        and (release < (2, 12) or not (request.dropout * 16) % 1)
        and not torch.are_deterministic_algorithms_enabled()
    )


def _cudnn_width(gpu: GpuSpec, release: tuple[int, int]) -> int:
    """The widest head: 256 on Hopper as measured with 2.11; later releases keep to 128 (their backward pass failed)."""
    return 256 if gpu.capability == (9, 0) and release < (2, 13) else 128


def _flash(request: Request, gpu: GpuSpec) -> bool:
    query, key, value = request.query, request.key, request.value
    width = query.shape[-1]
    if gpu.capability < (8, 0) or not _dense(request) or request.mask is not None:
        return False
    if query.dtype not in (torch.float16, torch.bfloat16):
        return False
    if width > 256 or key.shape[-1] != width or value.shape[-1] != width:
        return False
    if request.causal and query.shape[-2] != key.shape[-2]:
        return False
    small = gpu.capability in ((8, 6), (8, 7), (8, 9)) or gpu.capability[0] == 12
    return not (small and request.needs_grad and width > 192 and (request.dropout or width <= 224))


def _efficient(request: Request, gpu: GpuSpec, release: tuple[int, int]) -> bool:
    query, key, value = request.query, request.key, request.value
    allowed = {torch.float16, torch.float32} | ({torch.bfloat16} if gpu.capability >= (8, 0) else set())
    if query.dtype not in allowed or not _dense(request):
        return False
    if release < (2, 13) and _heads(request) != {query.shape[1]}:
        return False  # grouped heads came later
    if query.shape[-1] != key.shape[-1]:
        return False
    alignment = _alignment(query.dtype, gpu)
    return not any(t.shape[-1] % alignment for t in (query, value))


def _alignment(dtype: torch.dtype, gpu: GpuSpec) -> int:
    """Elements to a multiple of which the width of a head must be, for the matrix units to load it."""
    half = dtype in (torch.float16, torch.bfloat16)
    if gpu.capability >= (8, 0):
        return 8 if half else 4
    return 8 if half and gpu.capability >= (7, 0) else 1


def _dense(request: Request) -> bool:
    """Four dimensions, none empty, one batch size, one dtype, rows without gaps (those of the mask as well); the heads
    may be grouped where that is asked for."""
    tensors = (request.query, request.key, request.value)
    if any(tensor.dim() != 4 or not tensor.numel() for tensor in tensors):
        return False
    rows = tensors if request.mask is None else (*tensors, request.mask)
    if any(tensor.stride(-1) != 1 for tensor in rows):
        return False
    if len({tensor.shape[0] for tensor in tensors}) > 1 or len({tensor.dtype for tensor in tensors}) > 1:
        return False
    heads = _heads(request)
    if len(heads) == 1:
        return True
    most = request.query.shape[1]
    return request.grouped and not any(most % count for count in heads)


def _heads(request: Request) -> set[int]:
    return {tensor.shape[1] for tensor in (request.query, request.key, request.value)}


def _mask_fits(request: Request) -> bool:
    """cuDNN takes a mask that broadcasts to queries × keys, and gives it no gradient."""
    mask = request.mask
    if mask is None:
        return True
    if mask.requires_grad and torch.is_grad_enabled():
        return False
    shape = (*request.query.shape[:3], request.key.shape[-2])
    padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    return all(have in (1, want) for have, want in zip(padded, shape, strict=True))
