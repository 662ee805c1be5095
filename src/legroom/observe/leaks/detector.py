"""Detects memory leaks in a training loop, with negligible overhead.

After an iteration, the detector reads two counters: bytes in use on the devices, and bytes in use in the C heap. The
detector also checks whether the graphs of earlier backward passes are freed. If iterations take only a few
milliseconds, only some iterations are sampled (see `sampling_budget`).

There are three signs of a leak: growing device memory, growing host memory, and retained graphs. A series of scans (see
`ScanWindow`) starts if a counter reaches a new maximum in two consecutive iterations, or if graphs of earlier backward
passes stay alive. A series also starts shortly after the start of the loop, and from time to time later, to find growth
that the counters do not show. A series that finds nothing ends after three scans. Each further series for the same sign
starts after a longer delay. Growth that occurs only in some iterations is found by a separate series, whose scans are
far apart (see `RareGrowthScans`).

A scan reads objects of the whole process, so scans are skipped while several threads train (see `training_threads`).
The modules that explain and report a leak (`leaks.search`) are imported only when a scan finds growth.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from legroom.observe.leaks.counters import MemoryCounters
from legroom.observe.leaks.created_objects import created_objects
from legroom.observe.leaks.graph_ages import BackwardRoots, NodeNumbers
from legroom.observe.leaks.iterations import IterationTracker
from legroom.observe.leaks.observations import MAX_SCANS
from legroom.observe.leaks.sampling_budget import RareGrowthScans, SamplingBudget
from legroom.observe.leaks.survivors import DeviceTrend
from legroom.observe.leaks.window import TENSOR_SCANS, ScanWindow
from legroom.observe.training_threads import exclusive_scan, other_threads_train
from legroom.observe.virtual import active_virtual_gpu

if TYPE_CHECKING:
    from legroom.memory.detected_leak import DetectedLeak
    from legroom.observe.leaks.search.reports import LeakReports
    from legroom.observe.leaks.search.suspects import Suspect

_SYMPTOMS = ("device", "host", "graph")
FIRST_SCAN = 2
RISES = 2
MAXIMUM_OVER = 8
"""A value is a new maximum if it is larger than the values of this many previous iterations."""
GRAPHS_RETAINED = 2
"""The number of earlier iterations whose graphs must be retained to start a series of scans."""
SCANS_WITHOUT_FINDING = 3
SCANS_AFTER_FINDING = TENSOR_SCANS + 3
"""After this many scans, every kind of leak is visible. A series that found a leak continues up to this number, because
there may be another leak.
"""
LONG_SCANS = 18
"""The maximum number of scans in a series before the first optimizer step. Until this step, a graph counts as a leak
only after more iterations than later in the run, so more scans are needed.
"""
TRACE_ITERATIONS = 2
RARE_TRACE_ITERATIONS = 12
"""The number of iterations to trace if memory grows rarely. The next growth may occur only after several iterations."""
WARM_UP_ITERATIONS = 13
"""A cache that still grows in every iteration after this many iterations is a leak."""

MAX_DELAY_EXPONENT = 6
"""The delay between two series of scans is doubled at most this many times. After n series for the same sign of a leak,
the next series starts only after 4 * 2**n iterations.
"""
MAX_SCAN_FRACTION = 0.05
"""After the longest delay, another series starts only if scans have used less than this fraction of the run time."""

HOST_GROWTH = 32
"""The C heap may grow by this many bytes per iteration without a leaked tensor, for example because of a list of
numbers.
"""
MAX_STEADY_SECONDS = 2.0
"""The maximum total time in seconds of all searches for the variables that cause steady growth. If `MAX_SCAN_FRACTION`
of the run time is longer, this longer time is the maximum. When this time is used up, the next search runs only after
the number of iterations has doubled since the last search.
"""
MAX_AGE_AT_END = 0.7
"""If the last scan ran after at least this fraction of the iterations, the growth that it found is assumed to continue
until the end of the run.
"""
MIN_GRAPH_BYTES = 16 * 1024
"""A graph that grows by fewer bytes per iteration may grow without device memory, so device memory does not show
whether its growth stopped.
"""
MIN_CONTINUED = 0.15
"""If the last scan ran earlier than `MAX_AGE_AT_END`, the growth is reported only if device memory also grew in the
second half of the run. The minimum growth is this fraction of `bytes_per_step` times the number of iterations.
"""

SEVERAL_THREADS = "several threads trained at the same time, so the heap was not searched for leaks"


class LeakDetector:
    """Between `attach` and `detach`, calls `on_leak` for each leak.

    The same leak can be reported again later, with updated sizes and the same `DetectedLeak.identity`.
    """

    def __init__(
        self,
        on_leak: Callable[["DetectedLeak"], None],
        *,
        allocated: Callable[[], int] | None = None,
        on_device: Callable[[torch.Tensor], bool] | None = None,
        fraction: float = 0.003,
    ) -> None:
        """If the program does not use the CUDA allocator, `allocated` returns the device memory in use, and `on_device`
        returns whether a tensor is on the device. `fraction` is the maximum fraction of the run time that the detector
        may use while nothing grows.
        """
        self.leaks: dict[tuple[object, ...], DetectedLeak] = {}
        self.iteration = 0
        self.scan_seconds = 0.0
        self.error = ""
        self.several_threads = False
        """True if several threads trained at the same time. If so, no further scans run."""
        self._began = time.perf_counter()
        self._lock = threading.Lock()
        self._unsampled = 0
        """The number of iterations that ended on other threads while the last scan ran."""
        self._roots = BackwardRoots()
        self.iterations = IterationTracker(self._iteration_ended, self._roots.mark, self._thread_changed)
        self._on_leak = on_leak
        self._on_device = on_device or _is_on_accelerator
        self._counters = MemoryCounters(allocated)
        self._numbers = NodeNumbers()
        self._window: ScanWindow | None = None
        self._budget = SamplingBudget(fraction)
        self._recent: dict[str, deque[int]] = {
            counter: deque(maxlen=MAXIMUM_OVER) for counter in ("device", "host")
        }
        self._rises = {"device": 0, "host": 0}
        self._highest = {"device": 0, "host": 0}
        self._consecutive_maxima = 0
        """The number of consecutive iterations in which a counter reached its overall maximum."""
        self._rare_scans = self._new_rare_scans()
        self._opened_by: list[str] = []
        self._corrections = 0
        self._is_restart_due = False
        self._windows_opened = dict.fromkeys(_SYMPTOMS, 0)
        self._next_scheduled = FIRST_SCAN
        self._not_before = dict.fromkeys(_SYMPTOMS, 0)
        self._warming_up: dict[tuple[object, ...], tuple[int, int]] = {}
        self._reports: LeakReports | None = None
        self._steady_seconds, self._searched_at = 0.0, 0
        self._trends = {True: DeviceTrend(), False: DeviceTrend()}
        """The trends of device memory in training iterations (True) and in other iterations (False)."""
        self._unnamed: DetectedLeak | None = None
        """A retained graph whose holder was not found. The leak is reported at the end of the run, unless another leak
        is found.
        """
        self._is_attached, self._is_finished = False, False

    def begin_loop(self) -> None:
        # Results of earlier loops do not delay the scans of the new loop.
        self._next_scheduled = self.iteration + FIRST_SCAN
        self._windows_opened, self._not_before = dict.fromkeys(_SYMPTOMS, 0), dict.fromkeys(_SYMPTOMS, 0)

    def attach(self) -> None:
        self._began = time.perf_counter()
        created_objects.start()
        self._is_attached = True
        self.iterations.attach()

    def detach(self) -> None:
        self.iterations.detach()
        self._window = None
        if self._reports is not None:
            self._reports.finish_trace(self.iteration, now=True)
        self.finish()
        if self._is_attached:
            self._is_attached = False
            created_objects.stop()

    def finish(self) -> None:
        """Report steady growth if nothing else was found, and mark growth that stopped. Call this method at the end of
        the run. Later calls do nothing.
        """
        if self._is_finished or self.error or self.several_threads:
            return
        self._is_finished = True
        steady = self._rare_scans.steady
        for leak in list(self.leaks.values()):
            if leak.identity in self._open_reports().released or (not steady.grows and self._has_ended(leak)):
                self.leaks.pop(leak.identity)
                self._on_leak(replace(leak, ended=True))
        if self.leaks:
            return
        for suspect in steady.suspects:
            if self._continues(suspect.leak, steady.history.last_iteration):
                self._open_reports().report_at_end(suspect)
        if self._unnamed is not None and not self.leaks and not steady.suspects:
            self._report(self._unnamed)

    def _continues(self, leak: "DetectedLeak", last_scan: int) -> bool:
        if last_scan >= MAX_AGE_AT_END * self.iteration:
            return True
        grown = self._trends[not leak.evaluation].growth_at_end()
        return grown is not None and grown >= MIN_CONTINUED * leak.bytes_per_step * self.iteration

    def _has_ended(self, leak: "DetectedLeak") -> bool:
        is_small = leak.kind == "graph" and leak.bytes_per_step < MIN_GRAPH_BYTES
        if is_small or leak.on_host or not leak.bytes_per_step:
            return False
        grown = self._trends[not leak.evaluation].growth_at_end()
        return grown is not None and grown < leak.bytes_per_step / 2

    def _iteration_ended(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._end_iteration()
            finally:
                self._lock.release()
        else:  # another thread scans
            self._unsampled += 1

    def _end_iteration(self) -> None:
        # This method runs after every iteration of every loop, so keep the code before `_is_busy` minimal.
        now, iteration = time.perf_counter(), self.iteration + self._unsampled
        self._unsampled = 0
        self.iteration = self._roots.iteration = iteration + 1
        if self._is_restart_due or self.iterations.corrections != self._corrections:
            self._restart(iteration)
        self._numbers.end_iteration(iteration)
        if other_threads_train():
            self._pause_scans()
            return
        if not (self._budget.is_due(now) or self._is_busy(iteration)):
            self.iterations.ignores_backward = not self._budget.expects_sample
            return
        started = time.thread_time()
        if self._reports is not None:
            self._reports.end_iteration(self.iteration)
        symptoms, uncertain = self._read_counters()
        self._budget.spend(now, time.thread_time() - started, again=uncertain)
        self.iterations.ignores_backward = not self._budget.expects_sample
        # After several consecutive maxima, a series of scans finds more than a rare scan.
        new_maximum = self._consecutive_maxima == 1 and self._window is None
        watched = self.iterations
        searches = watched.trains or watched.by_model_calls or watched.has_only_batches
        if searches and self._rare_scans.is_due(iteration, new_maximum=new_maximum, in_use=self._lowest_use):
            self._timed(self._scan_for_rare_growth, iteration)
        if self._window is None:
            due = [symptom for symptom in symptoms if self._opens_window(symptom, iteration, now)]
            if iteration >= self._next_scheduled:
                self._next_scheduled = max(4 * iteration, 32)
            elif not due:
                return
            self._opened_by = due
            self._window = ScanWindow(self._numbers, self.iterations, on_device=self._on_device)
        self._timed(self._scan, iteration)

    def _lowest_use(self) -> int:
        """Return the lowest memory use in bytes that was measured after the last few sampled iterations."""
        device, host = map(min, self._recent.values())
        return device or host - HOST_GROWTH * self.iteration

    def _opens_window(self, symptom: str, iteration: int, now: float) -> bool:
        """Return whether a sign of a leak starts a series of scans. After many series, another series starts only if
        scans have used a small fraction of the run time, or if the number of iterations has doubled.
        """
        if iteration < self._not_before[symptom]:
            return False
        if self._windows_opened[symptom] < MAX_DELAY_EXPONENT or iteration >= 2 * self._not_before[symptom]:
            return True
        return self.scan_seconds < MAX_SCAN_FRACTION * (now - self._began)

    def _timed(self, scan: Callable[[int], None], iteration: int) -> None:
        started = time.perf_counter()
        try:
            with exclusive_scan() as allowed:
                if allowed:
                    scan(iteration)
        except Exception as error:  # an error in a scan must not stop the user's loop
            self.error = f"{type(error).__name__}: {error}"
            self.detach()
        self.scan_seconds += time.perf_counter() - started

    def _scan_for_rare_growth(self, iteration: int) -> None:
        for suspect in self._rare_scans.scan(iteration):
            if suspect.leak.identity not in self.leaks:
                self._judge(suspect, iteration, trace_iterations=RARE_TRACE_ITERATIONS)
        self._search_steady_growth(iteration)

    def _search_steady_growth(self, iteration: int) -> None:
        steady = self._rare_scans.steady
        if self.leaks or not steady.grows:
            return
        limit = max(MAX_STEADY_SECONDS, MAX_SCAN_FRACTION * (time.perf_counter() - self._began))
        if self._steady_seconds > limit and iteration < 2 * self._searched_at:
            return
        from legroom.observe.leaks.search.steady_search import find_suspects  # not needed without a leak

        started, self._searched_at = time.thread_time(), iteration
        steady.suspects = find_suspects(steady, self.iterations, iteration)
        self._steady_seconds += time.thread_time() - started
        for suspect in steady.suspects:
            if self._open_reports().needs_trace(suspect):
                self._open_reports().trace(suspect, self.iteration + RARE_TRACE_ITERATIONS)

    def _new_rare_scans(self) -> RareGrowthScans:
        window = ScanWindow(self._numbers, self.iterations, on_device=self._on_device, rare=True)
        return RareGrowthScans(window, fraction=self._budget.fraction * 2 / 3)

    def _pause_scans(self) -> None:
        # Another thread trains. Earlier results may include objects of that thread.
        self.several_threads = self.iterations.ignores_backward = True
        self._window = None
        if self._reports is not None:
            self._reports.stop_trace()

    def _thread_changed(self) -> None:
        # PyTorch numbers the autograd nodes of each thread separately, so earlier results are discarded.
        self._is_restart_due = True

    def _restart(self, iteration: int) -> None:
        # The iterations before the first optimizer step were micro-batches of this step. A loop on a different thread
        # also causes a restart.
        if self.iterations.corrections != self._corrections:
            self._unnamed = None
            if self._reports is not None:
                self._reports.iterations_corrected()
        self._corrections, self._is_restart_due = self.iterations.corrections, False
        self._numbers = NodeNumbers()
        self._window = None
        self._rare_scans = self._new_rare_scans()
        self._next_scheduled = iteration + FIRST_SCAN

    def _is_busy(self, iteration: int) -> bool:
        is_tracing = self._reports is not None and self._reports.is_tracing
        return self._window is not None or is_tracing or iteration >= self._next_scheduled

    def _read_counters(self) -> tuple[list[str], bool]:
        """Return the signs of a leak that appeared, and whether a sign may appear soon. `graph` means that graphs are
        retained. `device` and `host` mean that this counter has risen for several iterations.
        """
        uncertain, symptoms = False, []
        maxima, self._consecutive_maxima = self._consecutive_maxima, 0
        for counter, value in zip(("device", "host"), self._counters.read(), strict=True):
            recent = self._recent[counter]
            if counter == "device":
                self._trends[self.iterations.trains].add(self.iteration, value)
            self._rises[counter] = self._rises[counter] + 1 if len(recent) >= 3 and value > max(recent) else 0
            recent.append(value)
            if value > self._highest[counter]:
                self._highest[counter] = value
                self._consecutive_maxima = maxima + 1
            if self._rises[counter] >= RISES:
                symptoms.append(counter)
            elif self._rises[counter]:
                uncertain = True
        retained = self._roots.retained_iterations()
        return ([*symptoms, "graph"] if retained >= GRAPHS_RETAINED else symptoms), uncertain or retained == 1

    def _scan(self, iteration: int) -> None:
        window = self._window
        assert window is not None
        suspects = window.scan(iteration)
        for suspect in suspects:
            if self._judge(suspect, iteration):
                window.reported.add(suspect.leak.kind)
        found = bool(window.reported)
        only_results = bool(suspects) and all(each.min_iterations for each in suspects)
        long = not self.iterations.has_stepped and not window.quiet
        waits = any(
            until - WARM_UP_ITERATIONS <= iteration <= until for until, _ in self._warming_up.values()
        )
        if (
            ((found or only_results) and window.scans >= SCANS_AFTER_FINDING)
            or window.scans >= (LONG_SCANS if long else MAX_SCANS)
            or (
                window.quiet
                and not found
                and window.scans >= SCANS_WITHOUT_FINDING + (iteration < 8 or waits)
            )
        ):
            self._window = None
            self._rises = dict.fromkeys(self._rises, 0)
            # Each sign is delayed separately. Otherwise, floats that fill the heap would hide a retained graph.
            for symptom in _SYMPTOMS if found else self._opened_by:
                self._windows_opened[symptom] = min(self._windows_opened[symptom] + 1, MAX_DELAY_EXPONENT)
                self._not_before[symptom] = iteration + 4 * 2 ** self._windows_opened[symptom]
            if self._next_scheduled <= iteration + WARM_UP_ITERATIONS and self._warming_up:
                self._not_before = {
                    symptom: max(until, self._next_scheduled) for symptom, until in self._not_before.items()
                }

    def _judge(self, suspect: "Suspect", iteration: int, *, trace_iterations: int = TRACE_ITERATIONS) -> bool:
        """Report the suspect if it is a leak, possibly after tracing. Return whether it was reported or will be
        reported.
        """
        leak = suspect.leak
        if not leak.name:  # a later scan may find the holder
            self._unnamed = leak
            return False
        if suspect.may_be_warming_up:
            wait = max(WARM_UP_ITERATIONS, suspect.min_iterations)
            until, length = self._warming_up.setdefault(leak.identity, (iteration + wait, suspect.length))
            # Schedule the next series so that every kind of leak is visible exactly when the warm-up time is over.
            due = max(until - TENSOR_SCANS - 1, iteration + 1)
            self._next_scheduled = min(due, self._next_scheduled) if suspect.min_iterations else due
            if iteration < until or suspect.length - length < suspect.min_rate * (iteration - until + wait):
                return False
        if suspect.container_to_trace:
            return self._open_reports().trace(suspect, self.iteration + trace_iterations)
        self._report(leak, suspect)
        return True

    def _report(self, leak: "DetectedLeak", suspect: "Suspect | None" = None) -> None:
        self._open_reports().report(leak, suspect)

    def _open_reports(self) -> "LeakReports":
        if self._reports is None:
            from legroom.observe.leaks.search.reports import LeakReports  # not needed without a leak

            self._reports = LeakReports(self.leaks, self._on_leak)
        return self._reports


def _is_on_accelerator(tensor: torch.Tensor) -> bool:
    virtual = active_virtual_gpu()
    if virtual is not None:
        return virtual.recorder.measure(tensor) is not None
    return tensor.device.type not in ("cpu", "meta")
