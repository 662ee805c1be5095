"""Between the conductor, which knows no processes, and an engine, which knows nothing else: who has room, who leaves, who comes again.

    for order in stage.hand_out() or ():      # one order per rank: start a process for each
        ...
    stage.reported(number, told)              # rank 0's report → the decision; a trial that is to stop then ends
    stage.ended(number, end)                  # its processes are gone

The same for every engine, so that a trial that met a full GPU, was paused or took over another's checkpoint comes back in the same way
everywhere.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from legroom.gpus.machine import processors
from legroom.tuning.engines.cpu_share import ProcessorShare
from legroom.tuning.engines.engine import Job, Ready
from legroom.tuning.memory.admission import Admission, Fit
from legroom.tuning.memory.packing import Packer, Placement
from legroom.tuning.schedule.schedulers import Action, Decision
from legroom.tuning.study_runner import Conductor
from legroom.tuning.trial.process import Order, TrialEnd
from legroom.tuning.trial.records import Ending, TrialState
from legroom.tuning.trial.trial import Reported

FAR = 4
"""Trials to choose from for each that can run at once, where looking far ahead costs nothing."""
MANY_PIECES = 8
"""Times as many as a trial's batch usually goes in: beyond these one takes so long that, where the search chooses, all others go first."""
SECONDS_UNTIL_ASKED_AGAIN = 5.0
"""Where no trial has room though none runs: the memory of one that has just ended may be on its way back."""


@dataclass(slots=True)
class _OnStage:
    """A trial that runs."""

    fit: Fit | None
    is_alone: bool
    """It has its GPUs to itself."""
    memory: int
    """Bytes of its GPU, the smallest if it has several."""
    could_have: list[int]
    """Bytes of each GPU that it may run on."""
    decision: Decision = field(default_factory=Decision)
    """The latest about it."""


