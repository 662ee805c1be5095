"""Optimizers, and the averaging of weights, whose foreach form rounds otherwise than their loop on the CPU.

On CUDA optimizers work on all parameters at once (`foreach`), and so they do here, for the memory that takes. For
three of them that form computes in another order; their loop is used instead, because a virtual GPU promises the
CPU's numbers bit for bit. What is lost: their temporaries, about one copy of the parameters, are not seen.
"""

from collections.abc import Iterable
from typing import Any

from legroom.observe.virtual.patching import Replacement, optional_module, table

OTHERWISE = ("asgd", "nadam", "radam")


def replacements() -> Iterable[Replacement]:
    def neither_fused_nor_foreach(*_arguments: Any, **_options: Any) -> tuple[bool, bool]:
        return False, False

    for name in OTHERWISE:
        module = optional_module(f"torch.optim.{name}")
        yield from table(module, {"_default_to_fused_or_foreach": neither_fused_nor_foreach})
    averaging = optional_module("torch.optim.swa_utils")
    yield from table(averaging, {"_get_foreach_kernels_supported_devices": list})
