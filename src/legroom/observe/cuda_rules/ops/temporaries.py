"""Operations that allocate temporary tensors: copies of inputs that are not contiguous, products, masks, sorted keys.

Each operation was measured separately on an H200.
"""

import math
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
    scratch,
    size_of,
)

CHUNK = 65_536
"""The number of values that one block of a foreach kernel processes."""


def _softmax_backward(call: OpCall) -> MemoryPlan | None:
    # The product of gradient and result (SoftMax.cu, `softmax_backward_cuda_out`).
    return scratch(size_of(call.arguments["grad_output"]))


def _safe_softmax(call: OpCall) -> MemoryPlan | None:
    """Return a plan that allocates two masks: one for scores of minus infinity, and one for rows with only such
    scores.
    """
    scores = call.arguments["self"]
    rows = scores.numel() // max(1, scores.shape[call.arguments["dim"]])
    return scratch(scores.numel(), rows, 4)


def _logsumexp(call: OpCall) -> MemoryPlan | None:
    """Return a plan that allocates the maximum of each row, a mask of infinite maxima, the scores after the maximum is
    subtracted, and the sums of the rows (`logsumexp_out_impl`).
    """
    scores, dims = call.arguments["self"], call.arguments.get("dim")
    result = call.result if isinstance(call.result, torch.Tensor) else call.result[0]
    largest = size_of(result)
    if not scores.dim():
        return scratch(largest)
    steps: list[MemoryStep] = [ScratchAlloc("maxima", largest)]
    steps += _staged("of maxima", scores, dims, call, scores.element_size())
    steps += [
        ScratchAlloc("absolute", largest),
        ScratchAlloc("infinite", result.numel()),
        ScratchFree("infinite"),
        ScratchFree("absolute"),
    ]
    steps += [ScratchAlloc("scores", size_of(scores)), OutputAlloc(0)]
    return MemoryPlan([*steps, *_staged("of sums", scores, dims, call, reductions.SUM)])


def _staged(name: str, tensor: Any, dims: Any, call: OpCall, accumulator: int) -> list[MemoryStep]:
    sizes = reductions.of_tensor(tensor, dims, call.gpu, accumulator=accumulator)
    buffers = numbered(name, sizes)
    return [*buffers, *(ScratchFree(one.name) for one in reversed(buffers))]


def _log_sigmoid(call: OpCall) -> MemoryPlan:
    # The CPU saves a buffer for the backward pass. On CUDA, this buffer is empty (Activation.cpp).
    return MemoryPlan([OutputAlloc(0), OutputAlloc(1, 0)])


def _zeros_without_memory(call: OpCall) -> MemoryPlan:
    # The zero tensors of forward-mode derivatives have no memory (ZeroTensorFallback.cpp).
    return MemoryPlan([OutputAlloc(0, 0)])


def _roll(call: OpCall) -> MemoryPlan | None:
    # Dimensions are rolled one after the other, and the intermediate tensor is allocated before the result.
    if len(call.arguments["shifts"]) < 2:
        return None
    return MemoryPlan([ScratchAlloc("intermediate", size_of(call.arguments["self"])), OutputAlloc(0)])


def _cumulative(call: OpCall) -> MemoryPlan | None:
    # Integers and booleans are converted to 64 bits first.
    tensor = call.arguments["self"]
    narrow = not tensor.is_floating_point() and tensor.element_size() < 8
    return scratch(tensor.numel() * 8) if narrow else None


def _norms(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of `_foreach_norm`, whose kernel allocates a partial sum per chunk. The largest tensor
    determines the number of partial sums for all tensors (`foreach_tensor_norm_cuda`).
    """
    tensors = call.arguments["self"]
    if call.arguments["ord"] not in (1, 2, math.inf):
        return None
    chunks = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    outputs = [OutputAlloc(index) for index in range(len(tensors))]
    return MemoryPlan(
        [ScratchAlloc("sums", len(tensors) * chunks * max(4, tensors[0].element_size())), *outputs]
    )


def _complex_abs(call: OpCall) -> MemoryPlan | None:
    tensor = call.arguments["self"]
    return scratch(size_of(tensor)) if tensor.is_complex() else None


def _native_dropout(call: OpCall) -> MemoryPlan:
    # The mask is allocated before the result.
    return MemoryPlan([OutputAlloc(1), OutputAlloc(0)])


def install(overrides: Overrides) -> None:
    """Make dropout use one fused kernel that saves a boolean mask, as on CUDA. On the CPU, PyTorch multiplies the input
    by a mask with the dtype of the input.

    The rule follows `is_fused_kernel_acceptable` in ATen/native/Dropout.cpp. `dropout_` and dropouts of whole channels
    have no fused kernel on either device.
    """
    overrides.composite("dropout", _dropout)


def _dropout(original: Any, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0 or not input.numel():
        return input
    if p < 1:
        out: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
        return out
    zero: torch.Tensor = original.decompose(input, p, train)
    return zero


RULES: dict[str, Rule] = {
    "aten::native_dropout": _native_dropout,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_safe_softmax": _safe_softmax,
    "aten::logsumexp": _logsumexp,
    "aten::log_sigmoid_forward": _log_sigmoid,
    "aten::roll": _roll,
    "aten::_efficientzerotensor": _zeros_without_memory,
    "aten::cumsum": _cumulative,
    "aten::cumprod": _cumulative,
    "aten::_foreach_norm": _norms,
    "aten::abs": _complex_abs,
}
