"""Matrix products: the workspace that cuBLAS keeps, and copies of operands it cannot read as they lie.

cuBLAS is given a workspace from PyTorch's allocator, one for each library handle and stream, and keeps it for the
rest of the process. The autograd engine runs backward operations on a thread of its own, with a handle of its own:
two workspaces in all. Source: `getChosenWorkspaceSize` in ATen/cuda/CublasHandlePool.cpp: 32 MiB on Hopper and newer,
4096 KiB × 2 + 16 KiB × 8 before, or what `CUBLAS_WORKSPACE_CONFIG` says. A product that adds a bias goes through
cuBLASLt, which has a workspace of its own: 1 MiB in the measured histories, right after the other.
"""

import os
import re
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.ops.sparse import sparse_product
from legroom.observe.cuda_rules.plan import Call, Keep, Output, Plan, Rule, Step, Take, size_of
from legroom.units import KiB, MiB


def workspace(gpu: GpuSpec, config: str | None = None) -> int:
    """Bytes of one cuBLAS workspace. `config`: `CUBLAS_WORKSPACE_CONFIG`, such as `:4096:2:16:8` (KiB and counts)."""
    pairs = re.findall(r":(\d+):(\d+)", config or "")
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) * KiB
    return 32 * MiB if gpu.capability[0] >= 9 else (4096 * 2 + 16 * 8) * KiB


def kept(call: Call) -> Keep:
    """The workspace of the thread that the operation runs on."""
    return Keep(f"cublas {_thread(call)}", workspace(call.gpu, os.environ.get("CUBLAS_WORKSPACE_CONFIG")))


def _thread(call: Call) -> str:
    return "backward" if call.in_backward else "forward"


def _product(*operands: str, bias: str | None = None) -> Rule:
    """A rule for an operation that multiplies the named matrices and adds `bias`."""

    def rule(call: Call) -> Plan | None:
        if any(call.arguments[name].layout is not torch.strided for name in operands):
            return sparse_product(call)
        steps: list[Step] = [Output(0)]
        steps += [
            Take(name, size_of(call.arguments[name]))
            for name in operands
            if not _readable(call.arguments[name])
        ]
        steps.append(kept(call))
        if bias is not None and _by_cublaslt(call.arguments[bias], call.arguments[operands[-1]]):
            steps.append(Keep(f"cublaslt {_thread(call)}", MiB))
        return Plan(steps)

    return rule


def _by_cublaslt(bias: Any, matrix: Any) -> bool:
    """A bias for each column is added by cuBLASLt, unless there is only one (`isInputCompliesAddmmCudaLt` in Blas.cpp)."""
    return bool(bias.dim() == 1 and min(matrix.shape) > 1)


def _readable(matrix: Any) -> bool:
    """Whether a matrix, or a batch of them, lies so that cuBLAS can read it: rows or columns without gaps.

    Source: `prepare_matrix_for_cublas` in ATen/native/cuda/Blas.cpp, which copies it otherwise.
    """
    if matrix.dim() < 2:
        return True
    rows, columns = matrix.shape[-2:]
    down, across = matrix.stride()[-2:]
    by_columns = (down == 1 or rows == 1) and (across >= max(1, rows) or columns == 1)
    by_rows = (across == 1 or columns == 1) and (down >= max(1, columns) or rows == 1)
    return bool(by_columns or by_rows)


def _affine_grid(call: Call) -> Plan:
    """Places of pixels, multiplied by each picture's matrix (`affine_grid_generator` in ATen/native/AffineGridGenerator.cpp)."""
    result = call.result
    base = result.numel() // max(1, result.shape[-1]) * (result.shape[-1] + 1) * result.element_size()
    return Plan([Take("places", base), Output(0), kept(call)])


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
}
