"""Gradients of embeddings: indices are sorted, and rows summed by pieces.

Source: `embedding_dense_backward_cuda` in Embedding.cu and EmbeddingBackwardKernel.cu. Up to 3072 indices one kernel
does it alone. Beyond that, the indices are sorted beside their places, cut into runs of the same row and those into
pieces of ten, and every piece has a row of partial sums in single precision. Measured: equal but for the sort's own scratch.
"""

from typing import Any

from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, size_of

ONE_KERNEL = 3072
PIECE = 10


def _embedding(call: Call) -> Plan | None:
    """Indices that do not lie in a row are copied first."""
    indices = call.arguments["indices"]
    if indices.is_contiguous():
        return None
    return Plan([Take("indices", size_of(indices)), Output(0)])


def _backward(call: Call) -> Plan | None:
    gradient, indices = call.arguments["grad_output"], call.arguments["indices"]
    rows = call.arguments["num_weights"]
    steps: list[Step] = []
    if not indices.is_contiguous():
        steps.append(Take("indices", size_of(indices)))
    if not gradient.is_contiguous():
        steps.append(Take("gradient", size_of(gradient)))
    if indices.numel() <= ONE_KERNEL:
        return Plan([*steps, Output(0)]) if steps else None
    return Plan([*steps, *_sorted(indices.numel(), rows, gradient.shape[-1])])


def _bag_backward(call: Call) -> Plan | None:
    gradient, indices = call.arguments["grad"], call.arguments["indices"]
    if call.arguments["mode"] == 2:  # the maximum: scattered, not sorted
        return None
    steps: list[Step] = []
    if not gradient.is_contiguous():
        steps.append(Take("gradient", size_of(gradient)))
    return Plan([*steps, *_sorted(indices.numel(), call.arguments["num_weights"], gradient.shape[-1])])


def _coalesce(call: Call) -> Plan:
    """Sparse gradients: rows of the same index are added up, after the indices were sorted (`_coalesce_sparse_cuda`)."""
    indices = call.arguments["self"]._nnz() * 8
    return Plan([Take("linear", indices), Take("places", indices), Take("range", indices), Take("sort", 2 * indices), Give("sort"), Output(0)])  # fmt: skip


def _sparse_mask(call: Call) -> Plan:
    """The rows of a dense matrix that a sparse one has: picked out, then copied into the result."""
    mask = call.arguments["mask"]
    return Plan([Output(0), Take("indices", mask._nnz() * 8), Take("rows", size_of(mask._values()))])


def _sorted(count: Any, rows: Any, width: int) -> list[Step]:
    count, rows = int(count), int(rows)
    runs = min(count, rows)
    pieces = count // PIECE + runs
    return [
        Take("sorted", count * 8), Take("places", count * 8), Take("range", count * 8), Take("sort", count * 16 + 20000),
        Give("sort"), Give("range"), Output(0),
        Take("offsets", count * 8), Take("count", 8), Take("marks", count * 8), Give("marks"),
        Take("pieces of run", runs * 8), Take("first piece", runs * 8), Take("pieces", 8),
        Take("piece offsets", pieces * 8), Take("sums", pieces * width * 4),
    ]  # fmt: skip


RULES: dict[str, Rule] = {
    "aten::embedding": _embedding,
    "aten::_coalesce": _coalesce,
    "aten::sparse_mask": _sparse_mask,
    "aten::embedding_dense_backward": _backward,
    "aten::_embedding_bag_backward": _bag_backward,
    "aten::_embedding_bag_dense_backward": _bag_backward,
    "aten::_embedding_bag": lambda call: Plan([Output(2), Output(1), Output(0)]),
}
