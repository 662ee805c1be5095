"""The leaks that the leak detector found during the run, with advice.

The detector inspected the live objects. Its findings include the retaining variable, the line that stores the
reference, and graphs that use no device memory. If the detector ran, the report uses its findings, and the ledger
adds only the bytes in device memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from legroom.diagnose.report.growing_lines import CodeLine, Leak, graph_advice
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Annotation
from legroom.observe.source.cells import short_location
from legroom.units import format_size


def latest_leaks(annotations: Iterable[Annotation]) -> list[DetectedLeak]:
    """Return the detected leaks in the order in which they were first reported, each with its newest values.

    Growth that stopped is omitted.
    """
    leaks: dict[object, DetectedLeak] = {}
    for annotation in annotations:
        if isinstance(annotation, DetectedLeak):
            leaks[annotation.identity] = annotation
    return [each for each in leaks.values() if not each.ended]


def leaks_from(
    detected: Sequence[DetectedLeak], measured: Sequence[Leak], steps: int, device: int
) -> list[Leak]:
    """Return the detected leaks with advice.

    Leaks without a name are omitted if another leak has a name, because both are probably the same leak. `measured`
    is the growth according to the ledger, and `steps` is the number of steps in the run.
    """
    named = [each for each in detected if each.name]
    leaks = [_leak(each, steps, device) for each in named or detected]
    if len(leaks) == 1 and measured:
        (leak,) = leaks
        per_step = sum(each.bytes_per_step for each in measured)
        if per_step > leak.bytes_per_step:
            size = sum(each.bytes for each in measured)
            path = holder_path(replace((named or detected)[0], bytes_per_step=per_step))
            leaks = [replace(leak, bytes=size, bytes_per_step=per_step, holder=path)]
    return sorted(leaks, key=lambda leak: -leak.bytes_per_step)


def holder_path(detected: DetectedLeak) -> str:
    """Return a path such as `train.py:41 losses (list, 412 items) → tensor → graph of 37 nodes → 1.2 MiB per step`."""
    file, line = detected.file, detected.line
    if detected.stored_line is not None:
        file, line = detected.stored_file, detected.stored_line
    location = f"{short_location(file, line)} " if file and line else ""
    name = detected.name or "no Python variable"
    parts = [f"{location}{name} ({detected.described})" if detected.described else f"{location}{name}"]
    if detected.how == "exception":
        parts.append("exception → traceback → frame")
    if detected.how == "cycle":
        parts.append("reference cycle")
    if "tensor" not in detected.described:
        parts.append("tensor")
    if detected.nodes_per_step:
        parts.append(
            f"graph of {detected.nodes_per_step:,} node{'s' if detected.nodes_per_step != 1 else ''}"
        )
    where = " of host memory" if detected.on_host else ""
    parts.append(
        f"{format_size(detected.bytes_per_step)} per step{where}"
        if detected.bytes_per_step
        else "host memory"
    )
    return " → ".join(parts)


def _leak(detected: DetectedLeak, steps: int, device: int) -> Leak:
    total_steps = detected.steps + max(steps - detected.step, 0)
    code, advice = advice_on(detected)
    return Leak(
        file=detected.file,
        line=detected.line,
        kind=detected.kind,
        bytes=detected.bytes_per_step * total_steps,
        bytes_per_step=detected.bytes_per_step,
        nodes_per_step=detected.nodes_per_step,
        holder=holder_path(detected),
        advice=advice,
        steps=total_steps,
        lines=1,
        device=device,
        code=code,
        name=detected.name,
        on_host=detected.on_host,
        stored_at=_code_line(detected.stored_file, detected.stored_line),
        called_from=_code_line(detected.caller_file, detected.caller_line),
    )


def _code_line(file: str | None, line: int | None) -> CodeLine | None:
    return CodeLine(file, line) if file is not None and line is not None else None


def advice_on(detected: DetectedLeak) -> tuple[str, str]:
    name = f"`{detected.name}`" if detected.name else "An object that is not visible to Python"
    if detected.how == "exception":
        return "LG107", (
            f"{name} stores exceptions, and each exception keeps the local variables of the failed functions "
            "alive. "
            "Store `str(error)` or `error.with_traceback(None)` instead."
        )
    if detected.how == "cache":
        return "LG111", (
            f"The cache of {name} retains a tensor from every call. Set a small `maxsize`, call the function with "
            "fewer different arguments, or remove the cache."
        )
    if detected.described == "compiled functions":
        return "LG105", (
            f"Each step compiles another function with {name}. PyTorch never frees a compiled function or the tensors that "
            "it contains. Compile the function once, before the loop."
        )
    if detected.how == "cycle":
        return "LG121", (
            f"{name} is part of a reference cycle. Only Python's garbage collector frees cycles, and the "
            "collector did not run. Break the cycle (use a weak reference or set the attribute to None), or "
            "call `gc.collect()` every few steps."
        )
    if detected.how == "gradient":
        return "LG109", (
            f"The backward pass with `create_graph=True` stores a gradient with a graph in {name}. The gradient, its graph "
            "and the parameter refer to each other, so they are never freed. Remove "
            "`create_graph=True` if no later backward pass needs the graph of the gradient. Otherwise, use "
            "`torch.autograd.grad(…, create_graph=True)`."
        )
    if detected.how == "hook":
        adds = (
            f"Each step registers {name} again"
            if detected.described == "function"
            else f"Each step adds another function to {name}"
        )
        return "LG110", (
            f"{adds}, and each function keeps its tensors alive. Register the function "
            "once, or remove it after use (`handle.remove()`)."
        )
    if detected.how == "thread":
        return "LG105", (
            f"Each step starts another thread, and threads that never end keep {name} alive. Stop the old thread before "
            "you start a new one, or use one thread for the whole run."
        )
    if detected.how == "linked":
        return "LG105", (
            f"Each object refers to the previous one through {name}, so all earlier objects stay alive. Set the "
            "attribute to None when it is no longer needed, or store only the values that later steps read."
        )
    if detected.kind == "larger":
        return "LG120", (
            f"{name} is concatenated with new data in each step, so it keeps growing. Collect `.cpu()` "
            "tensors in a list and concatenate the list once at the end, or limit the length of the tensor "
            "(`[-1000:]`)."
        )
    if detected.kind == "tensor" and detected.on_host:
        return "LG105", (
            f"{name} collects tensors in host memory in every step and never frees them. Store numbers "
            "(`.item()`), limit the length (`deque(maxlen=…)`), or write the tensors to a file and clear the "
            "container regularly."
        )
    if detected.kind == "tensor":
        return "LG105", (
            f"{name} collects tensors in every step and never frees them. Store numbers (`.item()`) or host tensors "
            "(`.cpu()`), limit the length (`deque(maxlen=…)`), or clear the container."
        )
    if detected.how == "carried":
        variable = _variable_name(detected.name)
        detach = f"add `{variable} = {variable}.detach()`. For a tuple or an object, detach each tensor in it"
        if variable.endswith("]"):
            container = f"`{variable.partition('[')[0]}`"
            detach = f"replace each tensor in {container} by `tensor.detach()`"
        return "LG104", (
            f"{name} is carried from step to step together with its graph. Before the next step, {detach}."
        )
    if detected.evaluation:
        return "LG201", (
            f"{name} retains the graph of every batch, but no backward pass uses these graphs. Wrap the loop "
            "in "
            "`with torch.no_grad():` and store `.item()` or `.cpu()`."
        )
    return "LG101", graph_advice(name)


def _variable_name(name: str) -> str:
    return name if name and " " not in name else "state"
