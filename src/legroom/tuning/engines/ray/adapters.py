"""The two places where Ray Tune asks what to do, a searcher and a scheduler, and who answers: the stage.

Ray keeps processes, resources and machines; what is tried, admitted, cut short and learned is decided as in every other engine. One of our
trials can be several of Ray's: each time it is handed out (again after a pause, a full GPU, another's checkpoint) Ray sees a new one.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from legroom.errors import LegroomError
from legroom.tuning.engines.ray import workers
from legroom.tuning.engines.ray.trial import ORDERS, end_process, read_result
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.study_runner import Conductor
from legroom.tuning.trial.process import TrialEnd
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported
from legroom.tuning.trial_dispatch import Stage

SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(slots=True)
class Exchange:
    """What searcher and scheduler share."""

    stage: Stage
    conductor: Conductor
    server: str | None = None
    """Where trials are forked that run beside Ray's workers."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Ray's name of a trial → our number."""
    refusal: LegroomError | None = None
    """Why the study ends here: Ray would wrap it into an error of its own, with a traceback in its text."""

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        try:
            yield
        except LegroomError as error:
            self.refusal = error
            raise


class StagedSearch(Searcher):
    """Ray asks for a configuration and gets the orders of the next trial that has room, one for each of its ranks."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def suggest(self, trial_id: str) -> Any:
        """Its orders; None where there is none now; Ray's own word where there will be no more."""
        stage, conductor = self._exchange.stage, self._exchange.conductor
        with self._exchange.heard():
            orders = stage.hand_out()
            while orders is None and not stage.running and not stage.is_over:
                conductor.wait(SECONDS_BETWEEN_LOOKS)  # Ray would sleep a whole second
                orders = stage.hand_out()
        if orders is None:
            return Searcher.FINISHED if stage.is_over else None
        self._exchange.numbers[trial_id] = orders[0].number
        return {ORDERS: orders}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """The scheduler has heard it already."""

    def save(self, checkpoint_path: str) -> None:
        """The study's own store is what a search is resumed from."""

    def restore(self, checkpoint_path: str) -> None:
        """Never called: Ray's own restoring is not used."""

    def __getstate__(self) -> dict[str, Any]:
        """Ray keeps a copy of all settings on disk; the stage is no part of it."""
        return {}


class StagedScheduler(FIFOScheduler):
    """Ray says what a trial reported and how it ended, and is told whether it goes on."""

    _supports_buffered_results = False  # a trial is to wait for the answer to each report

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._exchange = exchange
        self._keeps_workers = False

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if self._exchange.server is not None and not self._keeps_workers:
            self._keeps_workers = True
            workers.keep(tune_controller, trial, self._exchange.stage.slots)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        stage, number = self._exchange.stage, self._exchange.numbers[trial.trial_id]
        told = read_result(result)
        with self._exchange.heard():
            if isinstance(told, Reported):
                if stage.reported(number, told) is Action.GO_ON:
                    return TrialScheduler.CONTINUE
                # It will say no more: a worker of its own is Ray's to end, a process beside one that stays is ours.
                end_process(result, self._exchange.server)
                told = TrialEnd(state=TrialState.STOPPED, actual_bytes=told.actual_bytes, ooms=told.ooms)
            stage.ended(number, told)
        return TrialScheduler.STOP

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        # The function's own errors are told in the worker; Ray gives the scheduler none of what it knows of a dead one.
        end = TrialEnd(
            state=TrialState.FAILED,
            why="its process ended without a word: it was killed, or the machine was out of memory",
        )
        with self._exchange.heard():
            self._exchange.stage.ended(self._exchange.numbers[trial.trial_id], end)

    def __getstate__(self) -> dict[str, Any]:
        return {}
