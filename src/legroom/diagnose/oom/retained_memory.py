"""Memory that a program keeps although it has no use for it: LG1xx and LG2xx.

Each rule needs a sign that a sound loop does not show; thresholds leave out what is too small to matter. Mending a mistake
costs nothing, so these findings come before any means.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from legroom.diagnose.oom.evidence import Evidence, at, bytes_of, heaviest_frame, stem_of
from legroom.diagnose.report.growing_lines import describe_holder
from legroom.findings import Finding
from legroom.memory.events import Category, Frame, Holder, Phase
from legroom.units import format_size

BATCHES_OF_EVALUATION = 3
"""So many without a backward pass are no training: one is at work, and a loader may bring the next one early."""


def grows_each_step(evidence: Evidence) -> Iterator[Finding]:
    for leak in evidence.leaks:
        if not leak.bytes_per_step or leak.on_host:
            continue  # no device memory
        size = evidence.kept_by(leak)
        yield Finding(
            code=leak.code,
            message=f"Memory grows by {format_size(leak.bytes_per_step)} with every step: "
            f"{format_size(size)} by now." + (f" {leak.holder}." if leak.holder and leak.name else ""),
            fix=leak.advice,
            file=leak.file,
            line=leak.line,
            bytes=size,
            saves=size - leak.bytes_per_step,
            evidence={"bytes_per_step": leak.bytes_per_step, "steps": leak.steps, "holder": leak.holder},
        )


def earlier_steps_graph(evidence: Evidence) -> Iterator[Finding]:
    """Activations that outlived the step they were made in."""
    old = [each for each in evidence.live(Category.ACTIVATION) if each.step < evidence.oom.step]
    size = bytes_of(old)
    told = any(leak.kind == "graph" or evidence.kept_by(leak) >= size * 0.8 for leak in evidence.leaks)
    if (
        told
        or size < evidence.oom.allocated * 0.05
        or any(size * 0.9 <= each.bytes for each in _containers(evidence))
    ):
        return  # told by who keeps it, which says more
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
    if batches < BATCHES_OF_EVALUATION:
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
    for holder in _containers(evidence):
        yield Finding(
            code="LG105",
            message=f"{describe_holder(holder)} reaches {format_size(holder.bytes)} on the device.",
            fix="Put numbers (`.item()`) or host tensors (`.detach().cpu()`) into it, or empty it once it is used.",
            **at(holder.frame),
            bytes=holder.bytes,
            saves=holder.bytes,
        )
        return


def _containers(evidence: Evidence) -> Iterator[Holder]:
    """Those worth a word: they reach much, or something of earlier steps. What was told as a leak, by this name or another, is left out; and a
    tuple gathers nothing: it is what one call gave."""
    passing = evidence.live(Category.ACTIVATION, Category.RESULT, Category.TEMPORARY, Category.INPUT)
    old = bytes_of([each for each in passing if each.step < evidence.oom.step])
    told = {stem_of(leak.name) for leak in evidence.leaks} | {leak.holder for leak in evidence.leaks}
    leaked = max((evidence.kept_by(leak) for leak in evidence.leaks if not leak.on_host), default=0)
    for holder in evidence.holders:
        if " item" not in holder.path or " (tuple, " in holder.path:
            continue
        if stem_of(holder.path) in told or describe_holder(holder) in told:
            continue
        if leaked >= holder.bytes * 0.8:
            continue
        least = 0.05 if holder.bytes <= old * 1.05 else 0.3
        if evidence.oom.allocated * least <= holder.bytes <= bytes_of(passing) * 1.05:
            yield holder


def held_by_variable(evidence: Evidence) -> Iterator[Finding]:
    """Results that the backward pass does not need, yet older than the work at hand."""
    oom = evidence.oom
    forward_is_over = oom.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
    old = [
        each
        for each in evidence.live(Category.RESULT, Category.TEMPORARY)
        if each.step < oom.step or (forward_is_over and each.phase is Phase.FORWARD)
    ]
    frame = heaviest_frame(old)
    made_here = [each for each in old if each.frame == frame]
    size = bytes_of(made_here)
    leaking = {(leak.file, leak.line) for leak in evidence.leaks}
    if frame is None or size < oom.allocated * 0.01 or (frame.file, frame.line) in leaking:
        return
    names = _variables_holding(size, evidence.holders)
    holding = " or ".join(f"`{name}`" for name in names) or "a variable"
    from_before = "in an earlier step " if all(each.step < oom.step for each in made_here) else ""
    yield Finding(
        code="LG102",
        message=f"A result made {from_before}on this line is still held by {holding}: {format_size(size)}.",
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
    evaluates = _batches_since_backward(evidence)[0] >= BATCHES_OF_EVALUATION
    when = "evaluation" if evaluates else "this forward pass"
    before = (
        "when training is done"
        if evaluates
        else "before the forward pass instead of after it (unless you accumulate gradients on purpose)"
    )
    yield Finding(
        code="LG103",
        message=f"Gradients of the step before are alive during {when}: {format_size(size)}.",
        fix=f"Call `optimizer.zero_grad(set_to_none=True)` {before}.",
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
    """The names of tensors, or tuples of them, that reach so many bytes and not much more: two at most, the closest first."""
    results = [each for each in holders if each.path.endswith("(Tensor)") or " (tuple, " in each.path]
    close = [each for each in results if size * 0.95 <= each.bytes <= size * 1.5]
    close.sort(key=lambda each: each.bytes)
    return list(dict.fromkeys(each.path.split(" ", 1)[0] for each in close))[:2]
