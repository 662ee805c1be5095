"""Advice rules that suggest how to reduce the memory of a correct program: LG4xx and LG6xx.

The saving is estimated from the live memory at the failure. If an estimate assumes Adam or float32, the message says
so.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from legroom.diagnose.oom.batch_change import BatchChange, evaluation_setting, smaller_setting
from legroom.diagnose.oom.evidence import (
    Evidence,
    bytes_of,
    constructor,
    heaviest_frame,
    in_whole_pass,
    location,
)
from legroom.diagnose.report.device_memory import free_at
from legroom.findings import Finding
from legroom.memory.allocator.settings import LARGE_SEGMENT
from legroom.memory.annotations import LiveOptimizer
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, Oom
from legroom.observe.source.batch_setting import BatchSetting
from legroom.observe.source.cells import short_location
from legroom.observe.source.files import matches
from legroom.observe.source.operations import attention_at, compares_samples, creates_one_hot, float64_lines
from legroom.units import GiB, MiB, format_size

CHECKPOINTING_SAVES = 0.6
"""The fraction of the activations that block-by-block checkpointing saves.

Checkpointing adds about a third more computation.
"""
AUTOCAST_SAVES = 0.4
"""The fraction of activation memory that is saved with bfloat16 instead of float32. Most activations become half as large, but normalization,
softmax and losses stay in float32."""
CUDA_CONTEXT = 512 * MiB
OUTLIER = 4
"""A batch that is this many times as large as the first one probably contains an unusual sample."""


def operation_larger_than_device(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.requested <= evidence.budget or (oom.frame is not None and creates_one_hot(oom.frame)):
        return
    smaller = "compute the result in chunks or reduce the batch size"
    if evidence.is_single_sample:
        smaller = "compute the result in chunks, or process smaller inputs: resize or crop the sample, or split it into tiles"
    yield Finding(
        code="LG601",
        message=f"This operation alone requires {format_size(oom.requested)}, but PyTorch can use at most "
        f"{format_size(evidence.budget)} on this device.",
        fix="Check the shapes on this line. An unintended broadcast or a wrong dimension is the usual cause. "
        f"If the shapes are correct, {smaller}.",
        **location(oom.frame),
        bytes=oom.requested,
        evidence={"requested": oom.requested, "budget": evidence.budget},
    )


def weights_do_not_fit(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    weights = evidence.live_bytes(Category.PARAMETER, Category.BUFFER)
    if oom.phase is not Phase.OTHER or evidence.live_bytes(Category.ACTIVATION, Category.GRADIENT):
        return
    if evidence.is_moving_batch or evidence.steps:
        return  # the weights are on the device
    needed = weights + oom.requested
    # PyTorch allocates large blocks, so even a request that is smaller than the free memory may fail.
    is_full = needed >= evidence.budget * 0.8 or oom.requested <= free_at(oom)
    if not is_full or weights < oom.allocated * 0.8:
        return
    yield Finding(
        code="LG602",
        message=f"The weights do not fit. With {format_size(weights)} of weights on the device, an allocation of "
        f"{format_size(oom.requested)} failed. In addition to the weights, training with Adam needs gradients and optimizer state, "
        "which together are three times as large.",
        fix="Load the weights in half precision (`model.to(torch.bfloat16)` before `.to(device)`), train adapters on a "
        "quantized model, or split the model across several GPUs.",
        **location(evidence.oom.frame),
        bytes=needed,
        saves=needed // 2,
    )


def dataset_on_device(evidence: Evidence) -> Iterator[Finding]:
    largest = max(evidence.datasets, key=lambda each: each.block_bytes, default=None)
    if largest is None:
        return
    size = largest.block_bytes
    yield Finding(
        code="LG609",
        message=f"One input tensor uses {size / evidence.oom.capacity:.0%} of the memory: {format_size(size)}.",
        fix="If this tensor is the whole dataset, keep the tensor on the host and move one batch at a time "
        "to the GPU.",
        **location(largest.frame),
        bytes=size,
        saves=size,
    )


def fragmentation(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    usable = oom.fragmented - LARGE_SEGMENT  # expandable segments grow by whole pages of this size
    if (
        evidence.expandable_segments
        or usable < evidence.shortfall
        or oom.fragmented < evidence.budget * 0.05
        or oom.requested > evidence.budget
    ):
        return
    yield Finding(
        code="LG607",
        message=f"{format_size(oom.fragmented)} is reserved but fragmented: {_why_unusable(oom)}.",
        fix="Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment.",
        bytes=oom.fragmented,
        saves=oom.fragmented,
    )


def _why_unusable(oom: Oom) -> str:
    if oom.largest_free_block < oom.requested:
        return f"the largest free block is {format_size(oom.largest_free_block)}, but the request was {format_size(oom.requested)}"
    return (
        "requests of up to 1 MiB use separate segments, and all free blocks are in the other segments (the "
        f"request was {format_size(oom.requested)})"
    )


def process_fraction(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    above_limit = oom.capacity - oom.other - oom.limit
    if above_limit <= 0 or oom.requested - free_at(oom) > above_limit:
        return
    yield Finding(
        code="LG610",
        message=f"`set_per_process_memory_fraction` limits this process to {format_size(oom.limit)} of "
        f"{format_size(oom.capacity)}.",
        fix="Raise the fraction, or remove the call if no other process uses the GPU.",
        bytes=above_limit,
        saves=above_limit,
    )


def others_on_device(evidence: Evidence) -> Iterator[Finding]:
    other = evidence.oom.other
    if other < max(GiB, evidence.oom.capacity * 0.1):
        return
    yield Finding(
        code="LG608",
        message=f"{format_size(other)} of device memory is used outside this process's PyTorch allocator.",
        fix="Run `nvidia-smi` to list the processes on the GPU. The memory is used by another process, "
        "a notebook kernel that is still running, or another library in this process.",
        bytes=other,
        saves=other - CUDA_CONTEXT,
    )


def optimizer_state_does_not_fit(evidence: Evidence) -> Iterator[Finding]:
    """Report weights, gradients and optimizer state that together exceed the device.

    A smaller batch does not reduce this memory. An optimizer with less state is suggested only if the run is then
    expected to fit, with a smaller batch size if necessary.
    """
    oom = evidence.oom
    creates_state = not evidence.optimizers or evidence.missing_state > 0
    in_first_optimizer_step = oom.phase is Phase.OPTIMIZER and oom.step == 0 and creates_state
    left = evidence.budget - evidence.fixed
    no_batch_fits = left < max(evidence.budget * 0.05, min(LARGE_SEGMENT // 2, evidence.budget // 5))
    too_large = bool(evidence.optimizers) and evidence.trains and no_batch_fits
    if not (in_first_optimizer_step or too_large):
        return
    state = evidence.optimizer_state
    stateful = [each for each in evidence.optimizers if each.state_bytes]
    names = " and ".join(f"`{name}`" for name in _names(stateful)) or "the optimizer"
    contents = f"The weights, their gradients and the optimizer state of {names} need"
    if not state:
        contents = "The weights and their gradients need"
    message = (
        f"{contents} {format_size(evidence.fixed)}; PyTorch can "
        f"use {format_size(evidence.budget)} on this device. A smaller batch size alone is not enough."
    )
    if not too_large:
        message = (
            "The optimizer state, which the first optimizer step allocates, does not fit. "
            f"{format_size(evidence.live_bytes(Category.OPTIMIZER_STATE))} is allocated so far, for "
            f"{format_size(evidence.live_bytes(Category.PARAMETER))} of parameters."
        )
    chosen = _smaller_state(evidence, needs_batch=too_large)
    if chosen is None:
        stateless = evidence.fixed - state
        if not too_large or stateless + evidence.unusable <= evidence.budget // 2:
            return  # a smaller batch is enough
        fix = (
            "Freeze parameters that need no training, load the weights in half precision, or split the model across "
            "several GPUs (`legroom launch --strategy fsdp`). "
        )
        fix += "Even without optimizer state, weights" if state else "Weights"
        fix += f" and gradients need {format_size(stateless)} of {format_size(evidence.budget)}"
        fix += "." if stateless > evidence.budget else ", and activations need memory in addition."
        fix += _about_largest_layer(evidence)
        yield Finding(
            code="LG605", message=message, fix=fix, **constructor(evidence.optimizers), bytes=evidence.fixed,
            evidence={"fixed_bytes": evidence.fixed, "no_batch_fits": True},
        )  # fmt: skip
        return
    option, left, also, smaller = chosen
    fix = f"Use an optimizer with less state: {option}. With SGD, tune the learning rate again. "
    fix += f"Or freeze parameters that need no training.{also}"
    # By default, an update of all parameters at once needs up to one temporary copy of them.
    copies = evidence.live_bytes(Category.PARAMETER)
    if evidence.fixed - state + left + copies + evidence.unusable > evidence.budget:
        fix += " Pass `foreach=False` to SGD."
    fix += _about_largest_layer(evidence)
    yield Finding(
        code="LG605",
        message=message,
        fix=fix,
        **(constructor(stateful) or (location(oom.frame) if oom.phase is Phase.OPTIMIZER else {})),
        bytes=state,
        saves=state - left,
        evidence={
            "fixed_bytes": evidence.fixed,
            "no_batch_fits": too_large,
            **(smaller.as_evidence() if smaller else {}),
        },
    )


def _about_largest_layer(evidence: Evidence) -> str:
    """Return a sentence about a layer with most of the weights, such as a `Linear` after a flattened feature map."""
    call = max(evidence.model_calls, key=lambda each: each.trainable_bytes, default=None)
    if call is None or len(call.largest_shape) != 2 or call.largest_bytes * 2 < call.trainable_bytes:
        return ""
    rows, columns = call.largest_shape
    share = f"{call.largest_bytes / call.trainable_bytes:.0%} of the weights"
    if call.largest_kind == "Linear" and columns >= _WIDE_INPUT * rows:
        return (
            f" `{call.largest}` (Linear({columns}, {rows})) has {share}. If its input is a flattened feature map, reduce "
            "the feature map first, for example with `nn.AdaptiveAvgPool2d`."
        )
    if call.largest_kind == "Embedding":
        return (
            f" `{call.largest}` (Embedding({rows}, {columns})) has {share}. With `sparse=True` and an optimizer such as "
            "`SGD` or `SparseAdam` for it, its gradient needs memory only for the rows of a batch."
        )
    return ""


_WIDE_INPUT = 16
"""A `Linear` layer with so many times more inputs than outputs probably follows a flattened feature map."""


def _smaller_state(
    evidence: Evidence, *, needs_batch: bool
) -> tuple[str, int, str, BatchChange | None] | None:
    """Return a description of optimizers with less state, and the size of the state of the first of them. If the
    current batch size does not fit, also return a sentence about a smaller one, and the change of the setting. Return
    None if no optimizer fits.
    """
    state, momentum = evidence.optimizer_state, sum(each.trainable_bytes for each in evidence.optimizers)
    momentum = min(
        momentum or evidence.live_bytes(Category.PARAMETER), evidence.live_bytes(Category.PARAMETER)
    )
    plain = "SGD without momentum stores none"
    options = [
        (f"SGD with momentum stores one tensor per parameter, and {plain}", momentum),
        (f"8-bit Adam stores a quarter of Adam's float32 state, and {plain}", state // 4),
        (plain, 0),
    ]
    uses_adam = not evidence.optimizers or any("Adam" in each.name for each in evidence.optimizers)
    options = [each for each in options if each[1] < state and (uses_adam or "Adam" not in each[0])]
    stateless = evidence.fixed - state
    scaling = evidence.scaling
    if evidence.oom.phase is Phase.OPTIMIZER:
        # Gradients and activations are rarely complete at the same time. The peak of the step is known.
        scaling = max(evidence.next_pass() - evidence.optimizer_state - stateless, 0)
    for option, left in options:
        if (
            scaling * (1.25 if evidence.is_unfinished else 1)
            <= evidence.budget - evidence.unusable - stateless - left
        ):
            return option, left, "", None
    if not needs_batch:
        return None
    for option, left in options:
        available = evidence.budget - evidence.unusable - stateless - left
        fraction = min(available / max(scaling, 1) * 0.75, 0.5)
        if available <= 0 or (fraction < 0.25 and left):
            continue
        smaller = smaller_setting(evidence.setting, fraction)
        if smaller is not None:
            return option, left, f" {smaller.advice} as well.", smaller
        if evidence.setting is None and fraction >= 0.05:
            return (
                option,
                left,
                f" Use at most {_format_fraction(fraction)} the current batch size as well.",
                None,
            )
    return None


_IN_GROUPS = 'After any call of `load_state_dict`, set `group["foreach"] = False` for each group in `optimizer.param_groups`'
"""The change for an optimizer whose constructor lacks the option, or whose options a checkpoint replaced."""


def optimizer_temporaries(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.phase is not Phase.OPTIMIZER:
        return
    at_once = [each for each in evidence.optimizers if each.update == "foreach"]
    if evidence.optimizers and not at_once:
        return
    transient = evidence.live(Category.TEMPORARY, Category.WORKSPACE)
    size = bytes_of([each for each in transient if each.phase is Phase.OPTIMIZER])
    if _creates_state(evidence):
        if not size and evidence.optimizers:
            return  # no temporary memory exists yet, so the state itself does not fit
    else:
        size += oom.requested
    size = max(size, evidence.optimizer_temporaries)
    if size < evidence.live_bytes(Category.PARAMETER) * 0.2 and "_foreach" not in oom.op:
        return
    names = _names(at_once)
    optimizer = " and ".join(f"`{name}`" for name in names) or "The optimizer"
    where = f"`{names[0]}`" if len(names) == 1 else "the optimizer"
    fix = f"Pass `foreach=False` to {where} (updates one parameter at a time, slower)."
    if any(each.options_in_groups for each in at_once):
        fix = f"{_IN_GROUPS} (updates one parameter at a time, slower)."
    elif _support_fused(at_once):
        fix = (
            f"Pass `fused=True` to {where} (no temporaries, and faster) or `foreach=False` (updates one "
            "parameter at a time, slower)."
        )
    also, smaller, fits = _for_next_pass(evidence)
    yield Finding(
        code="LG606",
        message=f"{optimizer} update{'' if len(names) > 1 else 's'} all parameters at once, which requires "
        f"{format_size(size)} of temporary memory.",
        fix=f"{fix}{also}",
        **(constructor(at_once) or location(oom.frame)),
        bytes=size,
        saves=size,
        evidence={
            "optimizers": names,
            "fits": fits,
            "resets_gradients_first": "zero_grad" in also,
            **(smaller.as_evidence() if smaller else {}),
        },
    )


def _for_next_pass(evidence: Evidence) -> tuple[str, BatchChange | None, bool]:
    """Return what the next forward and backward pass needs in addition to an optimizer without temporaries: a
    sentence, the smaller batch size, and whether the run is then expected to fit.

    Resetting the gradients before the forward pass does not change the results, so it comes before a smaller batch.
    """
    limit = evidence.budget - min(evidence.unusable, evidence.budget // 4)
    if evidence.next_pass() <= limit:
        return "", None, True
    also, needed = "", evidence.next_pass(resets_gradients_first=True)
    if evidence.resets_gradients_late:
        also = " Also call `optimizer.zero_grad()` before the forward pass: otherwise, the gradients of the previous step use memory during this pass."
        if needed <= limit:
            return also, None, True
    fixed = evidence.live_bytes(Category.PARAMETER, Category.BUFFER) + evidence.optimizer_state
    # How many gradients exist at the peak is unknown, so all of them are included and none are subtracted.
    available = limit - fixed - evidence.live_bytes(Category.GRADIENT)
    if needed <= fixed:
        return also, None, False  # nothing scales with the batch size
    smaller = smaller_setting(evidence.setting, min(available / (needed - fixed) * 0.9, 0.9))
    if smaller is None:
        return also, None, False
    return (
        f"{also} {smaller.advice} as well. The next forward pass needs memory in addition to the optimizer state.",
        smaller,
        True,
    )


def _names(optimizers: Sequence[LiveOptimizer]) -> list[str]:
    return list(dict.fromkeys(each.name for each in optimizers))


def _support_fused(optimizers: Sequence[LiveOptimizer]) -> bool:
    return bool(optimizers) and all(each.supports_fused for each in optimizers)


def smaller_batch(evidence: Evidence) -> Iterator[Finding]:
    """Suggest the largest batch size that fits. If the program has no batch size, suggest to process the input in
    batches.

    Only activations, inputs, results and temporary tensors are assumed to scale with the batch size.

    After a failure in the backward pass, all activations are known. After a failure in the forward pass, the
    activations are extrapolated from the completed fraction of the model. If this fraction is unknown, at most half
    the batch size is suggested.
    """
    oom = evidence.oom
    outside = oom.phase is Phase.OTHER or evidence.is_after_training
    if outside and not (evidence.live_bytes(Category.ACTIVATION) or evidence.is_moving_batch):
        return
    fixed = evidence.fixed + bytes_of(evidence.datasets)
    if oom.phase is Phase.OPTIMIZER:
        fixed += evidence.optimizer_temporaries
    scaling = evidence.scaling
    left = evidence.budget - fixed
    available = max(left - evidence.unusable, left // 3)
    if evidence.scaling_so_far < evidence.budget * 0.2 or available <= 0:
        return
    if evidence.is_single_sample and not evidence.has_whole_input:
        return
    unfinished = evidence.is_unfinished
    margin, largest = 0.9, 0.9
    if unfinished:
        margin, largest = (0.85, 0.75) if evidence.progress else (0.75, 0.5)
        if evidence.runs_several_forward_passes:
            margin = 0.75  # their sizes differ
    fraction = min(available / scaling * margin, largest)
    fraction *= evidence.filled_fraction
    precedes_training = evidence.evaluates and bool(evidence.optimizers) and oom.step == 0
    if precedes_training:
        fraction = min(fraction, evidence.fraction_for_training * margin)
    if evidence.setting is not None and evidence.setting.value * fraction < (
        2 if _normalizes(evidence) else 1
    ):
        return  # even the smallest batch is too large
    program = evidence.program
    evaluation = None if evidence.evaluates else evaluation_setting(evidence.details)
    if evaluation is not None and not _is_too_large_for_evaluation(evidence, evaluation):
        evaluation = None
    smaller = smaller_setting(evidence.setting, fraction, evaluation)
    if smaller is not None:
        change = smaller.advice
    elif evidence.has_other_input and program is not None:
        change = (
            f"Pass fewer samples to the model. The input has the shape {program.input_shape}, which does not "
            "depend on the batch size"
        )
        if program.gradients_enabled:
            change += ". If no backward pass follows, wrap the call in `with torch.no_grad():`"
    elif evidence.has_whole_input:
        change = "If the samples are independent, process the input in batches. For a graph, sample subgraphs"
    else:
        change = f"Use at most {_format_fraction(fraction)} the current batch size"
        change += " for the evaluation" if evidence.evaluates else ""
    has_batch_size = not (evidence.has_other_input or evidence.has_whole_input)
    caveat = f" {_estimate_caveat(evidence)}" if unfinished and has_batch_size else ""
    if precedes_training:
        caveat += " The training after this evaluation needs more memory, which is included in the estimate."
    if evidence.has_varying_input and program is not None:
        caveat += (
            f" Or limit the size of the samples: the input has the shape {program.input_shape}, and the first input had "
            f"the shape {program.first_input_shape}."
        )
    also, optimizers = "", [each for each in evidence.optimizers if each.temporary_bytes]
    if fixed + evidence.optimizer_temporaries + evidence.unusable > evidence.budget and optimizers:
        option = "fused=True" if _support_fused(optimizers) else "foreach=False"
        change_option = f"Also pass `{option}` to {' and '.join(f'`{name}`' for name in _names(optimizers))}"
        if any(each.options_in_groups for each in optimizers):
            change_option = _IN_GROUPS
        also = (
            f" {change_option}: otherwise, the optimizer step "
            f"needs {format_size(evidence.optimizer_temporaries)} of temporary memory."
        )
    accumulate = ""
    if evidence.trains and has_batch_size:
        accumulate = " Accumulate gradients over several batches to keep the effective batch size."
        if any(map(compares_samples, evidence.files)):
            accumulate = (
                " Accumulated gradients do not replace a larger batch here, because the loss compares the samples of a "
                "batch."
            )
    in_use = evidence.scaling_in_use
    kinds = _scaling_kinds(evidence)
    message = f"{kinds} use {format_size(in_use)}."
    if has_batch_size:
        message = f"{kinds} ({format_size(in_use)}) scale with the batch size."
    if evidence.has_whole_input:
        message = f"The model processes the whole input at once, without batches. {kinds} use {format_size(in_use)}."
    yield Finding(
        code="LG603",
        message=message,
        fix=f"{change}.{also}{caveat}{accumulate}",
        bytes=in_use,
        saves=int(evidence.scaling_so_far * (1 - fraction)),
        evidence={
            "fraction": round(fraction, 3),
            "unfinished": unfinished,
            **(smaller.as_evidence() if smaller else {"argument": None}),
            "fixed_bytes": fixed,
            "scaling_bytes": evidence.scaling_so_far,
            "has_batch_size": has_batch_size,
            "optimizers": _names(optimizers) if also else [],
            "lines": [constructor(optimizers)] if also and constructor(optimizers) else [],
        },
    )


def _is_too_large_for_evaluation(evidence: Evidence, setting: BatchSetting) -> bool:
    """Return whether the largest result of the model alone does not fit with the batch size of the evaluation."""
    program, training = evidence.program, evidence.setting
    size = (program.batch_size if program else None) or (training.value if training else setting.value)
    largest = max((each.block_bytes for each in evidence.live(Category.ACTIVATION)), default=0)
    fixed = evidence.live_bytes(Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE)
    return fixed + largest * setting.value // size > evidence.budget


def _scaling_kinds(evidence: Evidence) -> str:
    if evidence.live_bytes(Category.TEMPORARY) < evidence.scaling_in_use * 0.1:
        return "Inputs and results" if evidence.saves_nothing else "Activations, inputs and results"
    if evidence.saves_nothing:
        return "Inputs, results and temporary tensors"
    return "Activations, inputs, results and temporary tensors"


def _normalizes(evidence: Evidence) -> bool:
    """Return True if the model uses batch normalization, which may fail with one sample."""
    return any("batch_norm" in each.op for each in evidence.state.live)


def longer_sample(evidence: Evidence) -> Iterator[Finding]:
    """Suggest a limit on the size of the samples if this batch is much larger than the first one."""
    oom, program, in_use = evidence.oom, evidence.program, evidence.scaling_in_use
    if program is None or not evidence.has_varying_input or evidence.scaling_so_far < evidence.budget * 0.2:
        return
    is_outlier = prod(program.input_shape) >= OUTLIER * prod(program.first_input_shape)
    if not (is_outlier or evidence.is_single_sample):
        return
    yield Finding(
        code="LG614",
        message=f"A large sample determines the size of this batch, which uses {format_size(in_use)}.",
        fix="Limit the size of the samples: truncate, crop or split them, or put samples of similar size into one batch. "
        f"This input has the shape {program.input_shape}, and the first input had the shape {program.first_input_shape}.",
        **location(oom.frame),
        bytes=in_use + oom.requested,
        saves=in_use,
        evidence={"saves_in_pass": evidence.scaling},
    )


def large_sample(evidence: Evidence) -> Iterator[Finding]:
    """Suggest smaller inputs for an evaluation that processes one sample at a time."""
    oom = evidence.oom
    if not (evidence.saves_nothing and evidence.is_single_sample) or oom.requested > evidence.budget:
        return
    in_use = evidence.scaling_in_use
    if evidence.scaling_so_far < evidence.budget * 0.2:
        return
    fix = (
        "Process smaller inputs: resize or crop the sample, or split it into tiles and run the model on one tile at a "
        "time. Tiles of half the size need about half the memory. For convolutions, let the tiles overlap."
    )
    if oom.op in _WITH_IN_PLACE_FORM:
        fix = f"Use the in-place form of this operation, for example `nn.ReLU(inplace=True)`. {fix}"
    yield Finding(
        code="LG614",
        message=f"The evaluation runs one sample at a time, so a smaller batch is not possible. This operation needs "
        f"{format_size(oom.requested)} for its result, in addition to {format_size(in_use)} of inputs and results.",
        fix=fix,
        **location(oom.frame),
        bytes=in_use + oom.requested,
        saves=(in_use + oom.requested) // 2,
    )


_WITH_IN_PLACE_FORM = frozenset({
    "aten.relu", "aten.leaky_relu", "aten.silu", "aten.elu", "aten.hardswish", "aten.hardtanh", "aten.sigmoid",
    "aten.tanh", "aten.dropout", "aten.clamp_min", "aten.threshold",
})  # fmt: skip


_ATTENTION_OPTIONS = (
    " Pass a mask as `attn_mask`, in which True keeps a position, and dropout as `dropout_p`, which must be 0 in an "
    "evaluation."
)


def attention_weights(evidence: Evidence) -> Iterator[Finding]:
    """Suggest a fused attention for a function that stores the scores of all pairs of positions."""
    oom = evidence.oom
    if oom.phase not in (Phase.FORWARD, Phase.BACKWARD):
        return
    kinds = (Category.ACTIVATION, Category.RESULT, Category.TEMPORARY)
    places = {each.frame for each in evidence.live(*kinds)} | {oom.frame}
    for frame in sorted(each for each in places if each is not None):
        attention = attention_at(frame)
        if attention is None:
            continue
        inside = [
            each
            for each in evidence.live(*kinds)
            if each.frame is not None and each.frame.file == frame.file and each.frame.line in attention.lines
        ]
        failed = oom.frame is not None and oom.frame.file == frame.file and oom.frame.line in attention.lines
        scores = [
            each.block_bytes for each in inside if each.frame and each.frame.line in attention.softmax_lines
        ]
        largest = max(scores, default=oom.requested if failed else 0)
        if not largest:
            continue
        # The queries, keys and values are smaller than the scores.
        size = bytes_of([each for each in inside if each.block_bytes * 4 >= largest])
        size += oom.requested * (failed and oom.requested * 4 >= largest)
        if size < (oom.allocated + oom.requested) * 0.5:
            continue
        progress = evidence.step_progress if oom.phase is Phase.FORWARD else None
        yield Finding(
            code="LG616",
            message=f"The attention scores of all pairs of positions use {format_size(size)}.",
            fix="Compute this attention with `torch.nn.functional.scaled_dot_product_attention(q, k, v)`, which does not "
            "store the scores, for `q`, `k` and `v` of the shape (batch, heads, length, size)."
            + (_ATTENTION_OPTIONS if attention.has_options else "")
            + " The scores grow with the square of the length.",
            file=frame.file,
            line=min(attention.softmax_lines),
            bytes=size,
            saves=size,
            evidence={"saves_in_pass": in_whole_pass(size, progress)},
        )
        return


def largest_line(evidence: Evidence) -> Iterator[Finding]:
    """Name the line that allocated most of the memory, if there is no other advice."""
    oom = evidence.oom
    kinds = (Category.ACTIVATION, Category.RESULT, Category.TEMPORARY, Category.INPUT)
    sizes: Counter[Frame] = Counter()
    for each in evidence.live(*kinds):
        if each.frame is not None:
            sizes[each.frame] += each.block_bytes
    for frame, size in sizes.most_common(1):
        if size < (oom.allocated + oom.requested) * 0.2:
            return
        yield Finding(
            code="LG617",
            message=f"The tensors from this line use {format_size(size)}, and this operation needs another "
            f"{format_size(oom.requested)}.",
            fix="Compute this result in parts, for example for some rows at a time, or move parts that are complete to "
            "the host (`.cpu()`).",
            **location(frame),
            bytes=size,
            saves=size // 2,
        )


def one_hot_vectors(evidence: Evidence) -> Iterator[Finding]:
    """Suggest an embedding instead of one-hot vectors that use much of the memory."""
    oom = evidence.oom
    kinds = (Category.ACTIVATION, Category.RESULT, Category.TEMPORARY, Category.INPUT)
    found = [each for each in evidence.live(*kinds) if each.frame is not None and creates_one_hot(each.frame)]
    failed = oom.frame is not None and creates_one_hot(oom.frame)
    size = bytes_of(found) + oom.requested * failed
    if size < (oom.allocated + oom.requested) * 0.3:
        return
    yield Finding(
        code="LG617",
        message=f"One-hot vectors use {format_size(size)}.",
        fix="Pass the indices to `torch.nn.Embedding`, which replaces the one-hot vectors and the linear layer that "
        "multiplies them. As the target of a loss, pass the indices.",
        **location(oom.frame if failed else heaviest_frame(found)),
        bytes=size,
        saves=size,
        evidence={"saves_in_pass": in_whole_pass(size, evidence.step_progress)},
    )


def double_precision(evidence: Evidence) -> Iterator[Finding]:
    """Suggest float32 for a model in float64, which often comes from NumPy's default."""
    calls = [each for each in evidence.model_calls if each.dtype]
    if not calls or any(each.dtype != "float64" for each in calls):
        return
    size = evidence.oom.allocated
    places = [Frame(file, line, "") for file in evidence.files for line in float64_lines(file)]
    fix = "Convert the model and its inputs to float32 (`.float()`). NumPy arrays are float64 by default."
    if places:
        names = " and ".join(short_location(each.file, each.line) for each in places[:3])
        fix = (
            f"Use float32 for the model and its inputs. Change {names}{', and others' * (len(places) > 3)}. Convert inputs "
            "that are still float64, such as NumPy arrays, with `.float()`."
        )
    yield Finding(
        code="LG422",
        message=f"`{calls[-1].model}` computes in float64, which needs twice the memory of float32.",
        fix=fix,
        **location(places[0] if places else evidence.model_call),
        bytes=size,
        saves=size // 2,
    )


