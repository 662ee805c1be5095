"""Kernels that read their inputs in one piece: what lies otherwise is copied first, and given back when the operation ends.

Inputs lie otherwise after a transposition, a slice or an expansion; gradients do where a sum follows, whose gradient is one number
for all. Which kernels know pictures that lie channels last, and whether the copy comes before the result, is as an H200 was seen to do it
(`bench/sweep/operations.py`: pools, pads and interpolations in every layout). Most call `contiguous` on their arguments by name:
AveragePool2d.cu, DilatedMaxPool2d.cu, AdaptiveAveragePooling.cu, AdaptiveMaxPooling2d.cu, ReflectionPad.cu, UpSample*.cu.
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.plan import Call, Output, Plan, Rule, Step, Take, scratch, size_of


def contiguous(name: str) -> Rule:
    """The kernel reads this argument in one piece, and copies it after the results are allocated."""

    def rule(call: Call) -> Plan | None:
        tensor = call.arguments[name]
        return None if tensor.is_contiguous() else scratch(size_of(tensor))

    return rule


def contiguous_in_its_format(name: str) -> Rule:
    """The same for kernels that know channels-last pictures as well."""

    def rule(call: Call) -> Plan | None:
        tensor = call.arguments[name]
        if tensor.is_contiguous() or (
            tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        ):
            return None
        return scratch(size_of(tensor))

    return rule


def _in_the_inputs_format(*names: str) -> Rule:
    """The input's own layout is kept where it is one of pictures, and all else is brought to it."""

    def rule(call: Call) -> Plan | None:
        layout = format_of(call.arguments["self"])
        tensors = [call.arguments[name] for name in names]
        return scratch(*(size_of(one) for one in tensors if not one.is_contiguous(memory_format=layout)))

    return rule


def _before(name: str, *, knows_last: bool = False) -> Rule:
    """The copy is there before the result."""

    def rule(call: Call) -> Plan | None:
        tensor = call.arguments[name]
        layout = format_of(tensor) if knows_last else torch.contiguous_format
        if tensor.is_contiguous(memory_format=layout):
            return None
        return Plan([Take(name, size_of(tensor)), Output(0)])

    return rule


def _into_one_piece(call: Call) -> Plan | None:
    """The gradient is copied, and the result written in one piece too where it lies otherwise."""
    tensors = (call.arguments["grad_output"], call.result)
    return scratch(*(size_of(one) for one in tensors if not one.is_contiguous()))


def format_of(tensor: Any) -> torch.memory_format:
    """The layout that a tensor's strides come nearest to."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if last is not None and tensor.stride(1) == 1 and tensor.shape[1] > 1:
        return last
    return torch.contiguous_format


def _unfold(call: Call) -> Plan | None:
    """The input is copied, whatever it lies like, and once more before that where it lies otherwise. Patches beside each other need no copy."""
    tensor = call.arguments["self"]
    apart = call.arguments["kernel_size"] == call.arguments["stride"]
    if apart and not any(call.arguments["padding"]) and set(call.arguments["dilation"]) == {1}:
        return None if tensor.is_contiguous() else scratch(size_of(tensor))
    steps: list[Step] = [] if tensor.is_contiguous() else [Take("rows", size_of(tensor))]
    return Plan([*steps, Take("input", size_of(tensor)), Output(0)])


def _fold(call: Call) -> Plan:
    """The result gets at least as much memory as the columns that are added up in it."""
    columns = call.arguments["self"]
    steps: list[Step] = [Output(0, max(size_of(columns), size_of(call.result)))]
    return Plan(steps if columns.is_contiguous() else [*steps, Take("columns", size_of(columns))])


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
        _in_the_inputs_format("self"),
        "avg_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices", "upsample_nearest2d", "_upsample_nearest_exact2d",
    ),
    **_all(_in_the_inputs_format("self", "grad_output"), "avg_pool2d_backward", "max_pool2d_with_indices_backward"),
    **_all(_in_the_inputs_format("grad_output"), "max_pool3d_with_indices_backward"),
    **_all(_before("self", knows_last=True), "_adaptive_avg_pool2d"),
    **_all(_before("self"), "_adaptive_avg_pool3d"),
    **_all(_before("grad_output"), "fractional_max_pool2d_backward"),
    **_all(_into_one_piece, "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
    **_all(
        contiguous("grad_output"),
        "upsample_bicubic2d_backward", "reflection_pad1d_backward", "avg_pool3d_backward",
        "_adaptive_avg_pool3d_backward", "_log_softmax_backward_data",
        "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
    ),
    **_all(
        contiguous_in_its_format("grad_output"),
        "reflection_pad2d_backward", "_adaptive_avg_pool2d_backward", "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
        "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d_backward",
        "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward",
    ),
    "aten::im2col": _unfold,
    "aten::col2im": _fold,
}  # fmt: skip
