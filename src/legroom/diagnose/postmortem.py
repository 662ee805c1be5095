"""After an out-of-memory error: what to change, most useful first, each with its estimated effect.

Every rule looks at the same evidence (who held the memory at the failure, what was asked for, the history before) and
yields at most one finding. Rules of retention (LG1xx, LG2xx) name a mistake; the others (LG4xx, LG6xx) name means to
make a sound run smaller. A mistake that frees enough comes before any means, since the means would only postpone it.

`saves` is an estimate of the bytes that the change frees at that moment; what it stands on is said in the sentence.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from legroom.diagnose.batch_argument import BatchArgument
from legroom.diagnose.leaks import Leak
from legroom.findings import Finding
from legroom.memory.events import Alloc, Category, Event, Frame, Holder, Oom, Phase, Step
from legroom.memory.state import State
from legroom.units import GiB, format_size

CHECKPOINTING_FREES = 0.6
"""Part of the activations that recomputing them block by block frees, at about a third more arithmetic."""
AUTOCAST_FREES = 0.4
"""Part of fp32 activations that bf16 frees: most halve, those of normalisations, softmax and losses stay."""


@dataclass(frozen=True, slots=False, kw_only=True)
class Evidence:
    """All that is known of one failure."""

    oom: Oom
    state: State
    """At the failure."""
    events: Sequence[Event]
    """Everything up to the failure."""
    holders: Sequence[Holder] = ()
    steps: Sequence[Step] = ()
    leaks: Sequence[Leak] = ()
    batch: BatchArgument | None = None
    """The script's own argument for its batch size, where one is recognised."""

    @cached_property
    def by_category(self) -> dict[Category, int]:
        return dict(self.state.by_category())

    def held(self, *categories: Category) -> int:
        """Live bytes of these categories."""
        return sum(self.by_category.get(category, 0) for category in categories)

    @property
    def budget(self) -> int:
        """What PyTorch may take of the device in all."""
        return min(self.oom.limit, self.oom.capacity - self.oom.other)

    @property
    def free(self) -> int:
        """What an allocation could still have got, in one piece or not."""
        return max(self.budget - self.oom.reserved, 0) + self.oom.cached

    @property
    def shortfall(self) -> int:
        """How much more had to be free, at least."""
        return max(self.oom.requested - self.free, 0)

    @cached_property
    def trained(self) -> int:
        """Bytes that do not shrink with the batch, those that a first step has yet to make included."""
        parameters = self.held(Category.PARAMETER)
        gradients = max(self.held(Category.GRADIENT), parameters if self.is_training else 0)
        optimizer = self.held(Category.OPTIMIZER_STATE)
        if self.is_training and self.oom.step == 0:
            optimizer = max(
                optimizer, 2 * parameters
            )  # as Adam keeps them: the usual choice, and the larger one
        return parameters + gradients + optimizer + self.held(Category.BUFFER, Category.WORKSPACE)

    @cached_property
    def is_training(self) -> bool:
        return self.held(Category.ACTIVATION) > 0 or self.held(Category.GRADIENT) > 0


def advise(evidence: Evidence) -> tuple[Finding, ...]:
    """What to change, most useful first: mistakes that free enough, then means that do (the cheapest first, which is
    the order of the rules), then what helps a little."""
    ranked = []
    for price, rule in enumerate(_RULES):
        for finding in rule(evidence):
            ranked.append((_usefulness(finding, evidence, price), finding))
    findings = [finding for _, finding in sorted(ranked, key=lambda pair: pair[0])]
    if any(
        finding.code in _KEEPS_GRAPHS and finding.saves >= evidence.oom.allocated / 2 for finding in findings
    ):
        findings = [finding for finding in findings if finding.code not in _SMALLER_GRAPHS]
    return tuple(findings)


_KEEPS_GRAPHS = ("LG101", "LG104", "LG201")
_SMALLER_GRAPHS = ("LG603", "LG401", "LG604")
"""Beside a mistake that fills half of the memory these are beside the point: they make each of the kept graphs smaller."""