_PROBABILITY_LOSS = re.compile(rb"\bBCELoss\(|\bbinary_cross_entropy\(")
"""Losses that autocast does not support on CUDA."""


def autocast(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    evaluates = evidence.saves_nothing
    size = evidence.scaling_so_far if evaluates else evidence.live_bytes(Category.ACTIVATION)
    if size < evidence.budget * 0.2 or oom.phase is Phase.OPTIMIZER or _uses_autocast(evidence):
        return
    if any(each.dtype not in ("", "float32") for each in evidence.model_calls):
        return  # autocast does not convert float64, and half precision is already used
    if evaluates and (
        not evidence.is_single_sample
        or oom.phase is not Phase.FORWARD
        or oom.requested > 2 * evidence.budget
        or oom.op == "aten._to_copy"
    ):
        return
    halved = "results" if evaluates else "activations"
    wrapped = "evaluation" if evaluates else "forward pass and the loss"
    also = ""
    if any(matches(file, _PROBABILITY_LOSS) for file in evidence.files):
        also = (
            " In this region, `nn.BCELoss` raises an error: replace it with `nn.BCEWithLogitsLoss`, and remove the sigmoid "
            "before it."
        )
    yield Finding(
        code="LG401",
        message=f"Autocast to bfloat16 would roughly halve the {format_size(size)} of {halved} if they are float32.",
        fix=f'Wrap the {wrapped} in `with torch.autocast("cuda", dtype=torch.bfloat16):`.' + also,
        bytes=size,
        saves=int(size * AUTOCAST_SAVES),
    )


def checkpoint_activations(evidence: Evidence) -> Iterator[Finding]:
    activations = evidence.live(Category.ACTIVATION)
    size = bytes_of(activations)
    if size < evidence.budget * 0.3 or evidence.oom.phase is Phase.OPTIMIZER:
        return
    block = _heaviest_block(activations)
    where = f"the parts of `{block}`" if block else "the model's blocks"
    yield Finding(
        code="LG604",
        message=f"Activations saved for the backward pass use {format_size(size)}.",
        fix=f"Recompute the activations in the backward pass: wrap {where} in "
        "`torch.utils.checkpoint.checkpoint(…, "
        "use_reentrant=False)`. A step takes about a third longer."
        + (f" `{block}` saves the most activations." if block else ""),
        bytes=size,
        saves=int(size * CHECKPOINTING_SAVES),
        evidence={"module": block or None},
    )


def spill_activations(evidence: Evidence) -> Iterator[Finding]:
    """Suggest moving activations to host memory.

    Only tensors of at least 1 MiB are moved, and up to three of the largest tensors are copied at the same time.
    """
    movable = [each for each in evidence.live(Category.ACTIVATION) if each.block_bytes >= MiB]
    size = bytes_of(movable)
    if (
        not movable
        or size < evidence.budget * 0.3
        or evidence.oom.phase is Phase.OPTIMIZER
        or evidence.spills
    ):
        return
    saves = size - 3 * max(each.block_bytes for each in movable)
    if saves > 0:
        yield Finding(
            code="LG613",
            message=f"{format_size(size)} of saved activations could be moved to host memory until the backward pass.",
            fix="Run `legroom run --spill` without changing the code, or wrap the forward pass in `with "
            "legroom.Spill():`. The gradients stay the same, but a step takes several times as long.",
            bytes=size,
            saves=saves,
        )


def _creates_state(evidence: Evidence) -> bool:
    """Return True if the optimizer was creating its state.

    If the operation is unknown, the optimizer state counts as incomplete while it is smaller than the parameters.
    """
    oom = evidence.oom
    if oom.step > 0 or not oom.op:
        missing = evidence.live_bytes(Category.OPTIMIZER_STATE) < evidence.live_bytes(Category.PARAMETER)
        return oom.step == 0 and missing
    return oom.op in ("aten.zeros_like", "aten.zeros", "aten.empty_like", "aten.full_like", "aten.clone")


def _uses_autocast(evidence: Evidence) -> bool:
    """Return True if several modules save converted copies for the backward pass, as autocast does."""
    converted = {each.module for each in evidence.live(Category.ACTIVATION) if each.op == "aten._to_copy"}
    return len(converted - {""}) >= 2


def _heaviest_block(activations: Sequence[Alloc]) -> str:
    """Return the innermost module path, such as `encoder.layers`, that allocates at least half of the activations.

    Single layers, and numbers in a module path, are ignored.
    """
    sizes: Counter[str] = Counter()
    for each in activations:
        parts = each.module.rpartition("(")[2].split(".")[:-1]  # for `Linear (0.1)`, keep only the indices
        for depth in range(1, len(parts) + 1):
            if not parts[depth - 1].isdecimal():
                sizes[".".join(parts[:depth])] += each.block_bytes
    heavy = [path for path, size in sizes.items() if size >= bytes_of(activations) / 2]
    return max(heavy, key=lambda path: (path.count("."), sizes[path])) if heavy else ""


_FRACTIONS = {
    "three quarters of": 3 / 4,
    "half": 1 / 2,
    "a third of": 1 / 3,
    "a quarter of": 1 / 4,
    "an eighth of": 1 / 8,
}


def _estimate_caveat(evidence: Evidence) -> str:
    done = evidence.step_progress or 1.0
    if done < 1:
        passes = "forward passes of a step" if evidence.runs_several_forward_passes else "forward pass"
        return f"This is an estimate, because memory ran out after about {done:.0%} of the {passes}."
    return "The forward pass did not finish, so a smaller batch size may be required."


def _format_fraction(fraction: float) -> str:
    return next((text for text, value in _FRACTIONS.items() if fraction >= value), f"{fraction:.0%} of")
