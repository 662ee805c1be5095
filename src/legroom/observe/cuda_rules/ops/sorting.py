"""Sorting, and what is made of it: largest values, medians, permutations, samples, membership.

Source: Sort.cpp, TensorTopK.cu, Sorting.cpp, Randperm.cu and Distributions.cpp in ATen/native. Rows of up to 4096 values are sorted by one block
each, where they lie. Longer ones are brought into one piece along the row first, and sorted by cub, beside their 64-bit places.
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, scratch, size_of

SHORT_ROW = 4096


def _sort(call: Call) -> Plan | None:
    tensor = call.arguments["self"]
    dim = call.arguments["dim"]
    row = tensor.shape[dim] if tensor.dim() else 1
    if row <= SHORT_ROW:
        return scratch(1024)
    results = call.result
    steps: list[Step] = [Output(0), Output(1)]
    if not _lies_in_rows(tensor, dim):
        steps.append(Take("rows", size_of(tensor)))
        if (
            tensor.stride(dim) != 1 and results[0].stride(dim) != 1
        ):  # they lie as the input does, and are copied at last
            steps += [Take("values", size_of(tensor)), Take("indices", tensor.numel() * 8)]
    return Plan([*steps, *_scratch_of_rows(tensor.numel(), row, tensor.element_size())])


def _lies_in_rows(tensor: Any, dim: int) -> bool:
    """Whether each row is in one piece, and nothing else in between."""
    whole = tensor.is_contiguous() or tensor.transpose(dim, -1).is_contiguous()
    return bool(whole and tensor.stride(dim) == 1)


def _scratch_of_rows(count: int, row: int, element: int) -> list[Step]:
    """Places and keys; a few rows are sorted all together, first by value and then by row."""
    places, keys = count * 8, count * element
    if count == row or count >= 128 * row:
        return [Take("places", places), Take("sort", _sorted(count, places + keys))]
    return [
        Take("places", places), Take("rows of places", places), Take("keys", keys), Take("sort", _sorted(count, places + keys)),
    ]  # fmt: skip


def _sorted(count: int, pairs: int) -> int:
    """cub's own buffer: the pairs once more, and about three bytes for 16 of them to count digits."""
    return pairs + count * 3 // 16


def _median(call: Call) -> Plan | None:
    """The median of all values is taken out of them sorted (`median_impl`)."""
    if "dim" in call.arguments:
        return None
    tensor = call.arguments["self"]
    count, element = tensor.numel(), tensor.element_size()
    sort = _scratch_of_rows(count, count, element) if count > SHORT_ROW else []
    given = [Give(step.name) for step in reversed(sort) if isinstance(step, Take)]
    copied: list[Step] = [] if tensor.is_contiguous() else [Take("flat", count * element)]
    return Plan(
        [*copied, Take("values", count * element), Take("indices", count * 8), *sort, *given, Output(0)]
    )


def _randperm(call: Call) -> Plan | None:
    """Random keys are sorted beside the numbers (small permutations are made by one block)."""
    count = call.result.numel() if isinstance(call.result, torch.Tensor) else 0
    return scratch(count * 8, count * 8, count * 8, count * 16) if count > 30_000 else None


def _topk(call: Call) -> Plan | None:
    """Rows too long for one block are counted digit by digit, by several: a few words for each 4096 values or so."""
    tensor = call.arguments["self"]
    rows = tensor.numel() // max(1, tensor.shape[call.arguments["dim"]])
    return (
        scratch(rows * 512, rows * 1024)
        if rows > 1024 and tensor.shape[call.arguments["dim"]] > 512
        else None
    )


def _multinomial(call: Call) -> Plan | None:
    """One sample, or several that differ, are the largest of the chances over exponential noise; others are looked up in a running sum."""
    chances = size_of(call.arguments["self"])
    if call.arguments["num_samples"] == 1 or not call.arguments["replacement"]:
        return Plan([Output(0), Take("over noise", chances)])
    return Plan([Output(0), Take("shares", chances), Take("running sum", chances)])


def _isin(call: Call) -> Plan | None:
    """Few values are compared with every element at once (`isin` in TensorCompare.cpp); many are sorted among them."""
    elements, tests = call.arguments["elements"], call.arguments["test_elements"]
    count, others = elements.numel(), tests.numel()
    if others < 10 * count**0.145:
        return Plan([Output(0), Take("equal", count * others), Take("any", count)])
    joined = (count + others) * elements.element_size()
    places = (count + others) * 8
    return Plan([Output(0), Take("joined", joined), Take("sorted", joined), Take("places", places), Take("sort", joined + places)])  # fmt: skip


RULES: dict[str, Rule] = {
    "aten::sort": _sort,
    "aten::topk": _topk,
    "aten::randperm": _randperm,
    "aten::median": _median,
    "aten::nanmedian": _median,
    "aten::multinomial": _multinomial,
    "aten::isin": _isin,
}
