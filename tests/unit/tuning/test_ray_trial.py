"""A trial beside a Ray worker that stays."""

import pytest

from legroom.tuning.engines.ray import trial
from legroom.tuning.engines.ray.trial import PROCESS, REPORTED, end_process


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, bool]]:
    """What the fork server was asked to end."""
    asked: list[tuple[str, int, bool]] = []
    monkeypatch.setattr(
        trial, "ended", lambda server, process, *, kill: asked.append((server, process, kill))
    )
    return asked


def test_a_stopped_trial_is_ended_by_the_server_that_forked_it(asked: list[tuple[str, int, bool]]) -> None:
    end_process({REPORTED: None, PROCESS: 7}, "server")
    assert asked == [("server", 7, True)]


@pytest.mark.parametrize(("told", "server"), [({}, "server"), ({PROCESS: None}, "server"), ({}, None)])
def test_a_trial_in_a_worker_of_its_own_is_rays_to_end(
    told: dict[str, object], server: str | None, asked: list[tuple[str, int, bool]]
) -> None:
    end_process(told, server)
    assert asked == []
