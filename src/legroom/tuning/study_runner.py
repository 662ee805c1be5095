"""Runs a study: proposes trials, admits them, stops them early, passes their results to the searcher, and stores all
data.

The runner makes all decisions, and engines only run the trials. The runner is called from a single thread. Every event
is stored before a call returns. Therefore, a new `StudyRunner` with the same storage continues in the same way.
"""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from legroom.errors import UsageError
from legroom.tuning import study_checks
from legroom.tuning.job import StudyCallback, TuneJob
from legroom.tuning.memory.admission import Admission, AdmissionVerdict, Fit, Gate
from legroom.tuning.memory.other_processes import OtherProcessUsage
from legroom.tuning.memory.runtime_model import RuntimeModel, RuntimeSamples
from legroom.tuning.schedule.protocol import CONTINUE, Action, Decision, Scheduler
from legroom.tuning.search.protocol import OrderingSearcher, Result, Searcher
from legroom.tuning.space.space import Config
from legroom.tuning.store import StoreError, StudyStore
from legroom.tuning.trial.records import Report, TrialOutcome, TrialRecord, TrialState
from legroom.tuning.trial.trial import remove

MAX_REJECTED = 20
"""The maximum number of rejected configurations per requested trial. A configuration is rejected if it can never fit.
When the number of rejected configurations reaches the limit, the study ends, because nearly all configurations in the
space need too much memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyTrial:
    """A trial that can start as soon as there is free memory."""

    number: int
    config: Config
    admission: Admission
    checkpoint: str | None = None
    """The checkpoint from which an interrupted or paused trial continues, or the checkpoint that was copied from
    another trial.
    """
    step: int = 0


class StudyRunner:
    def __init__(
        self,
        job: TuneJob,
        searcher: Searcher,
        scheduler: Scheduler | None,
        gate: Gate,
        store: StudyStore,
        callbacks: Sequence[StudyCallback] = (),
        other_processes: OtherProcessUsage | None = None,
    ) -> None:
        self.job = job
        self.other_processes = other_processes or OtherProcessUsage(job.gpus)
        self._searcher, self._scheduler, self._gate, self._store = searcher, scheduler, gate, store
        self._callbacks = list(callbacks)
        self.records: list[TrialRecord] = store.load()
        self._runtimes = RuntimeModel(job.space)
        self._results_learned = 0
        self._pending: dict[int, Future[Admission]] = {}
        self._requeued: deque[int] = deque()
        self._is_exhausted = False
        self._sent_messages: set[str] = set()
        past = [t for record in self.records for t in (record.started, record.ended) if t is not None]
        past += [report.seconds for record in self.records for report in record.reports]
        self._start = time.monotonic() - max(past, default=0.0)
        self._session_start = time.monotonic()
        self._replay_history()
        for callback in self._callbacks:
            callback.on_study_start(job, self.records)

    # ------------------------------------------------------------ called by the engine

    @property
    def is_over(self) -> bool:
        """True if no further trial will start."""
        return (
            not self._pending and not self._requeued and (self._is_out_of_time() or not self._may_propose())
        )

    @property
    def learns(self) -> bool:
        """True if the next proposal depends on earlier results, in which case fewer proposals are made in advance."""
        startup_trials = self._searcher.startup_trials
        return startup_trials is not None and len(self.records) >= startup_trials

    @property
    def awaits_estimate(self) -> bool:
        return any(not estimate.done() for estimate in self._pending.values())

    @property
    def has_unseen_configs(self) -> bool:
        return self._gate.has_unseen_configs

    def next(self, ahead: int = 2) -> ReadyTrial | None:
        """Return a trial that can start as soon as memory is free, or None if no trial is ready.

        `ahead` is the maximum number of proposals that wait for their estimates while other trials train. If the search
        learns from results, at most one proposal waits.
        """
        if self._is_out_of_time():
            self._drop_pending()
            return None
        while self._requeued:
            number = self._requeued.popleft()
            record = self.records[number]
            if number not in self._pending:
                self._pending[number] = self._gate.request(record.config, record.last_checkpoint)
        while True:
            while len(self._pending) < (min(1, ahead) if self.learns else ahead) and self._may_propose():
                self._propose()
            answered = [number for number in sorted(self._pending) if self._pending[number].done()]
            if not answered:
                return None
            ready = self._admitted(answered[0], self._pending.pop(answered[0]).result())
            if ready is not None:  # otherwise it can never fit, and the next proposal replaces it
                return ready

    def wait(self, seconds: float) -> None:
        if self._pending:
            wait(list(self._pending.values()), timeout=seconds, return_when=FIRST_COMPLETED)
        else:  # admitted trials wait for memory that other programs use
            time.sleep(seconds)

    def refresh_other_processes(self, given: Mapping[int, int], *, before_start: bool) -> None:
        """Update the GPU memory used by other programs. `given` contains the bytes reserved for running trials, by GPU
        index.
        """
        self.other_processes.query(given, before_start=before_start)
        for message in self.other_processes.messages():
            self.notify(message)

    @property
    def startup_count(self) -> int | None:
        """The number of random proposals that are estimated together at the start, or None if the searcher does not
        choose the start order.
        """
        return self._searcher.startup_trials if isinstance(self._searcher, OrderingSearcher) else None

    def start_order(self, waiting: Mapping[int, Admission]) -> list[int] | None:
        return self._searcher.start_order(waiting) if isinstance(self._searcher, OrderingSearcher) else None

    def predict_runtimes(self, waiting: Mapping[int, Admission]) -> RuntimeSamples | None:
        configs = {
            number: (self.records[number].config, admission.size) for number, admission in waiting.items()
        }
        return self._runtimes.predict(configs, self.seconds)

    def estimate_again(self, number: int) -> None:
        """Repeat the estimate of an admitted trial for which there is no free memory."""
        self._requeued.append(number)

    def started(self, number: int, gpu: str, fit: Fit | None) -> None:
        record = self.records[number]
        record.state, record.gpu, record.reason = TrialState.RUNNING, gpu, ""
        record.attempts += 1
        if record.started is None:
            record.started = self.seconds
        size = 0 if fit is None else fit.safe
        self._runtimes.started(number, record.config, size, self.seconds, from_start=record.attempts == 1)
        if fit is not None:
            record.memory = replace(
                record.memory,
                predicted=fit.predicted or None,
                safe=fit.safe,
                micro_batch=fit.micro_batch,
                used_by_others=fit.used_by_others,
                actual=None,  # the peak of an earlier start must not be shown with this estimate
            )
            if fit.micro_batch is not None:
                record.reason = (
                    f"The batch of {record.memory.batch_size} runs in micro-batches of {fit.micro_batch}"
                )
        self._changed(record)

    def reported(
        self,
        number: int,
        metrics: dict[str, float],
        *,
        checkpoint: str | None = None,
        actual_bytes: int | None = None,
        ooms: int = 0,
        micro_batch: int | None = None,
    ) -> Decision:
        record = self.records[number]
        report = Report(record.step + 1, metrics, round(self.seconds, 3))
        best = record.best_report(self.job.metric, self.job.mode)
        record.reports.append(report)
        self._runtimes.reported(number, report.seconds)
        self._measured(record, actual_bytes, ooms, micro_batch)
        before = {record.checkpoint, record.last_checkpoint} - {None}
        if checkpoint is not None:
            is_best = record.best_report(self.job.metric, self.job.mode) is not best
            record.last_checkpoint, record.checkpoint_step = checkpoint, record.step
            record.checkpoint = checkpoint if is_best or record.checkpoint is None else record.checkpoint
        self._store.report(record, report, self.job.metric)
        # Old checkpoints are deleted after the report is stored. If the study is killed in between, the stored
        # checkpoints still exist.
        in_use = {path for other in self.records for path in (other.checkpoint, other.last_checkpoint)}
        for path in before - in_use:
            remove(Path(str(path)))
        value = metrics.get(self.job.metric)
        if value is None:
            warning = study_checks.check_spelling(self.job, self.records, record, metrics)
            if warning:
                self.notify(warning)
        decision = self._decide(record, value)
        self._notify_update(record)
        return decision

    def measured(self, number: int, actual_bytes: int | None, ooms: int) -> None:
        """Store the peak memory of a trial's process, which is known when the process ends."""
        self._measured(self.records[number], actual_bytes, ooms, None)

    def ended(self, number: int, ending: TrialOutcome) -> None:
        record = self.records[number]
        state, reason = ending.state, ending.reason
        value = self._value(record)
        if state is TrialState.FINISHED and value is None:
            state, reason = TrialState.FAILED, study_checks.missing_metric_reason(self.job, record)
        record.state, record.reason = state, reason or record.reason
        record.ended = round(self.seconds, 3)
        self._record_runtime(record)
        best = record.best_report(self.job.metric, self.job.mode)
        config = record.config if best is None else record.config_at(best.step)
        # The value is for the configuration of the best step, which may be older than the latest configuration (PBT).
        if config is not record.config:
            record.earlier.append((record.step, record.config))
            record.config = config
        self._store.end(record, value)
        self._learn(record)
        if self._scheduler is not None:
            self._scheduler.ended(number)
        self._notify_update(record)
        if ending.affects_all_trials:
            raise UsageError(reason)
        if state is TrialState.FAILED:
            study_checks.raise_if_all_fail_alike(
                self.job, self.records, self.folder_of(number) / "output.txt"
            )
        if state is not ending.state:  # it failed because it never reported the metric
            study_checks.raise_if_never_reported(self.job, self.records, record)

    def requeue(self, number: int, state: TrialState, reason: str) -> None:
        """Queue a trial whose process ended before the trial was complete, to continue from its last checkpoint."""
        record = self.records[number]
        record.state, record.reason = state, reason
        self._forget_after_checkpoint(record)
        self._requeued.append(number)
        self._changed(record)

    def disk_is_full(self, number: int, reason: str) -> NoReturn:
        """Record that a trial could not write its checkpoint, and end the study. The trial continues when the study is
        resumed.
        """
        self.requeue(number, TrialState.WAITING, reason)
        raise StoreError(
            f"Trial {number} stopped: {reason}. Completed trials are saved. Free some space, then resume the study."
        )

    def exploit(self, number: int, decision: Decision) -> None:
        """Restart a trial from the checkpoint of another trial, with a changed configuration (population-based
        training)."""
        record = self.records[number]
        assert decision.parent is not None
        assert decision.config is not None
        parent = self.records[decision.parent]
        record.earlier.append((record.step, record.config))
        record.parent, record.config = decision.parent, decision.config
        record.last_checkpoint, record.checkpoint_step = parent.last_checkpoint, record.step
        record.state, record.reason = TrialState.PAUSED, decision.reason
        self._requeued.append(number)
        self._changed(record)

    def record_oom(self, number: int, fit: Fit | None, needed: int) -> None:
        """Record that a trial ran out of memory although the estimate said that it fits."""
        if fit is not None:
            self._gate.record_oom(self.records[number].config, fit, needed)

    def interrupt(self, reason: str) -> None:
        """End the study. Trials that have not ended are stored as waiting, so that a resumed study continues them."""
        for record in self.records:
            if not record.state.is_final:
                record.state = TrialState.WAITING
                record.reason = reason
                self._forget_after_checkpoint(record)
                self._store.change(record)
                self._notify_update(record)

    def notify(self, message: str) -> None:
        if message not in self._sent_messages:
            self._sent_messages.add(message)
            for callback in self._callbacks:
                callback.on_message(message)

    def close(self) -> None:
        for callback in self._callbacks:
            callback.on_study_end()
        self._gate.close()
        self._store.close()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def seconds_left(self) -> float | None:
        budget = self.job.time_budget
        return None if budget is None else max(0.0, budget - (time.monotonic() - self._session_start))

    def folder_of(self, number: int) -> Path:
        return self._store.trial_folder(number)

    # ------------------------------------------------------------ proposals and admission

    def _may_propose(self) -> bool:
        if self._is_exhausted:
            return False
        rejected = sum(record.state is TrialState.NEVER_FITS for record in self.records)
        if self.job.search != "grid" and rejected >= MAX_REJECTED * self.job.trials:
            self.notify(
                f"{rejected} proposed configuration{'s' if rejected > 1 else ''} can never fit, so the search stops. Reduce the search space or use a larger GPU."
            )
            return False
        return len(self.records) - rejected < self.job.trials

    def _propose(self) -> None:
        number = len(self.records)
        config = self._searcher.propose(number)
        if config is None:
            self._is_exhausted = True
            return
        if number < len(self.job.points):
            config = self.job.space.with_constants({**config, **self.job.points[number]})
        record = TrialRecord(number=number, config=config, known_results=self._results_learned)
        self.records.append(record)
        self._store.add(record, self.job.space)
        self._pending[number] = self._gate.request(config)
        self._notify_update(record)

    def _admitted(self, number: int, admission: Admission) -> ReadyTrial | None:
        record = self.records[number]
        record.memory = replace(record.memory, batch_size=admission.batch_size, shortage=admission.shortage)
        if (
            admission.verdict is AdmissionVerdict.NEVER and record.reports
        ):  # the trial has fit before, and its reports are valid
            remedy = (
                ". To use less GPU memory, load the checkpoint to the CPU" if record.last_checkpoint else ""
            )
            self.ended(
                number, TrialOutcome(TrialState.STOPPED, f"Cannot continue: {admission.reason}{remedy}")
            )
            return None
        if admission.verdict is AdmissionVerdict.NEVER:
            record.memory = replace(record.memory, predicted=admission.needed, safe=admission.needed)
            record.state, record.reason, record.ended = (
                TrialState.NEVER_FITS,
                admission.reason,
                round(self.seconds, 3),
            )
            self._store.end(record, None)
            self._learn(record)
            self._notify_update(record)
            return None
        if admission.verdict is AdmissionVerdict.UNKNOWN:
            self.notify(admission.reason)
        return ReadyTrial(
            number=number,
            config=record.config,
            admission=admission,
            checkpoint=record.last_checkpoint,
            step=record.step,
        )

    def _drop_pending(self) -> None:
        """Clear the queue when the time budget is used up. Trials that never ran stay waiting until the study is
        resumed.
        """
        self._pending.clear()
        self._requeued.clear()

    def _is_out_of_time(self) -> bool:
        return self.seconds_left == 0.0

    # ------------------------------------------------------------ decisions and results

    def _decide(self, record: TrialRecord, value: float | None) -> Decision:
        if value is None:
            return CONTINUE
        if math.isnan(value):
            return Decision(Action.STOP, f"`{self.job.metric}` was NaN at step {record.step}")
        if self._is_out_of_time():
            return Decision(Action.STOP, "The time budget was used up")
        if self._scheduler is None:
            return CONTINUE
        decision = self._scheduler.reported(record.number, record.config, record.step, value)
        if decision.action in (Action.PAUSE, Action.EXPLOIT) and record.last_checkpoint is None:
            raise UsageError(
                "Population-based training needs checkpoints. Pass a checkpoint to "
                "`trial.report(checkpoint=...)`."
            )
        return decision

    def _learn(self, record: TrialRecord) -> None:
        last = record.last_report(self.job.metric)
        config, result = record.config, Result()
        if record.state is TrialState.NEVER_FITS:
            result = Result(shortage=record.memory.shortage)
        elif last is not None and self._value(record) is not None:
            is_partial = record.state is TrialState.STOPPED
            config = record.config_at(last.step)
            result = Result(
                last.metrics[self.job.metric],
                is_partial=is_partial,
                step=last.step,
                best=record.value(self.job.metric, self.job.mode),
                values=(record.objective_values(self.job.objectives) or ())
                if self.job.more_objectives
                else (),
                seconds=_runtime(record),
            )
        self._searcher.learn(record.number, config, result)
        self._results_learned += 1

    def _record_runtime(self, record: TrialRecord) -> None:
        """Record the runtime of a trial. The runtimes of failed trials are discarded, because they do not help to
        predict other runtimes.
        """
        if record.state in (TrialState.FINISHED, TrialState.STOPPED) and record.ended is not None:
            self._runtimes.ended(record.number, record.ended)
        else:
            self._runtimes.forget(record.number)

    def _measured(self, record: TrialRecord, actual: int | None, ooms: int, micro_batch: int | None) -> None:
        known = record.memory
        if actual is not None:
            context = next((gpu.context for gpu in self.job.gpus if gpu.name == record.gpu), 0)
            known = replace(known, actual=max(known.actual or 0, actual + context))
        if micro_batch is not None:
            known = replace(known, micro_batch=micro_batch)
        record.memory = replace(known, ooms=max(known.ooms, ooms))

    def _value(self, record: TrialRecord) -> float | None:
        """Return the best reported value of a trial. If the study has several metrics, return the first metric in the
        latest report that contains all of them.
        """
        if not self.job.more_objectives:
            return record.value(self.job.metric, self.job.mode)
        values = record.objective_values(self.job.objectives)
        return None if values is None else values[0]

    # ------------------------------------------------------------ resuming

    def _replay_history(self) -> None:
        """Replay all proposals and results to the searcher and the scheduler. Queue the trials that had not ended."""
        ended = sorted(
            (r for r in self.records if r.state.is_final), key=lambda r: (r.ended or 0.0, r.number)
        )
        for record in self.records:
            while self._results_learned < min(record.known_results, len(ended)):
                self._learn(ended[self._results_learned])
            self._searcher.propose(record.number)
        for record in ended[self._results_learned :]:
            self._learn(record)
        for record in ended:  # a killed study may have stored the state of a trial, but not its value
            self._store.end(record, self._value(record))
        for record in ended:
            self._replay_runtime(record)
        for record in self.records:
            if not record.state.is_final:
                record.state = TrialState.WAITING
                self._forget_after_checkpoint(record)
                self._store.change(record)
                self._requeued.append(record.number)
        if self._scheduler is not None:
            self._replay_reports(self._scheduler)

    def _replay_runtime(self, record: TrialRecord) -> None:
        if record.started is not None and record.attempts == 1:
            self._runtimes.started(record.number, record.config, record.memory.safe or 0, record.started)
            for report in record.reports:
                self._runtimes.reported(record.number, report.seconds)
            self._record_runtime(record)

    def _replay_reports(self, scheduler: Scheduler) -> None:
        reports = sorted(
            ((report.seconds, record, report) for record in self.records for report in record.reports),
            key=lambda item: item[0],
        )
        for _, record, report in reports:
            value = report.metrics.get(self.job.metric)
            if value is not None and not math.isnan(value):
                scheduler.reported(record.number, record.config, report.step, value)

    def _forget_after_checkpoint(self, record: TrialRecord) -> None:
        """Discard the reports after the last checkpoint, because the trial repeats these steps from the checkpoint."""
        record.reports = record.reports[: record.checkpoint_step]

    # ------------------------------------------------------------ storage and callbacks

    def _changed(self, record: TrialRecord) -> None:
        self._store.change(record)
        self._notify_update(record)

    def _notify_update(self, record: TrialRecord) -> None:
        for callback in self._callbacks:
            callback.on_trial_update(record)


def _runtime(record: TrialRecord) -> float | None:
    if record.started is None or record.ended is None or record.attempts != 1:
        return None
    return record.ended - record.started
