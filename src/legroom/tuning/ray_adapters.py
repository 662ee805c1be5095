"""The two places where Ray Tune asks what to do, a searcher and a scheduler, and who answers: the stage.

Ray keeps processes, resources and machines; what is tried, admitted, cut short and learned is decided as in every other engine. One of our
trials can be several of Ray's: each time it is handed out (again after a pause, a full GPU, another's checkpoint) Ray sees a new one.
"""

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from legroom.tuning.conductor import Conductor
from legroom.tuning.ray_trial import ORDER, read_result
from legroom.tuning.records import TrialState
from legroom.tuning.schedulers import Action
from legroom.tuning.staging import Stage
from legroom.tuning.trial import Reported
from legroom.tuning.trial_process import TrialEnd

SECONDS_BETWEEN_LOOKS = 0.2


class StagedSearch(Searcher):
    """Ray asks for a configuration and gets the order of the next trial that has room."""

    def __init__(self, stage: Stage, conductor: Conductor, numbers: dict[str, int]) -> None:
        """`numbers`: Ray's name of a trial → ours, shared with the scheduler."""
        super().__init__()
        self._stage, self._conductor, self._numbers = stage, conductor, numbers

    def suggest(self, trial_id: str) -> Any:
        """An order; None where there is none now; Ray's own word where there will be no more."""
        orders = self._stage.hand_out()
        while orders is None and not self._stage.running and not self._stage.is_over:
            self._conductor.wait(SECONDS_BETWEEN_LOOKS)  # Ray would sleep a whole second
            orders = self._stage.hand_out()
        if orders is None:
            return Searcher.FINISHED if self._stage.is_over else None
        self._numbers[trial_id] = orders[0].number
        return {ORDER: orders[0]}

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

    def __init__(self, stage: Stage, numbers: dict[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stage, self._numbers = stage, numbers

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        number = self._numbers[trial.trial_id]
        told = read_result(result)
        if not isinstance(told, Reported):
            self._stage.ended(number, told)
            return TrialScheduler.STOP
        if self._stage.reported(number, told) is Action.GO_ON:
            return TrialScheduler.CONTINUE
        # Ray ends the process, and it will say no more.
        self._stage.ended(
            number, TrialEnd(state=TrialState.STOPPED, actual_bytes=told.actual_bytes, ooms=told.ooms)
        )
        return TrialScheduler.STOP

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._stage.ended(self._numbers[trial.trial_id], TrialEnd(state=TrialState.FAILED, why=_why(trial)))

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Our trials say that they end, and are stopped at that."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


def _why(trial: Trial) -> str:
    """What is known of a worker that is gone: our own code tells errors of the function, so this is the process's end."""
    error = trial.get_pickled_error() or trial.get_error()
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return "Ray ended its process: the machine's memory was nearly full"
    if kind in ("RayActorError", "ActorDiedError", "WorkerCrashedError"):
        return "its process died"
    return f"its process died ({kind})"
