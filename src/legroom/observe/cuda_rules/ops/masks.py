"""Indexing by masks and by indices: the positions of a mask's true values, and the prefix sum of a mask.

The rules follow `masked_select_out_cuda_impl`, `index` and `masked_scatter_` in ATen/native/cuda (IndexKernel.cpp,
Indexing.cu, Nonzero.cu). Selecting by a mask needs the positions of its true values, and each position consists of one
int64 per dimension. Scattering needs a prefix sum of the mask, which contains one int64 per element. For a batch of
embeddings, the prefix sum is larger than the embeddings, because an int64 is larger than a float.
"""

import math
from typing import Any

import torch

from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchAlloc,
    ScratchFree,
    size_of,
)

TILE, TILE_BYTES, SCAN_BYTES = 896, 16, 1151
"""A prefix sum uses 16 bytes for each tile of 896 values, and 1151 additional bytes (cub's DeviceScan on an H200)."""


def _select(call: OpCall) -> MemoryPlan:
    found, dims = call.result.numel(), max(call.arguments["self"].dim(), call.arguments["mask"].dim())
    return MemoryPlan([ScratchAlloc("positions", found * dims * 8), OutputAlloc(0)])


def _scatter(call: OpCall) -> MemoryPlan:
    target, source = call.arguments["self"], call.arguments["source"]
    count = target.numel()
    scan = -(-count // TILE) * TILE_BYTES + SCAN_BYTES
    steps: list[MemoryStep] = [
        OutputAlloc(0),
        ScratchAlloc("prefix sum", count * 8),
        ScratchAlloc("scan", scan),
        ScratchFree("scan"),
    ]
    if not source.is_contiguous():
        steps.append(ScratchAlloc("source", size_of(source)))
    return MemoryPlan(steps)


def _scatter_backward(call: OpCall) -> MemoryPlan:
    """Return the memory plan of the gradient of `masked_scatter`. The gradients that the mask selects are copied to a
    tensor with the shape of the source. The number of true values in the mask is unknown, so the plan assumes the size
    of the source.
    """
    count, dims = call.result.numel(), call.arguments["grad_output"].dim()
    selected = ScratchAlloc("selected", size_of(call.result))
    return MemoryPlan(
        [ScratchAlloc("positions", count * dims * 8), selected, ScratchFree("positions"), OutputAlloc(0)]
    )


def _index(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of an indexing operation. A mask is converted to the positions of its true values. Each
    position consists of one int64 per dimension. Indices for several dimensions are broadcast to one shape. Indices
    with another shape are copied (`AdvancedIndex` in TensorAdvancedIndexing.cpp).
    """
    indices = [t for t in call.arguments["indices"] if isinstance(t, torch.Tensor)]
    masks = [t for t in indices if t.dtype == torch.bool]
    if not masks:
        copies = _broadcast_copies(indices)
        return MemoryPlan([*copies, OutputAlloc(0)]) if copies else None
    values = call.result if isinstance(call.result, torch.Tensor) else call.result[0]
    found = _true_values(call.arguments["self"], masks[0], values)
    return MemoryPlan([ScratchAlloc("positions", found * masks[0].dim() * 8), OutputAlloc(0)])


def _true_values(tensor: Any, mask: Any, values: Any) -> int:
    return int(values.numel() // max(1, tensor.numel() // max(1, mask.numel())))


def _broadcast_copies(indices: list[Any]) -> list[ScratchAlloc]:
    shape = torch.broadcast_shapes(*(t.shape for t in indices))  # type: ignore[no-untyped-call]
    return [
        ScratchAlloc(f"index {number}", math.prod(shape) * t.element_size())
        for number, t in enumerate(indices)
        if t.shape != shape
    ]


def _index_put(call: OpCall) -> MemoryPlan | None:
    # With `accumulate`, linear indices are sorted together with their positions, and the values are copied.
    if not call.arguments.get("accumulate"):
        return None
    indices = [t for t in call.arguments["indices"] if isinstance(t, torch.Tensor)]
    values = call.arguments["values"]
    count = max((t.numel() for t in indices), default=0)
    steps: list[MemoryStep] = [OutputAlloc(0)]
    if indices and indices[0].dtype == torch.bool:
        count = _true_values(call.arguments["self"], indices[0], values)
        steps.append(ScratchAlloc("true", count * indices[0].dim() * 8))
    steps.append(ScratchAlloc("linear", count * 8))
    if not values.is_contiguous():
        steps.append(ScratchAlloc("values", size_of(values)))
    steps += [
        ScratchAlloc("sorted", count * 8),
        ScratchAlloc("positions", count * 8),
        ScratchAlloc("range", count * 8),
        ScratchAlloc("sort", count * 16),
    ]
    return MemoryPlan([*steps, ScratchFree("sort")])


RULES: dict[str, Rule] = {
    "aten::masked_select": _select,
    "aten::masked_scatter": _scatter,
    "aten::masked_scatter_": _scatter,
    "aten::masked_scatter_backward": _scatter_backward,
    "aten::index": _index,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
}
