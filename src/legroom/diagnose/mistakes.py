"""Memory that a program keeps although it has no use for it: LG1xx and LG2xx.

Each rule needs a sign that a sound loop does not show; thresholds leave out what is too small to matter. Mending a mistake
costs nothing, so these findings come before any means.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from legroom.diagnose.evidence import Evidence, at, bytes_of, heaviest_frame
from legroom.diagnose.leaks import describe_holder
from legroom.findings import Finding
from legroom.memory.events import Category, Frame, Holder, Phase
from legroom.units import format_size


def grows_each_step(evidence: Evidence) -> Iterator[Finding]:
    for leak in evidence.leaks:
        if not leak.bytes_per_step:
            continue  # a graph on the host: no device memory
        yield Finding(
            code=leak.code,
            message=f"Memory grows by {format_size(leak.bytes_per_step)} with every step: "
            f"{format_size(leak.bytes)} by now." + (f" {leak.holder}." if leak.holder and leak.name else ""),
            fix=leak.advice,
            file=leak.file,
            line=leak.line,
            bytes=leak.bytes,
            saves=leak.bytes - leak.bytes_per_step,
            evidence={"bytes_per_step": leak.bytes_per_step, "steps": leak.steps, "holder": leak.holder},
        )


def earlier_steps_graph(evidence: Evidence) -> Iterator[Finding]:
    """Activations that outlived the step they were made in."""
    if any(leak.kind == "graph" for leak in evidence.leaks):
        return  # told already, and better
    old = [each for each in evidence.live(Category.ACTIVATION) if each.step < evidence.oom.step]
    size = bytes_of(old)
    if size < evidence.oom.allocated * 0.05:
        return
    yield Finding(
        code="LG104",
        message=f"Activations of earlier steps are still alive: {format_size(size)}.",
        fix="Drop what keeps that graph before the next forward pass: `retain_graph=True`, a hidden state that "
        "was not detached, or an output that a variable still names (`del` it, or store `output.detach()`).",
        **at(heaviest_frame(old)),
        bytes=size,
        saves=size,
    )


def evaluates_with_gradients(evidence: Evidence) -> Iterator[Finding]:
    """Activations kept while batch after batch comes and no backward pass follows."""
    size = evidence.held(Category.ACTIVATION)
    if evidence.oom.phase not in (Phase.FORWARD, Phase.OTHER) or size < evidence.oom.allocated * 0.1:
        return
    batches, frame = _batches_since_backward(evidence)
    if batches < 3:  # one is at work, and a loader may bring the next one early
        return
    yield Finding(
        code="LG201",
        message=f"{batches} batches have passed without a backward pass, yet activations are kept for one: "
        f"{format_size(size)}.",
        fix="Put the evaluation loop under `with torch.no_grad():` (or `torch.inference_mode()`).",
        **at(frame),
        bytes=size,
        saves=size,
        evidence={"batches_without_backward": batches},
    )


def held_by_container(evidence: Evidence) -> Iterator[Finding]:
    """A list or dict that reaches much of what is neither the model's nor the optimizer's."""
    passing = evidence.held(Category.ACTIVATION, Category.TEMPORARY, Category.INPUT)
    told = {text for leak in evidence.leaks for text in (leak.holder, leak.name)}
    for holder in evidence.holders:
        described = describe_holder(holder)
        if " item" not in holder.path or described in told or holder.path.partition(" ")[0] in told:
            continue
        if evidence.oom.allocated * 0.3 <= holder.bytes <= passing * 1.05:
            yield Finding(
                code="LG105",
                message=f"{described} reaches {format_size(holder.bytes)} on the device.",
                fix="Put numbers (`.item()`) or host tensors (`.detach().cpu()`) into it, or empty it once it is used.",
                **at(holder.frame),
                bytes=holder.bytes,
                saves=holder.bytes,
            )
            return


def held_by_variable(evidence: Evidence) -> Iterator[Finding]:
    """Results that the backward pass does not need, yet older than the work at hand."""
    oom = evidence.oom
    forward_is_over = oom.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
    old = [
        each
        for each in evidence.live(Category.TEMPORARY)
        if each.step < oom.step or (forward_is_over and each.phase is Phase.FORWARD)
    ]
    frame = heaviest_frame(old)
    size = bytes_of([each for each in old if each.frame == frame])
    leaking = {(leak.file, leak.line) for leak in evidence.leaks}
    if frame is None or size < oom.allocated * 0.05 or (frame.file, frame.line) in leaking:
        return
    names = _variables_holding(size, evidence.holders)
    holding = " or ".join(f"`{name}`" for name in names) or "a variable"
    yield Finding(
        code="LG102",
        message=f"A result made on this line is still held by {holding}: {format_size(size)}.",
        fix=f"Write `del {names[0] if len(names) == 1 else '…'}` once it is used, or keep only what you need of it "
        "(`.item()`, `.detach().cpu()`).",
        **at(frame),
        bytes=size,
        saves=size,
    )


def gradients_during_forward(evidence: Evidence) -> Iterator[Finding]:
    size = evidence.held(Category.GRADIENT)
    if evidence.oom.phase is not Phase.FORWARD or size < evidence.oom.allocated * 0.05:
        return
    yield Finding(
        code="LG103",
        message=f"Gradients of the step before are alive during this forward pass: {format_size(size)}.",
        fix="Call `optimizer.zero_grad(set_to_none=True)` before the forward pass instead of after it "
        "(unless you accumulate gradients on purpose).",
        bytes=size,
        saves=size,
    )


def _batches_since_backward(evidence: Evidence) -> tuple[int, Frame | None]:
    """How many batches came to the device after the last backward operation, and on which line."""
    # A batch is several tensors, often moved on one line: tell them apart by their sizes.
    arrivals: Counter[tuple[Frame | None, int]] = Counter()
    for born in evidence.births():
        if born.phase is Phase.BACKWARD:
            break
        if born.category is Category.INPUT:
            arrivals[born.frame, born.bytes] += 1
    if not arrivals:
        return 0, None
    ((frame, _), batches) = arrivals.most_common(1)[0]
    return batches, frame


def _variables_holding(size: int, holders: Sequence[Holder]) -> list[str]:
    """The names of tensors that reach so many bytes and not much more: two at most, the closest first."""
    tensors = [each for each in holders if each.path.endswith("(Tensor)")]
    close = [each for each in tensors if size * 0.95 <= each.bytes <= size * 1.5]
    close.sort(key=lambda each: each.bytes)
    return list(dict.fromkeys(each.path.split(" ", 1)[0] for each in close))[:2]
