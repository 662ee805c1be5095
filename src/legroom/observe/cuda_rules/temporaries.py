"""Operations that make whole tensors inside: copies of what is not contiguous, products, masks, sorted keys.

Each was seen in the histories of single operations on an H200; the reason stands beside it.
"""

import math
from typing import Any

import torch

from legroom.observe.cuda_rules import reductions
from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, scratch, size_of

CHUNK = 65_536
"""Values of a tensor that one block of a foreach kernel works on."""


def _contiguous(name: str) -> Rule:
    """The kernel reads its input in one piece: what lies otherwise is copied first, after the result is allocated."""

    def rule(call: Call) -> Plan | None:
        tensor = call.arguments[name]
        return None if tensor.is_contiguous() else scratch(size_of(tensor))

    return rule


def _contiguous_in_its_format(name: str) -> Rule:
    """The same for kernels that know channels-last pictures as well."""

    def rule(call: Call) -> Plan | None:
        tensor = call.arguments[name]
        if tensor.is_contiguous() or (
            tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        ):
            return None
        return scratch(size_of(tensor))

    return rule


def _softmax_backward(call: Call) -> Plan | None:
    """Gradient × result, as a tensor of its own (SoftMax.cu, `softmax_backward_cuda_out`)."""
    return scratch(size_of(call.arguments["grad_output"]))


def _safe_softmax(call: Call) -> Plan | None:
    """Which scores are minus infinity, and which rows are so throughout."""
    scores = call.arguments["self"]
    rows = scores.numel() // max(1, scores.shape[call.arguments["dim"]])
    return scratch(scores.numel(), rows, 4)


def _logsumexp(call: Call) -> Plan | None:
    """The largest values, then the scores less those, all of them."""
    scores = call.arguments["self"]
    result = size_of(call.result if isinstance(call.result, torch.Tensor) else call.result[0])
    return Plan([Output(0), Take("scores", size_of(scores)), Take("largest", result)])


def _mean_of_loss(call: Call) -> Plan | None:
    """The result is first made as large as the inputs and shrunk later (its memory stays), beside the losses themselves."""
    if not call.arguments.get("reduction", 1):
        return None
    losses = size_of(call.arguments["self"])
    sums = reductions.of_tensor(_flat(call.arguments["self"]), None, call.gpu, accumulator=4)
    return Plan([Output(0, losses), Take("losses", losses), *_takes(sums)])


def _loss_in_place(call: Call) -> Plan | None:
    """The losses are made where the result will be: it stays as large as they are."""
    if not call.arguments.get("reduction", 1):
        return None
    losses = size_of(call.arguments["self"])
    sums = reductions.of_tensor(_flat(call.arguments["self"]), None, call.gpu, accumulator=4)
    return Plan([Output(0, losses), *_takes(sums)])


def _loss_beside(call: Call) -> Plan | None:
    """The losses are made, then their mean."""
    if not call.arguments.get("reduction", 1):
        return None
    return Plan([Take("losses", size_of(call.arguments["self"])), Output(0)])


def _logits_loss(call: Call) -> Plan | None:
    """Two tensors as large as the logits before the mean."""
    logits = size_of(call.arguments["self"])
    return Plan([Take("losses", logits), Take("parts", logits), Output(0)])


def _log_sigmoid(call: Call) -> Plan:
    """The buffer that the CPU keeps is empty on CUDA (Activation.cpp)."""
    return Plan([Output(0), Output(1, 0)])


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


def _sort(call: Call) -> Plan | None:
    """Long rows: segmented radix sort over keys with 64-bit places, a few rows one after the other (`Sort.cu`); short ones are sorted
    in one block each."""
    tensor = call.arguments["self"]
    row = tensor.shape[call.arguments["dim"]] if tensor.dim() else 1
    if row <= 4096:
        return scratch(1024)
    if tensor.numel() == row or tensor.numel() >= 128 * row:
        return scratch(tensor.numel() * 8, tensor.numel() * (8 + tensor.element_size()))
    places, keys = tensor.numel() * 8, tensor.numel() * tensor.element_size()
    return scratch(places, places, keys, places + keys)


def _randperm(call: Call) -> Plan | None:
    """Random keys are sorted beside the numbers (small permutations are made by one block)."""
    count = call.result.numel() if isinstance(call.result, torch.Tensor) else 0
    return scratch(count * 8, count * 8, count * 8, count * 16) if count > 30_000 else None


def _topk(call: Call) -> Plan | None:
    """Rows too long for one block are counted digit by digit, by several: a few words for each 4096 values or so."""
    tensor = call.arguments["self"]
    rows = tensor.numel() // max(1, tensor.shape[call.arguments["dim"]])
    return (
        scratch(rows * 512, rows * 1024)
        if rows > 1024 and tensor.shape[call.arguments["dim"]] > 512
        else None
    )


