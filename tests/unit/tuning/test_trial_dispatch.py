"""The dispatcher: which trial starts next, and what happens to trials that do not fit."""

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from legroom.gpus.machine import VisibleGpu
from legroom.tuning import trial_dispatch
from legroom.tuning.job import TuneJob
from legroom.tuning.memory.admission import Admission, AdmissionVerdict, Fit, TrialGpu
from legroom.tuning.memory.other_processes import OtherProcessUsage
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.schedule.schedulers import Asha
from legroom.tuning.search.protocol import Result
from legroom.tuning.search.searchers import RandomSearcher
from legroom.tuning.space.space import Config, read_space
from legroom.tuning.store import StudyStore
from legroom.tuning.study_runner import StudyRunner
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import TrialExit
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage
from legroom.tuning.trial_dispatch import TrialDispatcher
from legroom.units import GiB

SPACE = read_space({"x": {"int": [1, 100]}})
GPU = TrialGpu(index=0, memory=10 * GiB)


class HalfOfFreeMemory:
    """A gate that admits each trial with half of the free memory."""

    has_unseen_configs = False

    def __init__(self, other_processes: OtherProcessUsage) -> None:
        self._other_processes = other_processes

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        half = (GPU.memory - self._other_processes.used(GPU)) // 2
        answer: Future[Admission] = Future()
        answer.set_result(Admission(verdict=AdmissionVerdict.FITS, fits={0: Fit(predicted=half, safe=half)}))
        return answer

    def record_oom(self, config: Config, fit: Fit, needed: int) -> None: ...
    def close(self) -> None: ...


