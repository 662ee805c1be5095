"""Dropout: CUDA runs one fused kernel that saves a mask of booleans; the CPU multiplies by a mask of its own dtype.

Source: `is_fused_kernel_acceptable` in ATen/native/Dropout.cpp. `dropout_` and the dropouts of whole channels have no
fused kernel on either.
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides


def install(overrides: Overrides) -> None:
    overrides.composite("dropout", _dropout)


def _dropout(original: Any, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0 or not input.numel():
        return input
    if p < 1:
        out: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
        return out
    zero: torch.Tensor = original.decompose(input, p, train)
    return zero
