"""Everything that `legroom estimate` reports about one script."""

import re
import shlex
import socket
import tempfile
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from legroom.gpus.catalog import GpuSpec
from legroom.observe.script import Script
from legroom.observe.source.batch_argument import BatchArgument, declared_batch_argument, find_batch_argument
from legroom.predict.estimate import Estimate, estimate_from_trace
from legroom.predict.fit import available_bytes
from legroom.predict.largest_batch import BatchSearch, largest_batch
from legroom.predict.options.names import MemoryOption
from legroom.predict.options.plan import PlannedOption, finish_plan, start_plan
from legroom.predict.tracing.script import CannotTrace, PendingTrace, TracedScript
from legroom.predict.tracing.trace import Mode, Trace
from legroom.predict.tracing.worker_process import WorkerProcess, start_tracing

ShowProgress = Callable[[str], None]

NO_VALIDATION_NOTE = "No validation was traced. The estimate is for the training steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEstimate:
    """The estimate of a script, its largest batch size, and the options that save memory."""

    script: str
    estimate: Estimate
    search: BatchSearch | None
    options: tuple[PlannedOption, ...]
    options_tried: bool = True
    batch_argument: str = ""
    """The argument of the script that sets its batch size; "" if the DataLoader was changed instead."""

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
    process: WorkerProcess | None = None,
    batch_size: int | None = None,
    steps: int = 2,
    multiple_of: int = 1,
    plan: bool = False,
    show_progress: ShowProgress = lambda text: None,
    on_verdict: Callable[[Estimate], None] = lambda estimate: None,
) -> ScriptEstimate:
    """Trace a script and search for its largest batch size. If the script does not fit, trace it with each
    memory-saving option.

    `plan`: trace the options even if it fits. `process`: the tracing process of the script, if it is already running.
    `on_verdict` is called as soon as the verdict is known. A script that needs data that a trace does not have runs
    with real values on the CPU.
    """
    job = _ScriptJob(script, gpu, batch_size, steps, multiple_of, plan, show_progress, on_verdict)
    try:
        try:
            return job.run("fake", process or start_tracing(script, gpu, steps=steps))
        except CannotTrace as failure:
            if not needs_torchrun(str(failure)):
                raise
        with tempfile.TemporaryDirectory(prefix="legroom-") as folder:
            single_rank = start_tracing(script, gpu, steps=steps, environment=single_rank_environment(folder))
            return job.run("fake", single_rank, notes=(SINGLE_RANK_NOTE,))
    except CannotTrace as failure:
        if not failure.needs_data:
            raise
        reason = f"{failure}, so it ran with real values on the CPU"
        first = str(failure)
    show_progress("the script needs real values: running it on the CPU instead")
    try:
        return job.run("cpu", start_tracing(script, gpu, mode="cpu", steps=steps), notes=(reason,))
    except CannotTrace as failure:
        raise CannotTrace(
            f"{first}, and running it on the CPU failed: {failure}", output=failure.output
        ) from None


