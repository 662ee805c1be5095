"""Products with a sparse matrix: its entries brought in order, its rows' beginnings, and the result once more, column by column.

Source: `s_addmm_out_sparse_dense_cuda` in ATen/native/sparse/cuda/SparseCUDATensorMath.cu. cuSPARSE wants the places as 32-bit numbers and writes
columns, so the result is computed into a copy. A matrix that is not coalesced is so first, each time. Measured on an H200 with 12,000 and 240,000 entries.
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, size_of


def sparse_product(call: Call) -> Plan | None:
    """What a product takes whose first operand is sparse."""
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
    steps: list[Step] = [Output(0)]
    if matrix.layout is torch.sparse_coo:
        # The product is added to zeros, which only here are nobody's result.
        if call.func._schema.name == "aten::mm":
            steps.insert(0, Take("zeros", size_of(result)))
        count = matrix._nnz()
        steps += [] if matrix.is_coalesced() or not count else _coalesced(count, matrix)
        steps.append(Take("row starts", 4 * (matrix.shape[0] + 1)))
        if count:  # a stand-in of a transposed matrix does not say how many
            steps.append(Take("columns", 4 * count))
    return Plan([*steps, Take("by columns", size_of(result))])


def _coalesced(count: int, matrix: Any) -> list[Step]:
    """Places as one number each, sorted; then values and places without those that were there twice."""
    sorting = [Take(name, 8 * count) for name in ("linear", "order", "range")]
    kept = [Take("values", matrix.element_size() * count), Take("places", 16 * count)]
    given = [Give(one.name) for one in reversed(sorting)]
    return [*sorting, Take("sort", 16 * count), Give("sort"), *kept, *given]


RULES: dict[str, Rule] = dict.fromkeys(("aten::_sparse_addmm", "aten::_sparse_mm"), sparse_product)
