"""Losses and softmax: the temporary tensors of the computation, and the gradients.

Most losses compute one value per element and then the mean or sum. Each loss function allocates different temporary
tensors. The sizes were measured on an H200 for each loss, with every reduction, precision and memory format.
"""

from collections.abc import Callable
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.ops import reductions
from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchAlloc,
    ScratchFree,
    numbered,
    size_of,
)


def _loss_and_result(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of a loss with two tensors of the input's size. The loss first allocates its result with
    the size of the inputs. When the result is resized to a scalar, this memory is not freed. The losses are stored in
    a second tensor.
    """
    if not _reduces(call):
        return None
    losses = size_of(call.arguments["self"])
    return MemoryPlan([OutputAlloc(0, losses), ScratchAlloc("losses", losses), *_staged(call)])


def _loss_in_place(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of a loss that is computed in the memory of its result. When the result is resized to a
    scalar, its storage stays as large as the losses of all elements.
    """
    if not _reduces(call):
        return None
    return MemoryPlan([OutputAlloc(0, size_of(call.arguments["self"])), *_staged(call)])


def _loss_then_result(call: OpCall) -> MemoryPlan | None:
    if not _reduces(call):
        return None
    return MemoryPlan(
        [ScratchAlloc("losses", size_of(call.arguments["self"])), OutputAlloc(0), *_staged(call)]
    )


def _logits_loss(call: OpCall) -> MemoryPlan:
    """Return the memory plan of `binary_cross_entropy_with_logits` (Loss.cpp). This function computes the log sigmoid,
    multiplies it by `pos_weight` if given, and computes the losses.
    """
    logits = size_of(call.arguments["self"])
    steps: list[MemoryStep] = [ScratchAlloc("log sigmoid", logits)]
    weights = call.arguments.get("pos_weight")
    if weights is not None:
        steps += [ScratchAlloc("pos_weight minus one", size_of(weights)), ScratchAlloc("weights", logits)]
        steps += [ScratchFree("pos_weight minus one"), ScratchFree("weights")]
    if not _reduces(call):
        return MemoryPlan([*steps, OutputAlloc(0)])
    return MemoryPlan([*steps, ScratchAlloc("losses", logits), OutputAlloc(0), *_staged(call)])


def _soft_margin_backward(call: OpCall) -> MemoryPlan:
    """Return the memory plan of the soft margin loss's gradient, which computes exp(-target × input) in three steps
    (`soft_margin_loss_backward_out` in Loss.cpp).
    """
    size = size_of(call.arguments["self"])
    return MemoryPlan(
        [
            ScratchAlloc("negative", size),
            ScratchAlloc("product", size),
            ScratchAlloc("exponential", size),
            ScratchFree("product"),
            ScratchFree("negative"),
            OutputAlloc(0),
        ]
    )


def _reduces(call: OpCall) -> bool:
    return bool(call.arguments.get("reduction", 1))


def _staged(call: OpCall) -> list[ScratchAlloc]:
    sizes = reductions.of_tensor(_flat(call.arguments["self"]), None, call.gpu, accumulator=4)
    return numbered("part", sizes)


def _flat(tensor: Any) -> Any:
    return tensor.new_empty(tensor.numel()) if tensor.device.type == "meta" else _Flat(tensor)


class _Flat:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = (tensor.numel(),)

    def dim(self) -> int:
        return 1

    def stride(self) -> tuple[int]:
        return (1,)


def install(overrides: Overrides) -> None:
    """Make a softmax from float16 to float32 run as one kernel, as on CUDA. On the CPU, torch converts the input before
    the softmax.

    The rule follows `softmax` and `log_softmax` in ATen/native/SoftMax.cpp. On both devices, torch converts bfloat16 inputs to float32 before the softmax. Under autocast, every softmax has a float32 result.
    """
    overrides.composite("softmax.int", _to_float32(torch.ops.aten._softmax))
    overrides.composite("log_softmax.int", _to_float32(torch.ops.aten._log_softmax))


def _to_float32(direct: Any) -> Callable[..., Any]:
    def softmax(original: Any, self: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if self.dtype == torch.float16 and dtype == torch.float32:
            return direct(self, dim, True)
        return original.decompose(self, dim, dtype)

    return softmax


RULES: dict[str, Rule] = {
    "aten::mse_loss": _loss_and_result,
    "aten::smooth_l1_loss": _loss_and_result,
    "aten::huber_loss": _loss_then_result,
    "aten::binary_cross_entropy": _loss_in_place,
    "aten::soft_margin_loss": _loss_in_place,
    "aten::soft_margin_loss_backward": _soft_margin_backward,
    "aten::binary_cross_entropy_with_logits": _logits_loss,
}
