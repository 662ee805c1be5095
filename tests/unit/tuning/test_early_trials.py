"""Trials that run while Ray is being started, and how they are looked after when it is there."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from legroom.tuning.conductor import Conductor
from legroom.tuning.early_trials import EarlyTrials
from legroom.tuning.engine import Job
from legroom.tuning.exchange import Exchange
from legroom.tuning.fork_server import fork_server
from legroom.tuning.function import TrainFunction
from legroom.tuning.memory_gate import OpenGate
from legroom.tuning.records import TrialState
from legroom.tuning.searchers import RandomSearcher
from legroom.tuning.space import read_space
from legroom.tuning.staging import Stage
from legroom.tuning.store import Store

SPACE = read_space({"x": {"int": [1, 100]}})
FUNCTIONS = """
import time


def quick(config, trial):
    for step in range(3):
        trial.report(loss=float(config["x"]))


def endless(config, trial):
    while True:
        trial.report(loss=1.0)
        time.sleep(0.02)


def broken(config, trial):
    trial.report(accuracy=1.0)
"""


@pytest.fixture
def begun(tmp_path: Path) -> Any:
    """Makes the exchange of a study of one of these functions, and the early trials of it."""
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    conductors: list[Conductor] = []

    def begin(name: str, trials: int = 3) -> tuple[Exchange, EarlyTrials]:
        function = TrainFunction.of(f"{file}:{name}")
        job = Job(function=function, space=SPACE, metric="loss", mode="min", folder=tmp_path / "study", trials=trials, parallel=1)  # fmt: skip
        store = Store(job.folder, resume=False, mode="min", facts={})
        conductors.append(Conductor(job, RandomSearcher(SPACE, 0), None, OpenGate(), store, ()))
        exchange = Exchange(Stage(job, conductors[-1]), conductors[-1])
        exchange.early = EarlyTrials(exchange, fork_server(function))
        return exchange, exchange.early

    yield begin
    for conductor in conductors:
        conductor.close()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def states(exchange: Exchange) -> list[TrialState]:
    return [record.state for record in exchange.conductor.records]


def test_trials_run_one_after_the_other_as_long_as_ray_is_not_there(begun: Any) -> None:
    exchange, early = begun("quick")
    with early:
        until(lambda: exchange.stage.is_over)
    assert states(exchange) == [TrialState.FINISHED] * 3
    assert [len(record.reports) for record in exchange.conductor.records] == [3, 3, 3]


def test_once_ray_is_there_none_starts_and_what_runs_is_looked_after(begun: Any) -> None:
    exchange, early = begun("endless")
    with early:
        early.wait_for_the_first()
        assert exchange.stage.running == 1
        until(lambda: exchange.conductor.records[0].step > 2)
        early.leave_the_rest_to_ray()
        before = exchange.conductor.records[0].step
        until(lambda: exchange.conductor.records[0].step > before + 2)
        assert (early.running, exchange.running_on_ray) == (1, 0)
    assert early.running == 0
    before = exchange.conductor.records[0].step
    time.sleep(0.2)
    assert exchange.conductor.records[0].step == before, "its process is gone"


def test_whoever_holds_the_lock_is_alone_on_the_stage(begun: Any) -> None:
    exchange, early = begun("endless")
    with early:
        until(lambda: exchange.conductor.records and exchange.conductor.records[0].step > 2)
        with exchange.lock:
            before = exchange.conductor.records[0].step
            time.sleep(0.2)
            assert exchange.conductor.records[0].step == before
        until(lambda: exchange.conductor.records[0].step > before)


def test_what_goes_wrong_is_kept_for_ray_to_hear(begun: Any) -> None:
    exchange, early = begun("broken")
    with early:
        early.wait_for_the_first()
        until(lambda: exchange.refusal is not None)
    assert "never reported 'loss'" in str(exchange.refusal)
    assert not any(thread.name == "legroom-early-trials" for thread in threading.enumerate())
