"""Layer, group and batch norms: copies of what is not contiguous, and partial sums of the weights' gradients."""

from collections.abc import Sequence
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.ops import reductions
from legroom.observe.cuda_rules.ops.copies import format_of
from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, numbered, size_of

ROWS_PER_BLOCK = 32
ROWS_PER_BLOCK_OF_SUMS, FEWEST_BLOCKS, MOST_BLOCKS = 256, 8, 128


def install(overrides: Overrides) -> None:
    overrides.composite("batch_norm", _contiguous_batch_norm)
    overrides.composite("group_norm", _contiguous_group_norm)


def _contiguous_batch_norm(original: Any, input: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    """cuDNN is given pictures in one piece, so a copy of others is kept for the backward pass
    (`_batch_norm_impl_index` in ATen/native/Normalization.cpp); torch's own kernel reads them as they lie."""
    if input.dim() >= 3 and weight is not None and bias is not None and _by_cudnn(input, weight):
        input = input.contiguous(memory_format=format_of(input))
    return original.decompose(input, weight, bias, *rest)


def _contiguous_group_norm(original: Any, input: torch.Tensor, *rest: Any) -> Any:
    """CUDA's kernel reads pictures channel by channel: a copy of others, channels last too, is kept for the backward pass
    (`group_norm` in ATen/native/group_norm.cpp)."""
    return original.decompose(input.contiguous(), *rest)


def _by_cudnn(input: Any, weight: Any) -> bool:
    """bfloat16, norms without weights and with weights in half precision go to torch's own kernel."""
    return (
        input.dtype in (torch.float32, torch.float16) and weight is not None and weight.dtype == torch.float32
    )


def _layer_norm(call: Call) -> Plan | None:
    """The kernel reads rows: an input that lies otherwise is copied first (`native_layer_norm` in layer_norm_kernel.cu)."""
    input = call.arguments["input"]
    if input.is_contiguous():
        return None
    return Plan([Take("input", size_of(input)), Output(0), Output(1), Output(2)])


def _layer_norm_backward(call: Call) -> Plan | None:
    """Copies again; and for many short rows the weights' gradients are summed in two passes
    (`LaunchGammaBetaBackwardCUDAKernel`): one partial sum for each 32 rows, then a reduction over those."""
    gradient, input = call.arguments["grad_out"], call.arguments["input"]
    steps: list[Step] = []
    if not input.is_contiguous():
        steps.append(Take("input", size_of(input)))
    steps += [Output(0), Output(1), Output(2)]
    if not gradient.is_contiguous():
        steps.append(Take("gradient", size_of(gradient)))
    wanted = [
        name
        for name, asked in zip(("weight", "bias"), call.arguments["output_mask"][1:], strict=True)
        if asked
    ]
    steps += _in_two_passes(call, input, wanted)
    return Plan(steps) if len(steps) > 3 else None


def _rms_norm_backward(call: Call) -> Plan | None:
    gradient, input = call.arguments["grad_out"], call.arguments["input"]
    steps: list[Step] = [Output(0), Output(1)]
    for name, tensor in (("input", input), ("gradient", gradient)):
        if not tensor.is_contiguous():
            steps.append(Take(name, size_of(tensor)))
    steps += _in_two_passes(call, input, ("weight",))
    return Plan(steps) if len(steps) > 2 else None


def _in_two_passes(call: Call, input: Any, wanted: Sequence[str]) -> list[Step]:
    """Partial sums of every wanted gradient, then one reduction after the other."""
    width = 1
    for size in call.arguments["normalized_shape"]:
        width *= size
    rows = input.numel() // max(1, width)
    if rows <= 64 * 1024 or width // 32 >= call.gpu.sm_count // 2:
        return []
    element = input.element_size()
    blocks = rows // ROWS_PER_BLOCK
    steps: list[Step] = [Take(f"partial {name}", blocks * width * element) for name in wanted]
    sums = reductions.buffers((blocks, width), (width, 1), (0,), call.gpu, accumulator=4)
    for name in wanted:
        parts = numbered(name, (width * element, *sums))
        steps += [*parts, *(Give(part.name) for part in reversed(parts))]
    return steps


def _batch_norm(call: Call) -> Plan | None:
    """Channels last, cuDNN keeps partial sums in proportion to the picture, channels padded to 64: a value of single
    precision for each 32 pixels (half precision: 80) in pairs, and one for 128 of these; for each 48 in the backward pass.
    Measured on an H200, 60 layers: equal but for some tens of bytes. The partial sums of torch's own kernel are small.
    """
    input, weight = call.arguments["input"], call.arguments["weight"]
    backward = "backward" in call.func._schema.name
    trains = call.arguments.get("train" if backward else "training", True)
    if not backward and not trains:
        return _batch_norm_results(input)
    if input.dim() == 2 and input.is_contiguous():
        return _batch_norm_of_rows(input, backward)
    if not _by_cudnn(input, weight) or input.dim() == 2 or not trains:
        return None if backward else _batch_norm_as_it_lies(call, input)
    if not _channels_last(input):
        return _batch_norm_gradient(call, input) if backward else _batch_norm_results(input)
    channels = -(-input.shape[1] // 64) * 64
    pixels = input.numel() // input.shape[1]
    if backward:
        size = -(-pixels // 48) * channels * 4 + 1056
    else:
        each = 32 if input.dtype == torch.float32 else 80
        size = (2 * -(-pixels // (2 * each)) * 128 * each + pixels) * channels * 4 // (128 * each) + 1072
    return Plan([Output(0), Output(1), Output(2), Take("partial", size + channels // 16)])


def _batch_norm_results(input: Any) -> Plan | None:
    """Means and deviations are in single precision; for rows they are made in evaluation too."""
    if input.element_size() == 4 and input.dim() > 2:
        return None
    saved = input.shape[1] * 4
    return Plan([Output(0), Output(1, saved), Output(2, saved)])


def _batch_norm_as_it_lies(call: Call, input: Any) -> Plan | None:
    """Torch's own kernel takes the variance of what is in no known layout by an ordinary reduction, of a copy in single precision
    (`batch_norm_mean_var`, `Impl::General` in Normalization.cu)."""
    if input.is_contiguous() or input.is_contiguous(memory_format=format_of(input)):
        return _batch_norm_results(input)
    saved = input.shape[1] * 4
    others = [dim for dim in range(input.dim()) if dim != 1]
    sums = reductions.of_tensor(input, others, call.gpu, accumulator=reductions.WELFORD)
    wide = input.numel() * 4 if input.element_size() < 4 else 0
    return Plan([Output(0), Output(1, saved), Output(2, saved), *numbered("part", (wide, *sums))])


def _batch_norm_gradient(call: Call, input: Any) -> Plan | None:
    """cuDNN is given the gradient in the input's layout (`cudnn_batch_norm_backward`)."""
    gradient = call.arguments.get("grad_out", call.arguments.get("grad_output"))
    if gradient is None or gradient.is_contiguous(memory_format=format_of(input)):
        return None
    return Plan([Output(0), Take("gradient", size_of(gradient)), Output(1), Output(2)])


def _batch_norm_of_rows(input: Any, backward: bool) -> Plan:
    """Torch's own kernel for channels that lie side by side: blocks of rows have sums of their own, from eight blocks on
    (`flexible_launch_configs` in Normalization.cuh), and the gradient of the input comes after the sums that it is made of."""
    rows, channels = input.shape[0], input.shape[1] * 4
    blocks = min(-(-rows // ROWS_PER_BLOCK_OF_SUMS), MOST_BLOCKS)
    parts = channels * blocks if blocks >= FEWEST_BLOCKS else 0
    if not backward:
        steps: list[Step] = [Output(0), Output(1, channels), Output(2, channels)]
        return Plan([*steps, *_staged(4 * parts)])
    sums = [Take("sum", channels), Take("product", channels)]
    return Plan([*sums, Output(1), Output(2), *_staged(2 * parts), Output(0)])


def _staged(size: int) -> list[Step]:
    """Sums of blocks, and how many of these are done."""
    if not size:
        return []
    return [Take("staged", size), Take("done", 512), Give("done"), Give("staged")]


def _group_norm(call: Call) -> Plan | None:
    """Weights and means become one factor and one summand for each channel of each picture (`GroupNormKernelImplInternal`)."""
    if call.arguments["HxW"] == 1 or (call.arguments["weight"] is None and call.arguments["bias"] is None):
        return None  # rows of values are normalized by a kernel that needs neither
    each = _channels_of_all(call)
    return Plan([Output(0), Output(1), Output(2), Take("factor", each), Take("summand", each)])


def _group_norm_backward(call: Call) -> Plan:
    """Two sums for each channel of each picture, and three factors made of them (`GroupNormBackwardKernelImplInternal`)."""
    each, groups = _channels_of_all(call), call.arguments["N"] * call.arguments["group"] * 4
    steps: list[Step] = [Output(0), Output(1), Output(2), Take("products", each), Take("sums", each)]
    steps += [Take("second", groups), Take("third", groups)]
    if call.arguments["HxW"] > 1 and call.arguments["weight"] is not None:
        steps += [Take("first", each), Give("second"), Give("third")]
    return Plan(steps)


def _channels_of_all(call: Call) -> int:
    """Bytes of a value in single precision for each channel of each picture."""
    return int(call.arguments["N"] * call.arguments["C"]) * 4


def _channels_last(tensor: Any) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and bool(tensor.is_contiguous(memory_format=torch.channels_last))
    )


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
