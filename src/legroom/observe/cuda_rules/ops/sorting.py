"""Sorting and operations that sort: top-k, medians, permutations, sampling, membership.

The rules follow Sort.cpp, TensorTopK.cu, Sorting.cpp, Randperm.cu and Distributions.cpp in ATen/native. Each row of up
to 4096 values is sorted in place by one block. Longer rows are copied, so that the values of each row are adjacent in
memory, and cub sorts the copies with their int64 indices.
"""

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
    scratch,
    size_of,
)

SHORT_ROW = 4096


def _sort(call: OpCall) -> MemoryPlan | None:
    tensor = call.arguments["self"]
    dim = call.arguments["dim"]
    row = tensor.shape[dim] if tensor.dim() else 1
    if row <= SHORT_ROW:
        return scratch(1024)
    results = call.result
    steps: list[MemoryStep] = [OutputAlloc(0), OutputAlloc(1)]
    if not _has_contiguous_rows(tensor, dim):
        steps.append(ScratchAlloc("rows", size_of(tensor)))
        if (
            tensor.stride(dim) != 1 and results[0].stride(dim) != 1
        ):  # results have the strides of the input, and are copied at the end
            steps += [ScratchAlloc("values", size_of(tensor)), ScratchAlloc("indices", tensor.numel() * 8)]
    return MemoryPlan([*steps, *_segmented_sort(tensor.numel(), row, tensor.element_size())])


def _has_contiguous_rows(tensor: Any, dim: int) -> bool:
    is_dense = tensor.is_contiguous() or tensor.transpose(dim, -1).is_contiguous()
    return bool(is_dense and tensor.stride(dim) == 1)


def _segmented_sort(count: int, row: int, element: int) -> list[MemoryStep]:
    # If there are only a few rows, all rows are sorted together, first by value and then by row.
    indices, keys = count * 8, count * element
    if count == row or count >= 128 * row:
        return [ScratchAlloc("positions", indices), ScratchAlloc("sort", _sort_buffer(count, indices + keys))]
    return [
        ScratchAlloc("positions", indices), ScratchAlloc("segments", indices), ScratchAlloc("keys", keys), ScratchAlloc("sort", _sort_buffer(count, indices + keys)),
    ]  # fmt: skip


def _sort_buffer(count: int, pairs: int) -> int:
    # The buffer contains a second copy of the pairs. The digit counts use about three bytes for every 16 pairs.
    return pairs + count * 3 // 16


def _median(call: OpCall) -> MemoryPlan | None:
    # The median of all values is read from the sorted values (`median_impl`).
    if "dim" in call.arguments:
        return None
    tensor = call.arguments["self"]
    count, element = tensor.numel(), tensor.element_size()
    sort = _segmented_sort(count, count, element) if count > SHORT_ROW else []
    freed = [ScratchFree(step.name) for step in reversed(sort) if isinstance(step, ScratchAlloc)]
    copied: list[MemoryStep] = [] if tensor.is_contiguous() else [ScratchAlloc("flat", count * element)]
    return MemoryPlan(
        [
            *copied,
            ScratchAlloc("values", count * element),
            ScratchAlloc("indices", count * 8),
            *sort,
            *freed,
            OutputAlloc(0),
        ]
    )


def _randperm(call: OpCall) -> MemoryPlan | None:
    # Random keys are sorted together with the numbers. A single block computes small permutations.
    count = call.result.numel() if isinstance(call.result, torch.Tensor) else 0
    return scratch(count * 8, count * 8, count * 8, count * 16) if count > 30_000 else None


def _topk(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of `topk`. For more than 1024 rows of more than 512 values, the kernel counts the digits
    of the values, as in a radix sort. The counts use 1.5 KiB per row.
    """
    tensor = call.arguments["self"]
    rows = tensor.numel() // max(1, tensor.shape[call.arguments["dim"]])
    return (
        scratch(rows * 512, rows * 1024)
        if rows > 1024 and tensor.shape[call.arguments["dim"]] > 512
        else None
    )


def _multinomial(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of `multinomial`. For one sample, or for several samples without replacement, the
    probabilities are divided by exponential noise, and the largest quotients are selected. In all other cases, the
    kernel uses a prefix sum.
    """
    probabilities = size_of(call.arguments["self"])
    if call.arguments["num_samples"] == 1 or not call.arguments["replacement"]:
        return MemoryPlan([OutputAlloc(0), ScratchAlloc("divided by noise", probabilities)])
    return MemoryPlan(
        [OutputAlloc(0), ScratchAlloc("normalized", probabilities), ScratchAlloc("prefix sum", probabilities)]
    )


def _isin(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of `isin` (TensorCompare.cpp). If there are only a few test values, each test value is
    compared with all elements at once. If there are many, they are sorted together with the elements.
    """
    elements, tests = call.arguments["elements"], call.arguments["test_elements"]
    count, others = elements.numel(), tests.numel()
    if others < 10 * count**0.145:
        return MemoryPlan([OutputAlloc(0), ScratchAlloc("equal", count * others), ScratchAlloc("any", count)])
    concatenated = (count + others) * elements.element_size()
    indices = (count + others) * 8
    return MemoryPlan([OutputAlloc(0), ScratchAlloc("concatenated", concatenated), ScratchAlloc("sorted", concatenated), ScratchAlloc("positions", indices), ScratchAlloc("sort", concatenated + indices)])  # fmt: skip


RULES: dict[str, Rule] = {
    "aten::sort": _sort,
    "aten::topk": _topk,
    "aten::randperm": _randperm,
    "aten::median": _median,
    "aten::nanmedian": _median,
    "aten::multinomial": _multinomial,
    "aten::isin": _isin,
}