def _index(call: Call) -> Plan | None:
    """A mask of booleans becomes the places of its true values: a 64-bit number for each dimension. Indices for several dimensions are
    brought to one shape, and copied unless they lie alike in it (`AdvancedIndex` in TensorAdvancedIndexing.cpp)."""
    indices = [t for t in call.arguments["indices"] if isinstance(t, torch.Tensor)]
    masks = [t for t in indices if t.dtype == torch.bool]
    if not masks:
        copies = _spread(indices)
        return Plan([*copies, Output(0)]) if copies else None
    values = call.result if isinstance(call.result, torch.Tensor) else call.result[0]
    found = values.numel() // max(1, call.arguments["self"].numel() // max(1, masks[0].numel()))
    return Plan([Take("places", found * masks[0].dim() * 8), Output(0)])


def _spread(indices: list[Any]) -> list[Take]:
    """Copies of those that are repeated in the shape of all."""
    shape = torch.broadcast_shapes(*(t.shape for t in indices))  # type: ignore[no-untyped-call]
    return [
        Take(f"index {number}", math.prod(shape) * t.element_size())
        for number, t in enumerate(indices)
        if t.shape != shape
    ]


def _index_put(call: Call) -> Plan | None:
    """Accumulating: indices are made linear and sorted beside their places, and the values copied."""
    if not call.arguments.get("accumulate"):
        return None
    indices = [t for t in call.arguments["indices"] if isinstance(t, torch.Tensor)]
    count = max((t.numel() for t in indices), default=0)
    if indices and indices[0].dtype == torch.bool:
        count = call.arguments["values"].numel()
    values = size_of(call.arguments["values"])
    steps: list[Step] = [Output(0), Take("linear", count * 8)]
    if not call.arguments["values"].is_contiguous():
        steps.append(Take("values", values))
    steps += [
        Take("sorted", count * 8),
        Take("places", count * 8),
        Take("range", count * 8),
        Take("sort", count * 16),
    ]
    return Plan([*steps, Give("sort")])


def _norms(call: Call) -> Plan | None:
    """A partial sum for each chunk of values, as many for every tensor as the largest needs (`foreach_tensor_norm_cuda`)."""
    tensors = call.arguments["self"]
    if call.arguments["ord"] not in (1, 2, math.inf):
        return None
    chunks = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    outputs = [Output(index) for index in range(len(tensors))]
    return Plan([Take("sums", len(tensors) * chunks * max(4, tensors[0].element_size())), *outputs])


def _unfold(call: Call) -> Plan | None:
    """The input is copied, whatever it lies like."""
    input = size_of(call.arguments["self"])
    return Plan([Take("input", input), Output(0)])


def _fold(call: Call) -> Plan | None:
    """The result gets as much memory as the columns that are added up in it."""
    return Plan([Output(0, size_of(call.arguments["self"]))])


def _complex_abs(call: Call) -> Plan | None:
    tensor = call.arguments["self"]
    return scratch(size_of(tensor)) if tensor.is_complex() else None


def _dropout(call: Call) -> Plan:
    """The mask is allocated before the result."""
    return Plan([Output(1), Output(0)])


def _flat(tensor: Any) -> Any:
    return tensor.new_empty(tensor.numel()) if tensor.device.type == "meta" else _Flat(tensor)


class _Flat:
    """A tensor's elements in one row, as far as a reduction asks."""

    def __init__(self, tensor: Any) -> None:
        self.shape = (tensor.numel(),)

    def dim(self) -> int:
        return 1

    def stride(self) -> tuple[int]:
        return (1,)


def _takes(sizes: tuple[int, ...]) -> list[Take]:
    return [Take(f"part {index}", size) for index, size in enumerate(sizes) if size]


RULES: dict[str, Rule] = {
    "aten::native_dropout": _dropout,
    "aten::_softmax": _contiguous("self"),
    "aten::_log_softmax": _contiguous("self"),
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_safe_softmax": _safe_softmax,
    "aten::logsumexp": _logsumexp,
    "aten::mse_loss": _mean_of_loss,
    "aten::smooth_l1_loss": _mean_of_loss,
    "aten::huber_loss": _loss_beside,
    "aten::binary_cross_entropy": _loss_in_place,
    "aten::soft_margin_loss": _loss_in_place,
    "aten::randperm": _randperm,
    "aten::binary_cross_entropy_with_logits": _logits_loss,
    "aten::log_sigmoid_forward": _log_sigmoid,
    "aten::roll": _roll,
    "aten::cumsum": _cumulative,
    "aten::cumprod": _cumulative,
    "aten::sort": _sort,
    "aten::topk": _topk,
    "aten::index": _index,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::_foreach_norm": _norms,
    "aten::im2col": _unfold,
    "aten::col2im": _fold,
    "aten::abs": _complex_abs,
    **{
        f"aten::{name}": _contiguous("self")
        for name in ("reflection_pad1d", "reflection_pad2d", "replication_pad2d")
    },
    **{
        f"aten::upsample_{mode}_backward": _contiguous_in_its_format("grad_output")
        for mode in (
            "nearest1d",
            "nearest2d",
            "bilinear2d",
            "_nearest_exact2d",
            "linear1d",
            "trilinear3d",
            "nearest3d",
        )
    },
    "aten::upsample_bicubic2d_backward": _contiguous("grad_output"),
}
