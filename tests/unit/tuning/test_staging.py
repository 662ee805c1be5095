"""Who goes on stage, and what happens to those who find no room there."""

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from legroom.gpus.machine import VisibleGpu
from legroom.tuning import trial_dispatch
from legroom.tuning.engines.engine import Job
from legroom.tuning.memory.admission import Admission, Fit, Place, Verdict
from legroom.tuning.memory.other_processes import Neighbours
from legroom.tuning.schedule.schedulers import Action, Asha
from legroom.tuning.search.searchers import RandomSearcher, Result
from legroom.tuning.space.space import Config, read_space
from legroom.tuning.store import Store
from legroom.tuning.study_runner import Conductor
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import TrialEnd
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported
from legroom.tuning.trial_dispatch import Stage
from legroom.units import GiB

SPACE = read_space({"x": {"int": [1, 100]}})
PLACE = Place(index=0, memory=10 * GiB)


class HalfOfTheRest:
    """A gate that gives each trial half of what others leave."""

    is_looking = False

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def ask(self, config: Config) -> "Future[Admission]":
        half = (PLACE.memory - self._neighbours.held(PLACE)) // 2
        answer: Future[Admission] = Future()
        answer.set_result(Admission(verdict=Verdict.FITS, fits={0: Fit(predicted=half, safe=half)}))
        return answer

    def ran_out(self, config: Config, fit: Fit, needed: int) -> None: ...
    def close(self) -> None: ...


