"""Softmax of half-precision values into single precision: one kernel on CUDA, a converted copy first on the CPU.

Source: `softmax` and `log_softmax` in ATen/native/SoftMax.cpp, which take the direct way for CUDA tensors of
float16 only; bfloat16 is converted first on both. Under autocast every softmax asks for single precision.
"""

from collections.abc import Callable
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides


def install(overrides: Overrides) -> None:
    overrides.composite("softmax.int", _into_single(torch.ops.aten._softmax))
    overrides.composite("log_softmax.int", _into_single(torch.ops.aten._log_softmax))


def _into_single(direct: Any) -> Callable[..., Any]:
    def decide(original: Any, self: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if self.dtype == torch.float16 and dtype == torch.float32:
            return direct(self, dim, True)
        return original.decompose(self, dim, dtype)

    return decide
