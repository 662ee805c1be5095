"""The fast paths of `nn.TransformerEncoder` and `nn.MultiheadAttention`, which a function mode would close.

In evaluation these modules call one fused operation, on the CPU as on CUDA, unless an argument has a function of its
own in place of torch's. A mode looks like that to them; ours must not, or the numbers would not be the CPU's.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import overrides

from legroom.observe.virtual.patching import Replacement, table

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def replacements() -> Iterable[Replacement]:
    """What the modules ask, by that name; torch's functions have a copy of their own, which stays as it is."""

    def has_torch_function(relevant: Iterable[Any]) -> bool:
        asked = torch._C._is_torch_function_enabled()
        return asked and any(
            isinstance(value, torch.Tensor) and type(value) not in _PLAIN for value in relevant
        )

    return table(overrides, {"has_torch_function": has_torch_function})
