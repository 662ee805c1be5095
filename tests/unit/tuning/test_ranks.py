"""Several ranks, one trial: decisions and ends."""

import pytest

from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.trial import ranks
from legroom.tuning.trial.process import TrialEnd
from legroom.tuning.trial.ranks import RankGroup
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported

FINISHED = TrialEnd(state=TrialState.FINISHED)


def report(step: int) -> Reported:
    return Reported(step=step, metrics={"loss": 1.0})


def stop(told: Reported) -> Action:
    return Action.STOP


def never(told: Reported) -> Action:
    return pytest.fail("only rank 0 decides")


def test_rank_0_decides_for_those_that_wait_and_for_those_that_come_later() -> None:
    group = RankGroup(3)
    assert group.reported(1, report(1), never) == {}
    assert group.reported(0, report(1), stop) == {0: Action.STOP, 1: Action.STOP}
    assert group.reported(2, report(1), never) == {2: Action.STOP}


def test_nobody_waits_for_a_rank_0_that_is_gone() -> None:
    group = RankGroup(3)
    assert group.reported(1, report(4), never) == {}
    assert group.ended(0, FINISHED) == {1: Action.STOP}
    assert group.reported(2, report(5), never) == {2: Action.STOP}


def test_it_is_over_when_all_are() -> None:
    group = RankGroup(2)
    group.ended(1, FINISHED)
    assert not group.is_over
    group.ended(0, FINISHED)
    assert group.is_over
    assert group.end.state is TrialState.FINISHED


def test_one_that_goes_wrong_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "GRACE", 0.0)
    group = RankGroup(3)
    group.ended(1, TrialEnd(state=TrialState.FAILED, why="no luck", failed_at=5.0))
    assert group.is_over
    assert group.end.why == "no luck"


def test_the_error_that_came_first_is_told_though_another_was_heard_before() -> None:
    group = RankGroup(2)
    group.ended(1, TrialEnd(state=TrialState.FAILED, why="connection closed by peer", failed_at=5.1))
    assert not group.is_over
    group.ended(0, TrialEnd(state=TrialState.OUT_OF_MEMORY, why="out of memory", failed_at=5.0))
    assert group.is_over
    assert group.end.why == "out of memory"


def test_a_process_that_died_without_a_word_comes_before_what_others_said_of_it() -> None:
    group = RankGroup(2)
    group.ended(0, TrialEnd(state=TrialState.FAILED, why="connection closed by peer", failed_at=5.1))
    group.ended(1, TrialEnd(state=TrialState.FAILED, why="it was killed"))
    assert group.end.why == "it was killed"


def test_memory_is_that_of_the_rank_that_took_most() -> None:
    group = RankGroup(2)
    group.ended(0, TrialEnd(state=TrialState.FINISHED, actual_bytes=3))
    group.ended(1, TrialEnd(state=TrialState.FINISHED, actual_bytes=7, ooms=1))
    assert (group.end.actual_bytes, group.end.ooms) == (7, 1)