def _usefulness(finding: Finding, evidence: Evidence, price: int) -> tuple[int, int, int]:
    if finding.code in ("LG601", "LG602"):
        return 0, 0, price  # nothing else helps until this is mended
    if finding.saves < max(evidence.shortfall, evidence.oom.allocated // 20):
        return 3, -finding.saves, price
    is_mistake = finding.code.startswith(("LG1", "LG2"))
    return (1, -finding.saves, price) if is_mistake else (2, 0, price)


Rule = Callable[[Evidence], Iterator[Finding]]


# --- mistakes ----------------------------------------------------------------------------------------------------


def _grows_each_step(evidence: Evidence) -> Iterator[Finding]:
    for leak in evidence.leaks:
        if leak.device != evidence.oom.device:
            continue
        size = leak.bytes
        yield Finding(
            code="LG101",
            message=f"Memory grows by {format_size(leak.bytes_per_step)} with every step: {format_size(size)} by now.",
            fix=leak.advice,
            file=leak.file,
            line=leak.line,
            bytes=size,
            saves=size - leak.bytes_per_step,
            evidence={"bytes_per_step": leak.bytes_per_step, "steps": leak.steps, "holder": leak.holder},
        )


def _earlier_steps_graph(evidence: Evidence) -> Iterator[Finding]:
    if any(leak.kind == "graph" for leak in evidence.leaks):
        return  # told already, and better
    old = [
        each
        for each in evidence.state.live
        if each.category is Category.ACTIVATION and each.step < evidence.oom.step
    ]
    size = sum(each.block_bytes for each in old)
    if size < evidence.oom.allocated * 0.05:
        return
    frame = _heaviest_frame(old)
    yield Finding(
        code="LG104",
        message=f"Activations of earlier steps are still alive: {format_size(size)}.",
        fix="Drop what keeps that graph before the next forward pass: `retain_graph=True`, a hidden state that was not "
        "detached, or an output that a variable still names (`del` it, or store `output.detach()`).",
        file=frame and frame.file,
        line=frame and frame.line,
        bytes=size,
        saves=size,
    )


def _held_by_variable(evidence: Evidence) -> Iterator[Finding]:
    """Results that no one needs for the backward pass, yet older than the work at hand."""
    oom = evidence.oom
    old = [
        each
        for each in evidence.state.live
        if each.category is Category.TEMPORARY
        and (
            each.step < oom.step
            or (each.phase is Phase.FORWARD and oom.phase in (Phase.BACKWARD, Phase.OPTIMIZER))
        )
    ]
    frame = _heaviest_frame(old)
    size = sum(each.block_bytes for each in old if each.frame == frame)
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
        file=frame.file,
        line=frame.line,
        bytes=size,
        saves=size,
    )


def _gradients_during_forward(evidence: Evidence) -> Iterator[Finding]:
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


def _evaluates_with_gradients(evidence: Evidence) -> Iterator[Finding]:
    size = evidence.held(Category.ACTIVATION)
    if evidence.oom.phase not in (Phase.FORWARD, Phase.OTHER) or size < evidence.oom.allocated * 0.1:
        return
    batches = _batches_since_backward(evidence.events, evidence.oom.device)
    if batches < 3:
        return
    yield Finding(
        code="LG201",
        message=f"{batches} batches have passed without a backward pass, yet activations are kept for one: "
        f"{format_size(size)}.",
        fix="Put the evaluation loop under `with torch.no_grad():` (or `torch.inference_mode()`).",
        file=evidence.oom.frame and evidence.oom.frame.file,
        line=evidence.oom.frame and evidence.oom.frame.line,
        bytes=size,
        saves=size,
        evidence={"batches_without_backward": batches},
    )


def _data_set_on_device(evidence: Evidence) -> Iterator[Finding]:
    inputs = [each for each in evidence.state.live if each.category is Category.INPUT]
    largest = max(inputs, key=lambda each: each.block_bytes, default=None)
    if largest is None or largest.block_bytes < evidence.budget * 0.25:
        return
    saves = largest.block_bytes
    yield Finding(
        code="LG609",
        message=f"One input holds {_share(saves, evidence)} of the memory: {format_size(saves)}.",
        fix="If that is the whole data set, keep it on the host and move one batch at a time to the device.",
        file=largest.frame and largest.frame.file,
        line=largest.frame and largest.frame.line,
        bytes=saves,
        saves=saves,
    )


# --- means -------------------------------------------------------------------------------------------------------


