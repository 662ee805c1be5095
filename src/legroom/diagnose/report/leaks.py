"""What the leak detector saw while the run was alive, as leaks with advice.

The detector looked at the objects themselves, so it knows the holder, the line that stores, and graphs that take no
device memory. Where it was at work its word stands; the ledger only adds how many device bytes the growth has cost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

from legroom.diagnose.report.growing_lines import Leak
from legroom.memory.annotations import Annotation, DetectedLeak
from legroom.units import format_size


def latest_leaks(annotations: Iterable[Annotation]) -> list[DetectedLeak]:
    """The detected leaks in the order in which they were first reported, each with its newest figures."""
    leaks: dict[object, DetectedLeak] = {}
    for annotation in annotations:
        if isinstance(annotation, DetectedLeak):
            leaks[annotation.identity] = annotation
    return list(leaks.values())


def leaks_from(kept: Sequence[DetectedLeak], measured: Sequence[Leak], steps: int, device: int) -> list[Leak]:
    """`measured`: what the ledger says grows; `steps`: how many the run took."""
    leaks = [_leak(each, steps, device) for each in kept]
    if len(leaks) == 1 and measured:
        (leak,) = leaks
        per_step = sum(each.bytes_per_step for each in measured)
        if per_step > leak.bytes_per_step:
            size = sum(each.bytes for each in measured)
            told = replace(kept[0], bytes_per_step=per_step)
            leaks = [replace(leak, bytes=size, bytes_per_step=per_step, holder=holder_sentence(told))]
    return sorted(leaks, key=lambda leak: -leak.bytes_per_step)


def holder_sentence(kept: DetectedLeak) -> str:
    """`train.py:41 losses (list, 412 items) → tensor → graph of 37 nodes → 1.2 MiB a step`."""
    place = f"{PurePath(kept.file).name}:{kept.line} " if kept.file and kept.line else ""
    name = kept.name or "no variable of yours"
    parts = [f"{place}{name} ({kept.described})" if kept.described else f"{place}{name}"]
    if kept.how == "exception":
        parts.append("exception → traceback → frame")
    if kept.how == "cycle":
        parts.append("reference cycle")
    if "tensor" not in kept.described:
        parts.append("tensor")
    if kept.nodes_per_step:
        parts.append(f"graph of {kept.nodes_per_step:,} node{'s' if kept.nodes_per_step != 1 else ''}")
    where = " of host memory" if kept.on_host else ""
    parts.append(
        f"{format_size(kept.bytes_per_step)} a step{where}" if kept.bytes_per_step else "host memory"
    )
    return " → ".join(parts)


def _leak(kept: DetectedLeak, steps: int, device: int) -> Leak:
    seen = kept.steps + max(steps - kept.step, 0)
    code, advice = advice_on(kept)
    return Leak(
        file=kept.file,
        line=kept.line,
        kind=kept.kind,
        bytes=kept.bytes_per_step * seen,
        bytes_per_step=kept.bytes_per_step,
        nodes_per_step=kept.nodes_per_step,
        holder=holder_sentence(kept),
        advice=advice,
        steps=seen,
        lines=1,
        device=device,
        code=code,
        name=kept.name,
        on_host=kept.on_host,
    )


def advice_on(kept: DetectedLeak) -> tuple[str, str]:
    """The code of the leak's page, and what to change."""
    name = f"`{kept.name}`" if kept.name else "Something"
    if kept.how == "exception":
        return "LG107", (
            f"{name} keeps exceptions, and an exception keeps the variables of the function that raised it: keep "
            "`str(error)`, or `error.with_traceback(None)`."
        )
    if kept.how == "cache":
        return "LG111", (
            f"The cache of {name} keeps a tensor of every call: give it a small `maxsize`, key it by what repeats, or "
            "compute anew."
        )
    if kept.how == "cycle":
        return "LG121", (
            f"{name} is in a reference cycle, which only Python's garbage collector frees, and it does not run here: "
            "break the cycle (a weak reference, or set the attribute to None), or call `gc.collect()` now and then."
        )
    if kept.kind == "larger":
        return "LG120", (
            f"{name} is joined with itself and born larger each time: keep a list of `.cpu()` tensors and join once at the "
            "end, or cut it to a fixed length (`[-1000:]`)."
        )
    if kept.kind == "tensor" and kept.on_host:
        return "LG105", (
            f"{name} takes in tensors with every step, in host memory, and gives none back: store numbers (`.item()`), limit its "
            "length (`deque(maxlen=…)`), or write it to a file and empty it now and then."
        )
    if kept.kind == "tensor":
        return "LG105", (
            f"{name} takes in tensors with every step and gives none back: store numbers (`.item()`) or host tensors "
            "(`.cpu()`), limit its length (`deque(maxlen=…)`), or empty it."
        )
    if kept.how == "carried":
        return "LG104", (
            f"{name} is carried from step to step with its history: write `{_last(kept.name)} = "
            f"{_last(kept.name)}.detach()` (each part of a tuple) before the next step."
        )
    if kept.evaluation:
        return "LG201", (
            f"{name} keeps the graph of every batch, and no backward pass will use it: put the loop under "
            "`with torch.no_grad():`, and store `.item()` or `.cpu()`."
        )
    return "LG101", (
        f"{name} keeps the autograd graph of every step: store numbers (`loss.item()`) or detached tensors "
        "(`output.detach()`), not tensors that still know how they were computed."
    )


def _last(name: str) -> str:
    return name if name and " " not in name else "state"
