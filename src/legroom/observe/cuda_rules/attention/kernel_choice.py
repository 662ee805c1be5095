"""Selects the attention kernel as CUDA does: cuDNN, flash, memory-efficient, or math.

The rules follow ATen/native/transformers/cuda/sdp_utils.cpp. PyTorch tries the kernels in order and uses the first
kernel whose conditions are met. Since torch 2.9, cuDNN comes first on Hopper and Blackwell. On other GPUs, flash
attention comes first. The kernel determines which tensors are saved for the backward pass. The math kernel saves
matrices of queries × keys. All other kernels save one sum per row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec


class Backend(Enum):
    """The values of `torch.nn.attention.SDPBackend`."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of one call to `scaled_dot_product_attention`."""

    query: Any
    key: Any
    value: Any
    mask: Any
    dropout: float
    causal: bool
    grouped: bool
    scale: float | None = None

    @classmethod
    def of(
        cls,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> "AttentionCall":
        """Return the call with the arguments that the operation receives."""
        return cls(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, scale)

    @property
    def needs_grad(self) -> bool:
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def choose(call: AttentionCall, gpu: GpuSpec, release: tuple[int, int]) -> Backend:
    tests: dict[Backend, Callable[[], bool]] = {
        Backend.CUDNN: lambda: _cudnn(call, gpu, release),
        Backend.FLASH: lambda: _flash(call, gpu),
        Backend.EFFICIENT: lambda: _efficient(call, gpu, release),
        Backend.MATH: lambda: True,
    }
    for backend in _order(gpu, release):
        if _enabled(backend) and tests[backend]():
            return backend
    return Backend.MATH


def _order(gpu: GpuSpec, release: tuple[int, int]) -> list[Backend]:
    """Return the order that `sdpa_kernel(..., set_priority=True)` set, or CUDA's default order.

    The default order also applies to versions of torch without the private getter. One case is not modeled: builds of
    torch 2.10 with cuDNN 9.15 or older try flash first on every GPU.
    """
    get_order: Any = getattr(torch._C, "_get_sdp_priority_order", None)
    known = {backend.value: backend for backend in Backend}
    numbers = dict.fromkeys(get_order() if get_order else ())  # before 2.10, the list ends with a second 0
    order = [known[number] for number in numbers if number in known]
    if order and order != _TORCH_DEFAULT:
        return order + [backend for backend in Backend if backend not in order]
    if gpu.capability[0] in (9, 10) and release >= (2, 9):
        return [Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT, Backend.MATH]
    return [Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN]


_TORCH_DEFAULT = [Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN]


def _enabled(backend: Backend) -> bool:
    is_enabled: dict[Backend, Any] = {
        Backend.FLASH: torch.backends.cuda.flash_sdp_enabled,
        Backend.EFFICIENT: torch.backends.cuda.mem_efficient_sdp_enabled,
        Backend.MATH: torch.backends.cuda.math_sdp_enabled,
        Backend.CUDNN: torch.backends.cuda.cudnn_sdp_enabled,
    }
    return bool(is_enabled[backend]())


def _cudnn(call: AttentionCall, gpu: GpuSpec, release: tuple[int, int]) -> bool:
    query, value = call.query, call.value
    widths = query.shape[-1], value.shape[-1]
    return (
        gpu.capability >= (8, 0)
        and _dense(call)
        and query.dtype in (torch.float16, torch.bfloat16)
        and _mask_fits(call)
        and max(widths) <= _cudnn_width(gpu, release)
        and not any(width % 8 for width in widths)
        and call.key.shape[-2] != 1
        and not (call.dropout and query.shape[-2] == 1)
        # cuDNN rounds the dropout probability to sixteenths. Since 2.12, torch uses another kernel for other
        # probabilities.
        and (release < (2, 12) or not (call.dropout * 16) % 1)
        and not torch.are_deterministic_algorithms_enabled()
    )


def _cudnn_width(gpu: GpuSpec, release: tuple[int, int]) -> int:
    """Return the maximum head dimension: 256 on Hopper, as measured with torch 2.11. Later releases of torch allow only
    128, because the backward pass failed for larger head dimensions.
    """
    return 256 if gpu.capability == (9, 0) and release < (2, 13) else 128


def _flash(call: AttentionCall, gpu: GpuSpec) -> bool:
    query, key, value = call.query, call.key, call.value
    width = query.shape[-1]
    if gpu.capability < (8, 0) or not _dense(call) or call.mask is not None:
        return False
    if query.dtype not in (torch.float16, torch.bfloat16):
        return False
    if width > 256 or key.shape[-1] != width or value.shape[-1] != width:
        return False
    if call.causal and query.shape[-2] != key.shape[-2]:
        return False
    small = gpu.capability in ((8, 6), (8, 7), (8, 9)) or gpu.capability[0] == 12
    return not (small and call.needs_grad and width > 192 and (call.dropout or width <= 224))


def _efficient(call: AttentionCall, gpu: GpuSpec, release: tuple[int, int]) -> bool:
    query, key, value = call.query, call.key, call.value
    allowed = {torch.float16, torch.float32} | ({torch.bfloat16} if gpu.capability >= (8, 0) else set())
    if query.dtype not in allowed or not _dense(call):
        return False
    if release < (2, 13) and _heads(call) != {query.shape[1]}:
        return False  # supported since 2.13
    if query.shape[-1] != key.shape[-1]:
        return False
    alignment = _alignment(query.dtype, gpu)
    return not any(t.shape[-1] % alignment for t in (query, value))


def _alignment(dtype: torch.dtype, gpu: GpuSpec) -> int:
    """Return the number of elements that must divide the head dimension."""
    half = dtype in (torch.float16, torch.bfloat16)
    if gpu.capability >= (8, 0):
        return 8 if half else 4
    return 8 if half and gpu.capability >= (7, 0) else 1


def _dense(call: AttentionCall) -> bool:
    """Return whether the tensors have four dimensions, the same batch size, the same dtype and contiguous rows, and no
    tensor is empty. The mask must also have contiguous rows. Heads may be grouped if `enable_gqa` is set.
    """
    tensors = (call.query, call.key, call.value)
    if any(tensor.dim() != 4 or not tensor.numel() for tensor in tensors):
        return False
    rows = tensors if call.mask is None else (*tensors, call.mask)
    if any(tensor.stride(-1) != 1 for tensor in rows):
        return False
    if len({tensor.shape[0] for tensor in tensors}) > 1 or len({tensor.dtype for tensor in tensors}) > 1:
        return False
    heads = _heads(call)
    if len(heads) == 1:
        return True
    most = call.query.shape[1]
    return call.grouped and not any(most % count for count in heads)


def _heads(call: AttentionCall) -> set[int]:
    return {tensor.shape[1] for tensor in (call.query, call.key, call.value)}


def _mask_fits(call: AttentionCall) -> bool:
    # cuDNN supports masks that broadcast to queries × keys and need no gradient.
    mask = call.mask
    if mask is None:
        return True
    if mask.requires_grad and torch.is_grad_enabled():
        return False
    shape = (*call.query.shape[:3], call.key.shape[-2])
    padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    return all(size in (1, expected) for size, expected in zip(padded, shape, strict=True))
