"""Sampling of GPUs with a fake NVML that may fail at any time."""

import sys

import psutil
import pytest
from fake_nvml import FakeNvml, GiB

from legroom.gpus.nvml import NA
from legroom.gpus.processes import ProcessSampler
from legroom.gpus.sampling import REOPEN_SECONDS, GpuSampler


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_sample_has_the_values_of_the_driver(nvml: FakeNvml) -> None:
    sampler = GpuSampler()
    first, second = sampler.read()
    assert sampler.driver == "580.1"
    assert (first.name, first.uuid, first.total, first.used) == ("NVIDIA H200", "GPU-0", 140 * GiB, 70 * GiB)
    assert (first.utilization, first.temperature, first.power, first.power_limit) == (
        88,
        61,
        410_000,
        700_000,
    )
    assert first.fan is NA
    assert second.processes == ()


def test_processes_have_memory_kind_and_latest_utilization(nvml: FakeNvml) -> None:
    processes = GpuSampler().read()[0].known_processes
    assert [(p.pid, p.memory, p.kind, p.utilization) for p in processes] == [
        (101, 30 * GiB, "C+G", 85),
        (102, NA, "C", NA),
    ]


def test_the_library_is_opened_once(nvml: FakeNvml) -> None:
    sampler = GpuSampler()
    for _ in range(5):
        sampler.read()
    assert nvml.calls.count("nvmlInit") == 1
    assert nvml.calls.count("nvmlDeviceGetName") == 2


@pytest.mark.parametrize("function", [name for name in vars(FakeNvml) if name.startswith("nvmlDeviceGet")])
def test_a_failing_query_never_raises(nvml: FakeNvml, function: str) -> None:
    nvml.failing = {function}
    sampler = GpuSampler()
    sampler.read()
    sampler.read()


def test_gpus_that_fail_midway_stay_in_the_list_and_recover(nvml: FakeNvml) -> None:
    clock = Clock()
    sampler = GpuSampler(clock)
    assert sampler.read()[0].used == 70 * GiB
    nvml.failing = {"all"}
    for _ in range(3):
        first, _ = sampler.read()
        assert (first.name, first.total) == ("NVIDIA H200", 140 * GiB)
        assert (first.used, first.utilization, first.temperature) == (NA, NA, NA)
        assert first.processes is NA
    nvml.failing = set()
    clock.now += REOPEN_SECONDS
    assert sampler.read()[0].used == 70 * GiB


def test_one_lost_gpu_does_not_affect_the_other(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(handle: int, *args: object) -> object:
        if handle == 1:
            raise RuntimeError("GPU is lost")
        return FakeNvml.nvmlDeviceGetMemoryInfo(nvml, handle)

    sampler = GpuSampler()
    sampler.read()
    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", lost)
    first, second = sampler.read()
    assert (first.used, second.used) == (70 * GiB, NA)


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = GpuSampler()
    assert sampler.read() == []
    assert sampler.driver is NA
    sampler.close()


def test_this_process_has_a_user_and_a_command() -> None:
    me = psutil.Process()
    sample = ProcessSampler().read([me.pid])[me.pid]
    assert sample.user == me.username()
    assert "python" in str(sample.command)
    assert sample.resident > 0


def test_a_process_that_does_not_exist_has_no_values() -> None:
    sample = ProcessSampler().read([4_000_001])[4_000_001]
    assert (sample.user, sample.command, sample.cpu, sample.resident) == (NA, NA, NA, NA)


def test_the_host_has_memory_and_cores() -> None:
    host = ProcessSampler().host()
    assert host.cores >= 1
    assert 0 < host.memory_used <= host.memory_total
