"""What an engine is: it runs trials somewhere; what is tried, admitted, cut short and learned is the conductor's.

    while (ready := conductor.next()) is not None:        # a trial whose memory question is answered
        ... choose a place (packing), start the function there
        conductor.started(ready.number, place)
        decision = conductor.reported(number, metrics, ...)  # as often as the function reports
        conductor.ended(number, Ending(TrialState.FINISHED)) # once

An engine calls the conductor from one thread. The conductor writes everything down before it answers, so a killed study goes
on where it was, whichever engine ran it.
"""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from legroom.tuning.memory.admission import Admission, Place
from legroom.tuning.schedule.schedulers import SchedulerOptions
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.records import Mode, TrialRecord

if TYPE_CHECKING:
    from legroom.tuning.study_runner import Conductor


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that was asked of `legroom.tune`."""

    function: TrainFunction
    space: Space
    metric: str
    mode: Mode
    search: str = "random"
    scheduler: str | None = None
    scheduler_options: SchedulerOptions = field(default_factory=SchedulerOptions)
    trials: int = 10
    """How many are started; proposals that can never fit do not count."""
    places: Sequence[Place] = ()
    """GPUs, real or virtual; none: the host."""
    parallel: int | None = None
    """Trials at once at most; None: as many as the memory or the processors allow."""
    ranks: int = 1
    """Processes of one trial."""
    time_budget: float | None = None
    """Seconds."""
    seed: int = 0
    folder: Path
    """Where the study is kept."""
    shape_parameters: frozenset[str] | None = None
    """Parameters that memory depends on, where the user says so; None: found out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A trial that can be started as soon as there is room."""

    number: int
    config: Config
    admission: Admission
    checkpoint: str | None = None
    """What it goes on from: it was interrupted, paused, or took another trial's over."""
    step: int = 0
    """Steps that it has reported already."""


class Engine(Protocol):
    """Runs trials until the conductor has no more."""

    name: str

    def prepare(self, job: Job) -> None:
        """Called before all else, so that what takes long to start does so while the study is made ready."""

    def run(self, job: Job, conductor: "Conductor") -> None: ...


class Watcher(Protocol):
    """Whoever shows or logs a study while it runs (the live table, TensorBoard, wandb). Called from the engine's thread."""

    def begun(self, job: Job, records: Sequence[TrialRecord]) -> None:
        """A study begins, before anything changes; `records`: what there was of it before an interruption."""

    def changed(self, record: TrialRecord) -> None:
        """A trial has a new state or a new report."""

    def said(self, sentence: str) -> None:
        """Something that a person should know, once."""

    def closed(self) -> None:
        """The study is over, or was interrupted."""


@contextlib.contextmanager
def ended_politely() -> Iterator[None]:
    """A polite kill (SIGTERM) ends a study as Ctrl-C does. Only the main thread may arrange that."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