def test_trials_whose_room_others_took_are_asked_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = VisibleGpu(index=0, name="a GPU", total=PLACE.memory, used=8 * GiB)
    neighbours = Neighbours([PLACE], lambda: [gpu], set)
    job = Job(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, places=[PLACE], trials=2, parallel=1
    )  # fmt: skip
    store = Store(tmp_path, resume=False, mode="min", facts={})
    gate: Any = HalfOfTheRest(neighbours)
    conductor = Conductor(job, RandomSearcher(SPACE, seed=0), None, gate, store, (), neighbours)
    stage = Stage(job, conductor)
    assert stage.hand_out() is None, "admitted with half of the GPU, most of which others have by now"
    monkeypatch.setattr(trial_dispatch, "SECONDS_UNTIL_ASKED_AGAIN", 0.0)
    assert stage.hand_out() is None
    (order,) = stage.hand_out() or []
    assert (order.number, order.cap) == (0, 1 * GiB + PLACE.memory // 50)
    conductor.close()


class Small:
    """A gate that gives each trial what it asks for in GiB."""

    @property
    def is_looking(self) -> bool:
        """Every answer is there at once."""
        return False

    def ask(self, config: Config) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        fit = Fit(predicted=config["x"] * GiB, safe=config["x"] * GiB)
        answer.set_result(Admission(verdict=Verdict.FITS, fits={0: fit}))
        return answer

    def ran_out(self, config: Config, fit: Fit, needed: int) -> None: ...
    def close(self) -> None: ...


class Listed:
    """Proposes sizes from a list, and learns from the first trial on."""

    start_up: int | None = 0

    def __init__(self, sizes: list[int]) -> None:
        self.left = sizes

    def propose(self, number: int) -> Config | None:
        return {"x": self.left.pop(0)} if self.left else None

    def learn(self, number: int, config: Config, result: Result) -> None: ...


def test_where_the_search_learns_one_trial_waits_and_one_more_for_each_that_finds_no_room(
    tmp_path: Path,
) -> None:
    place = Place(index=0, memory=10 * GiB, virtual=True)
    job = Job(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, places=[place], trials=9, parallel=2
    )  # fmt: skip
    searcher, gate = Listed([6, 8, 3, 1, 1, 1, 1]), Small()
    store = Store(tmp_path, resume=False, mode="min", facts={})
    conductor = Conductor(job, searcher, None, gate, store, ())
    stage = Stage(job, conductor)
    handed_out = [stage.hand_out() for _ in range(4)]
    assert [orders[0].number if orders else None for orders in handed_out] == [0, None, 2, None]
    assert len(searcher.left) == 4, "two run, the one without room waits, and nobody else was asked for"
    conductor.close()


class LargestFirst(Listed):
    """Draws three without having learned anything, and would have the largest go first."""

    start_up: int | None = 3

    def order(self, waiting: Mapping[int, Admission]) -> list[int]:
        return sorted(waiting, key=lambda number: -waiting[number].size)


def test_where_the_search_chooses_all_its_draws_are_asked_about_and_it_says_who_goes_first(
    tmp_path: Path,
) -> None:
    place = Place(index=0, memory=10 * GiB, virtual=True)
    job = Job(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, places=[place], trials=9, parallel=2
    )  # fmt: skip
    searcher = LargestFirst([2, 6, 8, 1, 1, 1])
    conductor = Conductor(
        job, searcher, None, Small(), Store(tmp_path, resume=False, mode="min", facts={}), ()
    )
    stage = Stage(job, conductor)
    stage.look_ahead()
    assert len(searcher.left) == 3, "nothing beyond the draws is asked for while they wait"
    handed_out = [stage.hand_out() for _ in range(3)]
    assert [orders[0].number if orders else None for orders in handed_out] == [2, 0, None]
    assert len(searcher.left) == 3, "the one in the middle still waits for room"
    conductor.close()


class InPieces(Small):
    """A gate that cuts batches of 64 into pieces of 64 / x rows."""

    def ask(self, config: Config) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        fit = Fit(predicted=GiB, safe=GiB, micro_batch=64 // config["x"])
        answer.set_result(Admission(verdict=Verdict.SPLIT, fits={0: fit}, batch_size=64))
        return answer


@pytest.mark.parametrize(
    ("pieces", "order"),
    [
        ([64, 2, 2, 64, 4], [2, 2, 4, 64, 64]),  # three draws, then two that it has learned to propose
        ([32, 64, 16, 64, 4], [32, 64, 16, 64, 4]),  # where all go in many pieces, none waits for another
    ],
)
def test_where_the_search_chooses_what_goes_in_many_pieces_goes_last(
    tmp_path: Path, pieces: list[int], order: list[int]
) -> None:
    place = Place(index=0, memory=10 * GiB, virtual=True)
    job = Job(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, places=[place], trials=5, parallel=9
    )  # fmt: skip
    conductor = Conductor(
        job,
        LargestFirst(list(pieces)),
        None,
        InPieces(),
        Store(tmp_path, resume=False, mode="min", facts={}),
        (),
    )
    stage = Stage(job, conductor)
    started = [orders[0].config["x"] for _ in range(6) if (orders := stage.hand_out())]
    assert started == order, "all are started in the end"
    conductor.close()


class Corrected(Small):
    """Notes what is told of trials that met a full GPU."""

    def __init__(self) -> None:
        self.needed: list[int] = []

    def ran_out(self, config: Config, fit: Fit, needed: int) -> None:
        self.needed.append(needed)


def test_what_a_trial_took_that_met_a_full_gpu_is_told_when_it_is_known(tmp_path: Path) -> None:
    place = Place(index=0, memory=10 * GiB, virtual=True)
    job = Job(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, places=[place], trials=1
    )  # fmt: skip
    gate = Corrected()
    store = Store(tmp_path, resume=False, mode="min", facts={})
    conductor = Conductor(job, Listed([2]), None, gate, store, ())
    stage = Stage(job, conductor)
    stage.hand_out()
    stage.ended(0, TrialEnd(state=TrialState.OUT_OF_MEMORY, actual_bytes=2 * GiB, ooms=1))
    (order,) = stage.hand_out() or []
    assert order.cap == place.memory
    stage.ended(0, TrialEnd(state=TrialState.FINISHED, final={"loss": 1.0}, actual_bytes=5 * GiB))
    assert gate.needed == [2 * GiB, 5 * GiB]
    conductor.close()


class Slow(Small):
    """A gate that leaves the last question open."""

    def __init__(self) -> None:
        self.asked: list[Future[Admission]] = []
        self.is_in_pieces = False

    @property
    def is_looking(self) -> bool:
        return not self.is_in_pieces

    def ask(self, config: Config) -> "Future[Admission]":
        self.asked.append(Future() if config["x"] == 3 else super().ask(config))
        return self.asked[-1]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_where_the_search_chooses_no_trial_takes_the_processor_on_which_another_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_pieces: bool
) -> None:
    monkeypatch.setattr(trial_dispatch, "processors", lambda: 2)
    place = Place(index=0, memory=10 * GiB, virtual=True)
    job = Job(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, places=[place], trials=9, parallel=2
    )  # fmt: skip
    gate = Slow()
    conductor = Conductor(
        job, LargestFirst([2, 1, 3]), None, gate, Store(tmp_path, resume=False, mode="min", facts={}), ()
    )
    stage = Stage(job, conductor)
    handed_out = [stage.hand_out(), stage.hand_out()]
    assert [orders[0].number if orders else None for orders in handed_out] == [0, None]
    gate.is_in_pieces = True
    if in_pieces:
        (order,) = stage.hand_out() or []
        assert order.number == 1, "the other one goes behind trials now"
    else:
        gate.asked[-1].set_result(Small().ask({"x": 3}).result())
        (order,) = stage.hand_out() or []
        assert order.number == 2, "the largest one, now that nothing is traced"
    conductor.close()


@pytest.mark.parametrize(("most_steps", "state"), [(2, TrialState.FINISHED), (9, TrialState.STOPPED)])
def test_a_trial_that_came_to_asha_s_last_step_is_finished_and_one_that_was_cut_is_not(
    tmp_path: Path, most_steps: int, state: TrialState
) -> None:
    job = Job(function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, trials=2, parallel=2)  # fmt: skip
    conductor = Conductor(
        job,
        Listed([1, 2]),
        Asha("min", grace=2, most_steps=most_steps),
        Small(),
        Store(tmp_path, resume=False, mode="min", facts={}),
        (),
    )
    stage = Stage(job, conductor)
    for _ in range(2):
        assert stage.hand_out()
    for step in (1, 2):
        for number in (0, 1):
            action = stage.reported(number, Reported(step=step, metrics={"loss": float(number)}))
    assert action is Action.STOP
    stage.ended(1, TrialEnd(state=TrialState.STOPPED))
    assert conductor.records[1].state is state
    conductor.close()
