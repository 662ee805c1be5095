"""Matrix products, dense and sparse: cuBLAS workspaces, copies of operands, and operations that are computed as
products.

For each library handle and stream, cuBLAS allocates one workspace from PyTorch's allocator, and keeps it until the
process ends. The autograd engine runs backward operations on its own thread with its own handle, so there are two
workspaces. The rule for the size follows `getChosenWorkspaceSize` in ATen/cuda/CublasHandlePool.cpp. A workspace is 32
MiB on Hopper and newer GPUs, and 4096 KiB × 2 + 16 KiB × 8 on older GPUs. The environment variable
`CUBLAS_WORKSPACE_CONFIG` can set another size.

A product that adds a bias uses cuBLASLt, which has its own workspace. In the measured histories, this workspace is 1
MiB and is allocated after the cuBLAS workspace.
"""

import math
import os
import re
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.ops import reductions
from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    PersistentAlloc,
    Rule,
    ScratchAlloc,
    ScratchFree,
    numbered,
    size_of,
)
from legroom.units import KiB, MiB


def workspace(gpu: GpuSpec, config: str | None = None) -> int:
    """Return the size in bytes of one cuBLAS workspace. `config` is the value of `CUBLAS_WORKSPACE_CONFIG`, such as
    `:4096:2:16:8` (KiB and counts).
    """
    pairs = re.findall(r":(\d+):(\d+)", config or "")
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) * KiB
    return 32 * MiB if gpu.capability[0] >= 9 else (4096 * 2 + 16 * 8) * KiB


