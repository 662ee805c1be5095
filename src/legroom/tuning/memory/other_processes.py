"""Reads the GPU memory used by other programs, at the start of a study and before each trial.

Trials share the memory that other programs do not use. The driver reports memory per process, so the memory of trials
can be separated from the memory of other programs. In some containers, the process IDs that the driver reports differ
from the IDs inside the container, so the memory of trials is not known. In that case, two lower bounds are used: the
memory that exceeds the reservations of the trials, and the memory that was in use when no trial was running.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence

from legroom.gpus.machine import VisibleGpu
from legroom.gpus.nvml import NotAvailable
from legroom.gpus.usage import gpus_in_use
from legroom.tuning.memory.admission import TrialGpu
from legroom.units import format_size

MIN_REPORTED_PART = 50
"""A change of less than 1/50 of a GPU's memory is not reported. Drivers and displays cause smaller changes."""

RETRY_FACTOR, SLOW_SECONDS = 10, 0.05
"""If a query takes more than `SLOW_SECONDS` seconds, no further query starts for `RETRY_FACTOR` times that duration.
Without NVML, a query starts a process that uses CUDA. Without the pause after a slow query, trials would wait for a
query at every report.
"""
MAX_AGE = 2.0
"""The maximum age in seconds of the last query when a trial starts."""


class OtherProcessUsage:
    """The memory that other programs use on each GPU. Other programs do not use virtual GPUs. The GPUs of a cluster
    are read once, at the start.
    """

    def __init__(
        self,
        gpus: Sequence[TrialGpu],
        query: Callable[[], Sequence[VisibleGpu]] = gpus_in_use,
        our_processes: Callable[[], set[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = [gpu for gpu in gpus if gpu.memory and not gpu.virtual]
        self._here = [gpu for gpu in self._gpus if not gpu.machine]
        self._query, self._our_processes = query, our_processes or _descendants
        self._before = self._our_processes() if self._here else set()
        """The processes that this program started before the study."""
        self._used = {gpu.index: gpu.used_by_others for gpu in self._gpus}
        self._used_without_trials = dict(self._used)
        """The bytes that other programs used on each GPU when no trial was running there."""
        self._reported = dict.fromkeys(self._used, 0)
        self._clock = clock
        self._last_query = self._not_before = -math.inf

    def used(self, gpu: TrialGpu) -> int:
        return self._used.get(gpu.index, 0)

    def query(self, given: Mapping[int, int], *, before_start: bool = False) -> None:
        """Query the GPUs, unless they were queried recently. `given` contains the bytes reserved for running trials, by
        GPU index. If `before_start` is set, a trial is about to start, and the result must be recent.
        """
        began = self._clock()
        not_before = min(self._not_before, self._last_query + MAX_AGE) if before_start else self._not_before
        if not self._here or began < not_before:
            return
        seen = {visible.index: visible for visible in self._query()}
        self._last_query = self._clock()
        seconds = self._last_query - began
        self._not_before = began + (1 + RETRY_FACTOR) * seconds if seconds > SLOW_SECONDS else -math.inf
        for gpu in self._here:
            visible = seen.get(gpu.index)
            if visible is not None and not isinstance(visible.used, NotAvailable):
                self._used[gpu.index] = min(
                    gpu.memory, self._used_by_others(visible, given.get(visible.index, 0))
                )

    def messages(self) -> list[str]:
        """Return one message for each GPU on which the memory of other programs has changed considerably since the
        last message.
        """
        messages = []
        for gpu in self._gpus:
            used = self.used(gpu)
            if abs(used - self._reported[gpu.index]) * MIN_REPORTED_PART > gpu.memory:
                self._reported[gpu.index] = used
                left = format_size(gpu.memory - used)
                what = f"Other programs use {format_size(used)} on {gpu.name}"
                if used * MIN_REPORTED_PART <= gpu.memory:
                    what = f"Other programs no longer use much memory on {gpu.name}"
                messages.append(f"{what}. Trials can use {left} on this GPU.")
        return messages

    def _used_by_others(self, visible: VisibleGpu, given: int) -> int:
        assert not isinstance(visible.used, NotAvailable)
        ours = self._used_by_trials(visible)
        if ours is not None:
            return max(0, visible.used - ours)
        if not given:
            self._used_without_trials[visible.index] = visible.used
            return visible.used
        return max(visible.used - given, min(self._used_without_trials[visible.index], visible.used))

    def _used_by_trials(self, visible: VisibleGpu) -> int | None:
        if isinstance(visible.processes, NotAvailable):
            return None
        pids = self._our_processes() - self._before
        sizes = [process.bytes for process in visible.processes if process.pid in pids]
        known = [size for size in sizes if not isinstance(size, NotAvailable)]
        return sum(known) if known and len(known) == len(sizes) else None


def _descendants() -> set[int]:
    """Return all descendants of this process, which include the trials of every local engine."""
    import psutil

    try:
        return {process.pid for process in psutil.Process(os.getpid()).children(recursive=True)}
    except psutil.Error:
        return set()