@dataclass(frozen=True, slots=True)
class _ScriptJob:
    script: Script
    gpu: GpuSpec
    batch_size: int | None
    steps: int
    multiple_of: int
    plan: bool
    show_progress: ShowProgress
    on_verdict: Callable[[Estimate], None]

    def run(self, mode: Mode, process: WorkerProcess, notes: tuple[str, ...] = ()) -> ScriptEstimate:
        self.show_progress("running the script up to its first batch")
        with TracedScript(process, self.gpu, mode=mode) as traced:
            self.show_progress(f"tracing {self.steps} steps")
            size = self.batch_size or traced.batch_size
            first = traced.start(self.batch_size)
            ahead = {}
            # The search needs it next, and a core is free now.
            if size is not None and mode == "fake":
                double = size * 2 // self.multiple_of * self.multiple_of
                ahead[double] = traced.start(double)
            current = estimate_from_trace(first.result())
            if current.trace.trains and current.trace.validation_starts is None:
                notes = (*notes, NO_VALIDATION_NOTE)
            current = replace(current, notes=(*current.notes, *notes))
            self.on_verdict(current)
            if mode == "cpu":  # real values are too slow for further traces
                return ScriptEstimate(script=self._command, estimate=current, search=None, options=())
            return self._search_and_plan(traced, current, ahead)

    @property
    def _command(self) -> str:
        return shlex.join(self.script.command_line)

    def _search_and_plan(
        self, traced: TracedScript, current: Estimate, ahead: dict[int, PendingTrace]
    ) -> ScriptEstimate:
        """Return the largest batch size, and the options that save memory. Their traces run in parallel."""

        def start_with(options: Sequence[MemoryOption]) -> Callable[[], Trace]:
            pending = traced.start(self.batch_size, options, urgent=False)

            def finish() -> Trace:
                self.show_progress(f"tracing an option that saves memory: {' + '.join(options)}")
                return pending.result()

            return finish

        def by_loader(size: int) -> Trace:
            self.show_progress(f"searching the largest batch size: {size}")
            return (ahead.pop(size, None) or traced.start(size)).result()

        setting = find_batch_setting(self.script) if current.batch_size is None else None
        trace_at: Callable[[int], Trace] = by_loader
        if setting is not None:
            trace_at = self._by_argument(setting)
            current = replace(current, batch_size=setting.argument.value)
        with_options = self.plan or not current.fits
        started = start_plan(current, start_with) if with_options else []
        search: BatchSearch | None = None
        if current.batch_size is not None:
            try:
                search = largest_batch(
                    trace_at,
                    available_bytes(current.trace),
                    start=current.batch_size,
                    known=current.trace,
                    multiple_of=self.multiple_of,
                )
            except CannotTrace as failure:  # the script also sets its batch size elsewhere
                note = f"No other batch size could be traced: {failure}"
                current = replace(current, notes=(*current.notes, note))
        largest = None if search is None or search.largest is None else search.traces[search.largest]
        name = setting.argument.name if setting is not None else ""
        options = (
            finish_plan(current, started, start_with, largest=largest, batch_argument=name)
            if with_options
            else []
        )
        return ScriptEstimate(
            script=self._command,
            estimate=replace(current, max_batch_size=None if search is None else search.largest),
            search=search,
            options=tuple(options),
            options_tried=with_options,
            batch_argument=name,
        )

    def _by_argument(self, setting: "BatchSetting") -> Callable[[int], Trace]:
        """Trace other batch sizes by starting the script again with another argument."""

        def trace_at(size: int) -> Trace:
            script = setting.script_with(size)
            self.show_progress(f"searching the largest batch size: {shlex.join(script.command_line)}")
            process = start_tracing(script, self.gpu, steps=self.steps)
            with TracedScript(process, self.gpu) as traced:
                trace = traced.trace()
            trace.batch_size = size
            return trace

        return trace_at


# --- the argument that sets the batch size of a script without a DataLoader


@dataclass(frozen=True, slots=True)
class BatchSetting:
    """A script and the argument that sets its batch size."""

    script: Script
    """The script with the argument on its command line, even if the script used its default."""
    argument: BatchArgument

    def script_with(self, size: int) -> Script:
        arguments = self.argument.with_value(size).replace_in(self.script.arguments)
        return replace(self.script, arguments=tuple(arguments))


def find_batch_setting(script: Script) -> BatchSetting | None:
    """Return the batch size on the command line of a script, or the default that its source declares."""
    argument = find_batch_argument(script.arguments)
    if argument is None and not script.is_module:
        arguments = (*script.arguments, *declared_batch_argument(_source(script)))
        script, argument = replace(script, arguments=arguments), find_batch_argument(arguments)
    return None if argument is None else BatchSetting(script, argument)


def _source(script: Script) -> str:
    try:
        with tokenize.open(script.name) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):  # a folder, a zip file, or not text
        return ""


# --- scripts that expect to be started by torchrun

SINGLE_RANK_NOTE = (
    "The script is written for torchrun and was traced as a single rank. "
    "Use `legroom launch --dry-run` to predict the memory of several ranks"
)

_MISSING_VARIABLE = re.compile(
    r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
    r"|KeyError: '(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
)


def needs_torchrun(error: str) -> bool:
    """Whether a script failed because torchrun's variables are not set.

    The variables are set only after such a failure, because some scripts train differently if they are set.
    """
    return _MISSING_VARIABLE.search(error) is not None


def single_rank_environment(folder: str) -> dict[str, str]:
    """The variables that torchrun sets for a single rank.

    The process group has no threads, because a fork would lose them. Objects that the rank broadcasts are stored in
    `folder`.
    """
    # Not at the top: it imports torch, and few scripts need it.
    from legroom.observe.virtual.single_rank import VARIABLE as LONE_RANK

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), LONE_RANK: folder,
    }  # fmt: skip