def cublas_workspace(call: OpCall) -> PersistentAlloc:
    return PersistentAlloc(
        f"cublas {_thread(call)}", workspace(call.gpu, os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
    )


def _thread(call: OpCall) -> str:
    return "backward" if call.in_backward else "forward"


def _product(*operands: str, bias: str | None = None) -> Rule:
    def rule(call: OpCall) -> MemoryPlan | None:
        if any(call.arguments[name].layout is not torch.strided for name in operands):
            return sparse_product(call)
        steps: list[MemoryStep] = [OutputAlloc(0)]
        steps += [
            ScratchAlloc(name, size_of(call.arguments[name]))
            for name in operands
            if not _is_readable(call.arguments[name])
        ]
        steps.append(cublas_workspace(call))
        if bias is not None and _uses_cublaslt(call.arguments[bias], call.arguments[operands[-1]]):
            steps.append(PersistentAlloc(f"cublaslt {_thread(call)}", MiB))
        return MemoryPlan(steps)

    return rule


def _uses_cublaslt(bias: Any, matrix: Any) -> bool:
    """Return whether torch uses cuBLASLt, which adds a bias per column. If there is a single column, torch does not use
    cuBLASLt (`isInputCompliesAddmmCudaLt` in Blas.cpp).
    """
    return bool(bias.dim() == 1 and min(matrix.shape) > 1)


def _is_readable(matrix: Any) -> bool:
    """Return whether cuBLAS can read a matrix, or a batch of matrices, without a copy. The elements of each row, or of
    each column, must be adjacent in memory.

    The rule follows `prepare_matrix_for_cublas` in ATen/native/cuda/Blas.cpp.
    """
    if matrix.dim() < 2:
        return True
    rows, columns = matrix.shape[-2:]
    down, across = matrix.stride()[-2:]
    by_columns = (down == 1 or rows == 1) and (across >= max(1, rows) or columns == 1)
    by_rows = (across == 1 or columns == 1) and (down >= max(1, columns) or rows == 1)
    return bool(by_columns or by_rows)


def _affine_grid(call: OpCall) -> MemoryPlan:
    """Return the memory plan of `affine_grid_generator` (AffineGridGenerator.cpp), which multiplies the base grid by
    the matrix of each image.
    """
    result = call.result
    base = result.numel() // max(1, result.shape[-1]) * (result.shape[-1] + 1) * result.element_size()
    return MemoryPlan([ScratchAlloc("base grid", base), OutputAlloc(0), cublas_workspace(call)])


def install_one_hot(overrides: Overrides) -> None:
    """Make `one_hot` write ones into a tensor of zeros, as on CUDA (ATen/native/Onehot.cpp). For tensors without data,
    torch compares the indices with a range instead.
    """
    overrides.composite("one_hot", _one_hot)


def _one_hot(original: Any, self: torch.Tensor, num_classes: int = -1) -> Any:
    if num_classes <= 0 or self.numel() == 0:
        return original.decompose(self, num_classes)
    zeros = self.new_zeros((*self.shape, num_classes))
    return zeros.scatter_(-1, self.unsqueeze(-1), 1)


def _trilinear(call: OpCall) -> MemoryPlan:
    """Return the memory plan of `nn.Bilinear` (`_trilinear` in ATen/native/Linear.cpp). The kernel loops over one
    dimension. In each iteration, the kernel multiplies the first two operands, multiplies their product by the third
    operand, and adds it to the result.
    """
    operands = [_unsqueezed(call.arguments[f"i{n}"], call.arguments[f"expand{n}"]) for n in (1, 2, 3)]
    unrolled, summed = call.arguments["unroll_dim"], set(call.arguments["sumdim"])
    first = {dim for dim in summed if dim in call.arguments["expand3"]}
    pair = [
        1 if dim == unrolled or dim in first else max(sizes)
        for dim, sizes in enumerate(zip(*operands[:2], strict=True))
    ]
    product = [
        1 if dim == unrolled or dim in summed else max(sizes)
        for dim, sizes in enumerate(zip(pair, operands[2], strict=True))
    ]
    element = call.arguments["i1"].element_size()
    return MemoryPlan(
        [
            OutputAlloc(0),
            ScratchAlloc("pair", math.prod(pair) * element),
            ScratchAlloc("slice", math.prod(product) * element),
            ScratchFree("pair"),
        ]
    )


def _unsqueezed(tensor: Any, new: list[int]) -> list[int]:
    sizes = list(tensor.shape)
    for dim in sorted(new):
        sizes.insert(dim, 1)
    return sizes


def _euclidean(call: OpCall) -> MemoryPlan:
    """Return the memory plan of `torch.cdist`, which squares, sums, scales and concatenates both inputs to compute one
    product (`_euclidean_dist` in ATen/native/Distance.cpp). The rule agrees with 94 measurements on an H200.
    """
    steps: list[MemoryStep] = []
    for side in ("x1", "x2"):
        size = size_of(call.arguments[side])
        norms = size // max(1, call.arguments[side].shape[-1])
        steps += [
            ScratchAlloc(f"{side} squared", size),
            ScratchAlloc(f"{side} norms", norms),
            ScratchFree(f"{side} squared"),
        ]
        steps.append(ScratchAlloc(f"{side} ones", norms))
    steps.append(ScratchAlloc("scaled", size_of(call.arguments["x1"])))
    for side in ("x1", "x2"):
        rows = size_of(call.arguments[side]) // max(1, call.arguments[side].shape[-1])
        steps.append(ScratchAlloc(f"{side} concatenated", size_of(call.arguments[side]) + 2 * rows))
        steps += [ScratchFree(f"{side} norms"), ScratchFree(f"{side} ones")]
        if side == "x1":
            steps.append(ScratchFree("scaled"))
    return MemoryPlan([*steps, OutputAlloc(0), cublas_workspace(call)])


def _cdist_backward(call: OpCall) -> MemoryPlan:
    """Return the memory plan of the gradient of `torch.cdist`. The gradient is computed for every pair and column,
    then summed over the pairs (`_cdist_backward` in cuda/DistanceKernel.cu). The rule agrees with measurements on an
    H200, except for sums over very few columns, which use more memory.
    """
    given = call.arguments["x1"]
    pairs, columns = call.arguments["cdist"].numel(), given.shape[-1]
    rows = max(1, given.numel() // max(1, columns))
    others = pairs // rows
    sums = reductions.buffers(
        (rows, others, columns), (others * columns, columns, 1), (1,), call.gpu, accumulator=4
    )
    return MemoryPlan(
        [
            OutputAlloc(0),
            ScratchAlloc("pairs", pairs * columns * given.element_size()),
            *numbered("sum", sums),
        ]
    )


def _pdist_backward(call: OpCall) -> MemoryPlan:
    # The gradients of all pairs are computed before they are summed (`pdist_backward_kernel_impl`).
    given = call.arguments["self"]
    rows = given.shape[0] if given.dim() else 0
    return MemoryPlan([OutputAlloc(0), ScratchAlloc("pairs", max(0, rows - 1) * size_of(given))])


def install_linear(overrides: Overrides) -> None:
    """Make linear layers add their bias in place if a fused product cannot be used, as on CUDA.

    The rule follows `linear` in ATen/native/Linear.cpp. For matrices and contiguous inputs, torch calls `addmm`. For
    other inputs, such as permuted images or the output of a recurrent layer, torch calls `add_` after the product.
    Under a dispatch mode, or if a tensor is a subclass, torch calls `add`, which allocates a second tensor. Without
    this rule, a trace would allocate and free different blocks than the real run. With the rule, the estimated reserved
    memory of LSTMs under autocast is exact.
    """
    overrides.composite("linear", _linear)


def _linear(
    original: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if bias is None or input.dim() < 3 or input.is_contiguous():
        fused: torch.Tensor = original.decompose(input, weight, bias)
        return fused
    return torch.matmul(input, weight.t()).add_(bias)


def sparse_product(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of a product with a sparse matrix. The rule follows `s_addmm_out_sparse_dense_cuda` in
    ATen/native/sparse/cuda/SparseCUDATensorMath.cu. The kernels of cuSPARSE need 32-bit indices and write the result
    in column order, so the result is first computed in a temporary copy. An uncoalesced sparse matrix is coalesced in
    each product. The rule is based on measurements on an H200 with 12,000 and 240,000 entries.
    """
    matrix = next(
        (
            value
            for value in call.arguments.values()
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided
        ),
        None,
    )
    result = call.result
    if matrix is None or not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return None
    steps: list[MemoryStep] = [OutputAlloc(0)]
    if matrix.layout is torch.sparse_coo:
        # The product is added to zeros, which are not a result of `mm`.
        if call.func._schema.name == "aten::mm":
            steps.insert(0, ScratchAlloc("zeros", size_of(result)))
        count = matrix._nnz()
        steps += [] if matrix.is_coalesced() or not count else _coalesced(count, matrix)
        steps.append(ScratchAlloc("row starts", 4 * (matrix.shape[0] + 1)))
        if count:  # 0 means that the number of entries is unknown, as for a fake transposed matrix
            steps.append(ScratchAlloc("columns", 4 * count))
    return MemoryPlan([*steps, ScratchAlloc("by columns", size_of(result))])


def _coalesced(count: int, matrix: Any) -> list[MemoryStep]:
    # Coalescing allocates sorted linear indices, then values and indices without duplicates.
    sorting = [ScratchAlloc(name, 8 * count) for name in ("linear", "order", "range")]
    unique = [ScratchAlloc("values", matrix.element_size() * count), ScratchAlloc("indices", 16 * count)]
    freed = [ScratchFree(one.name) for one in reversed(sorting)]
    return [*sorting, ScratchAlloc("sort", 16 * count), ScratchFree("sort"), *unique, *freed]


RULES: dict[str, Rule] = {
    "aten::affine_grid_generator": _affine_grid,
    "aten::mm": _product("self", "mat2"),
    "aten::bmm": _product("self", "mat2"),
    "aten::addmm": _product("mat1", "mat2", bias="self"),
    "aten::_addmm_activation": _product("mat1", "mat2", bias="self"),
    "aten::baddbmm": _product("batch1", "batch2"),
    "aten::addbmm": _product("batch1", "batch2"),
    "aten::mv": _product("self"),
    "aten::addmv": _product("mat"),
    "aten::dot": _product(),
    "aten::_trilinear": _trilinear,
    "aten::_euclidean_dist": _euclidean,
    "aten::_cdist_backward": _cdist_backward,
    "aten::_pdist_backward": _pdist_backward,
    "aten::_sparse_addmm": sparse_product,
    "aten::_sparse_mm": sparse_product,
}
