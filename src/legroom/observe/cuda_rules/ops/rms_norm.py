"""RMS norm: one fused kernel on CUDA, which saves its input and one number a row; the CPU composes it of five operations.

Source: `rms_norm` and `_fused_rms_norm_cuda` in ATen/native/layer_norm.cpp and cuda/layer_norm_kernel.cu (torch 2.9 and
later; weights of another dtype than the input, and pictures that lie channels last, are composed there too).
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides

Tensor = torch.Tensor


def install(overrides: Overrides, release: tuple[int, int]) -> None:
    if release >= (2, 9):
        overrides.composite("rms_norm", _rms_norm)


def _rms_norm(
    original: Any,
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    last = input.dim() in (4, 5) and not input.is_contiguous() and input.stride(1) == 1
    if last or (weight is not None and weight.dtype != input.dtype):
        return original.decompose(input, normalized_shape, weight, eps)
    fused: Any = _Fused.apply
    return fused(input, weight, len(normalized_shape))


class _Fused(torch.autograd.Function):
    """Makes and keeps what the fused kernel makes and keeps. Nothing is computed: its tensors are stand-ins."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor | None, dimensions: int) -> Tensor:
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
        rows = [*input.shape[: input.dim() - dimensions], *(1,) * dimensions]
        ctx.save_for_backward(input, weight, input.new_empty(rows, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        input, weight, _ = ctx.saved_tensors
        grad_input = torch.empty_like(input, memory_format=torch.contiguous_format)
        grad_weight = None if weight is None else torch.empty_like(weight)
        copies = [tensor.contiguous() for tensor in (input, gradients[0])]
        del copies
        return grad_input, grad_weight, None
