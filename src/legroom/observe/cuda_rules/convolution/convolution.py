"""Convolutions: cuDNN's workspaces, in the order in which torch asks for them.

Source: ATen/native/ConvUtils.h and Convolution.cpp, cudnn/ConvShared.cpp. Forward: the input in one piece, where it is not (`input.contiguous`
in `_convolution`), the result, then the workspace. Backward: the input again, where the weights' gradient is wanted, kept to the end;
the input's gradient and its workspace, the weights' gradient and its workspace, then the bias's gradient, which is a
sum (see reductions). Depthwise convolutions in the usual layout have kernels of torch's own.
"""

from math import prod
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution.decide import Guess, guess, ruled
from legroom.observe.cuda_rules.convolution.recorded_table import Layer, Question
from legroom.observe.cuda_rules.convolution.workspace import Convolution
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
    found = _describe(arguments, input, weight, result)
    taken = _workspaces(found, arguments, input, weight, result, call.gpu)
    copies = _copies(found, input=input), _copies(found, weight=weight)
    steps = [*copies[0], OutputAlloc(0), *copies[1], *_held("workspace", taken, 0)]
    return MemoryPlan(steps, _notes(taken))


def _backward(call: OpCall) -> MemoryPlan:
    arguments = call.arguments
    gradient, input, weight = arguments["grad_output"], arguments["input"], arguments["weight"]
    mask = arguments["output_mask"] or (True, True, True)
    found = _describe(arguments, input, weight, gradient)
    taken = _workspaces(found, arguments, input, weight, gradient, call.gpu)
    whole = _copies(found, input=input) if mask[1] or input.dim() == 3 else []
    copies = [*whole, *_copies(found, gradient=gradient)]
    steps: list[MemoryStep] = [*copies]
    if found.depthwise and not _depthwise_by_cudnn(found, input, weight):
        steps += [OutputAlloc(_position(mask, index)) for index in (1, 0) if mask[index]]
    else:
        if mask[0]:
            copied = _copies(found, weight=weight)
            steps += [OutputAlloc(0), *copied, *_held("input gradient", taken, 1)]
            steps += [ScratchFree(copy.name) for copy in copied]
        if mask[1]:
            steps += [OutputAlloc(_position(mask, 1)), *_held("weight gradient", taken, 2)]
    steps += [ScratchFree(copy.name) for copy in copies if copy not in whole]
    if mask[2]:
        steps.append(OutputAlloc(_position(mask, 2)))
        dims = [0, *range(2, gradient.dim())]
        steps += numbered("bias", reductions.of_tensor(gradient, dims, call.gpu, accumulator=4))
    return MemoryPlan(steps, _notes(taken))


def _notes(guess: Guess) -> tuple[str, ...]:
    notes = (BENCHMARK, torch.backends.cudnn.benchmark), (CUDNN_CRASHED, guess.crashed)
    return tuple(note for note, applies in notes if applies)


def _workspaces(
    found: Convolution, arguments: dict[str, Any], input: Any, weight: Any, output: Any, gpu: GpuSpec
) -> Guess:
    """Depthwise convolutions that torch computes itself take what the rule says; all others are cuDNN's."""
    if found.depthwise and not found.channels_last and input.dtype != torch.float16:
        return ruled(found, gpu)
    spread = len(weight.shape) - 2
    dtype = str(input.dtype).removeprefix("torch.")
    if dtype == "float32" and not torch.backends.cudnn.allow_tf32:
        dtype = "float32_strict"
    layer = Layer(
        dtype, found.channels_last, found.inputs, found.outputs, tuple(input.shape[2:]),
        tuple(weight.shape[2:]), _each(arguments["stride"], spread), _each(arguments["dilation"], spread),
        found.groups, found.transposed, _each(arguments["padding"], spread),
    )  # fmt: skip
    question = Question(layer, found.batch, tuple(output.shape[2:]), torch.backends.cudnn.deterministic)
    return guess(question, found, gpu)


def _each(values: Any, dimensions: int) -> tuple[int, ...]:
    """A setting as operations take it: one number for every dimension, or one for all."""
    each: tuple[int, ...] = tuple(values)
    return each * dimensions if len(each) == 1 else each


def _depthwise_by_cudnn(found: Convolution, input: Any, weight: Any) -> bool:
    """Channels last always; else only float16 with small square kernels (`use_cudnn_depthwise`). torch's own kernels
    allocate the weights' gradient first."""
    if found.channels_last:
        return True
    return (
        input.dtype == torch.float16
        and found.stride == 1
        and weight.shape[-1] in (1, 3, 5)
        and found.inputs >= 32
    )


def _position(mask: Any, index: int) -> int:
    """Results that were not asked for are not there to be counted."""
    return sum(bool(wanted) for wanted in mask[:index])


def _held(name: str, taken: Guess, which: int) -> list[MemoryStep]:
    """A workspace that cuDNN asks for. Where there is no room for it, torch goes on to the next kernel of cuDNN's list, and to
    the generic ones, which need none, at its end (`try_configs` in ATen/native/cudnn/Conv_v8.cpp catches the failure)."""
    size, others = taken.likely[which], tuple(sizes[which] for sizes in taken.others)
    if not any(other != size for other in others):
        others = ()  # they all agree
    return [ScratchAlloc(name, size, others, optional=True), ScratchFree(name)] if size or others else []


def _describe(arguments: dict[str, Any], input: Any, weight: Any, output: Any) -> Convolution:
    transposed = bool(arguments.get("transposed"))
    groups = arguments.get("groups") or max(1, input.shape[1] // weight.shape[1])
    return Convolution(
        element=input.element_size(),
        channels_last=_last(input) or _last(weight),
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


def _copies(found: Convolution, **tensors: Any) -> list[ScratchAlloc]:
    """What does not lie in the layout that the convolution runs in is copied first."""
    steps: list[ScratchAlloc] = []
    for name, tensor in tensors.items():
        wanted = torch.contiguous_format
        if found.channels_last and tensor.dim() in (4, 5):
            wanted = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        if not tensor.is_contiguous(memory_format=wanted):
            steps.append(ScratchAlloc(name, size_of(tensor)))
    return steps


def _last(tensor: Any) -> bool:
    if tensor.dim() not in (4, 5) or tensor.is_contiguous():
        return False
    form = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return bool(tensor.is_contiguous(memory_format=form))


MAX_DEFORMABLE_IMAGES = 32


def _deformable_columns(call: OpCall) -> ScratchAlloc:
    """The pixels for every weight of torchvision's deformable convolution, as columns, for up to 32 images at once.

    Source: torchvision/csrc/ops/cuda/deform_conv2d_kernel.cu. The backward pass allocates them once for each of its two halves.
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
