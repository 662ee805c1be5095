"""Memory plans of convolutions: copies, results and cuDNN's workspaces in the order in which torch allocates them.

The rules follow ConvUtils.h, Convolution.cpp and cudnn/ConvShared.cpp in ATen/native. In the forward pass, torch
allocates a contiguous copy of the input if needed (`input.contiguous` in `_convolution`), then the result, then the
workspace. In the backward pass, torch allocates the input gradient and its workspace, the weight gradient and its
workspace, then the bias gradient, which is a sum (see `reductions`). If torch computes the weight gradient, it keeps
the copy of the input until the end of the backward operation. PyTorch has its own kernels for contiguous depthwise
convolutions.
"""

from math import prod
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution.recorded_table import ConvLayer, ConvQuery
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution
from legroom.observe.cuda_rules.convolution.workspace_source import WorkspaceGuess, by_rules, guess_workspaces
from legroom.observe.cuda_rules.ops import reductions
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
from legroom.observe.notes import BENCHMARK, CUDNN_CRASHED


def _forward(call: OpCall) -> MemoryPlan:
    arguments = call.arguments
    input, weight = arguments["input"], arguments["weight"]
    result = call.result if isinstance(call.result, torch.Tensor) else call.result[0]
    c = _sizes_of(arguments, input, weight, result)
    guess = _workspaces(c, arguments, input, weight, result, call.gpu)
    copies = _copies(c, input=input), _copies(c, weight=weight)
    steps = [*copies[0], OutputAlloc(0), *copies[1], *_workspace("workspace", guess, 0)]
    return MemoryPlan(steps, _notes(guess))


def _backward(call: OpCall) -> MemoryPlan:
    arguments = call.arguments
    gradient, input, weight = arguments["grad_output"], arguments["input"], arguments["weight"]
    mask = arguments["output_mask"] or (True, True, True)
    c = _sizes_of(arguments, input, weight, gradient)
    guess = _workspaces(c, arguments, input, weight, gradient, call.gpu)
    input_copies = _copies(c, input=input) if mask[1] or input.dim() == 3 else []
    copies = [*input_copies, *_copies(c, gradient=gradient)]
    steps: list[MemoryStep] = [*copies]
    if c.depthwise and not _uses_cudnn_depthwise(c, input, weight):
        steps += [OutputAlloc(_result_index(mask, index)) for index in (1, 0) if mask[index]]
    else:
        if mask[0]:
            copied = _copies(c, weight=weight)
            steps += [OutputAlloc(0), *copied, *_workspace("input gradient", guess, 1)]
            steps += [ScratchFree(copy.name) for copy in copied]
        if mask[1]:
            steps += [OutputAlloc(_result_index(mask, 1)), *_workspace("weight gradient", guess, 2)]
    steps += [ScratchFree(copy.name) for copy in copies if copy not in input_copies]
    if mask[2]:
        steps.append(OutputAlloc(_result_index(mask, 2)))
        dims = [0, *range(2, gradient.dim())]
        steps += numbered("bias", reductions.of_tensor(gradient, dims, call.gpu, accumulator=4))
    return MemoryPlan(steps, _notes(guess))


def _notes(guess: WorkspaceGuess) -> tuple[str, ...]:
    notes = (BENCHMARK, torch.backends.cudnn.benchmark), (CUDNN_CRASHED, guess.crashed)
    return tuple(note for note, applies in notes if applies)


def _workspaces(
    c: Convolution, arguments: dict[str, Any], input: Any, weight: Any, output: Any, gpu: GpuSpec
) -> WorkspaceGuess:
    """Return the workspaces of a convolution. Torch itself computes some depthwise convolutions, whose workspaces
    follow from rules. cuDNN computes all other convolutions.
    """
    if c.depthwise and not c.channels_last and input.dtype != torch.float16:
        return by_rules(c, gpu)
    dimensions = len(weight.shape) - 2
    dtype = str(input.dtype).removeprefix("torch.")
    if dtype == "float32" and not torch.backends.cudnn.allow_tf32:
        dtype = "float32_strict"
    layer = ConvLayer(
        dtype, c.channels_last, c.inputs, c.outputs, tuple(input.shape[2:]),
        tuple(weight.shape[2:]), _per_dimension(arguments["stride"], dimensions), _per_dimension(arguments["dilation"], dimensions),
        c.groups, c.transposed, _per_dimension(arguments["padding"], dimensions),
    )  # fmt: skip
    query = ConvQuery(layer, c.batch, tuple(output.shape[2:]), torch.backends.cudnn.deterministic)
    return guess_workspaces(query, c, gpu)


