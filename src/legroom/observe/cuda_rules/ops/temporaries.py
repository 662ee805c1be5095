"""Operations that make whole tensors inside: copies of what is not contiguous, products, masks, sorted keys.

Each was seen in the histories of single operations on an H200; the reason stands beside it.
"""

import math
from typing import Any

import torch

from legroom.observe.cuda_rules.ops import reductions
from legroom.observe.cuda_rules.plan import (
    Call,
    Give,
    Output,
    Plan,
    Rule,
    Step,
    Take,
    numbered,
    scratch,
    size_of,
)

CHUNK = 65_536
"""Values of a tensor that one block of a foreach kernel works on."""


def _softmax_backward(call: Call) -> Plan | None:
    """Gradient × result, as a tensor of its own (SoftMax.cu, `softmax_backward_cuda_out`)."""
    return scratch(size_of(call.arguments["grad_output"]))


def _safe_softmax(call: Call) -> Plan | None:
    """Which scores are minus infinity, and which rows are so throughout."""
    scores = call.arguments["self"]
    rows = scores.numel() // max(1, scores.shape[call.arguments["dim"]])
    return scratch(scores.numel(), rows, 4)


def _logsumexp(call: Call) -> Plan | None:
    """The largest values, those that are infinite, then the scores less the largest, all of them, and their sums (`logsumexp_out_impl`)."""
    scores, dims = call.arguments["self"], call.arguments.get("dim")
    result = call.result if isinstance(call.result, torch.Tensor) else call.result[0]
    largest = size_of(result)
    if not scores.dim():
        return scratch(largest)
    steps: list[Step] = [Take("largest", largest)]
    steps += _staged("of the largest", scores, dims, call, scores.element_size())
    steps += [Take("absolute", largest), Take("infinite", result.numel()), Give("infinite"), Give("absolute")]
    steps += [Take("scores", size_of(scores)), Output(0)]
    return Plan([*steps, *_staged("of sums", scores, dims, call, reductions.SUM)])


def _staged(name: str, tensor: Any, dims: Any, call: Call, accumulator: int) -> list[Step]:
    """The staging buffer of a reduction, taken and given back."""
    sizes = reductions.of_tensor(tensor, dims, call.gpu, accumulator=accumulator)
    buffers = numbered(name, sizes)
    return [*buffers, *(Give(one.name) for one in reversed(buffers))]


def _log_sigmoid(call: Call) -> Plan:
    """The buffer that the CPU keeps is empty on CUDA (Activation.cpp)."""
    return Plan([Output(0), Output(1, 0)])


def _zeros_without_memory(call: Call) -> Plan:
    """The derivative of what does not depend on the input, in forward mode: zeros that are only spoken of (ZeroTensorFallback.cpp)."""
    return Plan([Output(0, 0)])


def _roll(call: Call) -> Plan | None:
    """One dimension after the other: what lies between two is a temporary, and there before the result."""
    if len(call.arguments["shifts"]) < 2:
        return None
    return Plan([Take("between", size_of(call.arguments["self"])), Output(0)])


def _cumulative(call: Call) -> Plan | None:
    """Integers and booleans are widened to 64 bits first."""
    tensor = call.arguments["self"]
    narrow = not tensor.is_floating_point() and tensor.element_size() < 8
    return scratch(tensor.numel() * 8) if narrow else None


def _norms(call: Call) -> Plan | None:
    """A partial sum for each chunk of values, as many for every tensor as the largest needs (`foreach_tensor_norm_cuda`)."""
    tensors = call.arguments["self"]
    if call.arguments["ord"] not in (1, 2, math.inf):
        return None
    chunks = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    outputs = [Output(index) for index in range(len(tensors))]
    return Plan([Take("sums", len(tensors) * chunks * max(4, tensors[0].element_size())), *outputs])


def _complex_abs(call: Call) -> Plan | None:
    tensor = call.arguments["self"]
    return scratch(size_of(tensor)) if tensor.is_complex() else None


def _dropout(call: Call) -> Plan:
    """The mask is allocated before the result."""
    return Plan([Output(1), Output(0)])


RULES: dict[str, Rule] = {
    "aten::native_dropout": _dropout,
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
