"""Packing of padded sequences: a shape that follows from lengths, which lie on the host and are known.

Source: `_pack_padded_sequence` in ATen/native/PackedSequence.cpp. Sequences come sorted, longest first; what belongs to a step is put
beside what belongs to the next. torch gives no shape for it, because lengths are data.
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides

Tensor = torch.Tensor


def install(overrides: Overrides) -> None:
    overrides.composite("_pack_padded_sequence", _pack)


def _pack(original: Any, input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    longest_first = [int(length) for length in lengths.tolist()]
    steps = longest_first[0] if longest_first else 0
    sizes = [sum(length > step for length in longest_first) for step in range(steps)]
    packed: Tensor = _Packed.apply(input, sum(sizes), batch_first)  # type: ignore[no-untyped-call]
    return packed, torch.tensor(sizes, dtype=torch.int64)


class _Packed(torch.autograd.Function):
    """Rows that are there; backwards, zeros where there was padding."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, rows: int, batch_first: bool) -> Tensor:
        ctx.padded, ctx.batch_first = input.shape, batch_first
        pieces = input.new_empty(
            rows, *input.shape[2:]
        )  # each step's rows are put in one piece, then all are joined
        return torch.cat([pieces])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        first, second, *rest = ctx.padded
        if not ctx.batch_first:
            return gradient.new_zeros(first, second, *rest), None, None
        return gradient.new_zeros(second, first, *rest).transpose(0, 1), None, None
