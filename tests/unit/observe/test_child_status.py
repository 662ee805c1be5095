"""Processes that a recorded program starts publish their state, so that `legroom monitor` shows each rank."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from legroom.memory.events import Step
from legroom.memory.live.folder import read_all
from legroom.observe.children import recording, status
from legroom.observe.children.captures import ChildCaptures, sink_of_this_process
from legroom.observe.children.status import ChildStatus
from legroom.observe.producer import MemoryStats
from legroom.observe.session import DeviceInfo, Session
from legroom.units import GiB, MiB

PARENT = {
    "verb": "run",
    "script": "train.py",
    "command": "legroom run train.py",
    "folder": "/project",
    "devices": [{"index": 1, "name": "Legroom virtual GPU 1", "kind": "virtual", "capacity": GiB}],
}


def step(number: int, allocated: int = 3) -> Step:
    return Step(1.0, number, 0.25, 1, allocated * MiB, 20 * MiB, 8 * MiB, 20 * MiB)


@pytest.fixture(autouse=True)
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGROOM_LIVE", str(tmp_path / "live"))
    monkeypatch.setattr(status, "INTERVAL", 0.0)


def publish(parent: dict[str, Any] | None, *steps: Step) -> None:
    captures = ChildCaptures(parent)
    with captures.recorded():
        sink = sink_of_this_process()
        assert sink is not None
        for each in steps:
            sink(each)
    captures.discard()


def test_a_process_publishes_its_steps_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "rank_of_this_process", lambda: {"rank": 1, "world_size": 2})
    publish(PARENT, *(step(number, allocated=3 + number) for number in range(4)))
    (found,) = read_all()
    assert (found.pid, found.rank, found.world_size, found.step) == (os.getpid(), 1, 2, 4)
    assert (found.script, found.command, found.folder) == ("train.py", "legroom run train.py", "/project")
    assert found.seconds_per_step == 0.25
    assert found.history == (3 * MiB, 4 * MiB, 5 * MiB, 6 * MiB)
    assert found.trend == MiB
    (device,) = found.devices
    assert (device.index, device.name, device.capacity) == (1, "Legroom virtual GPU 1", GiB)
    assert (device.allocated, device.reserved, device.peak_allocated) == (6 * MiB, 20 * MiB, 8 * MiB)


def test_a_process_without_steps_publishes_nothing() -> None:
    publish(PARENT)
    assert read_all() == []


def test_a_process_publishes_even_if_its_parent_is_not_described() -> None:
    publish({"devices": "invalid"}, step(0))
    (found,) = read_all()
    assert (found.verb, found.step) == ("run", 1)


def test_an_error_ends_the_updates_and_not_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> dict[str, int]:
        raise RuntimeError("the process group is gone")

    monkeypatch.setattr(status, "rank_of_this_process", fail)
    child = ChildStatus(tmp_path)
    child.add(step(0))
    child.add(step(1))
    assert read_all() == []


def test_the_state_of_a_process_on_a_real_gpu_comes_from_its_session(tmp_path: Path) -> None:
    device = DeviceInfo(0, "NVIDIA H200", "cuda", GiB, uuid="GPU-1")

    def session(reserved: int) -> Any:
        stats = MemoryStats(MiB, reserved, 2 * MiB, reserved)
        fake = SimpleNamespace(progress=(7, 0.5, MiB), devices=[device], memory_stats=lambda index: stats)
        fake.device_statuses = lambda: Session.device_statuses(cast(Session, fake))
        return fake

    recording._publish(session(0), ChildStatus(tmp_path))
    assert read_all() == []  # for example, a loader worker
    recording._publish(session(4 * MiB), ChildStatus(tmp_path))
    (found,) = read_all()
    assert (found.step, found.seconds_per_step) == (7, 0.5)
    assert (found.devices[0].uuid, found.devices[0].reserved) == ("GPU-1", 4 * MiB)
