"""Attention on a virtual GPU whose tensors have data: the values of the CPU kernel, and the memory of the CUDA kernel.

On the CPU, attention with dropout stores matrices of queries × keys, but the fused kernels of CUDA do not. The CPU kernel
therefore runs without being recorded. Only its result, and the tensors that a fused kernel saves, are recorded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _python_dispatch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.attention.kernel_choice import AttentionCall, Backend, choose
from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.versions import RULES_VERSION, minor_version

_disable_modes: Any = getattr(_python_dispatch, "_disable_current_modes", None)
"""A private function of torch. If this version of torch lacks it, attention follows the CPU."""
_ROWS = 32
"""The memory-efficient kernel saves one sum per row, for a multiple of this many rows."""


@contextmanager
def installed(is_on_device: Callable[[torch.Tensor], bool], gpu: GpuSpec) -> Iterator[None]:
    """Within the block, `scaled_dot_product_attention` with dropout needs as much memory as the fused kernel that CUDA
    selects on `gpu`, if any.
    """
    release = min(minor_version(version) for version in (torch.__version__, RULES_VERSION.torch))

    def attend(original: Any, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
        def attend_on_cpu(query: Any, key: Any, value: Any) -> Any:
            return original.decompose(query, key, value, *args, **options)

        call = AttentionCall.of(query, key, value, *args, **options)
        if not call.dropout or not _is_plain(call) or choose(call, gpu, release) is Backend.MATH:
            return attend_on_cpu(query, key, value)
        return _FusedAttention.apply(attend_on_cpu, call.needs_grad, query, key, value)  # type: ignore[no-untyped-call]

    with Overrides(is_on_device) as overrides:
        if _disable_modes is not None:
            overrides.composite("scaled_dot_product_attention", attend)
        yield


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Within the block, tensors are ordinary CPU tensors, and hooks of the program, such as those of checkpointing, do
    not receive the saved tensors.
    """
    with (
        _disable_modes(),
        torch._C.DisableTorchFunction(),
        torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged),
    ):
        yield


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _is_plain(call: AttentionCall) -> bool:
    learns_mask = call.mask is not None and call.mask.requires_grad
    # The gradients of one tensor would be added in another order than on the CPU.
    are_different = len({id(call.query), id(call.key), id(call.value)}) == 3
    return are_different and not learns_mask and call.query.dim() == 4 and not _is_transformed()


def _is_transformed() -> bool:
    """Return whether a transform of `torch.func` is running. It rejects the autograd function below."""
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, attend_on_cpu: Any, needs_grad: bool, *inputs: torch.Tensor) -> torch.Tensor:
        with _unrecorded(), torch.set_grad_enabled(needs_grad):
            # Copies: the inputs themselves are freed after the backward pass, even if the graph stays alive.
            hidden = [_copied(each, each).requires_grad_(each.requires_grad) for each in inputs]
            result = attend_on_cpu(*hidden)
        query = inputs[0]
        output = _copied(result, query)
        if needs_grad:
            ctx.hidden = hidden, result
            rows = -(-query.shape[-2] // _ROWS) * _ROWS
            sums = query.new_empty((*query.shape[:2], rows), dtype=torch.float32)
            ctx.save_for_backward(*inputs, output, sums)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        inputs = ctx.saved_tensors[:3]
        hidden, result = ctx.hidden
        needed = [each for each in hidden if each.requires_grad]
        with _unrecorded():
            on_cpu = gradient.clone()  # like `result`
            found = iter(torch.autograd.grad(result, needed, on_cpu, retain_graph=True))
        return (
            None,
            None,
            *(
                _copied(next(found), each) if own.requires_grad else None
                for each, own in zip(inputs, hidden, strict=True)
            ),
        )


def _copied(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a copy of the values on the device of `like`. The strides are the same, so that later operations compute
    the same results as with the original.
    """
    values = values.detach()
    if 0 in values.stride():
        return values.clone()
    return like.new_empty_strided(values.shape, values.stride()).copy_(values)
