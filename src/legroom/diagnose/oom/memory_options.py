"""Ways to make a sound run smaller, and reasons why it cannot fit as it is: LG4xx and LG6xx.

What a change frees is estimated from what was alive at the failure. Where the estimate stands on an assumption (the
optimizer is Adam, the arithmetic is float32), the sentence says so.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from legroom.diagnose.oom.evidence import Evidence, at, bytes_of
from legroom.diagnose.report.device_memory import free_at
from legroom.findings import Finding
from legroom.memory.events import Alloc, Category, Oom, Phase
from legroom.units import GiB, MiB, format_size

CHECKPOINTING_FREES = 0.6
"""Part of the activations that recomputing them block by block frees, at about a third more arithmetic."""
AUTOCAST_FREES = 0.4
"""Part of float32 activations that bfloat16 frees: most halve; those of normalisations, softmax and losses stay."""
CUDA_CONTEXT = 512 * MiB
"""About what the CUDA context of a process takes."""


def operation_larger_than_device(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.requested <= evidence.budget:
        return
    yield Finding(
        code="LG601",
        message=f"This one operation asks for {format_size(oom.requested)}: more than the whole device has for it "
        f"({format_size(evidence.budget)}).",
        fix="Check the shapes on this line first (a broadcast or a wrong dimension is the usual cause); "
        "otherwise compute it in pieces or with a smaller batch.",
        **at(oom.frame),
        bytes=oom.requested,
        evidence={"requested": oom.requested, "budget": evidence.budget},
    )


def weights_do_not_fit(evidence: Evidence) -> Iterator[Finding]:
    """A failure while the model is moved to the device, with nothing else on it."""
    oom = evidence.oom
    weights = evidence.held(Category.PARAMETER, Category.BUFFER)
    if oom.phase is not Phase.OTHER or evidence.held(Category.ACTIVATION, Category.GRADIENT):
        return
    wanted = weights + oom.requested
    # Memory is taken in large blocks, so that even what would fit may find no room.
    is_full = wanted >= evidence.budget * 0.8 or oom.requested <= free_at(oom)
    if not is_full or weights < oom.allocated * 0.8:
        return
    yield Finding(
        code="LG602",
        message=f"The weights alone do not fit: with {format_size(weights)} of them on the device there was no room for the next "
        f"{format_size(oom.requested)}. Gradients and the optimizer's state are yet to come: with Adam three times the weights.",
        fix="Load them in half precision (`model.to(torch.bfloat16)` before `.to(device)`), train adapters on a "
        "quantised model, or spread the model over several devices.",
        **at(evidence.oom.frame),
        bytes=wanted,
        saves=wanted // 2,
    )


def data_set_on_device(evidence: Evidence) -> Iterator[Finding]:
    largest = max(_data_sets(evidence), key=lambda each: each.block_bytes, default=None)
    if largest is None:
        return
    size = largest.block_bytes
    yield Finding(
        code="LG609",
        message=f"One input holds {size / evidence.oom.capacity:.0%} of the memory: {format_size(size)}.",
        fix="If that is the whole data set, keep it on the host and move one batch at a time to the device.",
        **at(largest.frame),
        bytes=size,
        saves=size,
    )


def fragmentation(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.fragmented < max(evidence.shortfall, evidence.budget * 0.05) or oom.requested > evidence.budget:
        return
    yield Finding(
        code="LG607",
        message=f"{format_size(oom.fragmented)} are free but in pieces: {_why_pieces_do_not_serve(oom)}.",
        fix="Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment.",
        bytes=oom.fragmented,
        saves=oom.fragmented,
    )


def _why_pieces_do_not_serve(oom: Oom) -> str:
    if oom.largest_free_block < oom.requested:
        return f"the largest is {format_size(oom.largest_free_block)} and {format_size(oom.requested)} were asked for"
    return (
        f"requests of up to 1 MiB have segments of their own, and {format_size(oom.requested)} were asked for"
    )


def process_fraction(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    barred = oom.capacity - oom.other - oom.limit
    if barred <= 0 or oom.requested - free_at(oom) > barred:
        return
    yield Finding(
        code="LG610",
        message=f"This process may take only {format_size(oom.limit)} of {format_size(oom.capacity)}: "
        "`set_per_process_memory_fraction` was called.",
        fix="Raise the fraction, or leave it out if no one shares the device.",
        bytes=barred,
        saves=barred,
    )


def others_on_device(evidence: Evidence) -> Iterator[Finding]:
    other = evidence.oom.other
    if other < max(GiB, evidence.oom.capacity * 0.1):
        return
    yield Finding(
        code="LG608",
        message=f"{format_size(other)} of the device are not this program's PyTorch memory.",
        fix="See who holds it with `nvidia-smi`: another process, a notebook kernel still running, or libraries in "
        "this one.",
        bytes=other,
        saves=other - CUDA_CONTEXT,
    )


def optimizer_state_does_not_fit(evidence: Evidence) -> Iterator[Finding]:
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
        **at(oom.frame),
        bytes=max(state, 2 * parameters),
        saves=max(state, parameters),
    )


def optimizer_temporaries(evidence: Evidence) -> Iterator[Finding]:
    oom = evidence.oom
    if oom.phase is not Phase.OPTIMIZER:
        return
    passing = evidence.live(Category.TEMPORARY, Category.WORKSPACE)
    size = bytes_of([each for each in passing if each.phase is Phase.OPTIMIZER])
    size += 0 if _makes_state(evidence) else oom.requested
    if size < evidence.held(Category.PARAMETER) * 0.2 and "_foreach" not in oom.op:
        return
    yield Finding(
        code="LG606",
        message=f"The optimizer works on all parameters at once and needs {format_size(size)} of temporaries for it.",
        fix="Give the optimizer `fused=True` (no temporaries, also faster) or `foreach=False` (one parameter at a "
        "time, slower).",
        **at(oom.frame),
        bytes=size,
        saves=size,
    )


def smaller_batch(evidence: Evidence) -> Iterator[Finding]:
    """Activations, inputs and results scale with the batch; the rest does not. So the largest batch that fits follows,
    where the failure was in the backward pass: then all activations were there. In the forward pass some were still
    to come: as many again for each part of the model as for the part that was over. Where that is not known, half of the batch is as much
    as can be hoped for."""
    oom = evidence.oom
    if oom.phase is Phase.OPTIMIZER or not (evidence.held(Category.ACTIVATION) or oom.phase is Phase.FORWARD):
        return
    data_sets = bytes_of(_data_sets(evidence))
    fixed = evidence.trained + data_sets
    passing = evidence.held(Category.ACTIVATION, Category.INPUT, Category.RESULT, Category.TEMPORARY)
    scaling = passing - data_sets + oom.requested
    room = evidence.budget - fixed
    if scaling < evidence.budget * 0.2 or room <= 0:
        return
    unfinished = oom.phase is not Phase.BACKWARD
    done = evidence.progress if unfinished and evidence.progress else 1.0
    fraction = min(room / scaling * 0.75 * done, 0.5) if unfinished else min(room / scaling, 0.95)
    smaller = evidence.batch.smaller(fraction) if evidence.batch else None
    if evidence.batch is None:
        how = f"Use a batch of at most {_fraction_words(fraction)} of today's"
    elif smaller is not None:
        how = f"Use `{smaller.text}` instead of `{evidence.batch.text}`"
    else:
        how = "The batch cannot shrink that far: take the other means"
    less = f"; {_how_far(done)}" if unfinished else ""
    yield Finding(
        code="LG603",
        message=f"{format_size(scaling)} of what is needed (activations, inputs, results) shrink with the batch.",
        fix=f"{how}{less}. Accumulate gradients over several batches to keep the effective size.",
        bytes=scaling,
        saves=int(scaling * (1 - fraction)),
        evidence={
            "fraction": round(fraction, 3),
            "unfinished": unfinished,
            "argument": smaller.text if smaller else None,
            "fixed_bytes": fixed,
            "scaling_bytes": scaling,
        },
    )


def autocast(evidence: Evidence) -> Iterator[Finding]:
    size = evidence.held(Category.ACTIVATION)
    if size < evidence.budget * 0.2 or evidence.oom.phase is Phase.OPTIMIZER or _casts(evidence):
        return
    yield Finding(
        code="LG401",
        message=f"If the forward pass runs in float32, most of its {format_size(size)} of activations can be half as "
        "large.",
        fix='Run the forward pass and the loss under `with torch.autocast("cuda", dtype=torch.bfloat16):`.',
        bytes=size,
        saves=int(size * AUTOCAST_FREES),
    )


def checkpoint_activations(evidence: Evidence) -> Iterator[Finding]:
    activations = evidence.live(Category.ACTIVATION)
    size = bytes_of(activations)
    if size < evidence.budget * 0.3 or evidence.oom.phase is Phase.OPTIMIZER:
        return
    block = _heaviest_block(activations)
    where = f"the parts of `{block}`, where most of them are," if block else "the model's blocks"
    yield Finding(
        code="LG604",
        message=f"Activations kept for the backward pass hold {format_size(size)}.",
        fix=f"Recompute instead of keeping them: wrap {where} in `torch.utils.checkpoint.checkpoint(…, "
        "use_reentrant=False)`; costs about a third more time.",
        bytes=size,
        saves=int(size * CHECKPOINTING_FREES),
        evidence={"module": block or None},
    )


def spill_activations(evidence: Evidence) -> Iterator[Finding]:
    """What moves are tensors from 1 MiB; some of the largest are on the way at any time."""
    movable = [each for each in evidence.live(Category.ACTIVATION) if each.block_bytes >= MiB]
    size = bytes_of(movable)
    if size < evidence.budget * 0.3 or evidence.oom.phase is Phase.OPTIMIZER:
        return
    saves = size - 3 * max(each.block_bytes for each in movable)
    if saves > 0:
        yield Finding(
            code="LG613",
            message=f"{format_size(size)} of activations could wait in host memory for the backward pass.",
            fix="Change nothing and run it with `legroom run --spill`, or put the forward pass under `with legroom.Spill():`; "
            "the same gradients, but a step takes several times as long.",
            bytes=size,
            saves=saves,
        )


def _makes_state(evidence: Evidence) -> bool:
    """Whether the optimizer was at work on its state, in its first step. Where the operation is not known, by how much of it there is."""
    oom = evidence.oom
    if oom.step > 0 or not oom.op:
        missing = evidence.held(Category.OPTIMIZER_STATE) < evidence.held(Category.PARAMETER)
        return oom.step == 0 and missing
    return oom.op in ("aten.zeros_like", "aten.zeros", "aten.empty_like", "aten.full_like", "aten.clone")


def _data_sets(evidence: Evidence) -> list[Alloc]:
    """Inputs too large to be one batch of many."""
    return [each for each in evidence.live(Category.INPUT) if each.block_bytes >= evidence.budget * 0.25]


def _casts(evidence: Evidence) -> bool:
    """Whether several modules keep converted copies for the backward pass, as under autocast."""
    converted = {each.module for each in evidence.live(Category.ACTIVATION) if each.op == "aten._to_copy"}
    return len(converted - {""}) >= 2


def _heaviest_block(activations: Sequence[Alloc]) -> str:
    """The innermost module path that still makes most of the activations, above single layers and what is one of many alike:
    `encoder.layers`."""
    sizes: Counter[str] = Counter()
    for each in activations:
        parts = each.module.split(".")[:-1]
        for depth in range(1, len(parts) + 1):
            if not parts[depth - 1].isdecimal():
                sizes[".".join(parts[:depth])] += each.block_bytes
    heavy = [path for path, size in sizes.items() if size >= bytes_of(activations) / 2]
    return max(heavy, key=lambda path: (path.count("."), sizes[path])) if heavy else ""


_FRACTIONS = {
    "three quarters": 3 / 4,
    "half": 1 / 2,
    "a third": 1 / 3,
    "a quarter": 1 / 4,
    "an eighth": 1 / 8,
}


def _how_far(done: float) -> str:
    if done < 1:
        return f"the forward pass had come to about {done:.0%} of the model, so this is an estimate"
    return "the forward pass was not over, so it may take less still"


def _fraction_words(fraction: float) -> str:
    return next((words for words, value in _FRACTIONS.items() if fraction >= value), f"{fraction:.0%}")
