"""Decides which trial starts next and on which GPU. When the processes of a trial end, the dispatcher decides whether
the trial is complete or restarts.

    for task in dispatcher.next_tasks() or ():   # one task per rank: start a process for each
        ...
    dispatcher.reported(number, message)         # rank 0's report; returns the decision
    dispatcher.ended(number, end)                # its processes have ended

All engines share the dispatcher. Therefore, every engine restarts trials in the same way after an out-of-memory error,
a pause or a copied checkpoint.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from legroom.gpus.machine import processors
from legroom.tuning.engines.cpu_share import CpuShare
from legroom.tuning.job import TuneJob
from legroom.tuning.memory.admission import Admission, Fit
from legroom.tuning.memory.packing import Packer, TrialPlacement
from legroom.tuning.schedule.protocol import Action, Decision
from legroom.tuning.study_runner import ReadyTrial, StudyRunner
from legroom.tuning.trial.process import TrialExit, TrialTask
from legroom.tuning.trial.records import TrialOutcome, TrialState
from legroom.tuning.trial.trial import THE_METRIC, ReportMessage

PREPARED_PER_SLOT = 4
"""The number of trials to prepare for each trial that can run in parallel, if the search does not learn from
results."""
MANY_MICRO_BATCHES = 8
"""A trial is treated as slow if its number of micro-batches is more than this multiple of the median. If the searcher
chooses the order, slow trials start last.
"""
STUCK_SECONDS = 5.0
"""The number of seconds after which a trial is estimated again if it does not fit into the free memory. The memory of
a trial that just ended may not be free yet.
"""


@dataclass(slots=True)
class _RunningTrial:
    """A running trial."""

    fit: Fit | None
    is_alone: bool
    memory: int
    candidate_sizes: list[int]
    decision: Decision = field(default_factory=Decision)


class TrialDispatcher:
    def __init__(self, job: TuneJob, runner: StudyRunner) -> None:
        self._job, self._runner = job, runner
        self._cpu_share = CpuShare(runner.folder_of(0).with_name("threads"), job.ranks)
        self.slots = slots_for(job)
        self._ahead = prepare_trials(job, self.slots)
        self._packer = Packer(job.gpus, self.slots, job.ranks, runner.other_processes.used)
        self._ready: dict[int, ReadyTrial] = {}
        self._micro_batches: dict[int, int] = {}
        self._running: dict[int, _RunningTrial] = {}
        self._alone: dict[int, int] = {}
        """The trials that ran out of memory and therefore need a GPU to themselves, each with the minimum memory of
        its GPU in bytes.
        """
        self._stuck_since: float | None = None

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def is_over(self) -> bool:
        return not self._running and not self._ready and self._runner.is_over

    def prepare_trials(self) -> None:
        """Collect trials whose estimate is complete, and request further estimates. This method starts no trial, so an
        engine can call it during its own startup.
        """
        target = self._target_count()
        while len(self._ready) < target:
            ready = self._runner.next(ahead=self._max_pending())
            if ready is None:
                break
            self._ready[ready.number] = ready
            self._micro_batches[ready.number] = ready.admission.micro_batches

    def next_tasks(self) -> list[TrialTask] | None:
        self.prepare_trials()
        self._divide_cpus()  # an estimate may have started or ended
        waiting = self._waiting()
        if waiting and self.running < self.slots:
            would_start = self._packer.has_room(waiting, alone=self._alone)
            self._runner.refresh_other_processes(self._packer.reserved, before_start=would_start)
        placement = self._next_placement(waiting)
        if placement is None:
            self._estimate_again_if_stuck(waiting)
            return None
        return self._start(self._ready.pop(placement.number), placement)

    def reported(self, number: int, message: ReportMessage) -> Action:
        """Decide whether a trial continues after a report. If the trial does not continue, its processes end, and the
        engine calls `ended`.
        """
        decision = self._runner.reported(
            number,
            self._named(message.metrics),
            checkpoint=message.checkpoint,
            actual_bytes=message.actual_bytes,
            ooms=message.ooms,
            micro_batch=message.micro_batch,
        )
        self._running[number].decision = decision
        self._divide_cpus()
        return decision.action

    def ended(self, number: int, end: TrialExit) -> None:
        trial = self._running.pop(number)
        self._divide_cpus()
        self._packer.release(number)
        self._runner.measured(number, end.actual_bytes, end.ooms)
        if end.is_disk_full:
            self._runner.disk_is_full(number, end.reason)
        if trial.fit is not None:
            if end.ooms:
                self._runner.record_oom(number, trial.fit, trial.fit.safe)
            elif number in self._alone:  # the trial ran out of memory before, and now its size is known
                seen = self._runner.records[number].memory.actual or 0
                self._runner.record_oom(number, trial.fit, seen)
        if end.final is not None:
            self._runner.reported(number, self._named(end.final))
        decision = trial.decision
        min_size = self._larger_gpu_size(number, trial) if end.state is TrialState.OUT_OF_MEMORY else None
        if min_size is not None:
            self._alone[number] = min_size
            which = "a larger GPU" if min_size else "a GPU"
            self._runner.requeue(number, TrialState.WAITING, f"{end.reason}; restarting alone on {which}")
        elif end.state is TrialState.STOPPED and decision.action is Action.PAUSE:
            self._runner.requeue(number, TrialState.PAUSED, decision.reason)
        elif end.state is TrialState.STOPPED and decision.action is Action.EXPLOIT:
            self._runner.exploit(number, decision)
        else:
            is_done = end.state is TrialState.STOPPED and decision.is_done
            state = TrialState.FINISHED if is_done else end.state
            self._runner.ended(
                number, TrialOutcome(state, end.reason or decision.reason, end.affects_all_trials)
            )

    def _named(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {self._job.metric if name == THE_METRIC else name: value for name, value in metrics.items()}

    def stop_on_timeout(self) -> None:
        """Record that all processes were killed because the time budget is used up. A trial that has reported a value
        is stored as stopped. All other trials continue when the study is resumed.
        """
        for number in self._running:
            if self._runner.records[number].value(self._job.metric, self._job.mode) is not None:
                self._runner.ended(number, TrialOutcome(TrialState.STOPPED, "The time budget was used up"))
        self.interrupt("The time budget was used up")

    def interrupt(self, reason: str = "Interrupted") -> None:
        """Record that all processes were killed. Trials that had not ended continue when the study is resumed."""
        self._running.clear()
        self._runner.interrupt(reason)

    # ------------------------------------------------------------ choosing the next trial

    def _target_count(self) -> int:
        """Return the number of trials that should be ready to start. If the search learns from results, one trial is
        ready, and another is prepared whenever no ready trial fits. If the searcher chooses the start order, all of its
        random proposals are prepared at once.
        """
        if self._runner.startup_count is not None:
            return len(self._ready) + self._runner.startup_count
        if not self._runner.learns:
            return self._ahead
        return 1 if self.running >= self.slots else min(self._ahead, len(self._ready) + 1)

    def _max_pending(self) -> int:
        """Return the maximum number of proposals that wait for their estimates at the same time. If the searcher
        chooses the start order, all of its random proposals can wait at the same time. Later proposals are made one at
        a time.
        """
        among = self._runner.startup_count
        if among is None:
            return self._ahead - 1
        return int(not self._not_heavily_split()) if self._runner.learns else among

    def _waiting(self) -> dict[int, Admission]:
        """Return the trials that are allowed to start if there is enough memory. If the searcher chooses the start
        order, trials with many micro-batches start after all others.
        """
        quick = self._not_heavily_split()
        if self._runner.startup_count is not None and (quick or not self._runner.is_over):
            return quick
        return self._admitted()

    def _not_heavily_split(self) -> dict[int, Admission]:
        most = (
            MANY_MICRO_BATCHES * statistics.median_low(self._micro_batches.values())
            if self._micro_batches
            else 0
        )
        return {
            number: admission
            for number, admission in self._admitted().items()
            if admission.micro_batches <= most
        }

    def _admitted(self) -> dict[int, Admission]:
        return {number: ready.admission for number, ready in self._ready.items()}

    @property
    def _is_crowded(self) -> bool:
        """True if trials wait for an estimate that is computed on this machine and no CPU core is free for another
        trial.

        A new trial would slow down the estimate and delay the waiting trials. Estimates of micro-batches are ignored,
        because they have a lower priority than trials.
        """
        is_traced_here = not any(gpu.machine for gpu in self._job.gpus)
        uses_all_cores = (self.running + 1) * self._job.ranks >= processors()
        return self.running > 0 and uses_all_cores and is_traced_here and self._runner.has_unseen_configs

    def _next_placement(self, waiting: dict[int, Admission]) -> TrialPlacement | None:
        """Return the next trial that can start. The order of the searcher takes precedence over the plan of the packer."""
        if self._runner.startup_count is not None and self._is_crowded:
            return None
        if len(waiting) > 1 and self._packer.has_room(waiting, alone=self._alone):
            for number in self._runner.start_order(waiting) or ():
                placement = self._packer.place({number: waiting[number]}, alone=self._alone)
                if placement is not None:
                    return placement
        return self._packer.place(
            waiting, alone=self._alone, predict_runtimes=lambda: self._runner.predict_runtimes(waiting)
        )

    def _divide_cpus(self) -> None:
        self._cpu_share.divide(self.running, is_tracing=self._runner.awaits_estimate)

    def _larger_gpu_size(self, number: int, trial: _RunningTrial) -> int | None:
        """Return the minimum memory in bytes of the next GPU for a trial that ran out of memory.

        After the first failure, the result is 0, because the trial needs only a GPU to itself. After a second failure,
        the result is the memory of a larger GPU, or None if no GPU is larger.
        """
        if not trial.is_alone and number not in self._alone:
            return 0
        sizes = trial.candidate_sizes
        larger = [
            size
            for size in sizes
            if size > trial.memory and sum(other >= size for other in sizes) >= self._job.ranks
        ]
        return min(larger, default=None)

    def _estimate_again_if_stuck(self, waiting: Mapping[int, Admission]) -> None:
        """Estimate the waiting trials again if no trial is running and no waiting trial fits. Other programs may use
        memory that was free at the first estimate.
        """
        if self._running or not waiting:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = time.monotonic()
        elif time.monotonic() - self._stuck_since > STUCK_SECONDS:
            self._stuck_since = None
            for number in sorted(self._ready):
                self._runner.estimate_again(number)
            self._ready.clear()

    def _start(self, ready: ReadyTrial, placement: TrialPlacement) -> list[TrialTask]:
        fit, gpus = placement.fit, placement.gpus
        self._running[ready.number] = _RunningTrial(
            fit,
            placement.is_alone,
            min((gpu.memory for gpu in gpus), default=0),
            [gpu.memory for gpu in self._job.gpus if gpu.index in ready.admission.fits],
        )
        self._divide_cpus()
        self._runner.started(ready.number, ", ".join(gpu.name for gpu in gpus) or "cpu", fit)
        return [self._task(ready, placement, rank) for rank in range(self._job.ranks)]

    def _task(self, ready: ReadyTrial, placement: TrialPlacement, rank: int) -> TrialTask:
        gpu = placement.gpus[rank] if placement.gpus else None
        fit = placement.fits[rank] if placement.fits else None
        return TrialTask(
            number=ready.number,
            config=ready.config,
            function=self._job.function,
            folder=str(self._runner.folder_of(ready.number)),
            gpu=gpu,
            cap=None if fit is None or gpu is None else fit.safe - gpu.context,
            micro_batch=None if fit is None else fit.micro_batch,
            checkpoint=ready.checkpoint,
            step=ready.step,
            rank=rank,
            ranks=self._job.ranks,
            threads=str(self._cpu_share.file),
        )


def prepare_trials(job: TuneJob, slots: int) -> int:
    """Return the number of trials to prepare, so that the dispatcher can choose among them. The number is small if the
    searcher learns from results, if time is limited, or if there is no GPU. Without a GPU, any trial can start next.
    """
    learns = job.search not in ("random", "grid") or job.scheduler == "pbt"
    return slots + 2 if learns or job.time_budget is not None or not job.gpus else PREPARED_PER_SLOT * slots


def slots_for(job: TuneJob) -> int:
    """Return the maximum number of parallel trials. By default, it is the number of CPU cores divided by the number of
    ranks."""
    if job.parallel is not None:
        return job.parallel
    return min(max(1, processors() // job.ranks), job.trials)
