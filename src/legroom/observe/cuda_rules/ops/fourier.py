"""Fourier transforms: copies of inputs that cuFFT cannot read, and the workspace of cuFFT.

PyTorch makes the copies (`_exec_fft` in ATen/native/cuda/SpectralOps.cpp). The documentation of cuFFT does not describe
when a workspace is needed. The rules for the workspace were fitted to 377 transforms measured on an H200
(`bench/rules/operations/fourier_list.py`), in one, two and three dimensions.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchAlloc,
    size_of,
)

LARGEST_RADIX = 13
"""The largest prime factor of a length that has a specialized kernel."""
SHORT, LONG, LONGEST = 64, 1024, 16_384
"""Every length up to `SHORT` has a specialized kernel. Above `LONG`, real transforms have specialized kernels only for
powers of two. Above `LONGEST`, there are no specialized kernels.
"""


def _transform(call: OpCall) -> MemoryPlan | None:
    tensor, result = call.arguments["self"], call.result
    to_real = "_c2r" in call.func._schema.name
    steps: list[MemoryStep] = [OutputAlloc(0)]
    if to_real:  # cuFFT would overwrite it
        steps.append(ScratchAlloc("input", size_of(tensor)))
    if not _has_regular_batch(tensor, call.arguments["dim"]):
        steps.append(ScratchAlloc("contiguous", size_of(tensor)))
    full_side = result if to_real else tensor
    element = tensor.element_size() if tensor.is_complex() else result.element_size()
    steps.append(ScratchAlloc("workspace", _workspace(full_side, call.arguments["dim"], element)))
    return MemoryPlan([step for step in steps if not isinstance(step, ScratchAlloc) or step.bytes])


def _has_regular_batch(tensor: Any, dims: Sequence[int]) -> bool:
    """Return whether the dimensions that are not transformed have one common stride."""
    transformed = {dim % tensor.dim() for dim in dims}
    others = [
        (tensor.stride(dim), tensor.shape[dim])
        for dim in range(tensor.dim())
        if dim not in transformed and tensor.shape[dim] != 1
    ]
    others.sort(reverse=True)
    return all(outer[0] == inner[0] * inner[1] for outer, inner in itertools.pairwise(others))


def _workspace(full_side: Any, dims: Sequence[int], element: int) -> int:
    """Return the size of cuFFT's workspace in bytes. `full_side` is the input or the result, whichever is larger. In a
    real transform, the other tensor contains only half of the frequencies. `element` is the size of a complex value in
    bytes.
    """
    lengths = [int(full_side.shape[dim]) for dim in dims]
    full_size = int(full_side.numel()) * element
    odd = [length for length in lengths if length > SHORT and _largest_prime(length) > LARGEST_RADIX]
    longest = lengths[0] if len(lengths) == 1 else 0
    if full_side.is_complex():
        return full_size if longest > LONGEST or any(_largest_prime(n) < n for n in odd) else 0
    if odd:
        return full_size
    uses_half_size = longest > LONGEST or (longest > LONG and longest & (longest - 1))
    return full_size // 2 if uses_half_size else 0


def _largest_prime(number: int) -> int:
    largest = 1
    for factor in range(2, math.isqrt(number) + 1):
        while number % factor == 0:
            number, largest = number // factor, factor
    return max(largest, number)


RULES: dict[str, Rule] = dict.fromkeys(("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"), _transform)
