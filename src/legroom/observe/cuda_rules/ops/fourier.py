"""Fourier transforms: copies of what cuFFT cannot read as it lies, and its workspace.

Copies are torch's own (`_exec_fft` in ATen/native/cuda/SpectralOps.cpp). cuFFT does not publish when it works beside its results; the rules for that
are read off 377 transforms measured on an H200 (`bench/rules/operations/fourier_list.py`), in one, two and three dimensions.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from legroom.observe.cuda_rules.plan import Call, Output, Plan, Rule, Step, Take, size_of

LARGEST_RADIX = 13
"""Lengths made of primes up to this one are transformed by kernels of their own."""
SHORT, LONG, LONGEST = 64, 1024, 16_384
"""Up to the first any length is; beyond the second real values only where it is a power of two; beyond the third none."""


def _transform(call: Call) -> Plan | None:
    tensor, result = call.arguments["self"], call.result
    to_real = "_c2r" in call.func._schema.name
    steps: list[Step] = [Output(0)]
    if to_real:  # cuFFT would overwrite it
        steps.append(Take("input", size_of(tensor)))
    if not _lies_in_rows(tensor, call.arguments["dim"]):
        steps.append(Take("rows", size_of(tensor)))
    whole = result if to_real else tensor
    element = tensor.element_size() if tensor.is_complex() else result.element_size()
    steps.append(Take("workspace", _workspace(whole, call.arguments["dim"], element)))
    return Plan([step for step in steps if not isinstance(step, Take) or step.bytes])


def _lies_in_rows(tensor: Any, dims: Sequence[int]) -> bool:
    """Whether the dimensions that are not transformed can be counted through as one."""
    transformed = {dim % tensor.dim() for dim in dims}
    others = [
        (tensor.stride(dim), tensor.shape[dim])
        for dim in range(tensor.dim())
        if dim not in transformed and tensor.shape[dim] != 1
    ]
    others.sort(reverse=True)
    return all(outer[0] == inner[0] * inner[1] for outer, inner in itertools.pairwise(others))


def _workspace(whole: Any, dims: Sequence[int], element: int) -> int:
    """`whole`: the side of the transform that has all values; `element`: bytes of a complex one."""
    lengths = [int(whole.shape[dim]) for dim in dims]
    everything = int(whole.numel()) * element
    odd = [length for length in lengths if length > SHORT and _largest_prime(length) > LARGEST_RADIX]
    longest = lengths[0] if len(lengths) == 1 else 0
    if whole.is_complex():
        return everything if longest > LONGEST or any(_largest_prime(n) < n for n in odd) else 0
    if odd:
        return everything
    in_halves = longest > LONGEST or (longest > LONG and longest & (longest - 1))
    return everything // 2 if in_halves else 0


def _largest_prime(number: int) -> int:
    """The largest prime factor."""
    largest = 1
    for factor in range(2, math.isqrt(number) + 1):
        while number % factor == 0:
            number, largest = number // factor, factor
    return max(largest, number)


RULES: dict[str, Rule] = dict.fromkeys(("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"), _transform)
