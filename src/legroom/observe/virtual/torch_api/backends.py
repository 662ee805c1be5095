"""Replaces the CUDA libraries that torch and scripts use: cuDNN, NVTX, NCCL, the profiler and attention kernels.

A machine without a GPU has none of these libraries. With the replacements in this module, scripts can set flags and
push NVTX ranges. Where torch would select a kernel from a CUDA library, the replacement reports that the library does
not support the tensor, so the CPU kernel runs. The replacements also prevent torch's warnings that it was built without
CUDA.
"""

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, answer, optional_module, table

CUDNN_VERSION = 91002


def replacements() -> Iterable[Replacement]:
    yield from table(
        optional_module("torch.backends.cudnn"),
        {
            "is_available": answer(True),
            "version": answer(CUDNN_VERSION),
            # Otherwise an RNN would call cuDNN to flatten its weights.
            "is_acceptable": answer(False),
        },
    )
    limit = _Setting(10)
    yield from table(
        torch._C,
        {
            "_cuda_get_cudnn_benchmark_limit": limit.get,
            "_cuda_set_cudnn_benchmark_limit": limit.set,
            "_cuda_get_conv_benchmark_empty_cache": answer(True),
        },
        add=True,
    )
    yield from table(optional_module("torch.cuda.nvtx"), {"_nvtx": _Ranges()})
    yield from table(optional_module("torch.cuda.nccl"), {"is_available": answer(False)})
    yield from _profiler_on_cpu()


@contextlib.contextmanager
def math_attention_allowed() -> Iterator[Iterable[Replacement]]:
    """Yield replacements that keep the math attention kernel enabled, even if a script enables only other kernels.

    The CPU does not implement `SDPBackend.EFFICIENT_ATTENTION`, so a script that enables only this kernel would fail.
    The script can still read its own setting, which takes effect when the virtual GPU ends.
    """
    allow, allowed = torch._C._set_sdp_use_math, torch._C._get_math_sdp_enabled
    chosen = _Setting(allowed())
    allow(True)
    try:
        yield table(torch._C, {"_set_sdp_use_math": chosen.set, "_get_math_sdp_enabled": chosen.get})
    finally:
        allow(chosen.get())


def _profiler_on_cpu() -> Iterable[Replacement]:
    """Profile CPU activities instead of CUDA activities, because the CPU runs the operations."""
    profile: Any = torch.autograd.profiler.profile
    original_init = profile.__init__

    @functools.wraps(original_init)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        profiles_cuda = options.get("use_device") == "cuda" or options.pop("use_cuda", False)
        if profiles_cuda:
            options |= {"use_device": None, "use_cpu": True}
        original_init(self, *arguments, **options)

    return table(profile, {"__init__": __init__})


class _Setting:
    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        return self._value

    def set(self, value: Any) -> None:
        self._value = value


class _Ranges(threading.local):
    """Replaces NVTX, and only counts how deeply the program has nested its NVTX ranges."""

    depth = 0
    handles = 0

    def rangePushA(self, _message: str) -> int:  # noqa: N802
        self.depth += 1
        return self.depth - 1

    def rangePop(self) -> int:  # noqa: N802
        self.depth = max(self.depth - 1, 0)
        return self.depth

    def rangeStartA(self, _message: str) -> int:  # noqa: N802
        self.handles += 1
        return self.handles

    def rangeEnd(self, _handle: int) -> None:  # noqa: N802
        ...

    def markA(self, _message: str) -> None:  # noqa: N802
        ...

    def deviceRangeStart(self, _message: str, _stream: int = 0) -> int:  # noqa: N802
        return self.rangeStartA(_message)

    def deviceRangeEnd(self, _handle: int, _stream: int = 0) -> None:  # noqa: N802
        ...
