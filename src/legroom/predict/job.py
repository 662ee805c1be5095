"""All that `legroom estimate` answers about one script."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from legroom.observe.gpus import find_gpu
from legroom.observe.script import Script
from legroom.predict.estimate import Estimate, judge
from legroom.predict.largest_batch import Search, largest_batch
from legroom.predict.plan import Option, make_plan
from legroom.predict.script import CannotTrace, TracedScript
from legroom.predict.trace import Mode

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The answers."""

    script: str
    estimate: Estimate
    search: Search | None
    options: tuple[Option, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            **self.estimate.as_json(self.script),
            "options": [option.as_dict() for option in self.options],
            "batches_tried": {}
            if self.search is None
            else {str(k): v for k, v in sorted(self.search.tried.items())},
        }


def estimate_script(
    script: Script,
    gpu_name: str,
    *,
    batch_size: int | None = None,
    steps: int = 2,
    multiple_of: int = 1,
    say: Say = lambda sentence: None,
) -> Told:
    """Trace a script, search its largest batch, and re-trace it with each means of saving memory.

    Where it needs data that a trace does not have, it is traced again with real arithmetic on the CPU.
    """
    script.check()
    try:
        return _estimate(script, gpu_name, "fake", batch_size, steps, multiple_of, say)
    except CannotTrace as trouble:
        if not trouble.needs_data:
            raise
        say("the script needs its data: computing on the CPU instead")
        reason = (
            f"{str(trouble)[:1].upper()}{str(trouble)[1:]}; so it was run with real arithmetic on the CPU"
        )
    told = _estimate(script, gpu_name, "cpu", batch_size, steps, multiple_of, say)
    return replace(told, estimate=replace(told.estimate, notes=(*told.estimate.notes, reason)))


def _estimate(
    script: Script, gpu_name: str, mode: Mode, batch_size: int | None, steps: int, multiple_of: int, say: Say
) -> Told:
    gpu = find_gpu(gpu_name)
    room = gpu.memory - gpu.context
    say("running the script up to its first batch")
    with TracedScript(script, gpu, gpu_name, mode=mode, steps=steps) as traced:
        say(f"tracing {steps} steps")
        trace = traced.trace(batch_size)
        search = None
        if trace.batch_size is not None and mode == "fake":

            def trace_at(size: int) -> Any:
                say(f"looking for the largest batch: {size}")
                return traced.trace(size)

            search = largest_batch(
                trace_at, room, start=trace.batch_size, known=trace, multiple_of=multiple_of
            )
        now = judge(trace, max_batch_size=None if search is None else search.largest)
        options: list[Option] = []
        if mode == "fake":

            def trace_with(means: Any) -> Any:
                say(f"what would save memory: {means.value}")
                return traced.trace(batch_size, means)

            options = make_plan(now, trace_with)
    return Told(script=" ".join(script.words), estimate=now, search=search, options=tuple(options))
