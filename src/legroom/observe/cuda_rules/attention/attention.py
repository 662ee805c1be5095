"""Attention on CUDA: the selected kernel, the tensors that it saves, and the scratch memory of its backward pass.

On the CPU, attention saves matrices of queries × keys. On CUDA, only the math kernel saves such matrices. Scratch
memory was measured on an H200 with 580 calls. The rules are exact to the byte for cuDNN and the memory-efficient
kernel, except for a few alignments. The scratch memory of flash attention follows `mha_bwd` in
ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
"""

from typing import Any

import torch
import torch.nn.functional as F

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.attention.kernel_choice import AttentionCall, Backend, choose
from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchAlloc,
    ScratchFree,
    size_of,
)

aten = torch.ops.aten


def install(overrides: Overrides, gpu: GpuSpec, release: tuple[int, int]) -> None:
    """Make `scaled_dot_product_attention` use the kernel that CUDA selects on `gpu`, as in
    ATen/native/transformers/attention.cpp.
    """

    def attend(original: Any, *args: Any, **options: Any) -> Any:
        call = AttentionCall.of(*args, **options)
        query, key, value, scale = call.query, call.key, call.value, call.scale
        backend = choose(call, gpu, release)
        mask = _additive(call.mask, query.dtype)
        if backend is Backend.CUDNN:
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, call.needs_grad, call.dropout, call.causal, False, scale=scale
            )[0]
        if backend is Backend.FLASH:
            width = query.shape[-1]
            query, key, value = (_padded(tensor, 8) for tensor in (query, key, value))
            scale = width**-0.5 if scale is None else scale
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, call.dropout, call.causal, False, scale=scale
            )[0]
            return out[..., :width] if out.shape[-1] != width else out
        if backend is Backend.EFFICIENT:
            if mask is not None:
                length = mask.shape[-1]
                mask = _padded(mask, 8)[..., :length]
                mask = mask.expand(*query.shape[:3], key.shape[-2])
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, call.needs_grad, call.dropout, call.causal, scale=scale
            )[0]
        return _math_attention(query, key, value, mask, call.dropout, call.causal, scale, call.grouped)

    overrides.composite("scaled_dot_product_attention", attend)


