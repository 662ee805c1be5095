"""Teaches torch's dispatcher to take CUDA's path for tensors that stand for CUDA ones.

Some operations are made of others, and of which depends on the device: attention, dropout, recurrent layers,
everything under autocast. On stand-in tensors (CPU tensors underneath) they would take the CPU's path, and other
tensors would be saved for the backward pass. So while `Overrides` is active, these operations have kernels of ours
that take CUDA's. Whatever lies below them is as it was, and closing it puts everything back.
"""

import inspect
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

COMPOSITE = ("AutogradCPU", "CPU")
"""Where to put a kernel for an operation that is made of others: with gradients and without."""

MAY_REPLACE = (
    {"allow_override": True}
    if "allow_override" in inspect.signature(torch.library.Library.impl).parameters
    else {}
)
"""How a release is told that a kernel written in Python may be replaced by ours."""


class Overrides:
    """Kernels for aten operations, in force while it is open."""

    def __init__(self, stands_for_cuda: Callable[[torch.Tensor], bool]) -> None:
        """`stands_for_cuda` tells a tensor that stands for a CUDA one from one of the host's own."""
        self.stands_for_cuda = stands_for_cuda
        library: Any = torch.library.Library
        self._library = library("aten", "IMPL")
        self._set_aside: set[str] = set()

    def put(self, name: str, kernel: Callable[..., Any], *keys: str) -> None:
        """From now on `name` (`dropout`, `softmax.int`) runs `kernel`. Skipped where torch has no such operation."""
        if overload(name) is None:
            return
        for key in keys:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is meant to replace one
                self._set_aside |= made_replaceable(f"aten/{name}/{key}")
                self._library.impl(name, kernel, key, **MAY_REPLACE)

    def composite(self, name: str, decide: Callable[..., Any]) -> None:
        """`decide(original, *args, **kwargs)` runs instead of `name` for stand-in tensors; hosts' own go on as ever.

        The first argument of the operation tells which it is.
        """
        original = overload(name)
        if original is None:
            return

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if isinstance(args[0], torch.Tensor) and self.stands_for_cuda(args[0]):
                return decide(original, *args, **kwargs)
            return original.decompose(*args, **kwargs)

        self.put(name, kernel, *COMPOSITE)

    def close(self) -> None:
        self._library._destroy()
        known: set[str] = getattr(torch.library, "_impls", set())
        known.update(self._set_aside)

    def __enter__(self) -> "Overrides":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def overload(name: str) -> Any:
    """The aten operation `name` or `name.overload`; None where this torch has none."""
    base, _, variant = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, variant or "default", None)


def made_replaceable(kernel: str) -> set[str]:
    """torch's note that `kernel` was written in Python, taken away: releases that cannot be told so refuse to replace such a one.

    Returns what was taken, to be given back. Where torch keeps no such list, nothing is taken, and the kernel is replaced or
    refused as that release does.
    """
    if MAY_REPLACE:
        return set()
    listed: set[str] = getattr(torch.library, "_impls", set())
    taken = listed & {kernel}
    listed -= taken
    return taken
