"""Products with sparse matrices and deformable convolutions: what an H200 was seen to take for them."""

from typing import Any

import torch

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.convolution import deformable
from legroom.observe.cuda_rules.ops import matmul, reductions
from legroom.observe.cuda_rules.plan import Call, Take


def sizes(plan: Any) -> dict[str, int]:
    return {step.name: step.bytes for step in plan.steps if isinstance(step, Take)}


def product(matrix: torch.Tensor) -> dict[str, int]:
    dense = torch.zeros(matrix.shape[1], 7)
    result = torch.zeros(matrix.shape[0], 7)
    call = Call(
        torch.ops.aten.addmm.default,
        {"self": result, "mat1": matrix, "mat2": dense},
        result,
        find_gpu("h200"),
        False,
    )
    return sizes(matmul.RULES["aten::addmm"](call))


def test_a_sparse_product_is_written_column_by_column_into_a_copy():
    places = torch.stack([torch.arange(30), torch.arange(30)])
    matrix = torch.sparse_coo_tensor(places, torch.ones(30), (30, 30), check_invariants=False).coalesce()
    assert product(matrix) == {"row starts": 124, "columns": 120, "by columns": 30 * 7 * 4}


def test_entries_that_are_not_in_order_are_sorted_each_time():
    matrix = torch.sparse_coo_tensor(
        torch.zeros(2, 50, dtype=torch.long), torch.ones(50), (30, 30), check_invariants=False
    )
    found = product(matrix)
    assert found["linear"] == found["order"] == found["range"] == 400
    assert found["sort"] == found["places"] == 800


def test_deformable_columns_are_made_for_as_many_pictures_as_divide_the_batch():
    def columns(batch: int) -> int:
        arguments = {
            "input": torch.empty(batch, 64, 64, 64, device="meta"),
            "weight": torch.empty(32, 64, 3, 3, device="meta"),
            "offset": torch.empty(batch, 18, 64, 64, device="meta"),
        }
        call = Call(None, arguments, arguments["input"], find_gpu("h200"), False)
        return sizes(deformable.RULES["torchvision::deform_conv2d"](call))["columns"]

    assert columns(2) == 18874368
    assert columns(34) == 17 * 18874368 // 2


def test_a_sum_over_a_repeated_dimension_is_staged_like_one_over_what_is_there():
    gpu = find_gpu("h200")
    there = reductions.buffers((64, 300, 128), (38400, 128, 1), (0, 1), gpu, accumulator=4)
    repeated = reductions.buffers((64, 300, 128), (0, 128, 1), (0, 1), gpu, accumulator=4)
    assert repeated == there == (19660800, 4)


def test_a_compressed_matrix_is_added_to_no_zeros():
    matrix = torch.eye(30).to_sparse_csr()
    result = torch.zeros(30, 7)
    arguments = {"self": matrix, "mat2": torch.zeros(30, 7)}
    call = Call(torch.ops.aten.mm.default, arguments, result, find_gpu("h200"), False)
    assert sizes(matmul.RULES["aten::mm"](call)) == {"by columns": 30 * 7 * 4}