def _operation_larger_than_device(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.requested <= evidence.budget:
        return
    yield Finding(
        code="LG601",
        message=f"This one operation asks for {format_size(oom.requested)}: more than the whole device has for it "
        f"({format_size(evidence.budget)}).",
        fix="Check the shapes on this line first (a broadcast or a wrong dimension is the usual cause); "
        "otherwise compute it in pieces or with a smaller batch.",
        file=oom.frame and oom.frame.file,
        line=oom.frame and oom.frame.line,
        bytes=oom.requested,
        evidence={"requested": oom.requested, "budget": evidence.budget},
    )


def _weights_do_not_fit(evidence: Evidence) -> Iterator[Finding]:
    weights = evidence.held(Category.PARAMETER, Category.BUFFER)
    if evidence.oom.phase is not Phase.OTHER or evidence.held(Category.ACTIVATION, Category.GRADIENT):
        return
    if weights + evidence.oom.requested < evidence.budget * 0.8 or weights < evidence.held(*Category) * 0.8:
        return
    yield Finding(
        code="LG602",
        message=f"The weights alone do not fit: {format_size(weights)} were on the device when it was full.",
        fix="Load them in half precision (`model.to(torch.bfloat16)` before `.to(device)`), train adapters on a quantised "
        "model, or spread the model over several devices.",
        file=evidence.oom.frame and evidence.oom.frame.file,
        line=evidence.oom.frame and evidence.oom.frame.line,
        bytes=weights,
        saves=weights // 2,
    )


def _smaller_batch(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.phase not in (Phase.FORWARD, Phase.BACKWARD, Phase.OTHER) or not evidence.held(
        Category.ACTIVATION
    ):
        return
    scaling = evidence.held(Category.ACTIVATION, Category.INPUT, Category.TEMPORARY) + oom.requested
    room = evidence.budget - evidence.trained
    if scaling < evidence.budget * 0.2 or room <= 0:
        return
    fraction = min(room / scaling, 0.95)
    unfinished = oom.phase is not Phase.BACKWARD
    if unfinished:  # what the rest of the forward pass would add is unknown
        fraction = min(fraction * 0.75, 0.5)
    smaller = evidence.batch.smaller(fraction) if evidence.batch else None
    saves = int(scaling * (1 - fraction))
    if smaller is not None and evidence.batch is not None:
        how = f"Use `{smaller.words}` instead of `{evidence.batch.words}`"
    elif evidence.batch is not None:
        how = "The batch cannot shrink enough: take the other means below"
    else:
        how = f"Use a batch of at most {_fraction_words(fraction)} of today's"
    less = "; the forward pass was not over, so it may take less still" if unfinished else ""
    yield Finding(
        code="LG603",
        message=f"{format_size(scaling)} of what is needed (activations, inputs, results) shrink with the batch.",
        fix=f"{how}{less}. Accumulate gradients over several batches to keep the effective size.",
        bytes=scaling,
        saves=saves,
        evidence={
            "fraction": round(fraction, 3),
            "argument": smaller.words if smaller else None,
            "fixed_bytes": evidence.trained,
            "scaling_bytes": scaling,
        },
    )


def _checkpoint_activations(evidence: Evidence) -> Iterator[Finding]:
    activations = [each for each in evidence.state.live if each.category is Category.ACTIVATION]
    size = sum(each.block_bytes for each in activations)
    if size < evidence.budget * 0.3 or evidence.oom.phase is Phase.OPTIMIZER:
        return
    block = _heaviest_block(activations)
    where = f"{block}, where most of them are," if block else "its blocks"
    saves = int(size * CHECKPOINTING_FREES)
    yield Finding(
        code="LG604",
        message=f"Activations kept for the backward pass hold {format_size(size)}.",
        fix=f"Recompute instead of keeping them: wrap {where} in `torch.utils.checkpoint.checkpoint(…, "
        "use_reentrant=False)`; costs about a third more time.",
        bytes=size,
        saves=saves,
        evidence={"module": block},
    )


def _autocast(evidence: Evidence) -> Iterator[Finding]:
    size = evidence.held(Category.ACTIVATION)
    if size < evidence.budget * 0.2 or evidence.oom.phase is Phase.OPTIMIZER:
        return
    yield Finding(
        code="LG401",
        message=f"If the forward pass runs in float32, most of its {format_size(size)} of activations can be half as large.",
        fix='Run the forward pass and the loss under `with torch.autocast("cuda", dtype=torch.bfloat16):`.',
        bytes=size,
        saves=int(size * AUTOCAST_FREES),
    )


def _optimizer_state_does_not_fit(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.phase is not Phase.OPTIMIZER or oom.step > 0:
        return
    parameters = evidence.held(Category.PARAMETER)
    state = evidence.held(Category.OPTIMIZER_STATE)
    yield Finding(
        code="LG605",
        message=f"The optimizer makes its state in the first step and it does not fit: {format_size(state)} so far "
        f"for {format_size(parameters)} of parameters (Adam keeps two copies of them).",
        fix="Take an optimizer with less state (SGD: none or one copy; 8-bit Adam: half a copy), or freeze the "
        "parameters that need no training.",
        file=oom.frame and oom.frame.file,
        line=oom.frame and oom.frame.line,
        bytes=max(state, 2 * parameters),
        saves=max(state, parameters),
    )


def _optimizer_temporaries(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.phase is not Phase.OPTIMIZER:
        return
    temporaries = [
        each
        for each in evidence.state.live
        if each.phase is Phase.OPTIMIZER and each.category in (Category.TEMPORARY, Category.WORKSPACE)
    ]
    size = sum(each.block_bytes for each in temporaries) + oom.requested
    if size < evidence.held(Category.PARAMETER) * 0.2 and "_foreach" not in oom.op:
        return
    yield Finding(
        code="LG606",
        message=f"The optimizer works on all parameters at once and needs {format_size(size)} of temporaries for it.",
        fix="Give the optimizer `fused=True` (no temporaries, also faster) or `foreach=False` (one parameter at a time, slower).",
        file=oom.frame and oom.frame.file,
        line=oom.frame and oom.frame.line,
        bytes=size,
        saves=size,
    )


def _fragmentation(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if (
        oom.fragmented < evidence.shortfall
        or oom.fragmented < oom.requested * 0.5
        or oom.requested > evidence.budget
    ):
        return
    yield Finding(
        code="LG607",
        message=f"{format_size(oom.fragmented)} are free but in pieces: the largest is "
        f"{format_size(oom.largest_free_block)} and {format_size(oom.requested)} were asked for.",
        fix="Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment.",
        bytes=oom.fragmented,
        saves=oom.fragmented,
    )


def _others_on_device(evidence: Evidence) -> Iterator[Finding]:
    other = evidence.oom.other
    if other < max(1 * GiB, evidence.oom.capacity * 0.1):
        return
    saves = other - GiB // 2
    yield Finding(
        code="LG608",
        message=f"{format_size(other)} of the device are not this program's PyTorch memory.",
        fix="See who holds it with `nvidia-smi`: another process, a notebook kernel still running, or libraries in this one.",
        bytes=other,
        saves=saves,
    )


def _process_fraction(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    barred = oom.capacity - oom.other - oom.limit
    if barred <= 0 or oom.requested - evidence.free > barred:
        return
    yield Finding(
        code="LG610",
        message=f"This process may take only {format_size(oom.limit)} of {format_size(oom.capacity)}: "
        "`set_per_process_memory_fraction` was called.",
        fix="Raise the fraction, or leave it out if no one shares the device.",
        bytes=barred,
        saves=barred,
    )


_RULES: tuple[Rule, ...] = (
    _operation_larger_than_device,
    _weights_do_not_fit,
    _grows_each_step,
    _earlier_steps_graph,
    _evaluates_with_gradients,
    _data_set_on_device,
    _held_by_variable,
    _gradients_during_forward,
    _fragmentation,
    _process_fraction,
    _others_on_device,
    _optimizer_state_does_not_fit,
    _optimizer_temporaries,
    _smaller_batch,
    _autocast,
    _checkpoint_activations,
)


# --- what the rules share ----------------------------------------------------------------------------------------


def _heaviest_frame(allocations: Sequence[Alloc]) -> Frame | None:
    sizes: Counter[Frame] = Counter()
    for each in allocations:
        if each.frame is not None:
            sizes[each.frame] += each.block_bytes
    return sizes.most_common(1)[0][0] if sizes else None


def _heaviest_block(activations: Sequence[Alloc]) -> str:
    """The outermost module path that alone makes most of the activations: `layer3`, `encoder.layers`."""
    sizes: Counter[str] = Counter()
    for each in activations:
        parts = each.module.split(".") if each.module else []
        for depth in range(1, len(parts) + 1):
            sizes[".".join(parts[:depth])] += each.block_bytes
    total = sum(each.block_bytes for each in activations)
    heavy = [path for path, size in sizes.items() if size >= total / 2]
    return max(heavy, key=lambda path: (path.count("."), sizes[path])) if heavy else ""


def _batches_since_backward(events: Sequence[Event], device: int) -> int:
    """How many batches came to the device after the last backward operation."""
    by_place: Counter[tuple[Frame | None, int]] = (
        Counter()
    )  # a batch is several tensors, of sizes of their own
    for event in reversed(events):
        if not isinstance(event, Alloc) or event.device != device:
            continue
        if event.phase is Phase.BACKWARD:
            break
        if event.category is Category.INPUT:
            by_place[event.frame, event.bytes] += 1
    return max(by_place.values(), default=0)


def _variables_holding(size: int, holders: Sequence[Holder]) -> list[str]:
    """The names of tensors that reach so many bytes and not much more: two at most, the closest first."""
    close = [
        each for each in holders if size * 0.95 <= each.bytes <= size * 1.5 and each.path.endswith("(Tensor)")
    ]
    close.sort(key=lambda each: each.bytes)
    return list(dict.fromkeys(each.path.split(" ", 1)[0] for each in close))[:2]


def _share(size: int, evidence: Evidence) -> str:
    return f"{size / evidence.oom.capacity:.0%}"


def _fraction_words(fraction: float) -> str:
    for words, value in (
        ("three quarters", 0.75),
        ("half", 0.5),
        ("a third", 1 / 3),
        ("a quarter", 0.25),
        ("an eighth", 0.125),
    ):
        if fraction >= value:
            return words
    return f"{fraction:.0%}"
