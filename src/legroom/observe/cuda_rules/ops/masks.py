"""Values chosen by a mask of booleans, or put where it is true: places, and counts of the true ones before each.

Source: `masked_select_out_cuda_impl`, `index` and `masked_scatter_` in ATen/native/cuda (IndexKernel.cpp, Indexing.cu, Nonzero.cu). To choose
by a mask, the places of its true values are found: a 64-bit number for each dimension. To put values there, a running count of the true
values is made, in 64 bits for every element, true or not: for a batch of embeddings it is larger than these.
"""

import math
from typing import Any

import torch

from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, size_of

TILE, TILE_BYTES, SCAN_BYTES = 896, 16, 1151
"""A running count keeps so many bytes for each tile of so many values, and some more (cub's DeviceScan on an H200)."""


def _select(call: Call) -> Plan:
    found, dims = call.result.numel(), max(call.arguments["self"].dim(), call.arguments["mask"].dim())
    return Plan([Take("places", found * dims * 8), Output(0)])


def _scatter(call: Call) -> Plan:
    target, source = call.arguments["self"], call.arguments["source"]
    count = target.numel()
    scan = -(-count // TILE) * TILE_BYTES + SCAN_BYTES
    steps: list[Step] = [Output(0), Take("counts", count * 8), Take("scan", scan), Give("scan")]
    if not source.is_contiguous():
        steps.append(Take("source", size_of(source)))
    return Plan(steps)


def _scatter_backward(call: Call) -> Plan:
    """The gradients of what was put, chosen by the mask and brought to the source's shape. How many are true is not known: as many as the source has."""
    count, dims = call.result.numel(), call.arguments["grad_output"].dim()
    chosen = Take("chosen", size_of(call.result))
    return Plan([Take("places", count * dims * 8), chosen, Give("places"), Output(0)])


def _index(call: Call) -> Plan | None:
    """A mask of booleans becomes the places of its true values: a 64-bit number for each dimension. Indices for several dimensions are
    brought to one shape, and copied unless they lie alike in it (`AdvancedIndex` in TensorAdvancedIndexing.cpp)."""
    indices = [t for t in call.arguments["indices"] if isinstance(t, torch.Tensor)]
    masks = [t for t in indices if t.dtype == torch.bool]
    if not masks:
        copies = _spread(indices)
        return Plan([*copies, Output(0)]) if copies else None
    values = call.result if isinstance(call.result, torch.Tensor) else call.result[0]
    found = _true_values(call.arguments["self"], masks[0], values)
    return Plan([Take("places", found * masks[0].dim() * 8), Output(0)])


def _true_values(tensor: Any, mask: Any, values: Any) -> int:
    """How many values of a mask are true, by what was chosen with it: for each, all that lies behind."""
    return int(values.numel() // max(1, tensor.numel() // max(1, mask.numel())))


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
    given = call.arguments["values"]
    count = max((t.numel() for t in indices), default=0)
    steps: list[Step] = [Output(0)]
    if indices and indices[0].dtype == torch.bool:
        count = _true_values(call.arguments["self"], indices[0], given)
        steps.append(Take("true", count * indices[0].dim() * 8))
    steps.append(Take("linear", count * 8))
    if not given.is_contiguous():
        steps.append(Take("values", size_of(given)))
    steps += [
        Take("sorted", count * 8),
        Take("places", count * 8),
        Take("range", count * 8),
        Take("sort", count * 16),
    ]
    return Plan([*steps, Give("sort")])


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
