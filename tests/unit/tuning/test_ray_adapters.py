"""What Ray is answered, without Ray: a stage of our own stands behind the searcher and the scheduler."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from legroom.errors import UsageError
from legroom.tuning.engines.ray.adapters import Exchange, StagedScheduler, StagedSearch
from legroom.tuning.engines.ray.trial import ENDED, ORDERS, REPORTED, read_result
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.trial.process import TrialEnd
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported


class Stage:
    """Hands out what it was given, and notes what it is told."""

    slots = 2

    def __init__(self, *orders: Any, action: Action = Action.GO_ON) -> None:
        self.orders, self.action = list(orders), action
        self.running, self.is_over = 0, False
        self.told: list[Any] = []

    def hand_out(self) -> Any:
        return self.orders.pop(0) if self.orders else None

    def reported(self, number: int, told: Reported) -> Action:
        self.told.append((number, told.metrics))
        return self.action

    def ended(self, number: int, end: TrialEnd) -> None:
        self.told.append((number, end.state, end.why))


def exchange(stage: Stage) -> Any:
    waits: list[float] = []
    return Exchange(stage, SimpleNamespace(wait=waits.append, waits=waits), numbers={"ray-7": 7})  # type: ignore[arg-type]


def order(number: int) -> list[Any]:
    return [SimpleNamespace(number=number)]


def trial() -> Any:
    return SimpleNamespace(trial_id="ray-7")


def reported(**metrics: float) -> dict[str, Any]:
    return {REPORTED: Reported(step=1, metrics=metrics), "training_iteration": 1}


def test_a_trial_with_room_is_handed_to_ray() -> None:
    shared = exchange(Stage(order(3)))
    assert StagedSearch(shared).suggest("ray-1") == {ORDERS: [SimpleNamespace(number=3)]}
    assert shared.numbers["ray-1"] == 3


def test_while_others_run_ray_is_told_to_ask_again() -> None:
    stage = Stage()
    stage.running = 1
    assert StagedSearch(exchange(stage)).suggest("ray-1") is None


def test_where_nothing_runs_the_estimate_is_waited_for() -> None:
    shared = exchange(Stage(None, None, order(0)))
    assert StagedSearch(shared).suggest("ray-1") is not None
    assert len(shared.conductor.waits) == 2


def test_the_end_is_said_in_rays_word() -> None:
    stage = Stage()
    stage.is_over = True
    assert StagedSearch(exchange(stage)).suggest("ray-1") == Searcher.FINISHED


def test_a_report_goes_on() -> None:
    stage = Stage()
    assert (
        StagedScheduler(exchange(stage)).on_trial_result(None, trial(), reported(loss=1.0))
        == TrialScheduler.CONTINUE
    )
    assert stage.told == [(7, {"loss": 1.0})]


@pytest.mark.parametrize("action", [Action.STOP, Action.PAUSE, Action.TAKE_OVER])
def test_a_trial_that_is_not_to_go_on_has_ended_for_the_stage(action: Action) -> None:
    stage = Stage(action=action)
    assert (
        StagedScheduler(exchange(stage)).on_trial_result(None, trial(), reported(loss=1.0))
        == TrialScheduler.STOP
    )
    assert stage.told[-1] == (7, TrialState.STOPPED, "")


def test_how_the_function_ended_reaches_the_stage() -> None:
    stage = Stage()
    end = TrialEnd(state=TrialState.FAILED, why="ValueError: x, train.py:3")
    assert (
        StagedScheduler(exchange(stage)).on_trial_result(None, trial(), {ENDED: end}) == TrialScheduler.STOP
    )
    assert stage.told == [(7, TrialState.FAILED, "ValueError: x, train.py:3")]


def test_a_worker_that_died_is_a_failed_trial() -> None:
    stage = Stage()
    StagedScheduler(exchange(stage)).on_trial_error(None, trial())
    (told,) = stage.told
    assert told[:2] == (7, TrialState.FAILED)
    assert told[2].startswith("its process ended without a word")


def test_why_a_study_is_refused_is_kept_from_rays_wrapping() -> None:
    class Refusing(Stage):
        def ended(self, number: int, end: TrialEnd) -> None:
            raise UsageError("the metric was never reported")

    shared = exchange(Refusing())
    with pytest.raises(UsageError):
        StagedScheduler(shared).on_trial_result(None, trial(), {ENDED: TrialEnd(state=TrialState.FINISHED)})
    assert str(shared.refusal) == "the metric was never reported"


def test_rays_copy_of_its_settings_holds_nothing_of_the_study() -> None:
    shared = exchange(Stage())
    assert len(pickle.dumps(StagedSearch(shared))) < 200
    assert len(pickle.dumps(StagedScheduler(shared))) < 200


def test_a_plain_ray_result_is_read_without_what_ray_adds() -> None:
    result = {
        "loss": 0.5,
        "name": "x",
        "flag": True,
        "training_iteration": 3,
        "time_total_s": 9.0,
        "pid": 1,
        "done": False,
    }
    assert read_result(result) == Reported(step=3, metrics={"loss": 0.5})


@pytest.mark.parametrize(("server", "kept"), [("server", 2), (None, 0)])
def test_ray_keeps_a_worker_for_each_trial_that_runs_at_once(server: str | None, kept: int) -> None:
    from ray.tune import PlacementGroupFactory
    from ray.tune.utils.object_cache import _ObjectCache

    cache, asked = _ObjectCache(may_keep_one=False), PlacementGroupFactory([{"CPU": 0.01}])
    controller = SimpleNamespace(_tune_controller=SimpleNamespace(_actor_cache=cache))
    shared = exchange(Stage())
    shared.server = server
    scheduler = StagedScheduler(shared)
    for _ in range(3):
        scheduler.on_trial_add(controller, SimpleNamespace(placement_group_factory=asked))  # type: ignore[arg-type]
    workers = ["first", "second", "third"]
    assert sum(cache.cache_object(asked, worker) for worker in workers) == kept