class Stage:
    """One run of an engine."""

    def __init__(self, job: Job, conductor: Conductor) -> None:
        self._job, self._conductor = job, conductor
        self._processors = ProcessorShare(conductor.folder_of(0).with_name("threads"), job.ranks)
        self.slots = slots_for(job)
        """Trials at once at most."""
        self._ahead = look_ahead(job, self.slots)
        self._packer = Packer(job.places, self.slots, job.ranks, conductor.neighbours.held)
        self._ready: dict[int, Ready] = {}
        self._pieces: dict[int, int] = {}
        """In how many each trial's batch goes that was admitted."""
        self._running: dict[int, _OnStage] = {}
        self._alone: dict[int, int] = {}
        """Trials that get a GPU to themselves, since their share was too small → bytes that it must have."""
        self._stuck_since: float | None = None

    @property
    def running(self) -> int:
        """How many trials run."""
        return len(self._running)

    @property
    def is_over(self) -> bool:
        """Whether nothing runs and nothing will."""
        return not self._running and not self._ready and self._conductor.is_over

    def look_ahead(self) -> None:
        """Take in those whose memory question is answered, and have it asked about others. Nothing starts here, so an engine may do it while it is made ready."""
        wanted = self._wanted()
        while len(self._ready) < wanted:
            ready = self._conductor.next(ahead=self._to_ask())
            if ready is None:
                break
            self._ready[ready.number] = ready
            self._pieces[ready.number] = ready.admission.pieces

    def hand_out(self) -> list[Order] | None:
        """The next trial that has room, an order for each of its ranks; None where there is none now."""
        self.look_ahead()
        self._share_processors()  # a trace may have begun or ended
        waiting = self._waiting()
        if waiting and self.running < self.slots:
            would_start = self._packer.has_room(waiting, alone=self._alone)
            self._conductor.look_around(self._packer.given, before_start=would_start)
        placement = self._placed(waiting)
        if placement is None:
            self._ask_again_if_stuck(waiting)
            return None
        return self._enter(self._ready.pop(placement.number), placement)

    def reported(self, number: int, told: Reported) -> Action:
        """What a trial is to do after a report; one that is not to go on then ends, and `ended` is told so."""
        decision = self._conductor.reported(
            number,
            told.metrics,
            checkpoint=told.checkpoint,
            actual_bytes=told.actual_bytes,
            ooms=told.ooms,
            micro_batch=told.micro_batch,
        )
        self._running[number].decision = decision
        self._share_processors()
        return decision.action

    def ended(self, number: int, end: TrialEnd) -> None:
        """A trial's processes are gone: it is over, or will be handed out again."""
        trial = self._running.pop(number)
        self._share_processors()
        self._packer.release(number)
        self._conductor.measured(number, end.actual_bytes, end.ooms)
        if end.is_disk_full:
            self._conductor.disk_is_full(number, end.why)
        if trial.fit is not None:
            if end.ooms:
                self._conductor.ran_out(number, trial.fit, trial.fit.safe)
            elif number in self._alone:  # it had met a full GPU before: now it is known what it takes
                seen = self._conductor.records[number].memory.actual or 0
                self._conductor.ran_out(number, trial.fit, seen)
        if end.final is not None:
            self._conductor.reported(number, end.final)
        decision = trial.decision
        least = self._more_room(number, trial) if end.state is TrialState.OUT_OF_MEMORY else None
        if least is not None:
            self._alone[number] = least
            which = "a larger GPU" if least else "a GPU"
            self._conductor.put_back(
                number, TrialState.WAITING, f"{end.why}; it starts again with {which} to itself"
            )
        elif end.state is TrialState.STOPPED and decision.action is Action.PAUSE:
            self._conductor.put_back(number, TrialState.PAUSED, decision.why)
        elif end.state is TrialState.STOPPED and decision.action is Action.TAKE_OVER:
            self._conductor.take_over(number, decision)
        else:
            is_done = end.state is TrialState.STOPPED and decision.is_done
            state = TrialState.FINISHED if is_done else end.state
            self._conductor.ended(number, Ending(state, end.why or decision.why, end.is_in_vain))

    def time_is_up(self) -> None:
        """Every process was ended because the budget is spent: what has a value counts, the rest is left for later."""
        for number in self._running:
            if self._conductor.records[number].value(self._job.metric, self._job.mode) is not None:
                self._conductor.ended(number, Ending(TrialState.STOPPED, "the time was up"))
        self.interrupt("the time was up")

    def interrupt(self, why: str = "interrupted") -> None:
        """Every process was ended in the middle: what had not ended waits for a resumed study."""
        self._running.clear()
        self._conductor.interrupt(why)

    # ------------------------------------------------------------

    def _wanted(self) -> int:
        """How many trials are to wait for room. Where the search learns, one, and one more whenever none of these fits a place that is free; where it chooses, all that were
        proposed."""
        if self._conductor.chooses_among is not None:
            return len(self._ready) + self._conductor.chooses_among
        if not self._conductor.learns:
            return self._ahead
        return 1 if self.running >= self.slots else min(self._ahead, len(self._ready) + 1)

    def _to_ask(self) -> int:
        """How many proposals may wait for their estimates. Of a search that chooses, all that it has to choose from, then one once none waits any more that is quick."""
        among = self._conductor.chooses_among
        if among is None:
            return self._ahead - 1
        return int(not self._quick()) if self._conductor.learns else among

    def _waiting(self) -> dict[int, Admission]:
        """Those that may start, if there is room. Where the search chooses, what goes in many pieces comes when nothing else does."""
        quick = self._quick()
        if self._conductor.chooses_among is not None and (quick or not self._conductor.is_over):
            return quick
        return self._admitted()

    def _quick(self) -> dict[int, Admission]:
        most = MANY_PIECES * statistics.median_low(self._pieces.values()) if self._pieces else 0
        return {number: told for number, told in self._admitted().items() if told.pieces <= most}

    def _admitted(self) -> dict[int, Admission]:
        return {number: ready.admission for number, ready in self._ready.items()}

    @property
    def _is_crowded(self) -> bool:
        """Whether another trial would have to share a processor with a trace that others wait for: it would slow all of them by more than it gains. (What is traced in pieces goes behind trials.)"""
        is_traced_here = not any(place.machine for place in self._job.places)
        takes_all = (self.running + 1) * self._job.ranks >= processors()
        return self.running > 0 and takes_all and is_traced_here and self._conductor.is_looking

    def _placed(self, waiting: dict[int, Admission]) -> Placement | None:
        """The next one that can start. Where the search chooses, it goes before the packer's plan, and nobody takes the processor on which others are traced."""
        if self._conductor.chooses_among is not None and self._is_crowded:
            return None
        if len(waiting) > 1 and self._packer.has_room(waiting, alone=self._alone):
            for number in self._conductor.preferred(waiting) or ():
                placement = self._packer.place({number: waiting[number]}, alone=self._alone)
                if placement is not None:
                    return placement
        return self._packer.place(
            waiting, alone=self._alone, foretell=lambda: self._conductor.foretold(waiting)
        )

    def _share_processors(self) -> None:
        self._processors.divide(self.running, traces=self._conductor.awaits_estimate)

    def _more_room(self, number: int, trial: _OnStage) -> int | None:
        """What a GPU must have for a trial that met a full one: any to itself, then a larger one; None where there is none."""
        if not trial.is_alone and number not in self._alone:
            return 0
        sizes = trial.could_have
        larger = [
            size
            for size in sizes
            if size > trial.memory and sum(other >= size for other in sizes) >= self._job.ranks
        ]
        return min(larger, default=None)

    def _ask_again_if_stuck(self, waiting: Mapping[int, Admission]) -> None:
        """Trials that were admitted have no room though none runs: other programs have taken it. With less room the answers are others."""
        if self._running or not waiting:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = time.monotonic()
        elif time.monotonic() - self._stuck_since > SECONDS_UNTIL_ASKED_AGAIN:
            self._stuck_since = None
            for number in sorted(self._ready):
                self._conductor.ask_again(number)
            self._ready.clear()

    def _enter(self, ready: Ready, placement: Placement) -> list[Order]:
        fit, places = placement.fit, placement.places
        self._running[ready.number] = _OnStage(
            fit,
            placement.is_alone,
            min((place.memory for place in places), default=0),
            [place.memory for place in self._job.places if place.index in ready.admission.fits],
        )
        self._share_processors()
        self._conductor.started(ready.number, ", ".join(place.name for place in places) or "cpu", fit)
        return [self._order(ready, placement, rank) for rank in range(self._job.ranks)]

    def _order(self, ready: Ready, placement: Placement, rank: int) -> Order:
        place = placement.places[rank] if placement.places else None
        fit = placement.fits[rank] if placement.fits else None
        return Order(
            number=ready.number,
            config=ready.config,
            function=self._job.function,
            folder=str(self._conductor.folder_of(ready.number)),
            place=place,
            cap=None if fit is None or place is None else fit.safe - place.context,
            micro_batch=None if fit is None else fit.micro_batch,
            checkpoint=ready.checkpoint,
            step=ready.step,
            rank=rank,
            ranks=self._job.ranks,
            threads=str(self._processors.file),
        )


def look_ahead(job: Job, slots: int) -> int:
    """How many trials may wait for room, to choose from. Few where the next proposal learns from those that end, or where the time may
    be up before all had their turn; without GPUs there is nothing to choose."""
    learns = job.search not in ("random", "grid") or job.scheduler == "pbt"
    return slots + 2 if learns or job.time_budget is not None or not job.places else FAR * slots


def slots_for(job: Job) -> int:
    """Trials at once: on GPUs as many as memory allows, but no more than there are processors to feed them."""
    if job.parallel is not None:
        return job.parallel
    return min(max(1, processors() // job.ranks), job.trials)