def _math_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    is_grouped: bool,
) -> torch.Tensor:
    """Replaces PyTorch's `_scaled_dot_product_attention_math`, which does not add the mask in place for tensors of a
    subclass.
    """
    dtype = query.dtype
    allows_half: Any = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed
    if dtype in (torch.float16, torch.bfloat16) and not allows_half():
        query, key, value = query.float(), key.float(), value.float()
    float32_query = query  # alive until the end of the function, as in C++
    factor = (query.shape[-1] ** -0.5 if scale is None else abs(scale)) ** 0.5
    query = query * (-factor if scale is not None and scale < 0 else factor)
    if is_causal:
        causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _additive(causal, query.dtype)
        del causal
    if is_grouped:
        heads = query.shape[-3]
        key, value = (one.repeat_interleave(heads // one.shape[-3], -3) for one in (key, value))
    scores = torch.matmul(query, key.transpose(-2, -1) * factor)
    if mask is not None:
        scores.add_(mask)
    weights: torch.Tensor = aten._safe_softmax(scores, -1)
    del scores
    if dropout > 0:
        weights = torch.dropout(weights, dropout, True)
    # In C++, torch returns the weights as the second result. The compiler evaluates the second result first.
    returned_weights = weights.to(dtype)
    result = torch.matmul(weights, value).to(dtype)
    del float32_query, returned_weights
    return result


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    minus_infinity = torch.full((), float("-inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, 0.0, minus_infinity)


def _padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    rest = tensor.shape[-1] % multiple
    return F.pad(tensor, (0, multiple - rest)) if rest else tensor


# The memory of the kernels


def _cudnn_forward(call: OpCall) -> MemoryPlan:
    """Return the memory plan of cuDNN's forward pass. The seed and offset of dropout are allocated first, even without
    dropout. The log-sum-exp is allocated only for the backward pass.
    """
    sums = OutputAlloc(1) if call.arguments["compute_log_sumexp"] else OutputAlloc(1, 0)
    return MemoryPlan([OutputAlloc(2), OutputAlloc(3), OutputAlloc(0), sums, ScratchAlloc("workspace", 256)])


def _cudnn_backward(call: OpCall) -> MemoryPlan:
    """Return the memory plan of cuDNN's backward pass. The gradient of the queries is summed in float32, with one
    additional sum per row. If several query heads share a key head, the gradients of the keys and values are first
    computed separately for each query head.
    """
    query, key = call.arguments["query"], call.arguments["key"]
    batch, heads, rows, width = query.shape
    size = batch * heads * rows * (width + 1) * 4 + 256
    if key.shape[1] != heads:
        size += 2 * batch * heads * key.shape[2] * width * key.element_size()
    return MemoryPlan([OutputAlloc(0), OutputAlloc(1), OutputAlloc(2), ScratchAlloc("workspace", size)])


def _efficient_forward(call: OpCall) -> MemoryPlan:
    # The seed and offset of dropout are on the host.
    return MemoryPlan([OutputAlloc(0), OutputAlloc(1), OutputAlloc(2, 0), OutputAlloc(3, 0)])


def _efficient_backward(call: OpCall) -> MemoryPlan:
    """Return the memory plan of the memory-efficient kernel's backward pass. The kernel computes partial gradients of
    the queries, one for each block of rows. For float32, a product with the size of the result is allocated first, and
    each of its rows is summed outside the kernel.
    """
    gradient = call.arguments["grad_out_"]
    query, key = call.arguments["query"], call.arguments["key"]
    batch, heads, rows, width = query.shape
    sums = batch * heads * rows * 4
    steps: list[MemoryStep] = [OutputAlloc(index) for index in range(4)]
    if not gradient.transpose(1, 2).is_contiguous():
        steps.append(ScratchAlloc("gradient", size_of(gradient)))
    if query.dtype == torch.float32:
        steps += [
            ScratchAlloc("product", size_of(query)),
            ScratchAlloc("sums", sums),
            ScratchAlloc("rows", sums),
        ]
        steps += [ScratchFree("sums"), ScratchFree("product")]
    else:
        steps.append(ScratchAlloc("rows", sums))
    narrow = width <= 64 and query.dtype == torch.float32
    block = 64 if narrow or width > 128 else 128
    padded = 64 if width <= 64 else -(-width // 128) * 128
    partial = -(-rows // block) * (block * padded * 4 + (16 if narrow else 32))
    if query.element_size() == 2 and width > 128:  # gradients of keys and values do not fit into registers
        partial += 2 * -(-key.shape[2] // block) * block * padded * 4
    steps += [ScratchAlloc("workspace", batch * heads * partial), ScratchFree("rows")]
    return MemoryPlan(steps)


def _flash_backward(call: OpCall) -> MemoryPlan:
    """Return the memory plan of flash attention's backward pass. The scratch memory is the same as for cuDNN, except
    that rows and widths are rounded up to multiples of the kernel's block size.
    """
    query, key = call.arguments["query"], call.arguments["key"]
    batch, heads, rows, width = query.shape
    rows = -(-rows // 128) * 128
    rounded = -(-width // 32) * 32
    steps: list[MemoryStep] = [OutputAlloc(0), OutputAlloc(1), OutputAlloc(2)]
    for name in ("grad_out", "out"):  # the kernel needs the order batch, rows, heads
        tensor = call.arguments[name]
        if not tensor.transpose(1, 2).is_contiguous():
            steps.append(ScratchAlloc(name, size_of(tensor)))
    if key.shape[1] != heads:
        expanded = batch * heads * key.shape[2] * width * key.element_size()
        steps += [ScratchAlloc("keys", expanded), ScratchAlloc("values", expanded)]
    steps += [
        ScratchAlloc("sums", batch * heads * rows * 4),
        ScratchAlloc("partial", batch * heads * rows * rounded * 4),
    ]
    return MemoryPlan(steps)


RULES: dict[str, Rule] = {
    "aten::_scaled_dot_product_cudnn_attention": _cudnn_forward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "aten::_scaled_dot_product_efficient_attention": _efficient_forward,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
}
