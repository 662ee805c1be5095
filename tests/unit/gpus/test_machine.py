"""GPUs and memory of the machine, with a fake NVML and without one."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from legroom.gpus import machine
from legroom.gpus.nvml import NA, NotAvailable

GiB = 1 << 30


class Nvml:
    """The part of pynvml that is used, on a machine with two GPUs."""

    nvmlMemory_v2 = object()  # noqa: N815

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.partitioned: set[int] = set()
        self.shut_down = 0

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        self.shut_down += 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:
        return b"NVIDIA T4" if handle == 0 else "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: Any = None) -> Any:
        return SimpleNamespace(total=(16 + handle) * GiB, reserved=GiB, used=2 * GiB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:
        if handle == 0:
            raise self.NVMLError("Not Supported")
        return (int(handle in self.partitioned), 0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=17, usedGpuMemory=GiB), SimpleNamespace(pid=18, usedGpuMemory=None)]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return fake


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_gpus_have_the_properties_that_the_driver_reports(nvml: Nvml) -> None:
    first, second = machine.gpus()
    assert (first.name, first.uuid, first.total, first.used) == ("NVIDIA T4", "GPU-0", 15 * GiB, 2 * GiB)
    assert (second.name, second.is_mig) == ("NVIDIA H200", False)


def test_a_value_that_the_driver_does_not_report_is_not_available(nvml: Nvml) -> None:
    first, _ = machine.gpus()
    assert first.utilization is NA
    assert first.is_mig is NA
    assert [process.bytes for process in first.processes] == [GiB, NA]


def test_the_library_is_shut_down_after_each_query(nvml: Nvml) -> None:
    machine.gpus()
    machine.driver_version()
    assert nvml.shut_down == 2


def test_without_the_library_nothing_is_reported(no_nvml: None) -> None:
    assert machine.gpus() == []
    assert machine.driver_version() is NA


def test_not_available_prints_as_n_a() -> None:
    assert f"{NA}" == "N/A"
    assert not NA
    assert isinstance(NA, NotAvailable)


@pytest.mark.parametrize(
    ("named", "names"),
    [
        (None, ["NVIDIA T4", "NVIDIA H200"]),
        ("1", ["NVIDIA H200"]),
        ("1, 0", ["NVIDIA H200", "NVIDIA T4"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["NVIDIA T4"]),
        ("0,7", ["NVIDIA T4"]),
        ("1,,0", ["NVIDIA H200"]),
    ],
)
def test_visible_gpus_are_numbered_as_cuda_numbers_them(
    nvml: Nvml, named: str | None, names: list[str]
) -> None:
    found = machine.visible_gpus({} if named is None else {"CUDA_VISIBLE_DEVICES": named})
    assert [gpu.name for gpu in found] == names
    assert [gpu.index for gpu in found] == list(range(len(names)))


@pytest.mark.parametrize("named", [None, "1", "MIG-1234", "GPU-1234"])
def test_mig_instances_and_uuids_are_resolved_by_torch(
    nvml: Nvml, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.partitioned.add(1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name="an instance", total_memory=GiB),
    )
    found = machine.visible_gpus({} if named is None else {"CUDA_VISIBLE_DEVICES": named})
    assert [(gpu.name, gpu.total) for gpu in found] == [("an instance", GiB)]


def test_a_visible_gpu_lists_its_used_memory_and_processes(nvml: Nvml) -> None:
    (gpu,) = machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "1"})
    assert gpu.used == 2 * GiB
    assert [process.pid for process in gpu.processes] == [17, 18]


def test_gpus_that_torch_lists_have_their_used_memory(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.partitioned.add(1)
    properties = SimpleNamespace(name="an instance", total_memory=8 * GiB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (5 * GiB, 8 * GiB))
    assert [gpu.used for gpu in machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "1"})] == [3 * GiB]


def test_a_torch_without_cuda_sees_no_gpu(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert machine.visible_gpus({}) == []


def test_the_host_reports_its_memory() -> None:
    host = machine.host_usage()
    assert 0 < host.resident < host.total


def write_group(folder: Path, limit: str, used: str, names: tuple[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(limit)
    (folder / names[1]).write_text(used)


NEW = ("memory.max", "memory.current")
OLD = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def process(tmp_path: Path, line: str) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(line + "\n")
    return tmp_path / "proc"


def test_the_lowest_limit_of_the_parent_groups_counts(tmp_path: Path) -> None:
    processes = process(tmp_path, "0::/job/step")
    write_group(tmp_path / "sys" / "job" / "step", "max\n", "5\n", NEW)
    write_group(tmp_path / "sys" / "job", "1000\n", "400\n", NEW)
    write_group(tmp_path / "sys", "2000\n", "500\n", NEW)
    host = machine.host_usage(tmp_path / "sys", processes)
    assert (host.limit, host.used_of_limit) == (1000, 400)


def test_control_groups_v1_are_read(tmp_path: Path) -> None:
    processes = process(tmp_path, "4:cpu,memory:/job")
    write_group(tmp_path / "sys" / "memory" / "job", "700\n", "30\n", OLD)
    write_group(tmp_path / "sys" / "memory", f"{(1 << 63) - 4096}\n", "30\n", OLD)
    host = machine.host_usage(tmp_path / "sys", processes)
    assert (host.limit, host.used_of_limit) == (700, 30)


def test_without_a_limit_the_memory_limit_is_not_available(tmp_path: Path) -> None:
    host = machine.host_usage(tmp_path / "sys", process(tmp_path, "0::/"))
    assert host.limit is NA


def test_importing_the_module_loads_neither_nvml_nor_psutil() -> None:
    code = "import sys, legroom.gpus.machine; sys.exit('pynvml' in sys.modules or 'psutil' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
