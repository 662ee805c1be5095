"""Advice rules for memory that the program retains by mistake: LG1xx and LG2xx.

Each rule requires evidence that a correct training loop does not show. Amounts below a threshold are not reported.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from legroom.diagnose.oom.batch_change import BatchChange, smaller_setting
from legroom.diagnose.oom.evidence import (
    Evidence,
    bytes_of,
    constructor,
    heaviest_frame,
    in_whole_pass,
    location,
    stem_of,
)
from legroom.diagnose.report.growing_lines import STORE_DETACHED, Leak, describe_holder
from legroom.findings import Finding
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, Holder
from legroom.observe.source.backward_calls import differentiated_names
from legroom.observe.source.calls import CONSTRUCTORS
from legroom.observe.source.files import find_function_at, tree_of
from legroom.observe.source.later_uses import assigned_names, is_used_later
from legroom.observe.source.operations import is_arithmetic, is_pairwise_difference, loads_checkpoint
from legroom.observe.source.storing_lines import find_usage
from legroom.units import format_size

EVALUATION_BATCHES = 3
"""The minimum number of batches on the device that indicates an evaluation.

A training loop usually has at most two batches on the device: the current and a prefetched batch.
"""
SMALLEST_BATCH = 0.01
"""An input that is smaller than this fraction of the largest input is not a batch. It may be a constant."""


def grows_each_step(evidence: Evidence) -> Iterator[Finding]:
    for leak in evidence.leaks:
        if not leak.bytes_per_step or leak.on_host:
            continue  # uses no device memory
        size = evidence.retained_by(leak)
        owner, fix = _growing_owner(evidence, leak, size), leak.advice
        at_line = [
            each
            for each in _late_weights(evidence)
            if each.frame and each.frame[:2] == (leak.file, leak.line)
        ]
        if leak.kind == "tensor" and bytes_of(at_line) >= size * 0.5:
            fix = _on_host(leak.name)
        if leak.kind == "tensor" and any(
            stem_of(each.path) == stem_of(leak.name) and _has_views(each) for each in evidence.holders
        ):
            fix = _as_copies(leak.name)
        if owner is not None:
            size = owner.bytes
            name = owner.path.partition(" ")[0]
            fix += f" Other attributes of `{name}` grow as well. It retains {format_size(size)}."
        yield Finding(
            code=leak.code,
            message=f"Memory grows by {format_size(leak.bytes_per_step)} per step and has reached "
            f"{format_size(evidence.retained_by(leak))}."
            + (f" {leak.holder}." if leak.holder and leak.name else ""),
            fix=fix,
            file=leak.file,
            line=leak.line,
            bytes=size,
            saves=size - leak.bytes_per_step,
            evidence={"bytes_per_step": leak.bytes_per_step, "steps": leak.steps, "holder": leak.holder},
        )


def _growing_owner(evidence: Evidence, leak: Leak, size: int) -> Holder | None:
    """Return the object whose attribute grows, if it retains much more memory of earlier steps than this attribute."""
    name = leak.name.partition(" ")[0].rpartition(".")[0]
    transient = evidence.live(Category.RESULT, Category.TEMPORARY, Category.INPUT, Category.ACTIVATION)
    old = bytes_of(list(filter(evidence.is_earlier, transient)))
    for holder in evidence.holders if name not in ("", "self") else ():
        if holder.path.partition(" ")[0] == name and size * 1.3 <= holder.bytes <= old * 1.05:
            return holder
    return None


def retry_while_handling(evidence: Evidence) -> Iterator[Finding]:
    """Report memory that an `except` block retains, because it handles an earlier out-of-memory error."""
    handled, earlier = evidence.handled_error, evidence.earlier_oom
    if handled is None or earlier is None or earlier.device != evidence.oom.device:
        return
    transient = evidence.live(Category.ACTIVATION, Category.RESULT, Category.TEMPORARY, Category.GRADIENT)
    old = [each for each in transient if each.time < earlier.time and each.step == evidence.oom.step]
    size = bytes_of(old)
    if not size:
        return
    yield Finding(
        code="LG106",
        message=f"{format_size(size)} of the failed attempt is still alive during the retry.",
        fix="Retry after the `except` block instead of inside the block, where the exception retains the tensors of the "
        "failed attempt.",
        file=handled.file,
        line=handled.line,
        bytes=size,
        saves=size,
    )


_GRAPH_CAUSES = ("LG119", "LG104", "LG108", "LG109", "LG114", "LG107", "LG101", "LG110", "LG111")
"""Mistakes that the linter finds, and that keep the graph of an earlier pass alive. The most specific ones come first."""


def earlier_steps_graph(evidence: Evidence) -> Iterator[Finding]:
    """Report the graphs of earlier steps, and the graphs that a backward pass of this step was told to retain. The
    latter are reported only if the linter finds that no other backward pass uses them.
    """
    activations = evidence.live(Category.ACTIVATION)
    old = list(filter(evidence.is_earlier, activations))
    size = bytes_of(old)
    known = any(leak.kind == "graph" or evidence.retained_by(leak) >= size * 0.8 for leak in evidence.leaks)
    if known or any(size * 0.9 <= each.bytes for each in _containers(evidence) if size):
        return  # another finding already names the holder
    codes: tuple[str, ...] = _GRAPH_CAUSES
    if size < evidence.oom.allocated * 0.05:
        codes = ("LG104", "LG108")
        before = next((each.time for each in evidence.allocations() if each.phase is Phase.BACKWARD), 0.0)
        if not any(each.time < before for each in activations):
            codes, before = ("LG119",), max((each.started for each in evidence.model_calls), default=0.0)
        old = [each for each in activations if each.time < before]
        size = bytes_of(old)
        if size < evidence.oom.allocated * 0.1:
            return
    cause = next(iter(evidence.causes(*codes)), None)
    if cause is not None:
        yield _with_amount(
            cause, size, f"{format_size(size)} of activations from earlier passes are still alive."
        )
    elif codes is _GRAPH_CAUSES:
        yield Finding(
            code="LG104",
            message=f"Activations from earlier steps are still alive: {format_size(size)}.",
            fix="Release the old graph before the next forward pass: remove `retain_graph=True`, detach the "
            "hidden state, or `del` the output that still refers to the graph (or store `output.detach().clone()`).",
            **location(heaviest_frame(old)),
            bytes=size,
            saves=size,
        )


def results_of_earlier_steps(evidence: Evidence) -> Iterator[Finding]:
    """Report results that several earlier steps left behind, if no leak and no container is known that retains them."""
    results = evidence.live(Category.RESULT, Category.TEMPORARY)
    old = list(filter(evidence.is_earlier, results))
    steps, size = len({each.step for each in old}), bytes_of(old)
    if steps < _SEVERAL or size < evidence.oom.allocated * 0.1:
        return
    if any(evidence.retained_by(leak) >= size * 0.8 for leak in evidence.leaks) or any(_containers(evidence)):
        return
    amount = f"{format_size(size)} of results from {steps} earlier steps are still alive."
    for cause in evidence.causes("LG110", "LG101", "LG111", "LG105"):
        yield _with_amount(cause, size, amount)
        return
    for holder in evidence.holders:
        is_object = not holder.path.endswith("(Tensor)") and not holder.path.startswith("(")
        if is_object and size * 0.8 <= holder.bytes <= size * 1.3:
            yield Finding(
                code="LG105",
                message=f"{amount} {describe_holder(holder)} refers to them.",
                fix="Store numbers (`.item()`) or host tensors (`.detach().cpu()`) instead, or remove them after each step.",
                **location(heaviest_frame(old)),
                bytes=size,
                saves=size,
            )
            return


_SEVERAL = 3
"""The number of earlier steps whose results show that memory grows. A program may need the results of the last step."""


def _with_amount(cause: Finding, size: int, amount: str) -> Finding:
    """Return a finding of the linter as advice."""
    return Finding(
        code=cause.code,
        message=amount,
        fix=f"{cause.message}. {cause.fix}.",
        file=cause.file,
        line=cause.line,
        bytes=size,
        saves=size,
    )


def untrained_model(evidence: Evidence) -> Iterator[Finding]:
    """Report a model that no optimizer updates, such as a teacher, but that saves activations for its own gradients."""
    calls = sorted(evidence.model_calls, key=lambda each: each.started)
    if evidence.evaluates or evidence.creates_weights_in_forward:
        return
    sizes: Counter[tuple[str, Frame]] = Counter()
    in_pass: Counter[tuple[str, Frame]] = Counter()
    for call, following in zip(calls, [*(each.started for each in calls[1:]), math.inf], strict=False):
        is_trained = call.trained_bytes or not call.others_are_trained
        if is_trained or not call.trainable_bytes or call.input_requires_grad is not False:
            continue
        activations = evidence.live(Category.ACTIVATION)
        size = bytes_of([each for each in activations if call.started <= each.time < following])
        whole = size
        if following == math.inf and evidence.oom.phase is Phase.FORWARD:
            whole = in_whole_pass(size, evidence.progress)
        place = call.model, Frame(call.file, call.line, call.function)
        sizes[place] += size
        in_pass[place] += whole
    for (model, frame), size in sizes.most_common(1):
        if size < evidence.oom.allocated * 0.1:
            return
        yield Finding(
            code="LG201",
            message=f"This call saves {format_size(size)} of activations that no backward pass needs.",
            fix=f"Call this `{model}` in `with torch.no_grad():`, or freeze it with `requires_grad_(False)`, because no "
            "optimizer updates it.",
            **location(frame),
            bytes=size,
            saves=size,
            evidence={"saves_in_pass": in_pass[model, frame]},
        )


def replaced_optimizers(evidence: Evidence) -> Iterator[Finding]:
    """Report optimizers that are still alive, although a newer optimizer updates the same parameters."""
    old = [each for each in evidence.optimizers if each.unused_bytes]
    size = sum(each.unused_bytes for each in old)
    if size < evidence.oom.allocated * 0.05:
        return
    name = next(
        (
            each.path.partition(" ")[0]
            for each in evidence.holders
            if _is_container(each) and each.bytes >= size
        ),
        "",
    )
    where = f" in `{name}`" if name else ""
    yield Finding(
        code="LG118",
        message=f"{format_size(size)} of optimizer state belongs to {len(old)} earlier optimizers of the same parameters.",
        fix=f"Keep only the newest optimizer{where}: delete the earlier optimizers before you create the next one, or change "
        "the learning rate in `param_groups` of one optimizer.",
        **constructor(old),
        bytes=size,
        saves=size,
    )


def untrained_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Report parts of a model that no optimizer updates, such as a pretrained backbone that is not frozen."""
    if not evidence.optimizers or evidence.evaluates or evidence.creates_weights_in_forward:
        return
    for call in evidence.model_calls:
        if not call.trained_bytes or not call.untrained or call.input_requires_grad is not False:
            continue
        parts = tuple(f"{each}." for each in call.untrained)
        trained = [
            each
            for each in evidence.live(Category.ACTIVATION)
            if each.module and not f"{each.module}.".startswith(parts)
        ]
        start = min((each.time for each in trained), default=math.inf)
        unused = [
            each
            for each in evidence.live(Category.ACTIVATION, Category.GRADIENT)
            if f"{each.module}.".startswith(parts)
            and (each.time < start or each.category is Category.GRADIENT)
        ]
        size = bytes_of(unused)
        if size < evidence.oom.allocated * 0.1:
            continue
        names = [f"`{each}`" for each in call.untrained[:3]] + ["…"] * (len(call.untrained) > 3)
        cause = next(iter(evidence.causes("LG123")), None)
        frame = Frame(call.file, call.line, call.function)
        yield Finding(
            code="LG123",
            message=f"Gradients and activations that no optimizer uses need {format_size(size)}.",
            fix=f"Freeze {', '.join(names)} of `{call.model}` before the training with `requires_grad_(False)`, because "
            "no optimizer updates their parameters.",
            **(location(frame) if cause is None else {"file": cause.file, "line": cause.line}),
            bytes=size,
            saves=size,
        )
        return


