"""The results that `legroom estimate` reports about a script."""

import contextlib
import re
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import psutil

from legroom import shell
from legroom.gpus.catalog import GpuSpec
from legroom.observe.script import Script
from legroom.observe.source.batch_setting import BatchSetting
from legroom.predict.estimate import Estimate, estimate_from_trace
from legroom.predict.fit import available_bytes
from legroom.predict.largest_batch import BatchSearch, largest_batch
from legroom.predict.options.names import MemoryOption
from legroom.predict.options.plan import PlannedOption, finish_plan, start_plan
from legroom.predict.setting_check import SettingCheck
from legroom.predict.tracing.script import CannotTrace, PendingTrace, TracedScript
from legroom.predict.tracing.trace import Mode, Trace
from legroom.predict.tracing.worker_process import WorkerProcess, start_tracing
from legroom.predict.uncertainty import uncertain_bytes
from legroom.predict.virtual_run import fits_virtual_gpu
from legroom.units import format_size

ShowProgress = Callable[[str], None]

SEARCH_SECONDS = 60.0
"""The search for the largest batch size stops after this many seconds, and returns the best result so far."""
MAX_TRACE_WITH_VALUES = 15.0
"""If a trace with real values that fills the GPU would take longer than this number of seconds, other batch sizes are
not traced.
"""
MAX_SAFE_TRACES = 4
"""The maximum number of additional traces for the recommended batch size."""
NO_SETTING = "Legroom found no DataLoader and no argument for the batch size"
NO_VALIDATION_NOTE = "No validation was traced. The estimate covers only the training steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEstimate:
    """The estimate of a script, its largest batch size, and the options that save memory."""

    script: str
    estimate: Estimate
    search: BatchSearch | None
    options: tuple[PlannedOption, ...]
    options_tried: bool = True
    batch_setting: BatchSetting | None = None
    """The argument, variable or line that sets the batch size of the script, or None if it is unknown."""
    only_size_reason: str = NO_SETTING
    """The reason why no other batch size was traced, if the batch size is unknown."""
    full_batch_size: int | None = None
    """The batch size of the DataLoader, if the data set is smaller than one batch. Otherwise None."""
    recommended: int | None = None
    """The largest traced batch size that fits with a safety margin, or None if no traced size does."""
    fits_virtual_gpu: bool = True
    """Whether the script, if it fits, also fits on a virtual GPU, which needs more memory for dropout."""
    virtual_batch_size: int | None = None
    """The largest traced batch size that also fits on a virtual GPU."""

    @property
    def batch_change(self) -> str:
        """An instruction that sets the recommended batch size, or "" if the setting is unknown or already has this
        value.

        With gradient accumulation or several GPUs, the value of the setting may be a multiple of the traced batch size.
        """
        setting, value = self.batch_setting, self._setting_value(self.recommended)
        return "" if setting is None or value in (None, setting.value) else setting.how(value or 1)

    @property
    def next_change(self) -> str:
        """What the user must do before the script fits, for example `after the change in train.py:12`, or "" if the
        script itself fits, or if only an argument changes.
        """
        if self.estimate.fits or self.fitting_command:
            return ""
        setting = self.batch_setting
        value = None if setting is None else self._setting_value(self.recommended)
        if setting is not None and value is not None and value < setting.value and not setting.arguments:
            if setting.variable:
                return f"after setting {setting.text_with(value)}"
            return f"after the change in {setting.file_name}:{setting.line}"
        if any(option.verdict != "does-not-fit" for option in self.options):
            return "after a change that makes the script fit"
        return ""

    def _setting_value(self, size: int | None) -> int | None:
        current = self.full_batch_size or self.estimate.batch_size
        if self.batch_setting is None or not current or size is None:
            return None
        return max(1, size * self.batch_setting.value // current)

    @property
    def fitting_command(self) -> str:
        """The command line of the script with the largest batch size that fits on a virtual GPU, or "" if no argument
        sets the batch size.
        """
        setting, value = self.batch_setting, self._setting_value(self.virtual_batch_size)
        if setting is None or setting.arguments is None or value is None or value == setting.value:
            return ""
        text = setting.text_with(value)
        if not setting.is_given:
            return f"{self.script} {text}"
        given = re.compile(rf"(?<!\S){re.escape(setting.text_with(setting.value))}(?!\S)")
        return given.sub(lambda _: text, self.script) if len(given.findall(self.script)) == 1 else ""

    def as_json(self) -> dict[str, Any]:
        return {
            **self.estimate.as_json(self.script),
            "options": [option.as_dict() for option in self.options],
            "batch_setting": None
            if self.batch_setting is None
            else {
                "name": self.batch_setting.name,
                "value": self.batch_setting.value,
                "change": self.batch_change,
            },
            "recommended_batch_size": self.recommended,
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
    on_long_wait: ShowProgress = lambda text: None,
) -> ScriptEstimate:
    """Trace a script and search for its largest batch size. If the script does not fit, trace it with each
    memory-saving option.

    With `plan`, the options are traced even if the script fits. `process` is the tracing process of the script, if it
    is already running. `on_verdict` is called as soon as the verdict is known. `on_long_wait` is called a few times
    during a long wait, with a description of the wait. A script that cannot be traced without data runs with real
    values on the CPU.
    """
    waiting = _Waiting(show_progress, on_long_wait)
    job = _ScriptJob(
        script, gpu, batch_size, steps, multiple_of, plan, waiting.start, on_verdict, waiting.report
    )
    try:
        try:
            return job.run("fake", process or start_tracing(script, gpu, steps=steps))
        except CannotTrace as failure:
            if not needs_torchrun(str(failure)):
                raise
        with tempfile.TemporaryDirectory(prefix="legroom-") as folder:
            environment = single_rank_environment(folder)
            single_rank = start_tracing(script, gpu, steps=steps, environment=environment)
            return job.run("fake", single_rank, (SINGLE_RANK_NOTE,), environment)
    except CannotTrace as failure:
        if not failure.needs_data:
            raise
        first = failure
    available = psutil.virtual_memory().available
    if first.reserved > available / 2:
        raise CannotTrace(
            f"{first}. Running the script with real values requires at least {format_size(first.reserved)} of host memory, "
            f"but only {format_size(available)} is available.",
            output=first.output,
        )
    waiting.start("the script needs real values, so Legroom runs the script on the CPU instead")
    reason = f"{first}, so Legroom ran the script with real values on the CPU"
    try:
        return job.run("cpu", start_tracing(script, gpu, mode="cpu", steps=steps), notes=(reason,))
    except CannotTrace as failure:
        if failure.error and _place(failure.error) == _place(first.error):  # the script fails on its own too
            raise
        raise CannotTrace(
            f"{first}, and running the script on the CPU failed: {failure}", output=failure.output
        ) from None


def _place(error: str) -> str:
    """Return the file, line and type of an error, for example `train.py:4, ValueError`. The message is omitted, because
    it may contain names of torch operations, which differ between a trace and a run.
    """
    return error.partition(": ")[0]


class _Waiting:
    MESSAGES = (30.0, 120.0, 240.0)

    def __init__(self, show_progress: ShowProgress, on_long_wait: ShowProgress) -> None:
        self._show_progress, self._on_long_wait = show_progress, on_long_wait
        self._action = ""
        self._shown = 0

    def start(self, action: str) -> None:
        self._action, self._shown = action, 0
        self._show_progress(action)

    def report(self, seconds: float, line: str) -> None:
        where = f", now at {line}" if line else ""
        self._show_progress(f"{self._action} ({seconds:.0f} s{where})")
        if self._shown < len(self.MESSAGES) and seconds >= self.MESSAGES[self._shown]:
            self._shown += 1
            self._on_long_wait(f"still {self._action} after {seconds:.0f} seconds{where}")


@dataclass(frozen=True, slots=True)
class _ScriptJob:
    """The arguments of `estimate_script`, and the methods that compute the estimate."""

    script: Script
    gpu: GpuSpec
    batch_size: int | None
    steps: int
    multiple_of: int
    plan: bool
    show_progress: ShowProgress
    on_verdict: Callable[[Estimate], None]
    on_wait: Callable[[float, str], None]

    def run(
        self,
        mode: Mode,
        process: WorkerProcess,
        notes: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> ScriptEstimate:
        self.show_progress("running the script up to its first batch")
        with TracedScript(process, self.gpu, mode=mode, on_wait=self.on_wait) as traced:
            self.show_progress(f"tracing {self.steps} {'step' if self.steps == 1 else 'steps'}")
            size = self.batch_size or traced.batch_size
            first = traced.start(self.batch_size)
            ahead = {}
            # The search needs this trace next, and a core is free now.
            if size is not None and mode == "fake":
                double = size * 2 // self.multiple_of * self.multiple_of
                ahead[double] = traced.start(double, with_uncertainty=False)
            started = time.monotonic()
            current = estimate_from_trace(first.result())
            seconds = time.monotonic() - started
            trace = current.trace
            if trace.trains and trace.validation_starts is None and not trace.untraced_evaluation:
                notes = (*notes, NO_VALIDATION_NOTE)
            current = replace(current, notes=(*current.notes, *notes))
            self.on_verdict(current)
            reason = _no_search_reason(current, seconds)
            if reason:
                return ScriptEstimate(
                    script=self._command, estimate=current, search=None, options=(), only_size_reason=reason
                )
            return self._search_and_plan(traced, current, ahead, environment or {})

    @property
    def _command(self) -> str:
        return shell.join(self.script.command_line)

    def _search_and_plan(
        self,
        traced: TracedScript,
        current: Estimate,
        ahead: dict[int, PendingTrace],
        environment: Mapping[str, str],
    ) -> ScriptEstimate:
        deadline = time.monotonic() + SEARCH_SECONDS

        def start_with(options: Sequence[MemoryOption]) -> Callable[[], Trace]:
            pending = traced.start(self.batch_size, options, urgent=False)

            def finish() -> Trace:
                self.show_progress(f"tracing an option that saves memory: {' + '.join(options)}")
                return pending.result(deadline + SEARCH_SECONDS - time.monotonic())

            return finish

        def by_loader(size: int) -> Trace:
            self.show_progress(f"searching for the largest batch size: {size}")
            pending = ahead.pop(size, None) or traced.start(size, with_uncertainty=False)
            return pending.result(deadline - time.monotonic())

        with_options = self.plan or not current.fits
        has_values = current.mode == "cpu"
        started = start_plan(current, start_with) if with_options and not has_values else []
        check = SettingCheck(
            self.script, self.gpu, self.steps, traced, environment, deadline, mode=current.mode
        )
        search: BatchSearch | None = None
        recommended: int | None = None
        trace_at: Callable[[int], Trace] = by_loader
        failure: CannotTrace | None = None
        # The check is closed first, so an interrupted search does not wait for it.
        with ThreadPoolExecutor(1) as pool, contextlib.closing(check):
            if current.batch_size is not None:
                checking = pool.submit(check.for_loader, current.batch_size)
                try:
                    search = self._search(by_loader, current, deadline)
                except CannotTrace as error:  # the script also uses its batch size in another place
                    failure = error
                setting = checking.result()
                if failure is not None and setting is not None and setting.value == current.batch_size:
                    trace_at = self._by_setting(setting, check)
                    search, failure = self._search_by_setting(trace_at, current, deadline)
            else:
                self.show_progress("looking for the argument that sets the batch size")
                setting = check.by_trace(current.trace)
                if setting is not None:
                    current = replace(current, batch_size=setting.value)
                    trace_at = self._by_setting(setting, check)
                    search, failure = self._search_by_setting(trace_at, current, deadline)
            if search is not None:
                recommended = self._recommended(search, trace_at, current, deadline)
        if search is not None and search.failures:
            size, text = next(iter(search.failures.items()))
            current = replace(
                current, notes=(f"With batch size {size}, the script fails: {text}", *current.notes)
            )
        reason = check.reason or NO_SETTING
        if failure is not None:
            note = f"No other batch size could be traced: {failure}"
            current = replace(current, notes=(note, *current.notes))
            reason = ""  # the note contains it
        result = ScriptEstimate(
            script=self._command,
            estimate=replace(current, max_batch_size=None if search is None else search.largest),
            search=search,
            options=(),
            options_tried=with_options,
            batch_setting=setting,
            only_size_reason=reason,
            full_batch_size=check.full_batch_size(current.batch_size),
            recommended=recommended,
            fits_virtual_gpu=not current.fits or fits_virtual_gpu(current.trace),
            virtual_batch_size=None
            if current.fits or search is None
            else _virtual_batch_size(search, recommended or 0),
        )
        if not with_options:
            return result
        smaller = None if search is None or recommended is None else search.traces[recommended]
        options = finish_plan(current, started, start_with, smaller=smaller, how=result.batch_change)
        return replace(result, options=tuple(options))

    def _search(self, trace_at: Callable[[int], Trace], current: Estimate, deadline: float) -> BatchSearch:
        assert current.batch_size is not None
        return largest_batch(
            trace_at,
            available_bytes(current.trace),
            start=current.batch_size,
            known=current.trace,
            multiple_of=self.multiple_of,
            deadline=deadline,
        )

    def _recommended(
        self, search: BatchSearch, trace_at: Callable[[int], Trace], current: Estimate, deadline: float
    ) -> int | None:
        """Return the largest batch size whose safe bound fits, and add the traces of this search to `search`.

        At the largest size that fits, a step may fit only because PyTorch frees its cache. A longer run can then still
        run out of memory, because its free memory becomes more fragmented.
        """
        assert current.batch_size is not None

        def with_uncertainty(size: int) -> Trace:
            trace = trace_at(size)
            trace.uncertain_bytes = uncertain_bytes(trace)
            trace.batch_size = size
            return trace

        for size, trace in search.traces.items():
            trace.uncertain_bytes = trace.uncertain_bytes or uncertain_bytes(trace)
            trace.batch_size = size
        try:
            safe = largest_batch(
                with_uncertainty,
                available_bytes(current.trace),
                start=current.batch_size,
                seen=dict(search.traces),
                multiple_of=self.multiple_of,
                max_traces=len(search.traces) + MAX_SAFE_TRACES,
                safe=True,
                deadline=deadline,
            )
        except CannotTrace:
            return None
        search.traces.update(safe.traces)
        # This search may find a larger size, because memory use does not always grow with the batch size.
        search.tried.update({size: True for size, fits in safe.tried.items() if fits})
        if current.fits and current.batch_size > (safe.largest or 0):
            return current.batch_size
        return safe.largest

    def _search_by_setting(
        self, trace_at: Callable[[int], Trace], current: Estimate, deadline: float
    ) -> tuple[BatchSearch | None, CannotTrace | None]:
        """Search for the largest batch size by starting the script again for each size. Return the result of the
        search, or the reason why it failed.
        """
        try:
            return self._search(trace_at, current, deadline), None
        except CannotTrace as failure:
            return None, failure

    def _by_setting(self, setting: BatchSetting, check: SettingCheck) -> Callable[[int], Trace]:
        """Return a function that traces the script at another batch size, by starting it again with a different value
        of the setting.
        """

        def trace_at(size: int) -> Trace:
            self.show_progress(f"searching for the largest batch size: {setting.text_with(size)}")
            trace = check.trace(setting, size)
            trace.batch_size = size
            return trace

        return trace_at


def _no_search_reason(current: Estimate, seconds: float) -> str:
    """Return the reason why no other batch size is traced, or "". `seconds` is the time of the first trace.

    A partial step at another batch size is of little use. With real values, the largest batch that fits the GPU also
    needs host memory and time. If the script does not fit, all other sizes are smaller and need less of both.
    """
    if current.trace.is_partial:
        return "the script did not complete a step in time"
    if current.mode == "fake":
        return ""
    if current.verdict == "does-not-fit":
        too_long = f"the script needs real values, and one trace takes {seconds:.0f} seconds"
        return too_long if seconds > SEARCH_SECONDS else ""
    capacity = available_bytes(current.trace)
    if seconds * max(1.0, capacity / current.peak_reserved) > MAX_TRACE_WITH_VALUES:
        sizes = "larger batches" if current.fits else "other batch sizes"
        return f"the script needs real values, and {sizes} would take too long"
    if current.fits and capacity > psutil.virtual_memory().available / 2:
        return "the script needs real values, and larger batches may need too much host memory"
    return ""


def _virtual_batch_size(search: BatchSearch, recommended: int) -> int | None:
    fitting = sorted((size for size in search.traces if size <= recommended), reverse=True)
    return next((size for size in fitting if fits_virtual_gpu(search.traces[size])), None)


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
    """Return whether a script failed because torchrun's environment variables are not set.

    Legroom sets torchrun's variables only after this failure, because some scripts train differently if the variables
    are set.
    """
    return _MISSING_VARIABLE.search(error) is not None


def single_rank_environment(folder: str) -> dict[str, str]:
    """Return the variables that torchrun sets for a single rank.

    The process group of this rank runs without threads, because a fork would lose the threads. Objects that the rank
    broadcasts are stored in `folder`.
    """
    # Imported late, because the module imports torch and few scripts need it.
    from legroom.observe.virtual.single_rank import VARIABLE as LONE_RANK

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), LONE_RANK: folder,
    }  # fmt: skip
