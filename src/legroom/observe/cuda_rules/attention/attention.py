"""Attention as CUDA computes it: the kernel it picks, what that saves, and what its backward pass takes.

The CPU's own attention, and its plain mathematics with dropout, keep matrices of queries × keys that CUDA never has.
The scratch of the kernels is as measured on an H200 (580 calls, equal to the byte for cuDNN and the efficient kernel
but for a few alignments); flash attention's is read off `mha_bwd` in ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
"""

from typing import Any

import torch
import torch.nn.functional as F

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.attention.kernel_choice import Backend, Request, choose
from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, size_of

aten = torch.ops.aten


def install(overrides: Overrides, gpu: GpuSpec, release: tuple[int, int]) -> None:
    """`scaled_dot_product_attention` takes the way that it takes on `gpu`.

    Source: `scaled_dot_product_attention` in ATen/native/transformers/attention.cpp.
    """

    def attend(
        original: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        request = Request(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        backend = choose(request, gpu, release)
        mask = _additive(attn_mask, query.dtype)
        if backend is Backend.CUDNN:
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, request.needs_grad, dropout_p, is_causal, False, scale=scale
            )[0]
        if backend is Backend.FLASH:
            width = query.shape[-1]
            query, key, value = (_padded(tensor, 8) for tensor in (query, key, value))
            scale = width**-0.5 if scale is None else scale
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
            return out[..., :width] if out.shape[-1] != width else out
        if backend is Backend.EFFICIENT:
            if mask is not None:
                length = mask.shape[-1]
                mask = _padded(mask, 8)[..., :length]
                mask = mask.expand(*query.shape[:3], key.shape[-2])
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, request.needs_grad, dropout_p, is_causal, scale=scale
            )[0]
        return _by_mathematics(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)

    overrides.composite("scaled_dot_product_attention", attend)


def _by_mathematics(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    is_grouped: bool,
) -> torch.Tensor:
    """Scores, their softmax, and its product with the values, step by step as `_scaled_dot_product_attention_math` does it.

    Torch's own would not add the mask in place, since it is given tensors of a subclass.
    """
    dtype = query.dtype
    may_be_half: Any = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed
    if dtype in (torch.float16, torch.bfloat16) and not may_be_half():
        query, key, value = query.float(), key.float(), value.float()
    single = query  # lives until the end of the function, as in C++
    factor = (query.shape[-1] ** -0.5 if scale is None else abs(scale)) ** 0.5
    query = query * (-factor if scale is not None and scale < 0 else factor)
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _additive(seen, query.dtype)
        del seen
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
    # torch gives the weights back too, and the compiler makes the last result first.
    given_too = weights.to(dtype)
    result = torch.matmul(weights, value).to(dtype)
    del single, given_too
    return result


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of booleans becomes one that is added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    nothing = torch.full((), float("-inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, 0.0, nothing)


def _padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    rest = tensor.shape[-1] % multiple
    return F.pad(tensor, (0, multiple - rest)) if rest else tensor


# What the kernels take


def _cudnn_forward(call: Call) -> Plan:
    """The seeds of its dropout come first, whether it drops or not. Sums of rows are for a backward pass only."""
    sums = Output(1) if call.arguments["compute_log_sumexp"] else Output(1, 0)
    return Plan([Output(2), Output(3), Output(0), sums, Take("workspace", 256)])


def _cudnn_backward(call: Call) -> Plan:
    """The gradient of the queries is summed in single precision, beside a sum for each row; where heads are grouped,
    keys and values first get a gradient for each head."""
    query, key = call.arguments["query"], call.arguments["key"]
    batch, heads, rows, width = query.shape
    size = batch * heads * rows * (width + 1) * 4 + 256
    if key.shape[1] != heads:
        size += 2 * batch * heads * key.shape[2] * width * key.element_size()
    return Plan([Output(0), Output(1), Output(2), Take("workspace", size)])


def _efficient_forward(call: Call) -> Plan:
    """The seed of its dropout and the place in it are the host's numbers."""
    return Plan([Output(0), Output(1), Output(2, 0), Output(3, 0)])


def _efficient_backward(call: Call) -> Plan:
    """Partial gradients of the queries by blocks of rows; for single precision the sums of each row are computed
    outside the kernel, from a product as large as the result."""
    gradient = call.arguments["grad_out_"]
    query, key = call.arguments["query"], call.arguments["key"]
    batch, heads, rows, width = query.shape
    sums = batch * heads * rows * 4
    steps: list[Step] = [Output(index) for index in range(4)]
    if not gradient.transpose(1, 2).is_contiguous():
        steps.append(Take("gradient", size_of(gradient)))
    if query.dtype == torch.float32:
        steps += [Take("product", size_of(query)), Take("sums", sums), Take("rows", sums)]
        steps += [Give("sums"), Give("product")]
    else:
        steps.append(Take("rows", sums))
    narrow = width <= 64 and query.dtype == torch.float32
    block = 64 if narrow or width > 128 else 128
    padded = 64 if width <= 64 else -(-width // 128) * 128
    partial = -(-rows // block) * (block * padded * 4 + (16 if narrow else 32))
    if query.element_size() == 2 and width > 128:  # gradients of keys and values too wide for the registers
        partial += 2 * -(-key.shape[2] // block) * block * padded * 4
    steps += [Take("workspace", batch * heads * partial), Give("rows")]
    return Plan(steps)


def _flash_backward(call: Call) -> Plan:
    """As cuDNN's, with rows and widths rounded up to the kernel's blocks."""
    query, key = call.arguments["query"], call.arguments["key"]
    batch, heads, rows, width = query.shape
    rows = -(-rows // 128) * 128
    rounded = -(-width // 32) * 32
    steps: list[Step] = [Output(0), Output(1), Output(2)]
    for name in ("grad_out", "out"):  # in the order of batch, rows, heads, as the kernel reads them
        tensor = call.arguments[name]
        if not tensor.transpose(1, 2).is_contiguous():
            steps.append(Take(name, size_of(tensor)))
    if key.shape[1] != heads:
        expanded = batch * heads * key.shape[2] * width * key.element_size()
        steps += [Take("keys", expanded), Take("values", expanded)]
    steps += [Take("sums", batch * heads * rows * 4), Take("partial", batch * heads * rows * rounded * 4)]
    return Plan(steps)


RULES: dict[str, Rule] = {
    "aten::_scaled_dot_product_cudnn_attention": _cudnn_forward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "aten::_scaled_dot_product_efficient_attention": _efficient_forward,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
}
