"""Sums, means, norms and other reductions: the staging buffer of CUDA's reduction kernel.

The rules follow `setReduceConfig` in ATen/native/cuda/Reduce.cuh. For many inputs and few outputs, several thread
blocks compute one output. Each block writes a partial result to global memory, and the last block combines the partial
results. The buffer reserves memory for the partial result of every thread in a block. If the elements along the reduced
dimension are not adjacent in memory, the buffer is `block.x` × vector width times larger than necessary. The bias
gradient of a linear layer is the sum of a tall matrix over its rows, so the buffer of this sum may be larger than the
matrix.

The only property of the GPU that affects the size is the number of blocks that run at once. The sizes are equal to
those measured for `torch.sum` on an H200.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchAlloc,
    numbered,
    scratch,
)

MAX_THREADS = 512
WARP = 32
MIN_VALUES_PER_THREAD = 16
MAX_VALUES_PER_THREAD = 256


class Dimension(NamedTuple):
    """One or more dimensions of a tensor that the kernel treats as a single dimension."""

    size: int
    stride: int


def buffers(
    shape: Sequence[int],
    strides: Sequence[int],
    reduced: Sequence[int],
    gpu: GpuSpec,
    *,
    accumulator: int,
    vector: int = 4,
) -> tuple[int, int]:
    """Return the sizes in bytes of the staging buffer and of its semaphores. If one block per output is enough, both
    sizes are 0.

    `accumulator` is the size in bytes of one partial result (4 for a sum of floats, 16 for a variance). `vector` is the
    number of inputs that are loaded at once if all dimensions are reduced, or 1 if the kernel does not vectorize.
    """
    inner = _merged([(shape[d], strides[d]) for d in range(len(shape)) if d in reduced])
    outer = _merged([(shape[d], strides[d]) for d in range(len(shape)) if d not in reduced])
    inputs, outputs = prod(d.size for d in inner), prod(d.size for d in outer)
    if not inputs or not outputs or not inner:
        return 0, 0
    along = not outer or inner[0].stride < outer[0].stride  # the fastest dimension is a reduced one
    output_vector = 1
    wide, high = (inputs, outputs) if along else (outputs, inputs)
    if along and inner[0].stride == 1 and wide > 128 and len(inner) + len(outer) == 1:
        wide //= vector
    elif not along and outer[0].stride == 1:
        output_vector = _output_vector(inner, outer)
        wide //= output_vector
    width, height = _block(wide, high, MAX_THREADS // output_vector)

    per_thread = _ceil(inputs, width) if along else inputs
    if per_thread < min(height * 16, MAX_VALUES_PER_THREAD):
        return 0, 0  # each row of threads computes its own outputs
    per_thread = _ceil(inputs, width * height if along else height)
    columns = _ceil(outputs // output_vector, 1 if along else width)
    at_once = gpu.sm_count * (gpu.threads_per_sm // (width * height))
    if per_thread < MAX_VALUES_PER_THREAD or columns > at_once:
        return 0, 0
    blocks = max(
        min(_ceil(at_once, columns), _ceil(per_thread, MIN_VALUES_PER_THREAD)),
        _ceil(per_thread, MAX_VALUES_PER_THREAD),
    )
    if blocks == 1:
        return 0, 0
    buffer = accumulator * outputs * blocks
    return buffer if along else buffer * width * output_vector, 4 * columns


def _merged(dimensions: list[tuple[int, int]]) -> list[Dimension]:
    """Sort the dimensions by stride, smallest first, and merge adjacent dimensions, as TensorIterator does."""
    merged: list[Dimension] = []
    # An expanded dimension has stride 0: it comes last.
    for size, stride in sorted((d for d in dimensions if d[0] != 1), key=lambda d: (d[1] == 0, d[1], d[0])):
        if merged and merged[-1].size * merged[-1].stride == stride:
            merged[-1] = Dimension(merged[-1].size * size, merged[-1].stride)
        else:
            merged.append(Dimension(size, stride))
    return merged


def _output_vector(inner: list[Dimension], outer: list[Dimension]) -> int:
    """Return the number of adjacent outputs per thread: 4, 2 or 1, depending on alignment."""
    width = 4
    for value in (outer[0].size, *(d.stride for d in (*inner, *outer[1:]))):
        while value % width:
            width //= 2
    return width


def _block(wide: int, high: int, threads: int) -> tuple[int, int]:
    wide, high = (min(_power_below(n), threads) for n in (wide, high))
    width = min(wide, WARP)
    height = min(high, threads // width)
    return min(wide, threads // height), height


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def of_tensor(tensor: Any, dims: Any, gpu: GpuSpec, *, accumulator: int, vector: int = 4) -> tuple[int, int]:
    rank = tensor.dim()
    chosen = [dims] if isinstance(dims, int) else list(dims or ())
    reduced = {d % rank for d in chosen} if chosen else set(range(rank))
    return buffers(
        tensor.shape, tensor.stride(), sorted(reduced), gpu, accumulator=accumulator, vector=vector
    )


def _reduction(accumulator: int | None = None, vector: int = 4) -> Rule:
    """Return the rule for operations that consist of one reduction. `accumulator` is the size in bytes of a partial
    result for inputs of 4 bytes or fewer. If `accumulator` is None, a partial result has the same size as an input.
    """

    def rule(call: OpCall) -> MemoryPlan | None:
        tensor = call.arguments["self"]
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            return None
        without_index = (
            accumulator == INDEXED and call.func._schema.name in _VALUES_ONLY and "dim" not in call.arguments
        )
        size = tensor.element_size() if without_index else accumulator or tensor.element_size()
        if tensor.element_size() == 8 and accumulator in (SUM, WELFORD):
            size *= 2
        dims = call.arguments.get("dim")
        widened = _widened(call, tensor)
        if widened:
            size = 8
        return scratch(
            widened,
            _flattened(call, tensor, dims),
            *of_tensor(tensor, dims, call.gpu, accumulator=size, vector=vector),
        )

    return rule


def _count(call: OpCall) -> MemoryPlan:
    # The mask of nonzero values is summed in 64 bits (TensorAdvancedIndexing.cpp).
    tensor = call.arguments["self"]
    staged = of_tensor(tensor, call.arguments.get("dim"), call.gpu, accumulator=8) if tensor.dim() else ()
    return MemoryPlan(
        [
            ScratchAlloc("mask", tensor.numel()),
            OutputAlloc(0),
            ScratchAlloc("int64", tensor.numel() * 8),
            *numbered("part", staged),
        ]
    )


def _flattened(call: OpCall, tensor: Any, dims: Any) -> int:
    """Return the size in bytes of the flattened copy that the kernel needs to compute the index of the maximum."""
    finds_index = call.func._schema.name in ("aten::argmax", "aten::argmin")
    return (
        tensor.numel() * tensor.element_size()
        if finds_index and dims is None and not tensor.is_contiguous()
        else 0
    )


def _widened(call: OpCall, tensor: Any) -> int:
    """Return the size in bytes of the int64 copy that sums and products of booleans and small integers need
    (`make_reduction`).
    """
    is_sum = call.func._schema.name in ("aten::sum", "aten::prod", "aten::nansum")
    narrow = not tensor.is_floating_point() and not tensor.is_complex() and tensor.element_size() < 8
    return tensor.numel() * 8 if is_sum and narrow else 0


SUM, WELFORD, INDEXED = 4, 16, 16
"""The sizes in bytes of three kinds of partial results: a float, the statistics of a variance (mean, squared distance
and two counts), and a value with its index.
"""

_VALUES_ONLY = ("aten::max", "aten::min")

RULES: dict[str, Rule] = {
    "aten::count_nonzero": _count,
    **dict.fromkeys(
        (
            "aten::sum", "aten::mean", "aten::nansum", "aten::prod", "aten::norm", "aten::linalg_vector_norm",
        ),
        _reduction(SUM),
    ),
    **dict.fromkeys(("aten::amax", "aten::amin"), _reduction()),
    **dict.fromkeys(
        ("aten::any", "aten::all"),
        _reduction(1),
    ),
    **dict.fromkeys(("aten::var", "aten::std", "aten::var_mean", "aten::std_mean"), _reduction(WELFORD)),
    **dict.fromkeys(("aten::argmax", "aten::argmin", "aten::max", "aten::min"), _reduction(INDEXED)),
}  # fmt: skip