def _per_dimension(values: Any, dimensions: int) -> tuple[int, ...]:
    # A single number applies to all dimensions.
    numbers: tuple[int, ...] = tuple(values)
    return numbers * dimensions if len(numbers) == 1 else numbers


def _uses_cudnn_depthwise(c: Convolution, input: Any, weight: Any) -> bool:
    """Return whether PyTorch uses cuDNN, as for channels-last tensors and for float16 with small square kernels
    (`use_cudnn_depthwise`). PyTorch's own kernels allocate the weight gradient first.
    """
    if c.channels_last:
        return True
    return input.dtype == torch.float16 and c.stride == 1 and weight.shape[-1] in (1, 3, 5) and c.inputs >= 32


def _result_index(mask: Any, index: int) -> int:
    # The results contain only the gradients that are needed.
    return sum(bool(is_needed) for is_needed in mask[:index])


def _workspace(name: str, guess: WorkspaceGuess, index: int) -> list[MemoryStep]:
    """Return the steps that allocate and free an optional workspace. If the workspace does not fit, torch tries the
    next kernel in cuDNN's list, and finally generic kernels without a workspace. Torch catches the out-of-memory error
    (`try_configs` in ATen/native/cudnn/Conv_v8.cpp).
    """
    size, others = guess.likely[index], tuple(sizes[index] for sizes in guess.others)
    if not any(other != size for other in others):
        others = ()  # all alternatives equal the likely size
    return [ScratchAlloc(name, size, others, optional=True), ScratchFree(name)] if size or others else []


def _sizes_of(arguments: dict[str, Any], input: Any, weight: Any, output: Any) -> Convolution:
    transposed = bool(arguments.get("transposed"))
    groups = arguments.get("groups") or max(1, input.shape[1] // weight.shape[1])
    return Convolution(
        element=input.element_size(),
        channels_last=_is_channels_last(input) or _is_channels_last(weight),
        batch=input.shape[0],
        inputs=input.shape[1],
        outputs=output.shape[1],
        input_area=prod(input.shape[2:]),
        output_area=prod(output.shape[2:]),
        kernel_area=prod(weight.shape[2:]),
        stride=max(arguments["stride"] or (1,)),
        groups=groups,
        transposed=transposed,
    )


def _copies(c: Convolution, **tensors: Any) -> list[ScratchAlloc]:
    steps: list[ScratchAlloc] = []
    for name, tensor in tensors.items():
        memory_format = torch.contiguous_format
        if c.channels_last and tensor.dim() in (4, 5):
            memory_format = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        if not tensor.is_contiguous(memory_format=memory_format):
            steps.append(ScratchAlloc(name, size_of(tensor)))
    return steps


def _is_channels_last(tensor: Any) -> bool:
    if tensor.dim() not in (4, 5) or tensor.is_contiguous():
        return False
    memory_format = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return bool(tensor.is_contiguous(memory_format=memory_format))


MAX_DEFORMABLE_IMAGES = 32


def _deformable_columns(call: OpCall) -> ScratchAlloc:
    """Return the scratch memory of torchvision's deformable convolution. The scratch memory contains the pixels that
    are multiplied by each weight (the columns), for up to 32 images at once.

    The rule follows torchvision/csrc/ops/cuda/deform_conv2d_kernel.cu. The backward pass allocates the columns twice:
    for the gradient of the input, and for the gradient of the weights.
    """
    images, weight, offset = call.arguments["input"], call.arguments["weight"], call.arguments["offset"]
    batch = images.shape[0]
    at_once = next(count for count in range(min(batch, MAX_DEFORMABLE_IMAGES), 0, -1) if batch % count == 0)
    positions = at_once * offset.shape[-2] * offset.shape[-1]
    values = images.shape[1] * weight.shape[-2] * weight.shape[-1]
    return ScratchAlloc("columns", values * positions * images.element_size())


def _deformable(call: OpCall) -> MemoryPlan | None:
    return (
        MemoryPlan([OutputAlloc(0), _deformable_columns(call)]) if call.arguments["input"].shape[0] else None
    )


def _deformable_backward(call: OpCall) -> MemoryPlan | None:
    if not call.arguments["input"].shape[0]:
        return None
    columns = _deformable_columns(call)
    results = [OutputAlloc(index) for index in range(len(call.result))]
    return MemoryPlan([*results, columns, ScratchFree(columns.name), columns])


RULES: dict[str, Rule] = {
    "aten::convolution": _forward,
    "aten::convolution_backward": _backward,
    "torchvision::deform_conv2d": _deformable,
    "torchvision::_deform_conv2d_backward": _deformable_backward,
}
