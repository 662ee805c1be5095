"""Gradients of embeddings. CUDA sorts the indices of an embedding, and sums the rows of the gradient in segments.

The rules follow `embedding_dense_backward_cuda` in Embedding.cu and EmbeddingBackwardKernel.cu. For up to 3072 indices,
a single kernel computes the gradient. If there are more indices, they are sorted together with their positions. The
sorted indices are split into runs of equal indices, and each run is split into segments of up to ten indices. For every
segment, one row of partial sums in float32 is allocated. The predicted sizes match measurements, except for the scratch
memory of the sort.
"""

from typing import Any

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

ONE_KERNEL_MAX = 3072
SEGMENT = 10


def _embedding(call: OpCall) -> MemoryPlan | None:
    # Indices that are not contiguous are copied first.
    indices = call.arguments["indices"]
    if indices.is_contiguous():
        return None
    return MemoryPlan([ScratchAlloc("indices", size_of(indices)), OutputAlloc(0)])


def _backward(call: OpCall) -> MemoryPlan | None:
    gradient, indices = call.arguments["grad_output"], call.arguments["indices"]
    rows = call.arguments["num_weights"]
    steps: list[MemoryStep] = []
    if not indices.is_contiguous():
        steps.append(ScratchAlloc("indices", size_of(indices)))
    if not gradient.is_contiguous():
        steps.append(ScratchAlloc("gradient", size_of(gradient)))
    if indices.numel() <= ONE_KERNEL_MAX:
        return MemoryPlan([*steps, OutputAlloc(0)]) if steps else None
    return MemoryPlan([*steps, *_sorted(indices.numel(), rows, gradient.shape[-1])])


def _bag_backward(call: OpCall) -> MemoryPlan | None:
    gradient, indices = call.arguments["grad"], call.arguments["indices"]
    if call.arguments["mode"] == 2:  # the mode `max` does not sort the indices
        return None
    steps: list[MemoryStep] = []
    if not gradient.is_contiguous():
        steps.append(ScratchAlloc("gradient", size_of(gradient)))
    return MemoryPlan([*steps, *_sorted(indices.numel(), call.arguments["num_weights"], gradient.shape[-1])])


def _coalesce(call: OpCall) -> MemoryPlan:
    # The indices are sorted, and rows with the same index are summed (`_coalesce_sparse_cuda`).
    indices = call.arguments["self"]._nnz() * 8
    return MemoryPlan([ScratchAlloc("linear", indices), ScratchAlloc("positions", indices), ScratchAlloc("range", indices), ScratchAlloc("sort", 2 * indices), ScratchFree("sort"), OutputAlloc(0)])  # fmt: skip


def _sparse_mask(call: OpCall) -> MemoryPlan:
    # Rows of the dense matrix are gathered at the indices of the sparse matrix, then copied into the result.
    mask = call.arguments["mask"]
    return MemoryPlan(
        [
            OutputAlloc(0),
            ScratchAlloc("indices", mask._nnz() * 8),
            ScratchAlloc("rows", size_of(mask._values())),
        ]
    )


def _sorted(count: Any, rows: Any, width: int) -> list[MemoryStep]:
    count, rows = int(count), int(rows)
    runs = min(count, rows)
    segments = count // SEGMENT + runs
    return [
        ScratchAlloc("sorted", count * 8), ScratchAlloc("positions", count * 8), ScratchAlloc("range", count * 8), ScratchAlloc("sort", count * 16 + 20000),
        ScratchFree("sort"), ScratchFree("range"), OutputAlloc(0),
        ScratchAlloc("offsets", count * 8), ScratchAlloc("count", 8), ScratchAlloc("marks", count * 8), ScratchFree("marks"),
        ScratchAlloc("segments of run", runs * 8), ScratchAlloc("first segment", runs * 8), ScratchAlloc("segments", 8),
        ScratchAlloc("segment offsets", segments * 8), ScratchAlloc("sums", segments * width * 4),
    ]  # fmt: skip


RULES: dict[str, Rule] = {
    "aten::embedding": _embedding,
    "aten::_coalesce": _coalesce,
    "aten::sparse_mask": _sparse_mask,
    "aten::embedding_dense_backward": _backward,
    "aten::_embedding_bag_backward": _bag_backward,
    "aten::_embedding_bag_dense_backward": _bag_backward,
    "aten::_embedding_bag": lambda call: MemoryPlan([OutputAlloc(2), OutputAlloc(1), OutputAlloc(0)]),
}
