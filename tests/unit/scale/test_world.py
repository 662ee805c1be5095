"""Ranks from the environment, and errors if ranks cannot connect."""

import socket

import pytest
import torch

import legroom
from legroom.errors import UsageError
from legroom.scale.world import World, read_world, setup_rank


def test_a_process_without_a_launcher_has_no_process_group() -> None:
    world = read_world({})
    assert world == World()
    devices = setup_rank(world)
    assert not devices.world.launched
    assert devices.devices == (torch.device("cpu"),)


def test_variables_of_torchrun_are_read() -> None:
    environ = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert read_world(environ) == World(5, 8, 1, 4, launched=True)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({"RANK": "two", "WORLD_SIZE": "2"}, "RANK=two is not an integer"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not valid with WORLD_SIZE=2"),
    ],
)
def test_invalid_variables_are_rejected(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_world(environ)


def test_a_process_without_a_launcher_uses_all_gpus() -> None:
    with legroom.VirtualGPU("1GiB", "1GiB"):
        assert setup_rank(World()).devices == (torch.device("cuda", 0), torch.device("cuda", 1))


def test_more_ranks_than_gpus_are_rejected() -> None:
    with (
        legroom.VirtualGPU("1GiB", "1GiB"),
        pytest.raises(
            UsageError, match="4 ranks were started on this machine, which has only 2 GPUs. Start one"
        ),
    ):
        setup_rank(World(2, 4, 2, 4, launched=True))


def set_address(monkeypatch: pytest.MonkeyPatch, port: int, timeout: str) -> None:
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LEGROOM_TIMEOUT": timeout,
    }.items():
        monkeypatch.setenv(name, value)


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        set_address(monkeypatch, port, "5")
        with pytest.raises(UsageError, match=f"Port {port} is in use on this machine. Set MASTER_PORT"):
            setup_rank(World(0, 2, 0, 2, launched=True))


def test_waiting_for_a_missing_rank_is_reported_and_times_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("legroom.train.ranks.waiting.REPORT_SECONDS", 0.1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    set_address(monkeypatch, port, "1")
    with pytest.raises(
        UsageError, match="Rank 0 of 2 waited 1 s, but only 1 of 2 ranks connected to 127.0.0.1:"
    ):
        setup_rank(World(0, 2, 0, 2, launched=True))
    assert "Rank 0 of 2 is still waiting for other ranks at 127.0.0.1:" in caplog.text


def test_an_invalid_timeout_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    set_address(monkeypatch, 1, "soon")
    with pytest.raises(UsageError, match="LEGROOM_TIMEOUT=soon"):
        setup_rank(World(0, 2, 0, 2, launched=True))


def test_a_missing_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UsageError, match="MASTER_ADDR is not"):
        setup_rank(World(0, 2, 0, 2, launched=True))
