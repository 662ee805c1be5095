"""Packing of padded sequences: a shape that follows from lengths, which lie on the host and are known.

Source: `_pack_padded_sequence` in ATen/native/PackedSequence.cpp. Sequences come sorted, longest first; what belongs to a step is put
beside what belongs to the next. torch gives no shape for it, because lengths are data.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from legroom.observe.cuda_rules.dispatcher import COMPOSITE, Overrides

Tensor = torch.Tensor


def install(overrides: Overrides) -> None:
    def pack(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        longest_first = [int(length) for length in lengths.tolist()]
        sizes = [
            sum(length > step for length in longest_first) for step in range(max(longest_first, default=0))
        ]
        if isinstance(input, FakeTensor) and overrides.stands_for_cuda(input):
            packed: Tensor = _Packed.apply(input, sum(sizes), batch_first)  # type: ignore[no-untyped-call]
        else:  # with data: the operation is no composite that could be asked to go its own way
            steps = input.transpose(0, 1) if batch_first else input
            packed = torch.cat([steps[step, :count] for step, count in enumerate(sizes)])
        return packed, torch.tensor(sizes, dtype=torch.int64)

    overrides.put("_pack_padded_sequence", pack, *COMPOSITE)


class _Packed(torch.autograd.Function):
    """Rows that are there; backwards, zeros where there was padding."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, rows: int, batch_first: bool) -> Tensor:
        ctx.padded, ctx.batch_first = input.shape, batch_first
        # Each step's rows are put in one piece, then all are joined.
        pieces = input.new_empty(rows, *input.shape[2:])
        return torch.cat([pieces])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        first, second, *rest = ctx.padded
        if not ctx.batch_first:
            return gradient.new_zeros(first, second, *rest), None, None
        return gradient.new_zeros(second, first, *rest).transpose(0, 1), None, None
