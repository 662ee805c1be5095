"""The searcher and scheduler for Ray Tune, with a fake dispatcher and without Ray."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.tune")

from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from legroom.errors import UsageError
from legroom.tuning.engines.ray.adapters import DispatchScheduler, DispatchSearcher, SharedState
from legroom.tuning.engines.ray.channel import ENDED, REPORTED, TASKS
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.trial.process import TrialExit
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage

pytestmark = pytest.mark.ray


class FakeDispatcher:
    """A fake dispatcher that returns the given tasks and records reports and ended trials."""

    slots = 2

    def __init__(self, *tasks: Any, action: Action = Action.CONTINUE) -> None:
        self.tasks, self.action = list(tasks), action
        self.running, self.is_over = 0, False
        self.calls: list[Any] = []

    def next_tasks(self) -> Any:
        return self.tasks.pop(0) if self.tasks else None

    def reported(self, number: int, message: ReportMessage) -> Action:
        self.calls.append((number, message.metrics))
        return self.action

    def ended(self, number: int, end: TrialExit) -> None:
        self.calls.append((number, end.state, end.reason))


def shared_state(dispatcher: FakeDispatcher) -> Any:
    waits: list[float] = []
    return SharedState(dispatcher, SimpleNamespace(wait=waits.append, waits=waits), numbers={"ray-7": 7})  # type: ignore[arg-type]


def task(number: int) -> list[Any]:
    return [SimpleNamespace(number=number)]


def trial() -> Any:
    return SimpleNamespace(trial_id="ray-7")


def reported(**metrics: float) -> dict[str, Any]:
    return {REPORTED: ReportMessage(step=1, metrics=metrics), "training_iteration": 1}


def test_a_trial_that_fits_is_given_to_ray() -> None:
    shared = shared_state(FakeDispatcher(task(3)))
    assert DispatchSearcher(shared).suggest("ray-1") == {TASKS: [SimpleNamespace(number=3)]}
    assert shared.numbers["ray-1"] == 3


def test_ray_gets_nothing_if_no_trial_is_ready() -> None:
    dispatcher = FakeDispatcher()
    dispatcher.running = 1
    assert DispatchSearcher(shared_state(dispatcher)).suggest("ray-1") is None


def test_without_running_trials_the_estimate_is_awaited() -> None:
    shared = shared_state(FakeDispatcher(None, None, task(0)))
    assert DispatchSearcher(shared).suggest("ray-1") is not None
    assert len(shared.runner.waits) == 2


def test_a_searcher_without_further_trials_is_finished() -> None:
    dispatcher = FakeDispatcher()
    dispatcher.is_over = True
    assert DispatchSearcher(shared_state(dispatcher)).suggest("ray-1") == Searcher.FINISHED


def test_a_report_continues_the_trial() -> None:
    dispatcher = FakeDispatcher()
    assert (
        DispatchScheduler(shared_state(dispatcher)).on_trial_result(None, trial(), reported(loss=1.0))
        == TrialScheduler.CONTINUE
    )
    assert dispatcher.calls == [(7, {"loss": 1.0})]


@pytest.mark.parametrize("action", [Action.STOP, Action.PAUSE, Action.EXPLOIT])
def test_a_trial_that_does_not_continue_has_ended_for_the_dispatcher(action: Action) -> None:
    dispatcher = FakeDispatcher(action=action)
    assert (
        DispatchScheduler(shared_state(dispatcher)).on_trial_result(None, trial(), reported(loss=1.0))
        == TrialScheduler.STOP
    )
    assert dispatcher.calls[-1] == (7, TrialState.STOPPED, "")


def test_the_dispatcher_learns_how_the_function_ended() -> None:
    dispatcher = FakeDispatcher()
    end = TrialExit(state=TrialState.FAILED, reason="ValueError: x, train.py:3")
    assert (
        DispatchScheduler(shared_state(dispatcher)).on_trial_result(None, trial(), {ENDED: end})
        == TrialScheduler.STOP
    )
    assert dispatcher.calls == [(7, TrialState.FAILED, "ValueError: x, train.py:3")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly. Worker exits with an exit code 4.",
            "The process exited without a result (exit code 4)",
        ),
        (
            "Task was killed due to the node running low on memory.",
            "The process was killed by Ray, because the machine ran low on memory",
        ),
        ("The actor is dead because it was killed by `ray.kill`.", "The process was killed with `ray.kill`"),
        (
            "Worker unexpectedly exits with a connection error code 2. End of file.",
            "The process exited without a result. Ray does not report the exit code or the signal. Common causes are a call "
            "to `os._exit`, a crash in native code, and a lack of host memory",
        ),
    ],
)
def test_a_dead_worker_is_a_failed_trial_with_the_reason_that_ray_reports(
    error: str, reason: str, tmp_path: Path
) -> None:
    dispatcher = FakeDispatcher()
    dead = trial()
    file = tmp_path / "error.txt"
    file.write_text(f"Failure # 1 (occurred at noon)\nexit code 9\nFailure # 2 (occurred later)\n{error}\n")
    dead.error_file = str(file)
    DispatchScheduler(shared_state(dispatcher)).on_trial_error(None, dead)
    assert dispatcher.calls == [(7, TrialState.FAILED, reason)]


def test_a_dead_worker_without_a_reported_reason_is_a_failed_trial() -> None:
    dispatcher = FakeDispatcher()
    dead = trial()
    dead.error_file = None
    DispatchScheduler(shared_state(dispatcher)).on_trial_error(None, dead)
    (call,) = dispatcher.calls
    assert call[2].startswith("The process exited without a result. Ray does not report")


def test_the_original_error_is_kept_when_ray_wraps_it() -> None:
    class Failing(FakeDispatcher):
        def ended(self, number: int, end: TrialExit) -> None:
            raise UsageError("the metric was never reported")

    shared = shared_state(Failing())
    with pytest.raises(UsageError):
        DispatchScheduler(shared).on_trial_result(
            None, trial(), {ENDED: TrialExit(state=TrialState.FINISHED)}
        )
    assert str(shared.error) == "the metric was never reported"


def test_rays_saved_settings_contain_nothing_of_the_study() -> None:
    shared = shared_state(FakeDispatcher())
    assert len(pickle.dumps(DispatchSearcher(shared))) < 200
    assert len(pickle.dumps(DispatchScheduler(shared))) < 200


@pytest.mark.parametrize(("server", "kept"), [("server", 2), (None, 0)])
def test_ray_keeps_an_idle_worker_per_slot(server: str | None, kept: int) -> None:
    from ray.tune import PlacementGroupFactory
    from ray.tune.utils.object_cache import _ObjectCache

    cache, asked = _ObjectCache(may_keep_one=False), PlacementGroupFactory([{"CPU": 0.01}])
    controller = SimpleNamespace(_tune_controller=SimpleNamespace(_actor_cache=cache))
    shared = shared_state(FakeDispatcher())
    shared.server = server
    scheduler = DispatchScheduler(shared)
    for _ in range(3):
        scheduler.on_trial_add(controller, SimpleNamespace(placement_group_factory=asked))  # type: ignore[arg-type]
    workers = ["first", "second", "third"]
    assert sum(cache.cache_object(asked, worker) for worker in workers) == kept
