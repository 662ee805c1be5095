"""Ranks of a trial: shared decisions, and how the group ends."""

import pytest

from legroom.tuning.schedule.protocol import Action
from legroom.tuning.trial import ranks
from legroom.tuning.trial.process import TrialExit
from legroom.tuning.trial.ranks import RankGroup
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage

FINISHED = TrialExit(state=TrialState.FINISHED)


def report(step: int) -> ReportMessage:
    return ReportMessage(step=step, metrics={"loss": 1.0})


def stop(message: ReportMessage) -> Action:
    return Action.STOP


def never(message: ReportMessage) -> Action:
    return pytest.fail("only rank 0 decides")


def test_rank_0_decides_for_waiting_and_for_later_ranks() -> None:
    group = RankGroup(3)
    assert group.reported(1, report(1), never) == {}
    assert group.reported(0, report(1), stop) == {0: Action.STOP, 1: Action.STOP}
    assert group.reported(2, report(1), never) == {2: Action.STOP}


def test_no_rank_waits_after_rank_0_has_ended() -> None:
    group = RankGroup(3)
    assert group.reported(1, report(4), never) == {}
    assert group.ended(0, FINISHED) == {1: Action.STOP}
    assert group.reported(2, report(5), never) == {2: Action.STOP}


def test_a_group_is_over_when_all_ranks_have_ended() -> None:
    group = RankGroup(2)
    group.ended(1, FINISHED)
    assert not group.is_over
    group.ended(0, FINISHED)
    assert group.is_over
    assert group.end.state is TrialState.FINISHED


def test_a_failing_rank_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "GRACE", 0.0)
    group = RankGroup(3)
    group.ended(1, TrialExit(state=TrialState.FAILED, reason="ValueError", failed_at=5.0))
    assert group.is_over
    assert group.end.reason == "ValueError"


def test_the_earliest_error_is_reported_even_if_it_arrives_later() -> None:
    group = RankGroup(2)
    group.ended(1, TrialExit(state=TrialState.FAILED, reason="connection closed by peer", failed_at=5.1))
    assert not group.is_over
    group.ended(0, TrialExit(state=TrialState.OUT_OF_MEMORY, reason="out of memory", failed_at=5.0))
    assert group.is_over
    assert group.end.reason == "out of memory"


def test_a_dead_process_takes_precedence_over_errors_of_others() -> None:
    group = RankGroup(2)
    group.ended(0, TrialExit(state=TrialState.FAILED, reason="connection closed by peer", failed_at=5.1))
    group.ended(1, TrialExit(state=TrialState.FAILED, reason="it was killed"))
    assert group.end.reason == "it was killed"


def test_the_memory_is_the_maximum_over_ranks() -> None:
    group = RankGroup(2)
    group.ended(0, TrialExit(state=TrialState.FINISHED, actual_bytes=3))
    group.ended(1, TrialExit(state=TrialState.FINISHED, actual_bytes=7, ooms=1))
    assert (group.end.actual_bytes, group.end.ooms) == (7, 1)
