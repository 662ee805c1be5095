"""Copies for kernels that need contiguous inputs.

An input that is not contiguous is copied, and the copy is freed when the operation ends. Inputs are not contiguous
after a transposition, a slice or an expansion. The input gradient of a sum is not contiguous, because it is an expanded
scalar. Measurements on an H200 show which kernels support channels-last images, and whether the copy is allocated
before the result (`bench/sweep/operations.py`: pooling, padding and interpolation in every memory format). Most of
these kernels call `contiguous` on an argument (AveragePool2d.cu, DilatedMaxPool2d.cu, AdaptiveAveragePooling.cu,
AdaptiveMaxPooling2d.cu, ReflectionPad.cu, UpSample*.cu).
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchAlloc,
    scratch,
    size_of,
)


def contiguous(name: str) -> Rule:
    """Return the rule for kernels that read the argument `name` only if it is contiguous. Other tensors are copied
    after the results are allocated.
    """

    def rule(call: OpCall) -> MemoryPlan | None:
        tensor = call.arguments[name]
        return None if tensor.is_contiguous() else scratch(size_of(tensor))

    return rule


def contiguous_in_any_format(name: str) -> Rule:
    """Return the rule for kernels that read the argument `name` only if it is contiguous or channels-last. Other
    tensors are copied after the results are allocated.
    """

    def rule(call: OpCall) -> MemoryPlan | None:
        tensor = call.arguments[name]
        if tensor.is_contiguous() or (
            tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        ):
            return None
        return scratch(size_of(tensor))

    return rule


def _in_format_of_input(*names: str) -> Rule:
    """Return the rule for operations that convert the arguments `names` to the memory format of the input."""

    def rule(call: OpCall) -> MemoryPlan | None:
        layout = format_of(call.arguments["self"])
        tensors = [call.arguments[name] for name in names]
        return scratch(*(size_of(one) for one in tensors if not one.is_contiguous(memory_format=layout)))

    return rule


def _copied_before(name: str, *, channels_last: bool = False) -> Rule:
    """Return the rule for operations that allocate the copy before the result. `channels_last` means that the kernel
    also reads channels-last tensors.
    """

    def rule(call: OpCall) -> MemoryPlan | None:
        tensor = call.arguments[name]
        layout = format_of(tensor) if channels_last else torch.contiguous_format
        if tensor.is_contiguous(memory_format=layout):
            return None
        return MemoryPlan([ScratchAlloc(name, size_of(tensor)), OutputAlloc(0)])

    return rule


def _contiguous_gradients(call: OpCall) -> MemoryPlan | None:
    tensors = (call.arguments["grad_output"], call.result)
    return scratch(*(size_of(one) for one in tensors if not one.is_contiguous()))


def format_of(tensor: Any) -> torch.memory_format:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if last is not None and tensor.stride(1) == 1 and tensor.shape[1] > 1:
        return last
    return torch.contiguous_format


def _unfold(call: OpCall) -> MemoryPlan | None:
    """Return the memory plan of `im2col`, which copies its input once, or twice if the input is not contiguous. If the
    patches do not overlap, `im2col` makes one fewer copy.
    """
    tensor = call.arguments["self"]
    is_disjoint = call.arguments["kernel_size"] == call.arguments["stride"]
    if is_disjoint and not any(call.arguments["padding"]) and set(call.arguments["dilation"]) == {1}:
        return None if tensor.is_contiguous() else scratch(size_of(tensor))
    steps: list[MemoryStep] = [] if tensor.is_contiguous() else [ScratchAlloc("contiguous", size_of(tensor))]
    return MemoryPlan([*steps, ScratchAlloc("input", size_of(tensor)), OutputAlloc(0)])


def _fold(call: OpCall) -> MemoryPlan:
    """Return the memory plan of `col2im`. The columns are summed into the storage of the result, which is therefore at
    least as large as the columns.
    """
    columns = call.arguments["self"]
    steps: list[MemoryStep] = [OutputAlloc(0, max(size_of(columns), size_of(call.result)))]
    return MemoryPlan(
        steps if columns.is_contiguous() else [*steps, ScratchAlloc("columns", size_of(columns))]
    )


def _all(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys((f"aten::{name}" for name in names), rule)


RULES: dict[str, Rule] = {
    **_all(
        contiguous("self"),
        "_softmax", "_log_softmax", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "avg_pool3d",
        "adaptive_max_pool2d", "adaptive_max_pool3d", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest3d",
        "_upsample_nearest_exact3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    ),
    **_all(
        _in_format_of_input("self"),
        "avg_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices", "upsample_nearest2d", "_upsample_nearest_exact2d",
    ),
    **_all(_in_format_of_input("self", "grad_output"), "avg_pool2d_backward", "max_pool2d_with_indices_backward"),
    **_all(_in_format_of_input("grad_output"), "max_pool3d_with_indices_backward"),
    **_all(_copied_before("self", channels_last=True), "_adaptive_avg_pool2d"),
    **_all(_copied_before("self"), "_adaptive_avg_pool3d"),
    **_all(_copied_before("grad_output"), "fractional_max_pool2d_backward"),
    **_all(_contiguous_gradients, "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
    **_all(
        contiguous("grad_output"),
        "upsample_bicubic2d_backward", "reflection_pad1d_backward", "avg_pool3d_backward",
        "_adaptive_avg_pool3d_backward", "_log_softmax_backward_data",
        "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
    ),
    **_all(
        contiguous_in_any_format("grad_output"),
        "reflection_pad2d_backward", "_adaptive_avg_pool2d_backward", "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
        "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d_backward",
        "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward",
    ),
    "aten::im2col": _unfold,
    "aten::col2im": _fold,
}  # fmt: skip
