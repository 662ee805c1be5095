"""Linear layers: where no fused product is used, CUDA adds the bias into the product itself.

Source: `linear` in ATen/native/Linear.cpp. Matrices and contiguous inputs go to `addmm`. For any other (permuted pictures, the
output of a recurrent layer) the product is followed by `add_`; but where a dispatch mode watches or a tensor is of a subclass,
by an `add` that makes a second tensor as large. So a traced run would take memory that the real one does not. Measured:
with this, reserved memory of LSTMs under autocast is exact, which was 20% too low.
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides

Tensor = torch.Tensor


def install(overrides: Overrides) -> None:
    overrides.composite("linear", _linear)


def _linear(original: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is None or input.dim() < 3 or input.is_contiguous():
        fused: Tensor = original.decompose(input, weight, bias)
        return fused
    return torch.matmul(input, weight.t()).add_(bias)
