"""A searcher and a scheduler through which Ray Tune requests decisions from the dispatcher.

Ray manages processes, resources and machines. All other decisions are made in the same way as with the local engine.
Each restart of a trial (after a pause, an out-of-memory error or a copied checkpoint) is a new trial for Ray.
Therefore, one trial of a study can have several Ray trials.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from legroom.errors import LegroomError
from legroom.tuning.engines.ray import workers
from legroom.tuning.engines.ray.channel import TASKS
from legroom.tuning.engines.ray.trial import kill_process, read_result
from legroom.tuning.engines.ray.worker_exits import exit_reason
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.study_runner import StudyRunner
from legroom.tuning.trial.process import TrialExit
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage
from legroom.tuning.trial_dispatch import TrialDispatcher

POLL_SECONDS = 0.2


@dataclass(slots=True)
class SharedState:
    """The state that the searcher and the scheduler share."""

    dispatcher: TrialDispatcher
    runner: StudyRunner
    server: str | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    """The trial number of each Ray trial ID."""
    error: LegroomError | None = None
    """The error that ends the study. The error is stored instead of raised, because Ray would wrap a raised error in
    its own error with a traceback.
    """

    @contextlib.contextmanager
    def record_error(self) -> Iterator[None]:
        try:
            yield
        except LegroomError as error:
            self.error = error
            raise


class DispatchSearcher(Searcher):
    """Provides Ray with the next trial that fits into the free memory. The configuration that Ray receives contains
    one task per rank.
    """

    def __init__(self, shared: SharedState) -> None:
        super().__init__()
        self._shared = shared

    def suggest(self, trial_id: str) -> Any:
        dispatcher, runner = self._shared.dispatcher, self._shared.runner
        with self._shared.record_error():
            tasks = dispatcher.next_tasks()
            while tasks is None and not dispatcher.running and not dispatcher.is_over:
                runner.wait(POLL_SECONDS)  # Ray would sleep for a whole second
                tasks = dispatcher.next_tasks()
        if tasks is None:
            return Searcher.FINISHED if dispatcher.is_over else None
        self._shared.numbers[trial_id] = tasks[0].number
        return {TASKS: tasks}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing, because the scheduler handles the end of a trial."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing, because a search is resumed from the study's storage."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, because a search is resumed from the study's storage."""

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state. Ray saves a copy of the settings to disk, and this copy must not contain the study."""
        return {}


class DispatchScheduler(FIFOScheduler):
    """Passes the reports and results of trials to the dispatcher, and the decisions of the dispatcher to Ray."""

    _supports_buffered_results = False  # a trial waits for the answer to each report

    def __init__(self, shared: SharedState) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shared = shared
        self._keeps_workers = False

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if self._shared.server is not None and not self._keeps_workers:
            self._keeps_workers = True
            workers.keep_idle(tune_controller, trial, self._shared.dispatcher.slots)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        dispatcher, number = self._shared.dispatcher, self._shared.numbers[trial.trial_id]
        message = read_result(result)
        with self._shared.record_error():
            if isinstance(message, ReportMessage):
                if dispatcher.reported(number, message) is Action.CONTINUE:
                    return TrialScheduler.CONTINUE
                # Ray ends its own worker. A process that was forked next to a worker must be killed here.
                kill_process(result, self._shared.server)
                message = TrialExit(
                    state=TrialState.STOPPED, actual_bytes=message.actual_bytes, ooms=message.ooms
                )
            dispatcher.ended(number, message)
        return TrialScheduler.STOP

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        # Exceptions of the function are handled in the worker. Ray writes the reason for a worker's exit to a file.
        end = TrialExit(state=TrialState.FAILED, reason=exit_reason(_last_error(trial)))
        with self._shared.record_error():
            self._shared.dispatcher.ended(self._shared.numbers[trial.trial_id], end)

    def __getstate__(self) -> dict[str, Any]:
        return {}


def _last_error(trial: Trial) -> str:
    try:
        text = Path(trial.error_file or "").read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.rpartition("Failure # ")[2]
