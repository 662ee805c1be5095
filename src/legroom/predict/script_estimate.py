"""All that `legroom estimate` answers about one script."""

import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from legroom.gpus.catalog import GpuSpec
from legroom.observe.script import Script
from legroom.predict.estimate import Estimate, judge
from legroom.predict.fit import beside
from legroom.predict.largest_batch import Search, largest_batch
from legroom.predict.options.names import Means
from legroom.predict.options.plan import Option, finish_plan, start_plan
from legroom.predict.tracing import single_rank
from legroom.predict.tracing.batch_setting import BatchSetting, find_batch_setting
from legroom.predict.tracing.script import CannotTrace, PendingTrace, TracedScript
from legroom.predict.tracing.start import start
from legroom.predict.tracing.trace import Mode, Trace
from legroom.predict.tracing.worker_process import StandingBy

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The answers."""

    script: str
    estimate: Estimate
    search: Search | None
    options: tuple[Option, ...]
    planned: bool = True
    """Whether the means of saving memory were looked for."""
    batch_argument: str = ""
    """The script's own by which its batch size was varied; "" where that was the DataLoader's."""

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
    gpu: GpuSpec,
    *,
    started: StandingBy | None = None,
    batch_size: int | None = None,
    steps: int = 2,
    multiple_of: int = 1,
    plan: bool = False,
    say: Say = lambda sentence: None,
    tell: Callable[[Estimate], None] = lambda estimate: None,
) -> Told:
    """Trace a script, search its largest batch, and, where it does not fit, re-trace it with each means of saving memory.

    `plan`: re-trace it with the means even where it fits. `started`: its process, if that runs already. `tell` is called with the verdict as soon as it stands. Where the script
    needs data that a trace does not have, it is traced again with real arithmetic on the CPU.
    """
    job = _ScriptJob(script, gpu, batch_size, steps, multiple_of, plan, say, tell)
    try:
        try:
            return job.run("fake", started or start(script, gpu, steps=steps))
        except CannotTrace as trouble:
            if not single_rank.is_wanted(str(trouble)):
                raise
        with tempfile.TemporaryDirectory(prefix="legroom-") as folder:
            alone = start(script, gpu, steps=steps, environment=single_rank.environment(folder))
            return job.run("fake", alone, notes=(single_rank.NOTE,))
    except CannotTrace as trouble:
        if not trouble.needs_data:
            raise
        reason = (
            f"{str(trouble)[:1].upper()}{str(trouble)[1:]}; so it was run with real arithmetic on the CPU"
        )
        first = str(trouble)
    say("the script needs its data: computing on the CPU instead")
    try:
        return job.run("cpu", start(script, gpu, mode="cpu", steps=steps), notes=(reason,))
    except CannotTrace as trouble:
        raise CannotTrace(
            f"{first}, and it cannot be run on the CPU instead: {trouble}", output=trouble.output
        ) from None


@dataclass(frozen=True, slots=True)
class _ScriptJob:
    script: Script
    gpu: GpuSpec
    batch_size: int | None
    steps: int
    multiple_of: int
    plan: bool
    say: Say
    tell: Callable[[Estimate], None]

    def run(self, mode: Mode, started: StandingBy, notes: tuple[str, ...] = ()) -> Told:
        self.say("running the script up to its first batch")
        with TracedScript(started, self.gpu, mode=mode) as traced:
            self.say(f"tracing {self.steps} steps")
            size = self.batch_size or traced.batch_size
            first = traced.start(self.batch_size)
            ahead = {}
            # The search will want it: there is a processor for it now.
            if size is not None and mode == "fake":
                double = size * 2 // self.multiple_of * self.multiple_of
                ahead[double] = traced.start(double)
            trace = first.result()
            now = judge(trace)
            now = replace(now, notes=(*now.notes, *notes))
            self.tell(now)
            if mode == "cpu":  # once is long enough
                return Told(script=self._words, estimate=now, search=None, options=())
            return self._further(traced, now, ahead)

    @property
    def _words(self) -> str:
        return shlex.join(self.script.words)

    def _further(self, traced: TracedScript, now: Estimate, ahead: dict[int, PendingTrace]) -> Told:
        """The largest batch, and what would save memory; the traces of both share the processors."""

        def start_with(means: Sequence[Means]) -> Callable[[], Trace]:
            pending = traced.start(self.batch_size, means, urgent=False)

            def finish() -> Trace:
                self.say(f"what would save memory: {' + '.join(means)}")
                return pending.result()

            return finish

        def by_loader(size: int) -> Trace:
            self.say(f"looking for the largest batch: {size}")
            return (ahead.pop(size, None) or traced.start(size)).result()

        setting = find_batch_setting(self.script) if now.batch_size is None else None
        trace_at: Callable[[int], Trace] = by_loader
        if setting is not None:
            trace_at, now = self._by_argument(setting), replace(now, batch_size=setting.argument.value)
        wanted = self.plan or not now.fits
        started = start_plan(now, start_with) if wanted else []
        search: Search | None = None
        if now.batch_size is not None:
            try:
                search = largest_batch(
                    trace_at,
                    now.gpu.total - beside(now.trace),
                    start=now.batch_size,
                    known=now.trace,
                    multiple_of=self.multiple_of,
                )
            except CannotTrace as trouble:  # the script knows its batch size elsewhere too
                note = f"No other batch size could be traced: with one, {trouble}"
                now = replace(now, notes=(*now.notes, note))
        largest = None if search is None or search.largest is None else search.traces[search.largest]
        name = setting.argument.name if setting is not None else ""
        options = (
            finish_plan(now, started, start_with, largest=largest, batch_argument=name) if wanted else []
        )
        now = replace(now, max_batch_size=None if search is None else search.largest)
        return Told(
            script=self._words,
            estimate=now,
            search=search,
            options=tuple(options),
            planned=wanted,
            batch_argument=name,
        )

    def _by_argument(self, setting: BatchSetting) -> Callable[[int], Trace]:
        """Traces at other sizes, each by the script started anew with another argument."""

        def trace_at(size: int) -> Trace:
            script = setting.script_with(size)
            self.say(f"looking for the largest batch: {shlex.join(script.words)}")
            process = start(script, self.gpu, steps=self.steps)
            with TracedScript(process, self.gpu) as traced:
                trace = traced.trace()
            trace.batch_size = size
            return trace

        return trace_at