def frozen_by_mistake(evidence: Evidence) -> Iterator[Finding]:
    """Report an assignment that should freeze parameters, but has no effect."""
    size = evidence.live_bytes(Category.ACTIVATION, Category.GRADIENT)
    if evidence.trains and size >= evidence.oom.allocated * 0.2:
        for cause in evidence.causes("LG309"):
            yield _with_amount(cause, size, f"Activations and gradients use {format_size(size)}.")
            return


_COMBINES = ("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "loss", "where", "atan2", "abs", "cross_entropy")  # fmt: skip
_PRODUCTS = ("mm", "bmm", "addmm", "matmul", "baddbmm", "cdist")


def broadcast_by_mistake(evidence: Evidence) -> Iterator[Finding]:
    """Report an operation on variables of the shapes `(n, 1)` and `(n,)`, with a result of the shape `(n, n)`."""
    oom = evidence.oom
    for pair in evidence.broadcasts:
        squares = range(pair.bytes, pair.bytes + 512)
        created = [each for each in evidence.allocations() if each.step == oom.step and each.bytes in squares]
        is_request = oom.requested in squares
        first = created[-1] if created else oom  # the latest allocation comes first
        if not (created or is_request) or not _combines(first.op, first.frame):
            continue
        if any(each.op.rpartition(".")[2] in _PRODUCTS for each in created):
            continue
        alive = [each for each in evidence.state.live if each.bytes in squares]
        size = bytes_of(alive) + oom.requested * is_request
        if size < oom.allocated * 0.1:
            continue
        n = pair.samples
        is_passed = first.frame is None or (first.frame.file, first.frame.function) != (
            pair.file,
            pair.function,
        )
        yield Finding(
            code="LG615",
            message=f"This operation compares each sample with all others, and its result needs {format_size(pair.bytes)}.",
            fix=f"Give `{pair.column}` and `{pair.row}` the same shape before this line, for example with "
            f"`{pair.column} = {pair.column}.squeeze(1)`. Their shapes ({n}, 1) and ({n},) broadcast to ({n}, {n}).",
            **({"file": pair.file, "line": pair.line} if is_passed else location(first.frame)),
            bytes=size,
            saves=size,
            evidence={"variables": [pair.column, pair.row], "samples": n},
        )
        return


def _combines(op: str, frame: Frame | None) -> bool:
    """Return whether an operation combines the elements of two tensors. If the operation is unknown, its line decides."""
    if op:
        return any(each in op.rpartition(".")[2] for each in _COMBINES)
    return frame is not None and is_arithmetic(frame)


def large_tensors_in_source(evidence: Evidence) -> Iterator[Finding]:
    """Report lines whose results are larger than necessary: the differences of all pairs, and what the linter finds."""
    used: Counter[Frame] = Counter()
    for each in evidence.state.live:
        if each.frame is not None:
            used[each.frame] += each.block_bytes
    if evidence.oom.frame is not None:
        used[evidence.oom.frame] += evidence.oom.requested
    minimum = (evidence.oom.allocated + evidence.oom.requested) * 0.3
    progress = evidence.step_progress if evidence.oom.phase is Phase.FORWARD else None
    for frame, size in used.most_common(3):
        if size >= minimum and is_pairwise_difference(frame):
            yield Finding(
                code="LG311",
                message=f"This line uses {format_size(size)}.",
                fix="Use `torch.cdist` for distances or `x @ y.T` for products. The result then has one element for each "
                "pair, and not one for each pair and feature.",
                **location(frame),
                bytes=size,
                saves=size,
                evidence={"saves_in_pass": in_whole_pass(size, progress)},
            )
            return
    for cause in evidence.causes("LG311", "LG312"):
        lines = range(cause.line or 0, getattr(cause, "end_line", 0) + 1)
        size = sum(size for frame, size in used.items() if frame.file == cause.file and frame.line in lines)
        if size >= minimum:
            yield _with_amount(cause, size, f"This line uses {format_size(size)}.")
            return


def evaluates_with_gradients(evidence: Evidence) -> Iterator[Finding]:
    size = evidence.live_bytes(Category.ACTIVATION)
    if evidence.oom.phase not in (Phase.FORWARD, Phase.OTHER) or size < evidence.oom.allocated * 0.1:
        return
    if evidence.is_proven_evaluation and evidence.program is not None:
        batches, frame = evidence.program.calls, evidence.model_call
        if evidence.saves_nothing:
            return
    else:
        batches, frame = _batches_with_graphs(evidence)
        if batches < EVALUATION_BATCHES or _may_train(evidence):
            return
    message = (
        f"{batches} batches ran without a backward pass, but autograd saved {format_size(size)} of activations that "
        "no backward pass used."
    )
    if batches < EVALUATION_BATCHES:
        message = (
            f"The evaluation runs with gradients enabled, so autograd saved {format_size(size)} of activations that "
            "no backward pass needs."
        )
    other = _other_evaluation(evidence, frame)
    also = (
        f" The evaluation in {Path(other.file or '').name}:{other.line} needs this too."
        if other is not None
        else ""
    )
    yield Finding(
        code="LG201",
        message=message,
        fix="Wrap the evaluation loop in `with torch.no_grad():` (or `torch.inference_mode()`)." + also,
        **location(frame),
        bytes=size,
        saves=size,
        evidence={"batches_without_backward": batches},
    )


def _other_evaluation(evidence: Evidence, frame: Frame | None) -> Finding | None:
    """Return another function that evaluates with gradients according to the linter."""
    if frame is None:
        return None
    tree = tree_of(frame.file)
    for each in evidence.causes("LG201"):
        if each.file != frame.file or tree is None:
            return each
        if find_function_at(tree, each.line or 0) is not find_function_at(tree, frame.line):
            return each
    return None


def _may_train(evidence: Evidence) -> bool:
    """Return whether the forward passes since the last backward pass may belong to one training step.

    For example, a contrastive loss runs the model on several views of a batch before the backward pass.
    """
    program = evidence.program
    if program is None:
        return False
    if program.is_evaluation is False:
        return True
    return program.is_training is True and bool(evidence.optimizers)


def checkpoint_on_device(evidence: Evidence) -> Iterator[Finding]:
    """Report a checkpoint that was loaded to the device and is still alive, in addition to the weights of the model."""
    sizes: Counter[Frame] = Counter()
    for each in evidence.live(Category.RESULT, Category.TEMPORARY, Category.INPUT):
        if each.frame is not None:
            sizes[each.frame] += each.block_bytes
    for frame, size in sizes.items():
        if size >= evidence.oom.allocated * 0.05 and loads_checkpoint(frame):
            yield Finding(
                code="LG301",
                message=f"{format_size(size)} of the loaded checkpoint are still on the device, in addition to the "
                "weights of the model.",
                fix='Load the checkpoint into host memory with `map_location="cpu"`. `load_state_dict` copies the '
                "weights to the right device.",
                **location(frame),
                bytes=size,
                saves=size,
            )


def retained_by_container(evidence: Evidence) -> Iterator[Finding]:
    """Report a list or dict that retains a large amount of memory and does not belong to the model or the
    optimizer.
    """
    for holder in _containers(evidence):
        name = holder.path.partition(" ")[0]
        freed = holder.bytes - holder.shared_bytes
        fix = f"Store numbers (`.item()`) or host tensors (`.detach().cpu()`) in `{name}`, or clear the variable after use."
        if evidence.live_bytes(Category.ACTIVATION) >= holder.bytes * 0.5:
            fix = f"{STORE_DETACHED} or numbers (`.item()`) in `{name}`, or clear the variable after use."
        if holder.bytes <= _bytes_of_copies(evidence) * 1.05:
            fix = _on_host(name)
        if _has_views(holder):
            fix = _as_copies(name)
            freed = holder.unused_bytes
        yield Finding(
            code="LG105",
            message=f"{describe_holder(holder)} retains {format_size(holder.bytes)} on the device.",
            fix=fix,
            **location(_storing_line(evidence, holder)),
            bytes=holder.bytes,
            saves=freed,
        )
        return


def _has_views(holder: Holder) -> bool:
    return holder.unused_bytes >= holder.bytes * 0.5


def _as_copies(name: str) -> str:
    container = f"`{name}`"
    return (
        f"The tensors in {container} are parts of larger tensors (views), which stay in memory as a whole. Store copies "
        "of the parts with `.clone()`."
    )


def _on_host(name: str) -> str:
    return (
        "Keep only one copy of the weights on the device: move a model or its state to the host (`.cpu()`) before it is "
        f"stored in `{name}`, or save it to a file. For a state dict, call `.cpu()` on each tensor."
    )


def _storing_line(evidence: Evidence, holder: Holder) -> Frame | None:
    """Return the line that stores tensors in a container, or the line that ran at the failure if it is unknown."""
    frame = holder.frame
    if frame is None:
        return None
    path = holder.path.partition(" ")[0]
    statements = find_usage(
        stem_of(path), is_attribute="." in path, file=frame.file, function=frame.function, line=frame.line
    ).statements
    added = [each for each in statements if not each.replaces and each.function not in CONSTRUCTORS]
    creating = {each.frame[:2] for each in evidence.state.live if each.frame is not None}
    created_here = [each for each in added if (each.file, each.line) in creating]
    best = next(iter(created_here or added), None)
    return Frame(best.file, best.line, best.function) if best is not None else frame


def _containers(evidence: Evidence) -> Iterator[Holder]:
    """Yield containers that retain a large amount of memory, or memory from earlier steps.

    Containers that are already reported as a leak are skipped. Tuples are skipped too, because a tuple is the result
    of one call and does not grow. Memory that a tensor variable retains as well does not count. For example, the outputs
    of the current step stay alive with the graph of `loss`, even if the list of outputs is cleared.
    """
    transient = evidence.live(Category.ACTIVATION, Category.RESULT, Category.TEMPORARY, Category.INPUT)
    earlier = list(filter(evidence.is_earlier, transient))
    old, steps = bytes_of(earlier), len({each.step for each in earlier})
    leak_names = {stem_of(leak.name) for leak in evidence.leaks} | {leak.holder for leak in evidence.leaks}
    leaked = max((evidence.retained_by(leak) for leak in evidence.leaks if not leak.on_host), default=0)
    copies = _bytes_of_copies(evidence)
    trainable = sum(each.trainable_bytes for each in evidence.optimizers)
    for holder in evidence.holders:
        if not _is_container(holder):
            continue
        if stem_of(holder.path) in leak_names or describe_holder(holder) in leak_names:
            continue
        if leaked >= holder.bytes * 0.8:
            continue
        has_copies = trainable * 1.05 < holder.bytes <= copies * 1.05
        # The container may have an item of the current step too.
        is_old = has_copies or holder.bytes <= old * 1.05 * (1 + (steps > 1) / max(steps, 1))
        if not is_old and evidence.trains and _is_intermediate(holder):
            continue
        minimum = 0.05 if is_old and not has_copies else 0.3
        too_small = holder.bytes - holder.shared_bytes < evidence.oom.allocated * minimum
        if not too_small and (has_copies or holder.bytes <= bytes_of(transient) * 1.05):
            yield holder


def _is_container(holder: Holder) -> bool:
    return " item" in holder.path and " (tuple, " not in holder.path


def _bytes_of_copies(evidence: Evidence) -> int:
    """Return the size of the weights that were created in earlier steps, such as the states of a model that are saved
    in every epoch, and of the weights that an earlier optimizer has trained, such as the models of earlier folds.
    """
    weights = evidence.live(Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    copies = bytes_of(_late_weights(evidence))
    parameters = [each.time for each in weights if each.category is Category.PARAMETER]
    newest = max(parameters, default=0.0)
    gradients = [each.time for each in weights if each.category is Category.GRADIENT and each.time < newest]
    new = [time for time in parameters if time > max(gradients, default=math.inf)]
    if new:  # a model that was created after the last gradients of another model
        copies = max(copies, bytes_of([each for each in weights if each.time < min(new)]))
    return copies


def _late_weights(evidence: Evidence) -> list[Alloc]:
    """Return the weights that were created after the first step, and the gradients and optimizer state of earlier
    steps. A copy that is made between two steps counts for the later step.
    """
    weights = evidence.live(Category.PARAMETER, Category.BUFFER)
    states = evidence.live(Category.GRADIENT, Category.OPTIMIZER_STATE)
    return [each for each in (*weights, *filter(evidence.is_earlier, states)) if each.step > 0]


def _is_intermediate(holder: Holder) -> bool:
    return holder.frame is not None and is_used_later(holder.frame, holder.path.split(" ", 1)[0])


def unused_graph(evidence: Evidence) -> Iterator[Finding]:
    """Report a variable whose graph is alive during a backward pass that does not use it."""
    oom = evidence.oom
    losses = [
        each
        for each in evidence.holders
        if each.frame is not None
        and each.path.endswith("(Tensor)")
        and each.path.partition(" ")[0] in differentiated_names(each.frame)
    ]
    if oom.phase is not Phase.BACKWARD or not losses:
        return
    used = max(each.bytes for each in losses)
    unused = evidence.live_bytes(Category.ACTIVATION) - used
    if unused < oom.allocated * 0.2 or used * 2 > unused:
        return
    places = Counter(Frame(each.file, each.line, each.function) for each in evidence.model_calls[:-1])
    called = places.most_common(1)
    for holder in evidence.holders:
        if holder.frame == losses[0].frame and unused * 0.8 <= holder.bytes and holder not in losses:
            name = holder.path.partition(" ")[0]
            yield Finding(
                code="LG102",
                message=f"`{name}` retains {format_size(unused)} of activations that this backward pass does not use.",
                fix=f"If no later backward pass uses `{name}`, compute it in `with torch.no_grad():`, or store "
                "`.detach()` of each result.",
                **location(called[0][0] if called else oom.frame),
                bytes=unused,
                saves=unused,
                evidence={"variables": [name]},
            )
            return


def retained_by_variable(evidence: Evidence) -> Iterator[Finding]:
    """Report results that the program no longer needs.

    Such a result is from an earlier step, from a completed forward pass, or from a computation without a model.
    """
    oom = evidence.oom
    forward_finished = oom.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
    without_model = oom.phase is Phase.OTHER and not evidence.optimizers
    old = [
        each
        for each in evidence.live(Category.RESULT, Category.TEMPORARY)
        if evidence.is_earlier(each)
        or (forward_finished and each.phase is Phase.FORWARD)
        or (without_model and each.phase is Phase.OTHER)
    ]
    frame = heaviest_frame(old)
    from_line = [each for each in old if each.frame == frame]
    size = bytes_of(from_line)
    leaking = {(leak.file, leak.line) for leak in evidence.leaks}
    if frame is None or size < oom.allocated * 0.01 or (frame.file, frame.line) in leaking:
        return
    names = _variables_holding(size, evidence.holders, frame)
    if not names:
        return  # the program still needs them, or a library retains them, for example a bucket of DDP
    variable = " or ".join(f"`{name}`" for name in names)
    when = "in an earlier step " if all(each.step < oom.step for each in from_line) else ""
    delete = f"`del {', '.join(names)}`"
    yield Finding(
        code="LG102",
        message=f"A result created {when}on this line is still referenced by {variable}: {format_size(size)}.",
        fix=f"Delete the variable with {delete} after its last use, or store a number or a host tensor "
        "instead (`.item()`, `.detach().cpu()`).",
        **location(frame),
        bytes=size,
        saves=size,
        evidence={"variables": names, "from_earlier_step": bool(when)},
    )


def gradients_during_forward(evidence: Evidence) -> Iterator[Finding]:
    size = evidence.live_bytes(Category.GRADIENT)
    if (
        evidence.oom.phase is not Phase.FORWARD
        or size < max(evidence.oom.allocated, evidence.shortfall) * 0.05
    ):
        return
    if len(evidence.optimizers) > 1 or _went_backward_in_this_step(evidence):
        return  # gradients of the other model, or accumulated gradients
    evaluates = evidence.evaluates or _batches_since_backward(evidence)[0] >= EVALUATION_BATCHES
    when = "evaluation" if evaluates else "this forward pass"
    if evidence.is_after_training:
        evaluates, when = True, "this operation, after the training"
    fix = (
        "Call `optimizer.zero_grad(set_to_none=True)` after training."
        if evaluates
        else "Call `optimizer.zero_grad(set_to_none=True)` before the forward pass, unless you accumulate gradients."
    )
    smaller, fits = (None, True) if evaluates else _batch_without_old_gradients(evidence, size)
    if smaller is not None:
        fix += f" {smaller.advice} as well."
    yield Finding(
        code="LG103",
        message=f"Gradients from the previous step are still alive during {when}: {format_size(size)}.",
        fix=fix,
        bytes=size,
        saves=size,
        evidence={"from_earlier_step": True, "fits": fits, **(smaller.as_evidence() if smaller else {})},
    )


def _batch_without_old_gradients(evidence: Evidence, gradients: int) -> tuple[BatchChange | None, bool]:
    """Return the batch size for a run that frees the old gradients before the forward pass, or None for the current
    batch size, and whether the run is then expected to fit.

    The backward pass allocates new gradients while it frees activations. About three quarters of the gradients are
    expected to exist at its peak.
    """
    oom = evidence.oom
    if len(evidence.steps) == 1 and evidence.fitted_before:
        # The first forward pass ran without old gradients.
        first = evidence.steps[0].peak_allocated + evidence.live_bytes(Category.OPTIMIZER_STATE)
        if oom.allocated + oom.requested - gradients <= first:
            return None, True
    fixed = oom.allocated - gradients - evidence.scaling_in_use + gradients * 3 // 4
    available = evidence.budget - evidence.unusable - fixed
    if evidence.scaling <= available:
        return None, True
    available -= evidence.unusable
    with_gradients = max(available - gradients // 4, 0)
    if available <= with_gradients * 1.25:
        return None, False
    smaller = smaller_setting(evidence.setting, min(available / evidence.scaling * 0.9, 0.9))
    return smaller, smaller is not None


def _batches_since_backward(evidence: Evidence) -> tuple[int, Frame | None]:
    """Return the number of batches that were moved to the device since the last backward operation, and the line that
    moves them.

    Tensors that are moved one after another count as one batch.
    """
    arrivals: Counter[Frame | None] = Counter()
    arriving = False
    smallest = _smallest_batch(evidence)
    for allocation in evidence.allocations():
        if allocation.phase is Phase.BACKWARD:
            break
        is_input = _is_batch(allocation, smallest)
        if is_input and not arriving:
            arrivals[allocation.frame] += 1
        arriving = is_input
    if not arrivals:
        return 0, None
    ((frame, batches),) = arrivals.most_common(1)
    return batches, frame


def _batches_with_graphs(evidence: Evidence) -> tuple[int, Frame | None]:
    """Return the number of batches with a graph since the last backward operation, and the line that moves them to
    the device.

    A batch counts if activations from it are still alive. If the model is in evaluation mode, every batch counts.
    """
    program = evidence.program
    if program is not None and not program.gradients_enabled:
        return 0, None
    if program is not None and program.is_training is False:
        return _batches_since_backward(evidence)
    alive = {each.id for each in evidence.live(Category.ACTIVATION)}
    arrivals: Counter[Frame | None] = Counter()
    has_graph = False
    smallest = _smallest_batch(evidence)
    for allocation in evidence.allocations():
        if allocation.phase is Phase.BACKWARD:
            break
        if _is_batch(allocation, smallest):
            if has_graph:
                arrivals[allocation.frame] += 1
            has_graph = False
        else:
            has_graph |= allocation.id in alive
    if not arrivals:
        return 0, None
    ((frame, batches),) = arrivals.most_common(1)
    return batches, frame


def _is_batch(allocation: Alloc, smallest: int) -> bool:
    """Return whether an allocation may be a batch. Constants that a model copies to the device during its forward pass
    are not batches, and neither are tensors that are much smaller than the batches.
    """
    return (
        allocation.category is Category.INPUT and not allocation.module and allocation.block_bytes >= smallest
    )


def _smallest_batch(evidence: Evidence) -> int:
    inputs = (
        each.block_bytes
        for each in evidence.allocations()
        if each.category is Category.INPUT and not each.module
    )
    return int(max(inputs, default=0) * SMALLEST_BATCH)


def _went_backward_in_this_step(evidence: Evidence) -> bool:
    """Return True if a backward pass ran since the last optimizer step, which shows that gradients are being
    accumulated.
    """
    for allocation in evidence.allocations():
        if allocation.step < evidence.oom.step:
            return False
        if allocation.phase is Phase.BACKWARD:
            return True
    return False


def _variables_holding(size: int, holders: Sequence[Holder], frame: Frame) -> list[str]:
    """Return the names of at most two variables that retain about `size` bytes, closest match first.

    Only variables that are tensors or tuples of tensors are considered.

    If the function that created the result is still running, only variables that are assigned in the line that
    created the result are considered. These variables may also retain an autograd graph. If the function has
    returned, a variable of a caller may refer to the result. The result is empty if the program still uses one of the
    variables, because deleting the others may free nothing.
    """
    results = [each for each in holders if each.path.endswith("(Tensor)") or " (tuple, " in each.path]
    running = {(each.frame.file, each.frame.function) for each in holders if each.frame is not None}
    assigned = assigned_names(frame) if (frame.file, frame.function) in running else set()
    if assigned:
        named = [each for each in results if each.path.split(" ", 1)[0] in assigned]
        close = [each for each in named if each.bytes >= size * 0.95]
    else:
        close = [each for each in results if size * 0.95 <= each.bytes <= size * 1.5]
    close.sort(key=lambda each: each.bytes)
    variables = {each.path.split(" ", 1)[0]: each.frame for each in close[:2]}
    if any(frame is not None and is_used_later(frame, name) for name, frame in variables.items()):
        return []
    return list(variables)
