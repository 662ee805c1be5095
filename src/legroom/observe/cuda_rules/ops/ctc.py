"""Memory plan of the CTC loss, which saves a score for every frame and every target position for the backward pass.

The rules follow ATen/native/cuda/LossCTC.cu and `ctc_loss` in ATen/native/LossCTC.cpp. The number of scores depends on
the longest target length, which is a value in a tensor, so PyTorch cannot infer the shape of the scores. However, the
lengths are on the host or were copied from the host, so their values are known. The cuDNN kernel that torch uses for
int32 targets on the host is not modeled.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from legroom.observe.cuda_rules.dispatcher import Overrides

Tensor = torch.Tensor
MEAN, SUM = 1, 2


def install(overrides: Overrides) -> None:
    for name in ("ctc_loss.Tensor", "ctc_loss.IntList"):
        overrides.composite(name, _loss)


def _loss(
    original: Any,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    if not isinstance(log_probs, FakeTensor):  # with data, the CPU saves the same scores
        result: Tensor = original.decompose(
            log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        )
        return result
    batched = log_probs.dim() == 3
    lengths = _listed(target_lengths)
    scores = log_probs if batched else log_probs.unsqueeze(1)
    losses: Tensor = _Losses.apply(scores, targets, max(lengths, default=0))  # type: ignore[no-untyped-call]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, losses.new_zeros(()), losses)
    if reduction == MEAN:
        return (losses / losses.new_tensor(lengths).clamp_min(1)).mean()
    if reduction == SUM:
        return losses.sum()
    return losses if batched else losses.squeeze(0)


def _listed(lengths: Any) -> list[int]:
    if not isinstance(lengths, Tensor):
        return [int(length) for length in lengths]
    return [int(length) for length in lengths.reshape(-1).tolist()]


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, targets: Tensor, longest: int) -> Tensor:
        frames, count, _ = log_probs.shape
        lengths = _lengths_on_device(log_probs)
        alpha = log_probs.new_empty(count, frames, 2 * longest + 1)
        losses = log_probs.new_empty(count)
        del lengths
        ctx.save_for_backward(log_probs, targets, losses, alpha)
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        log_probs, _, _, alpha = ctx.saved_tensors
        lengths = _lengths_on_device(log_probs)
        beta = torch.empty_like(alpha)
        result = torch.empty_like(log_probs, memory_format=torch.contiguous_format)
        del lengths, beta
        return result, None, None


def _lengths_on_device(log_probs: Tensor) -> list[Tensor]:
    # The lengths of targets and inputs, and the offset of each target.
    return [log_probs.new_empty(log_probs.shape[1], dtype=torch.int64) for _ in range(3)]
