"""Layer, RMS, group and batch norms: copies of inputs that are not contiguous, and partial sums of weight gradients."""

from collections.abc import Sequence
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.ops import reductions
from legroom.observe.cuda_rules.ops.copies import format_of
from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchAlloc,
    ScratchFree,
    numbered,
    size_of,
)

ROWS_PER_BLOCK = 32
ROWS_PER_BLOCK_OF_SUMS, FEWEST_BLOCKS, MOST_BLOCKS = 256, 8, 128


def install(overrides: Overrides, release: tuple[int, int]) -> None:
    overrides.composite("batch_norm", _contiguous_batch_norm)
    overrides.composite("group_norm", _contiguous_group_norm)
    if release >= (2, 9):
        overrides.composite("rms_norm", _rms_norm)


def _contiguous_batch_norm(original: Any, input: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    """Run a batch norm on contiguous images, because cuDNN requires them. Images in another layout are copied, and the
    contiguous copy is saved for the backward pass (`_batch_norm_impl_index` in ATen/native/Normalization.cpp).
    PyTorch's own kernel reads any layout.
    """
    if input.dim() >= 3 and weight is not None and bias is not None and _uses_cudnn(input, weight):
        input = input.contiguous(memory_format=format_of(input))
    return original.decompose(input, weight, bias, *rest)


def _contiguous_group_norm(original: Any, input: torch.Tensor, *rest: Any) -> Any:
    """Run a group norm on contiguous images, because CUDA's kernel requires them. For other images (for example
    channels-last), a contiguous copy is saved for the backward pass (`group_norm` in ATen/native/group_norm.cpp).
    """
    return original.decompose(input.contiguous(), *rest)


def _uses_cudnn(input: Any, weight: Any) -> bool:
    # For bfloat16 inputs, norms without weights and weights in half precision, PyTorch uses its own kernel.
    return (
        input.dtype in (torch.float32, torch.float16) and weight is not None and weight.dtype == torch.float32
    )


def _layer_norm(call: OpCall) -> MemoryPlan | None:
    # The kernel copies an input that is not contiguous (`native_layer_norm` in layer_norm_kernel.cu).
    input = call.arguments["input"]
    if input.is_contiguous():
        return None
    return MemoryPlan([ScratchAlloc("input", size_of(input)), OutputAlloc(0), OutputAlloc(1), OutputAlloc(2)])


def _layer_norm_backward(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of the backward pass of a layer norm. Inputs that are not contiguous are copied, as in
    the forward pass. For many short rows, the gradients of the weights are summed in two passes
    (`LaunchGammaBetaBackwardCUDAKernel`). The first pass computes one partial sum for every 32 rows, and the second
    pass reduces these sums.
    """
    gradient, input = call.arguments["grad_out"], call.arguments["input"]
    steps: list[MemoryStep] = []
    if not input.is_contiguous():
        steps.append(ScratchAlloc("input", size_of(input)))
    steps += [OutputAlloc(0), OutputAlloc(1), OutputAlloc(2)]
    if not gradient.is_contiguous():
        steps.append(ScratchAlloc("gradient", size_of(gradient)))
    names = [
        name
        for name, is_needed in zip(("weight", "bias"), call.arguments["output_mask"][1:], strict=True)
        if is_needed
    ]
    steps += _two_pass_sums(call, input, names)
    return MemoryPlan(steps) if len(steps) > 3 else None


def _rms_norm_backward(call: OpCall) -> MemoryPlan | None:
    gradient, input = call.arguments["grad_out"], call.arguments["input"]
    steps: list[MemoryStep] = [OutputAlloc(0), OutputAlloc(1)]
    for name, tensor in (("input", input), ("gradient", gradient)):
        if not tensor.is_contiguous():
            steps.append(ScratchAlloc(name, size_of(tensor)))
    steps += _two_pass_sums(call, input, ("weight",))
    return MemoryPlan(steps) if len(steps) > 2 else None


def _two_pass_sums(call: OpCall, input: Any, names: Sequence[str]) -> list[MemoryStep]:
    width = 1
    for size in call.arguments["normalized_shape"]:
        width *= size
    rows = input.numel() // max(1, width)
    if rows <= 64 * 1024 or width // 32 >= call.gpu.sm_count // 2:
        return []
    element = input.element_size()
    blocks = rows // ROWS_PER_BLOCK
    steps: list[MemoryStep] = [ScratchAlloc(f"partial {name}", blocks * width * element) for name in names]
    sums = reductions.buffers((blocks, width), (width, 1), (0,), call.gpu, accumulator=4)
    for name in names:
        parts = numbered(name, (width * element, *sums))
        steps += [*parts, *(ScratchFree(part.name) for part in reversed(parts))]
    return steps


def _batch_norm(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of a batch norm. For channels-last images, cuDNN allocates partial sums. Their size is
    proportional to the size of the image, with channels padded to a multiple of 64. The forward pass allocates one
    pair of float32 values for every 32 pixels (80 pixels in half precision), and one more value for every 128 of these
    values. The backward pass allocates one value for every 48 pixels. The rule matches 60 layers measured on an H200,
    to within a few tens of bytes. The partial sums of torch's own kernel are small.
    """
    input, weight = call.arguments["input"], call.arguments["weight"]
    backward = "backward" in call.func._schema.name
    trains = call.arguments.get("train" if backward else "training", True)
    if not backward and not trains:
        return _batch_norm_results(input)
    if input.dim() == 2 and input.is_contiguous():
        return _batch_norm_1d(input, backward)
    if not _uses_cudnn(input, weight) or input.dim() == 2 or not trains:
        return None if backward else _batch_norm_any_layout(call, input)
    if not _channels_last(input):
        return _batch_norm_gradient(call, input) if backward else _batch_norm_results(input)
    channels = -(-input.shape[1] // 64) * 64
    pixels = input.numel() // input.shape[1]
    if backward:
        size = -(-pixels // 48) * channels * 4 + 1056
    else:
        each = 32 if input.dtype == torch.float32 else 80
        size = (2 * -(-pixels // (2 * each)) * 128 * each + pixels) * channels * 4 // (128 * each) + 1072
    return MemoryPlan(
        [OutputAlloc(0), OutputAlloc(1), OutputAlloc(2), ScratchAlloc("partial", size + channels // 16)]
    )


def _batch_norm_results(input: Any) -> MemoryPlan | None:
    # Means and standard deviations are float32. For 2D inputs, they are also allocated in evaluation mode.
    if input.element_size() == 4 and input.dim() > 2:
        return None
    saved = input.shape[1] * 4
    return MemoryPlan([OutputAlloc(0), OutputAlloc(1, saved), OutputAlloc(2, saved)])


def _batch_norm_any_layout(call: OpCall, input: Any) -> MemoryPlan | None:
    """Return the memory plan of a batch norm whose input is neither contiguous nor channels-last. The kernel computes
    the variance by a reduction of a float32 copy (`batch_norm_mean_var`, `Impl::General` in Normalization.cu).
    """
    if input.is_contiguous() or input.is_contiguous(memory_format=format_of(input)):
        return _batch_norm_results(input)
    saved = input.shape[1] * 4
    others = [dim for dim in range(input.dim()) if dim != 1]
    sums = reductions.of_tensor(input, others, call.gpu, accumulator=reductions.WELFORD)
    wide = input.numel() * 4 if input.element_size() < 4 else 0
    return MemoryPlan(
        [OutputAlloc(0), OutputAlloc(1, saved), OutputAlloc(2, saved), *numbered("part", (wide, *sums))]
    )


def _batch_norm_gradient(call: OpCall, input: Any) -> MemoryPlan | None:
    # The kernel needs the gradient in the memory format of the input (`cudnn_batch_norm_backward`).
    gradient = call.arguments.get("grad_out", call.arguments.get("grad_output"))
    if gradient is None or gradient.is_contiguous(memory_format=format_of(input)):
        return None
    return MemoryPlan(
        [OutputAlloc(0), ScratchAlloc("gradient", size_of(gradient)), OutputAlloc(1), OutputAlloc(2)]
    )


def _batch_norm_1d(input: Any, backward: bool) -> MemoryPlan:
    """Return the memory plan of torch's own kernel for a batch norm of contiguous channels. If there are eight or more
    blocks of rows, each block has its own sums (`flexible_launch_configs` in Normalization.cuh). The gradient of the
    input is allocated after the sums.
    """
    rows, channels = input.shape[0], input.shape[1] * 4
    blocks = min(-(-rows // ROWS_PER_BLOCK_OF_SUMS), MOST_BLOCKS)
    parts = channels * blocks if blocks >= FEWEST_BLOCKS else 0
    if not backward:
        steps: list[MemoryStep] = [OutputAlloc(0), OutputAlloc(1, channels), OutputAlloc(2, channels)]
        return MemoryPlan([*steps, *_staged(4 * parts)])
    sums = [ScratchAlloc("sum", channels), ScratchAlloc("product", channels)]
    return MemoryPlan([*sums, OutputAlloc(1), OutputAlloc(2), *_staged(2 * parts), OutputAlloc(0)])


def _staged(size: int) -> list[MemoryStep]:
    if not size:
        return []
    return [
        ScratchAlloc("staged", size),
        ScratchAlloc("semaphores", 512),
        ScratchFree("semaphores"),
        ScratchFree("staged"),
    ]


def _group_norm(call: OpCall) -> MemoryPlan | None:
    # The kernel combines weights and means into one scale and one shift per channel of each image
    # (`GroupNormKernelImplInternal`).
    if call.arguments["HxW"] == 1 or (call.arguments["weight"] is None and call.arguments["bias"] is None):
        return None  # another kernel, without these buffers
    each = _bytes_per_channel(call)
    return MemoryPlan(
        [
            OutputAlloc(0),
            OutputAlloc(1),
            OutputAlloc(2),
            ScratchAlloc("scale", each),
            ScratchAlloc("shift", each),
        ]
    )


def _group_norm_backward(call: OpCall) -> MemoryPlan:
    # The kernel allocates two sums per channel of each image, and three factors computed from these sums
    # (`GroupNormBackwardKernelImplInternal`).
    each, groups = _bytes_per_channel(call), call.arguments["N"] * call.arguments["group"] * 4
    steps: list[MemoryStep] = [
        OutputAlloc(0),
        OutputAlloc(1),
        OutputAlloc(2),
        ScratchAlloc("products", each),
        ScratchAlloc("sums", each),
    ]
    steps += [ScratchAlloc("second", groups), ScratchAlloc("third", groups)]
    if call.arguments["HxW"] > 1 and call.arguments["weight"] is not None:
        steps += [ScratchAlloc("first", each), ScratchFree("second"), ScratchFree("third")]
    return MemoryPlan(steps)


def _bytes_per_channel(call: OpCall) -> int:
    return int(call.arguments["N"] * call.arguments["C"]) * 4


def _channels_last(tensor: Any) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and bool(tensor.is_contiguous(memory_format=torch.channels_last))
    )


def _rms_norm(
    original: Any,
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """Run an RMS norm as on CUDA. A fused kernel saves its input and one number per row. On the CPU, the norm is
    composed of five operations.

    The rule follows `rms_norm` and `_fused_rms_norm_cuda` in ATen/native/layer_norm.cpp and cuda/layer_norm_kernel.cu
    (torch 2.9 and later). CUDA also uses the five operations if weights and input have different dtypes, or if the
    images are channels-last.
    """
    last = input.dim() in (4, 5) and not input.is_contiguous() and input.stride(1) == 1
    if last or (weight is not None and weight.dtype != input.dtype):
        return original.decompose(input, normalized_shape, weight, eps)
    fused: Any = _FusedRmsNorm.apply
    return fused(input, weight, len(normalized_shape))


class _FusedRmsNorm(torch.autograd.Function):
    """An autograd function that allocates and saves the same tensors as the fused kernel. Fake tensors have no values,
    so the function computes nothing.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, dimensions: int) -> torch.Tensor:
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
        rows = [*input.shape[: input.dim() - dimensions], *(1,) * dimensions]
        ctx.save_for_backward(input, weight, input.new_empty(rows, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        input, weight, _ = ctx.saved_tensors
        grad_input = torch.empty_like(input, memory_format=torch.contiguous_format)
        grad_weight = None if weight is None else torch.empty_like(weight)
        copies = [tensor.contiguous() for tensor in (input, gradients[0])]
        del copies
        return grad_input, grad_weight, None


RULES: dict[str, Rule] = {
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "aten::native_group_norm": _group_norm,
    "aten::native_group_norm_backward": _group_norm_backward,
    "aten::native_batch_norm": _batch_norm,
    "aten::native_batch_norm_backward": _batch_norm,
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm,
}
