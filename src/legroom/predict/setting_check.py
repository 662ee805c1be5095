"""Finds the setting that determines the batch size of a script, by starting the script again with a different value."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from legroom.gpus.catalog import GpuSpec
from legroom.memory.events import Alloc
from legroom.observe.script import Script
from legroom.observe.source.batch_setting import BatchSetting
from legroom.predict.tracing.script import CannotTrace, OutOfTime, TracedScript
from legroom.predict.tracing.trace import Mode, Trace
from legroom.predict.tracing.worker_process import WorkerProcess, start_tracing

MAX_CHECKED = 5
CHECK_SECONDS = 30.0


@dataclass(slots=True)
class SettingCheck:
    """Checks which settings of one script (see `BatchSetting`) determine its batch size, until `time.monotonic()`
    reaches `deadline`."""

    script: Script
    gpu: GpuSpec
    steps: int
    traced: TracedScript
    environment: Mapping[str, str]
    deadline: float
    mode: Mode = "fake"
    _running: WorkerProcess | None = None
    _first: tuple[BatchSetting, int, Trace] | None = None
    """The trace of a successful check, which the search for the largest batch size reuses."""
    reason: str = ""
    """The reason why `by_trace` found no setting, or "" if the script has no candidate."""

    def for_loader(self, size: int) -> BatchSetting | None:
        """Return the setting that changes the batch size of the script's DataLoader. `size` is the current batch size.

        If the data set is smaller than one batch, `size` is smaller than the batch size of the DataLoader.

        If the deadline prevents a check, the most likely candidate is returned, provided that its value is `size`.
        """
        size = self.full_batch_size(size) or size
        for setting in self.traced.settings[:MAX_CHECKED]:
            try:
                with self._restarted(setting, setting.value * 2) as again:
                    found = again.batch_size if self.traced.batch_size else again.trace().batch_size
            except OutOfTime:
                return setting if setting.rank <= 0 and setting.value == size else None
            except CannotTrace:
                continue
            if found == 2 * size:
                return setting
        return None

    def full_batch_size(self, size: int | None) -> int | None:
        """Return the batch size of the DataLoader if its batches are smaller, or None."""
        full = self.traced.batch_size
        return full if full and size and size < full else None

    def by_trace(self, current: Trace) -> BatchSetting | None:
        for setting in self.traced.settings[:MAX_CHECKED]:
            double = setting.value * 2
            try:
                with self._restarted(setting, double) as again:
                    is_doubled = _is_doubled(self.traced.shapes, again.shapes)
                    if not is_doubled and setting.rank > 0:
                        continue
                    trace = again.start(with_uncertainty=False).result()
            except OutOfTime:
                self._failed(f"a trace with another value of `{setting.name}` exceeded the time limit")
                continue
            except CannotTrace:
                if setting.rank <= 0:
                    self._failed(f"the script failed with another value of `{setting.name}`")
                continue
            if is_doubled or _allocated(trace) > _allocated(current):
                self._first = (setting, double, trace)
                return setting
            self._failed(
                f"a larger value of `{setting.name}` did not increase the memory of the traced steps"
            )
        return None

    def _failed(self, reason: str) -> None:
        self.reason = self.reason or reason  # the most likely candidate comes first

    def trace(self, setting: BatchSetting, size: int) -> Trace:
        """Restart the script with a different value of a setting, and trace it. Raises `CannotTrace`."""
        if self._first is not None and self._first[:2] == (setting, size):
            return self._first[2]
        with self._restarted(setting, size, limit=float("inf")) as again:
            return again.start(with_uncertainty=False).result()

    def close(self) -> None:
        if self._running is not None:
            self._running.kill()

    def _restarted(self, setting: BatchSetting, size: int, limit: float = CHECK_SECONDS) -> TracedScript:
        left = min(limit, self.deadline - time.monotonic())
        if left <= 0:
            raise OutOfTime("The search for the largest batch size reached its time limit.")
        options = setting.start_options(size)
        options["environment"] = {**self.environment, **options["environment"]}
        process = start_tracing(
            setting.script_with(self.script, size),
            self.gpu,
            mode=self.mode,
            steps=self.steps,
            **options,
        )
        self._running = process
        try:
            return TracedScript(process, self.gpu, mode=self.mode, timeout=left)
        except BaseException:
            process.close()
            raise


def _is_doubled(before: list[tuple[int, ...]], after: list[tuple[int, ...]]) -> bool:
    """Return whether the same dimension of some tensors has doubled, and no other dimension has changed.

    The doubled dimension is usually the first dimension, but some models have the batch in the second dimension.
    """
    if len(before) != len(after) or any(len(a) != len(b) for a, b in zip(before, after, strict=True)):
        return False
    changed = {
        (index, new / old if old else 0.0)
        for a, b in zip(before, after, strict=True)
        for index, (old, new) in enumerate(zip(a, b, strict=True))
        if old != new
    }
    return bool(changed) and {factor for _, factor in changed} == {2.0} and len({i for i, _ in changed}) == 1


def _allocated(trace: Trace) -> int:
    return sum(event.bytes for event in trace.events if type(event) is Alloc)
