"""What the environment says of a process, and sentences where ranks cannot meet."""

import socket

import pytest
import torch

import legroom
from legroom.errors import UsageError
from legroom.scale.world import World, read_world, take_place


def test_a_process_that_nobody_launched_is_alone() -> None:
    world = read_world({})
    assert world == World()
    place = take_place(world)
    assert place.alone
    assert place.devices == (torch.device("cpu"),)


def test_torchruns_words_are_read() -> None:
    environ = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert read_world(environ) == World(5, 8, 1, 4, launched=True)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"RANK": "0"}, "RANK is set and WORLD_SIZE is not"),
        ({"RANK": "two", "WORLD_SIZE": "2"}, "RANK=two is no whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is none of WORLD_SIZE=2 ranks"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_world(environ)


def test_a_process_alone_may_use_all_gpus() -> None:
    with legroom.VirtualGPU("1GiB", "1GiB"):
        assert take_place(World()).devices == (torch.device("cuda", 0), torch.device("cuda", 1))


def test_more_ranks_than_gpus_are_refused_with_what_to_start() -> None:
    with (
        legroom.VirtualGPU("1GiB", "1GiB"),
        pytest.raises(UsageError, match="4 ranks on this machine and 2 GPUs: start 2"),
    ):
        take_place(World(2, 4, 2, 4, launched=True))


def meeting(monkeypatch: pytest.MonkeyPatch, port: int, patience: str) -> None:
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LEGROOM_PATIENCE": patience,
    }.items():
        monkeypatch.setenv(name, value)


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        meeting(monkeypatch, port, "5")
        with pytest.raises(UsageError, match=f"port {port} of this machine is in use: set MASTER_PORT"):
            take_place(World(0, 2, 0, 2, launched=True))


def test_a_rank_that_never_comes_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting(monkeypatch, port, "1")
    with pytest.raises(UsageError, match="rank 0 of 2 waited 1 s at 127.0.0.1:.* and 1 of 2 ranks came"):
        take_place(World(0, 2, 0, 2, launched=True))


def test_patience_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting(monkeypatch, 1, "soon")
    with pytest.raises(UsageError, match="LEGROOM_PATIENCE=soon"):
        take_place(World(0, 2, 0, 2, launched=True))


def test_a_missing_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UsageError, match="MASTER_ADDR is not"):
        take_place(World(0, 2, 0, 2, launched=True))
