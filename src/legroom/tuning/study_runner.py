"""Leads a study and plays no instrument: what is tried next, what is admitted, what is cut short, what is learned and written.

Engines differ in where trials run; everything else is here once. One thread calls it. Whatever it is told is in the store
before it answers, and a conductor that is made from that store goes on as this one would have.
"""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from legroom.errors import UsageError
from legroom.tuning.engines.engine import Job, Ready, Watcher
from legroom.tuning.memory.admission import Admission, Fit, Gate, Verdict
from legroom.tuning.memory.other_processes import Neighbours
from legroom.tuning.memory.runtime_model import Futures, Lengths
from legroom.tuning.schedule.schedulers import GO_ON, Action, Decision, Scheduler
from legroom.tuning.search.searchers import Chooser, Result, Searcher
from legroom.tuning.store import Store, StoreError
from legroom.tuning.trial.records import Ending, Report, TrialRecord, TrialState
from legroom.tuning.trial.trial import remove

MOST_REJECTED = 20
"""Proposals that never fit, for each trial that is wanted: a space with next to nothing that fits ends with a sentence."""


class Conductor:
    """One study on its way."""

    def __init__(
        self,
        job: Job,
        searcher: Searcher,
        scheduler: Scheduler | None,
        gate: Gate,
        store: Store,
        watchers: Sequence[Watcher] = (),
        neighbours: Neighbours | None = None,
    ) -> None:
        self.job = job
        self.neighbours = neighbours or Neighbours(job.places)
        self._searcher, self._scheduler, self._gate, self._store = searcher, scheduler, gate, store
        self._watchers = list(watchers)
        self.records: list[TrialRecord] = store.load()
        self._lengths = Lengths(job.space)
        self._learned = 0
        """Results that the searcher was told."""
        self._asked: dict[int, Future[Admission]] = {}
        self._again: deque[int] = deque()
        """Trials that are to be started once more, from their checkpoints."""
        self._no_more = False
        self._said: set[str] = set()
        past = [t for record in self.records for t in (record.started, record.ended) if t is not None]
        past += [report.seconds for record in self.records for report in record.reports]
        self._began = time.monotonic() - max(past, default=0.0)
        self._began_now = time.monotonic()
        self._recall()
        for watcher in self._watchers:
            watcher.begun(job, self.records)

    # ------------------------------------------------------------ what an engine asks

    @property
    def is_over(self) -> bool:
        """Whether no trial will be handed out any more."""
        return not self._asked and not self._again and (self._is_late() or not self._may_propose())

    @property
    def learns(self) -> bool:
        """Whether the next proposal goes by what was learned: then the fewer wait before it, the better it is."""
        start_up = self._searcher.start_up
        return start_up is not None and len(self.records) >= start_up

    @property
    def awaits_estimate(self) -> bool:
        """Whether a configuration is being traced, or waits for that."""
        return any(not asked.done() for asked in self._asked.values())

    @property
    def is_looking(self) -> bool:
        """Whether a configuration waits to be looked at for the first time."""
        return self._gate.is_looking

    def next(self, ahead: int = 2) -> Ready | None:
        """A trial that can start as soon as there is room; None where there is none now.

        `ahead`: how many proposals may wait for their estimates, so that these are made while other trials train; where the search learns it is one at most.
        """
        if self._is_late():
            self._drop_waiting()
            return None
        while self._again:
            number = self._again.popleft()
            record = self.records[number]
            if number not in self._asked:
                self._asked[number] = self._gate.ask(record.config)
        while True:
            while len(self._asked) < (min(1, ahead) if self.learns else ahead) and self._may_propose():
                self._propose()
            answered = [number for number in sorted(self._asked) if self._asked[number].done()]
            if not answered:
                return None
            ready = self._settled(answered[0], self._asked.pop(answered[0]).result())
            if ready is not None:  # else it can never fit, and another takes its place
                return ready

    def wait(self, seconds: float) -> None:
        """Until an estimate is there, at most so long."""
        if self._asked:
            wait(list(self._asked.values()), timeout=seconds, return_when=FIRST_COMPLETED)
        else:  # what was handed out waits for memory that other programs have
            time.sleep(seconds)

    def look_around(self, given: Mapping[int, int], *, before_start: bool) -> None:
        """Read anew what other programs have of the GPUs. `given`: what running trials were given, by place's index."""
        self.neighbours.look(given, before_start=before_start)
        for sentence in self.neighbours.news():
            self.say(sentence)

    @property
    def chooses_among(self) -> int | None:
        """How many proposals are asked for at once, since the searcher chooses among them who goes first; None where it leaves that to others."""
        return self._searcher.start_up if isinstance(self._searcher, Chooser) else None

    def preferred(self, waiting: Mapping[int, Admission]) -> list[int] | None:
        """Whoever should start first in front, by what the searcher has learned; None where it does not say."""
        return self._searcher.order(waiting) if isinstance(self._searcher, Chooser) else None

    def foretold(self, waiting: Mapping[int, Admission]) -> Futures | None:
        """How long these trials will probably take, and those that run; None as long as nothing is known of that."""
        asked = {
            number: (self.records[number].config, admission.size) for number, admission in waiting.items()
        }
        return self._lengths.futures(asked, self.seconds)

    def ask_again(self, number: int) -> None:
        """A trial that was handed out found no room: its memory question is asked anew."""
        self._again.append(number)

    def started(self, number: int, place: str, fit: Fit | None) -> None:
        """A trial runs now."""
        record = self.records[number]
        record.state, record.gpu, record.why = TrialState.RUNNING, place, ""
        record.attempts += 1
        if record.started is None:
            record.started = self.seconds
        size = 0 if fit is None else fit.safe
        self._lengths.started(number, record.config, size, self.seconds, is_whole=record.attempts == 1)
        if fit is not None:
            record.memory = replace(
                record.memory,
                predicted=fit.predicted or None,
                safe=fit.safe,
                micro_batch=fit.micro_batch,
                held=fit.held,
            )
            if fit.micro_batch is not None:
                record.why = (
                    f"its batch of {record.memory.batch_size} goes in micro-batches of {fit.micro_batch}"
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
        """A trial reported: what it is to do."""
        record = self.records[number]
        report = Report(record.step + 1, metrics, round(self.seconds, 3))
        best = record.best_report(self.job.metric, self.job.mode)
        record.reports.append(report)
        self._lengths.reported(number, report.seconds)
        self._measured(record, actual_bytes, ooms, micro_batch)
        if checkpoint is not None:
            self._keep(
                record, checkpoint, is_best=record.best_report(self.job.metric, self.job.mode) is not best
            )
        self._store.report(record, report, self.job.metric)
        value = metrics.get(self.job.metric)
        decision = self._decide(record, value)
        self._tell(record)
        return decision

    def measured(self, number: int, actual_bytes: int | None, ooms: int) -> None:
        """What a trial's process took, as known at its end."""
        self._measured(self.records[number], actual_bytes, ooms, None)

    def ended(self, number: int, ending: Ending) -> None:
        """A trial is over for good."""
        record = self.records[number]
        state, why = ending.state, ending.why
        value = record.value(self.job.metric, self.job.mode)
        if state is TrialState.FINISHED and value is None:
            state, why = TrialState.FAILED, self._without_metric(record)
        record.state, record.why = state, why or record.why
        record.ended = round(self.seconds, 3)
        self._note_length(record)
        best = record.best_report(self.job.metric, self.job.mode)
        config = record.config if best is None else record.config_at(best.step)
        # What its value is of, and not what a take-over made of it afterwards.
        if config is not record.config:
            record.earlier.append((record.step, record.config))
            record.config = config
        self._store.end(record, value)
        self._learn(record)
        if self._scheduler is not None:
            self._scheduler.ended(number)
        self._tell(record)
        if ending.is_in_vain:
            raise UsageError(why)
        if state is not ending.state:  # it failed for want of the metric
            self._refuse_if_never_reported(record)

    def put_back(self, number: int, state: TrialState, why: str) -> None:
        """A trial's process is gone, the trial is not over: it will be handed out again, from its last checkpoint."""
        record = self.records[number]
        record.state, record.why = state, why
        self._forget_after_checkpoint(record)
        self._again.append(number)
        self._changed(record)

    def disk_is_full(self, number: int, why: str) -> NoReturn:
        """A trial could not write: it is to go on when there is room, and nothing can go on before."""
        self.put_back(number, TrialState.WAITING, why)
        raise StoreError(f"trial {number} had to stop: {why}. What had ended is kept: make room, then resume")

    def take_over(self, number: int, decision: Decision) -> None:
        """A trial goes on from another's checkpoint with a changed configuration."""
        record = self.records[number]
        assert decision.parent is not None
        assert decision.config is not None
        parent = self.records[decision.parent]
        record.earlier.append((record.step, record.config))
        record.parent, record.config = decision.parent, decision.config
        record.last_checkpoint, record.checkpoint_step = parent.last_checkpoint, record.step
        record.state, record.why = TrialState.PAUSED, decision.why
        self._again.append(number)
        self._changed(record)

    def ran_out(self, number: int, fit: Fit | None, needed: int) -> None:
        """A trial met a full GPU in spite of its estimate."""
        if fit is not None:
            self._gate.ran_out(self.records[number].config, fit, needed)

    def interrupt(self, why: str) -> None:
        """The study ends here: what has not ended is written down as waiting, to be gone on with."""
        for record in self.records:
            if not record.state.is_final:
                record.state = TrialState.WAITING
                record.why = why
                self._forget_after_checkpoint(record)
                self._store.change(record)
                self._tell(record)

    def say(self, sentence: str) -> None:
        """Tell people, once."""
        if sentence not in self._said:
            self._said.add(sentence)
            for watcher in self._watchers:
                watcher.said(sentence)

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.closed()
        self._gate.close()
        self._store.close()

    @property
    def seconds(self) -> float:
        """Since the study began, without the time in which it did not run."""
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Of the time budget."""
        budget = self.job.time_budget
        return None if budget is None else max(0.0, budget - (time.monotonic() - self._began_now))

    def folder_of(self, number: int) -> Path:
        return self._store.trial_folder(number)

    # ------------------------------------------------------------ proposing and admitting

    def _may_propose(self) -> bool:
        if self._no_more:
            return False
        rejected = sum(record.state is TrialState.NEVER_FITS for record in self.records)
        if self.job.search != "grid" and rejected >= MOST_REJECTED * self.job.trials:
            self.say(
                f"{rejected} proposals can never fit, so no more are made: make the space smaller, or use a larger GPU"
            )
            return False
        return len(self.records) - rejected < self.job.trials

    def _propose(self) -> None:
        number = len(self.records)
        config = self._searcher.propose(number)
        if config is None:
            self._no_more = True
            return
        record = TrialRecord(number=number, config=config, knew=self._learned)
        self.records.append(record)
        self._store.add(record, self.job.space)
        self._asked[number] = self._gate.ask(config)
        self._tell(record)

    def _settled(self, number: int, admission: Admission) -> Ready | None:
        record = self.records[number]
        record.memory = replace(record.memory, batch_size=admission.batch_size, shortage=admission.shortage)
        if (
            admission.verdict is Verdict.NEVER and record.reports
        ):  # it had room before, and what it reported counts
            self.ended(number, Ending(TrialState.STOPPED, f"it cannot go on: {admission.why}"))
            return None
        if admission.verdict is Verdict.NEVER:
            record.memory = replace(record.memory, predicted=admission.needed, safe=admission.needed)
            record.state, record.why, record.ended = (
                TrialState.NEVER_FITS,
                admission.why,
                round(self.seconds, 3),
            )
            self._store.end(record, None)
            self._learn(record)
            self._tell(record)
            return None
        if admission.verdict is Verdict.UNKNOWN:
            self.say(admission.why)
        return Ready(
            number=number,
            config=record.config,
            admission=admission,
            checkpoint=record.last_checkpoint,
            step=record.step,
        )

    def _drop_waiting(self) -> None:
        """The time is up: what was proposed and never ran is left waiting, for a resumed study."""
        self._asked.clear()
        self._again.clear()

    def _is_late(self) -> bool:
        return self.seconds_left == 0.0

    # ------------------------------------------------------------ deciding and learning

    def _decide(self, record: TrialRecord, value: float | None) -> Decision:
        if value is None:
            return GO_ON
        if math.isnan(value):
            return Decision(Action.STOP, f"{self.job.metric} was no number (NaN) at step {record.step}")
        if self._is_late():
            return Decision(Action.STOP, "the time was up")
        if self._scheduler is None:
            return GO_ON
        decision = self._scheduler.reported(record.number, record.config, record.step, value)
        if decision.action in (Action.PAUSE, Action.TAKE_OVER) and record.last_checkpoint is None:
            raise UsageError(
                "population-based training needs checkpoints: give one to trial.report(checkpoint=...)"
            )
        return decision

    def _learn(self, record: TrialRecord) -> None:
        last = record.last_report(self.job.metric)
        config, result = record.config, Result()
        if record.state is TrialState.NEVER_FITS:
            result = Result(shortage=record.memory.shortage)
        elif last is not None:
            is_partial = record.state is TrialState.STOPPED
            config = record.config_at(last.step)
            result = Result(
                last.metrics[self.job.metric],
                is_partial=is_partial,
                step=last.step,
                best=record.value(self.job.metric, self.job.mode),
                seconds=_length(record),
            )
        self._searcher.learn(record.number, config, result)
        self._learned += 1

    def _note_length(self, record: TrialRecord) -> None:
        """Of a trial that failed, how long it took says nothing."""
        if record.state in (TrialState.FINISHED, TrialState.STOPPED) and record.ended is not None:
            self._lengths.ended(record.number, record.ended)
        else:
            self._lengths.forget(record.number)

    def _measured(self, record: TrialRecord, actual: int | None, ooms: int, micro_batch: int | None) -> None:
        known = record.memory
        if actual is not None:
            context = next((place.context for place in self.job.places if place.name == record.gpu), 0)
            known = replace(known, actual=max(known.actual or 0, actual + context))
        if micro_batch is not None:
            known = replace(known, micro_batch=micro_batch)
        record.memory = replace(known, ooms=max(known.ooms, ooms))

    def _keep(self, record: TrialRecord, checkpoint: str, *, is_best: bool) -> None:
        """The best and the latest checkpoint are kept, others go."""
        before = {record.checkpoint, record.last_checkpoint}
        record.last_checkpoint, record.checkpoint_step = checkpoint, record.step
        if is_best or record.checkpoint is None:
            record.checkpoint = checkpoint
        for path in before - {record.checkpoint, record.last_checkpoint, None}:
            if not any(path == other.last_checkpoint for other in self.records):
                remove(Path(str(path)))

    def _without_metric(self, record: TrialRecord) -> str:
        names = sorted({name for report in record.reports for name in report.metrics})
        if self.job.metric in names:
            return f"{self.job.metric} was never a number"
        return f"it never reported '{self.job.metric}', {'only ' + ', '.join(names) if names else 'nor anything else'}"

    def _refuse_if_never_reported(self, ended: TrialRecord) -> None:
        """Every trial would be in vain: say so at the first one that ended without the metric."""
        if any(self.job.metric in report.metrics for record in self.records for report in record.reports):
            return
        how = "" if self.job.function.takes_trial else "; ray.tune.report is heard with engine='ray' only"
        raise UsageError(
            f"trial {ended.number} ended, and {ended.why}: call trial.report({self.job.metric}=...), or name another metric{how}"
        )

    # ------------------------------------------------------------ going on after an interruption

    def _recall(self) -> None:
        """Ask and tell the searcher all that it was asked and told, tell the scheduler, and hand out anew what had not ended."""
        ended = sorted(
            (r for r in self.records if r.state.is_final), key=lambda r: (r.ended or 0.0, r.number)
        )
        for record in self.records:
            while self._learned < min(record.knew, len(ended)):
                self._learn(ended[self._learned])
            self._searcher.propose(record.number)
        for record in ended[self._learned :]:
            self._learn(record)
        for record in ended:
            self._recall_length(record)
        for record in self.records:
            if not record.state.is_final:
                record.state = TrialState.WAITING
                self._forget_after_checkpoint(record)
                self._store.change(record)
                self._again.append(record.number)
        if self._scheduler is not None:
            self._retell(self._scheduler)

    def _recall_length(self, record: TrialRecord) -> None:
        if record.started is not None and record.attempts == 1:
            self._lengths.started(record.number, record.config, record.memory.safe or 0, record.started)
            for report in record.reports:
                self._lengths.reported(record.number, report.seconds)
            self._note_length(record)

    def _retell(self, scheduler: Scheduler) -> None:
        told = sorted(
            ((report.seconds, record, report) for record in self.records for report in record.reports),
            key=lambda item: item[0],
        )
        for _, record, report in told:
            value = report.metrics.get(self.job.metric)
            if value is not None and not math.isnan(value):
                scheduler.reported(record.number, record.config, report.step, value)

    def _forget_after_checkpoint(self, record: TrialRecord) -> None:
        """Reports of steps that will be made again are taken back."""
        record.reports = record.reports[: record.checkpoint_step]

    # ------------------------------------------------------------

    def _changed(self, record: TrialRecord) -> None:
        self._store.change(record)
        self._tell(record)

    def _tell(self, record: TrialRecord) -> None:
        for watcher in self._watchers:
            watcher.changed(record)


def _length(record: TrialRecord) -> float | None:
    """Seconds from a trial's start to its end, where it was started once."""
    if record.started is None or record.ended is None or record.attempts != 1:
        return None
    return record.ended - record.started
