"""Products with sparse matrices and deformable convolutions: scratch memory, compared with measurements on an H200."""

from typing import Any

import torch

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.convolution import convolution
from legroom.observe.cuda_rules.ops import matmul, reductions
from legroom.observe.cuda_rules.plan import OpCall, ScratchAlloc


def sizes(plan: Any) -> dict[str, int]:
    return {step.name: step.bytes for step in plan.steps if isinstance(step, ScratchAlloc)}


def product(matrix: torch.Tensor) -> dict[str, int]:
    dense = torch.zeros(matrix.shape[1], 7)
    result = torch.zeros(matrix.shape[0], 7)
    call = OpCall(
        torch.ops.aten.addmm.default,
        {"self": result, "mat1": matrix, "mat2": dense},
        result,
        find_gpu("h200"),
        False,
    )
    return sizes(matmul.RULES["aten::addmm"](call))


def test_a_sparse_product_is_computed_into_a_column_major_copy():
    indices = torch.stack([torch.arange(30), torch.arange(30)])
    matrix = torch.sparse_coo_tensor(indices, torch.ones(30), (30, 30), check_invariants=False).coalesce()
    assert product(matrix) == {"row starts": 124, "columns": 120, "by columns": 30 * 7 * 4}


def test_an_uncoalesced_matrix_is_coalesced_each_time():
    matrix = torch.sparse_coo_tensor(
        torch.zeros(2, 50, dtype=torch.long), torch.ones(50), (30, 30), check_invariants=False
    )
    found = product(matrix)
    assert found["linear"] == found["order"] == found["range"] == 400
    assert found["sort"] == found["indices"] == 800


def test_deformable_columns_cover_the_largest_divisor_of_the_batch_up_to_32():
    def columns(batch: int) -> int:
        arguments = {
            "input": torch.empty(batch, 64, 64, 64, device="meta"),
            "weight": torch.empty(32, 64, 3, 3, device="meta"),
            "offset": torch.empty(batch, 18, 64, 64, device="meta"),
        }
        call = OpCall(None, arguments, arguments["input"], find_gpu("h200"), False)
        return sizes(convolution.RULES["torchvision::deform_conv2d"](call))["columns"]

    assert columns(2) == 18874368
    assert columns(34) == 17 * 18874368 // 2


def test_a_sum_over_an_expanded_dimension_has_the_same_buffers():
    gpu = find_gpu("h200")
    there = reductions.buffers((64, 300, 128), (38400, 128, 1), (0, 1), gpu, accumulator=4)
    repeated = reductions.buffers((64, 300, 128), (0, 128, 1), (0, 1), gpu, accumulator=4)
    assert repeated == there == (19660800, 4)


def test_a_product_with_a_csr_matrix_allocates_no_zeros():
    matrix = torch.eye(30).to_sparse_csr()
    result = torch.zeros(30, 7)
    arguments = {"self": matrix, "mat2": torch.zeros(30, 7)}
    call = OpCall(torch.ops.aten.mm.default, arguments, result, find_gpu("h200"), False)
    assert sizes(matmul.RULES["aten::mm"](call)) == {"by columns": 30 * 7 * 4}
