"""Killing a trial that was forked on behalf of a reused Ray worker."""

import pytest

from legroom.tuning.engines.ray import trial
from legroom.tuning.engines.ray.channel import PROCESS, REPORTED
from legroom.tuning.engines.ray.trial import kill_process


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, bool]]:
    """Records the processes that the fork server is requested to kill."""
    killed: list[tuple[str, int, bool]] = []
    monkeypatch.setattr(
        trial, "wait_for_exit", lambda server, process, *, kill: killed.append((server, process, kill))
    )
    return killed


def test_a_stopped_trial_is_killed_by_its_fork_server(killed: list[tuple[str, int, bool]]) -> None:
    kill_process({REPORTED: None, PROCESS: 7}, "server")
    assert killed == [("server", 7, True)]


@pytest.mark.parametrize(("result", "server"), [({}, "server"), ({PROCESS: None}, "server"), ({}, None)])
def test_a_trial_in_its_own_worker_is_not_killed(
    result: dict[str, object], server: str | None, killed: list[tuple[str, int, bool]]
) -> None:
    kill_process(result, server)
    assert killed == []