def test_trials_whose_memory_others_use_are_estimated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = VisibleGpu(index=0, name="a GPU", total=GPU.memory, used=8 * GiB)
    other_processes = OtherProcessUsage([GPU], lambda: [gpu], set)
    job = TuneJob(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, gpus=[GPU], trials=2, parallel=1
    )  # fmt: skip
    store = StudyStore(tmp_path, resume=False, mode="min", facts={})
    gate: Any = HalfOfFreeMemory(other_processes)
    runner = StudyRunner(job, RandomSearcher(SPACE, seed=0), None, gate, store, (), other_processes)
    dispatcher = TrialDispatcher(job, runner)
    assert dispatcher.next_tasks() is None, "admitted with half of the GPU, most of which others use by now"
    monkeypatch.setattr(trial_dispatch, "STUCK_SECONDS", 0.0)
    assert dispatcher.next_tasks() is None
    (order,) = dispatcher.next_tasks() or []
    assert (order.number, order.cap) == (0, 1 * GiB + GPU.memory // 50)
    runner.close()


class SizeGate:
    """A gate that admits each trial with `x` GiB."""

    @property
    def has_unseen_configs(self) -> bool:
        """Return False, because every admission is immediate."""
        return False

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        fit = Fit(predicted=config["x"] * GiB, safe=config["x"] * GiB)
        answer.set_result(Admission(verdict=AdmissionVerdict.FITS, fits={0: fit}))
        return answer

    def record_oom(self, config: Config, fit: Fit, needed: int) -> None: ...
    def close(self) -> None: ...


class Listed:
    """A searcher that proposes sizes from a list and learns from the first trial on."""

    startup_trials: int | None = 0

    def __init__(self, sizes: list[int]) -> None:
        self.left = sizes

    def propose(self, number: int) -> Config | None:
        return {"x": self.left.pop(0)} if self.left else None

    def learn(self, number: int, config: Config, result: Result) -> None: ...


def test_a_learning_search_prepares_one_trial_and_one_more_per_misfit(
    tmp_path: Path,
) -> None:
    gpu = TrialGpu(index=0, memory=10 * GiB, virtual=True)
    job = TuneJob(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, gpus=[gpu], trials=9, parallel=2
    )  # fmt: skip
    searcher, gate = Listed([6, 8, 3, 1, 1, 1, 1]), SizeGate()
    store = StudyStore(tmp_path, resume=False, mode="min", facts={})
    runner = StudyRunner(job, searcher, None, gate, store, ())
    dispatcher = TrialDispatcher(job, runner)
    started = [dispatcher.next_tasks() for _ in range(4)]
    assert [tasks[0].number if tasks else None for tasks in started] == [0, None, 2, None]
    assert len(searcher.left) == 4, "two run, one waits for memory, and no further trial is proposed"
    runner.close()


class LargestFirst(Listed):
    """A searcher with three random proposals that starts the largest trial first."""

    startup_trials: int | None = 3

    def start_order(self, waiting: Mapping[int, Admission]) -> list[int]:
        return sorted(waiting, key=lambda number: -waiting[number].size)


def test_an_ordering_searcher_gets_all_random_estimates_and_chooses_the_order(
    tmp_path: Path,
) -> None:
    gpu = TrialGpu(index=0, memory=10 * GiB, virtual=True)
    job = TuneJob(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, gpus=[gpu], trials=9, parallel=2
    )  # fmt: skip
    searcher = LargestFirst([2, 6, 8, 1, 1, 1])
    runner = StudyRunner(
        job, searcher, None, SizeGate(), StudyStore(tmp_path, resume=False, mode="min", facts={}), ()
    )
    dispatcher = TrialDispatcher(job, runner)
    dispatcher.prepare_trials()
    assert len(searcher.left) == 3, "nothing else is proposed while the random trials wait"
    started = [dispatcher.next_tasks() for _ in range(3)]
    assert [tasks[0].number if tasks else None for tasks in started] == [2, 0, None]
    assert len(searcher.left) == 3, "the second trial still waits for memory"
    runner.close()


class Splitting(SizeGate):
    """A gate that splits batches of 64 samples into `x` micro-batches."""

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        fit = Fit(predicted=GiB, safe=GiB, micro_batch=64 // config["x"])
        answer.set_result(Admission(verdict=AdmissionVerdict.SPLIT, fits={0: fit}, batch_size=64))
        return answer


@pytest.mark.parametrize(
    ("pieces", "order"),
    [
        ([64, 2, 2, 64, 4], [2, 2, 4, 64, 64]),  # three random trials, then two learned ones
        ([32, 64, 16, 64, 4], [32, 64, 16, 64, 4]),  # if all are heavily split, none waits
    ],
)
def test_with_an_ordering_searcher_heavily_split_trials_start_last(
    tmp_path: Path, pieces: list[int], order: list[int]
) -> None:
    gpu = TrialGpu(index=0, memory=10 * GiB, virtual=True)
    job = TuneJob(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, gpus=[gpu], trials=5, parallel=9
    )  # fmt: skip
    runner = StudyRunner(
        job,
        LargestFirst(list(pieces)),
        None,
        Splitting(),
        StudyStore(tmp_path, resume=False, mode="min", facts={}),
        (),
    )
    dispatcher = TrialDispatcher(job, runner)
    started = [tasks[0].config["x"] for _ in range(6) if (tasks := dispatcher.next_tasks())]
    assert started == order, "all trials start eventually"
    runner.close()


class CorrectedGate(SizeGate):
    """A gate that records the corrections after out-of-memory errors."""

    def __init__(self) -> None:
        self.needed: list[int] = []

    def record_oom(self, config: Config, fit: Fit, needed: int) -> None:
        self.needed.append(needed)


def test_the_gate_learns_the_true_size_of_a_trial_that_ran_out_of_memory(tmp_path: Path) -> None:
    gpu = TrialGpu(index=0, memory=10 * GiB, virtual=True)
    job = TuneJob(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, gpus=[gpu], trials=1
    )  # fmt: skip
    gate = CorrectedGate()
    store = StudyStore(tmp_path, resume=False, mode="min", facts={})
    runner = StudyRunner(job, Listed([2]), None, gate, store, ())
    dispatcher = TrialDispatcher(job, runner)
    dispatcher.next_tasks()
    dispatcher.ended(0, TrialExit(state=TrialState.OUT_OF_MEMORY, actual_bytes=2 * GiB, ooms=1))
    (order,) = dispatcher.next_tasks() or []
    assert order.cap == gpu.memory
    dispatcher.ended(0, TrialExit(state=TrialState.FINISHED, final={"loss": 1.0}, actual_bytes=5 * GiB))
    assert gate.needed == [2 * GiB, 5 * GiB]
    runner.close()


class Slow(SizeGate):
    """A gate whose last estimate stays pending until the test completes it."""

    def __init__(self) -> None:
        self.pending: list[Future[Admission]] = []
        self.traces_micro_batch = False

    @property
    def has_unseen_configs(self) -> bool:
        return not self.traces_micro_batch

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        self.pending.append(Future() if config["x"] == 3 else super().request(config))
        return self.pending[-1]


@pytest.mark.parametrize("traces_micro_batch", [False, True])
def test_with_an_ordering_searcher_no_trial_uses_the_core_of_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traces_micro_batch: bool
) -> None:
    monkeypatch.setattr(trial_dispatch, "processors", lambda: 2)
    gpu = TrialGpu(index=0, memory=10 * GiB, virtual=True)
    job = TuneJob(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, gpus=[gpu], trials=9, parallel=2
    )  # fmt: skip
    gate = Slow()
    runner = StudyRunner(
        job, LargestFirst([2, 1, 3]), None, gate, StudyStore(tmp_path, resume=False, mode="min", facts={}), ()
    )
    dispatcher = TrialDispatcher(job, runner)
    started = [dispatcher.next_tasks(), dispatcher.next_tasks()]
    assert [tasks[0].number if tasks else None for tasks in started] == [0, None]
    gate.traces_micro_batch = True
    if traces_micro_batch:
        (order,) = dispatcher.next_tasks() or []
        assert order.number == 1, "the trace of a micro-batch has a lower priority"
    else:
        gate.pending[-1].set_result(SizeGate().request({"x": 3}).result())
        (order,) = dispatcher.next_tasks() or []
        assert order.number == 2, "the largest, now that nothing is traced"
    runner.close()


@pytest.mark.parametrize(("max_steps", "state"), [(2, TrialState.FINISHED), (9, TrialState.STOPPED)])
def test_a_trial_at_max_steps_is_finished_and_a_stopped_one_is_not(
    tmp_path: Path, max_steps: int, state: TrialState
) -> None:
    job = TuneJob(function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=tmp_path, trials=2, parallel=2)  # fmt: skip
    runner = StudyRunner(
        job,
        Listed([1, 2]),
        Asha("min", grace_period=2, max_steps=max_steps),
        SizeGate(),
        StudyStore(tmp_path, resume=False, mode="min", facts={}),
        (),
    )
    dispatcher = TrialDispatcher(job, runner)
    for _ in range(2):
        assert dispatcher.next_tasks()
    for step in (1, 2):
        for number in (0, 1):
            action = dispatcher.reported(number, ReportMessage(step=step, metrics={"loss": float(number)}))
    assert action is Action.STOP
    dispatcher.ended(1, TrialExit(state=TrialState.STOPPED))
    assert runner.records[1].state is state
    runner.close()
