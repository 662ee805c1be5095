"""The checks of `legroom doctor` on simulated machines: each problem is found, and a healthy machine has none."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from legroom.diagnose.doctor import checks
from legroom.diagnose.doctor.doctor import diagnose
from legroom.diagnose.doctor.machine import GpuState, Machine, inspect_machine
from legroom.diagnose.doctor.torch_check import DeviceResult, TorchFacts, check_torch, compute
from legroom.diagnose.explain.machine_checks import check_machine
from legroom.gpus.machine import Gpu, GpuProcess, HostUsage
from legroom.gpus.nvml import NA
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import GiB, MiB

GPU = Gpu(
    index=0, name="H100", uuid="GPU-1", total=80 * GiB, used=GiB, utilization=0, is_mig=False, processes=()
)
HEALTHY = Machine(
    driver="580.65",
    driver_cuda=(13, 0),
    gpus=(GPU,),
    states=(GpuState(uncorrected_errors=0),),
    host=HostUsage(total=256 * GiB, available=200 * GiB, resident=GiB, limit=NA, used_of_limit=NA),
    shared_total=64 * GiB,
    shared_free=64 * GiB,
    open_files=65536,
    locked=-1,
    torch="2.13.0+cu130",
    torch_cuda="13.0",
)
TORCH = TorchFacts(
    version="2.13.0+cu130",
    cuda="13.0",
    cudnn="91002",
    nccl="2.27.3",
    architectures=("sm_80", "sm_90"),
    device_count=1,
    devices=(DeviceResult(device="cpu"), DeviceResult(device="cuda:0", name="H100", capability=(9, 0))),
)


def codes(machine: Machine = HEALTHY, torch: TorchFacts = TORCH) -> list[str]:
    return [finding.code for finding in diagnose(machine, torch).findings]


def test_healthy_machine_has_no_findings() -> None:
    assert codes() == []


def test_machine_without_a_gpu_has_no_findings() -> None:
    machine = Machine(host=HEALTHY.host, shared_total=GiB * 8, shared_free=GiB * 8, torch="2.13.0+cpu")
    assert codes(machine, TorchFacts(version="2.13.0+cpu", devices=(DeviceResult(device="cpu"),))) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"driver_error": "Driver/library version mismatch"}, "LG901"),
        ({"driver_cuda": (12, 4)}, "LG902"),
        ({"environ": {"CUDA_VISIBLE_DEVICES": ""}}, "LG909"),
        ({"environ": {"CUDA_VISIBLE_DEVICES": "0,3"}}, "LG909"),
        ({"gpus": (replace(GPU, is_mig=True),)}, "LG910"),
        ({"gpus": (replace(GPU, processes=(GpuProcess(pid=1, bytes=40 * GiB),)),)}, "LG911"),
        ({"states": (GpuState(uncorrected_errors=3),)}, "LG912"),
        ({"states": (GpuState(is_exclusive=True),)}, "LG913"),
        ({"host": replace(HEALTHY.host, limit=16 * GiB)}, "LG914"),
        ({"shared_free": 64 * MiB}, "LG915"),
        ({"open_files": 256}, "LG916"),
        ({"environ": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segment:True"}}, "LG917"),
        (
            {
                "environ": {
                    "PYTORCH_CUDA_ALOC_CONF": "expandable_segments:True",
                    "PYTORCH_CUDA_ALLOC_CON": "x",
                }
            },
            "LG917",
        ),
        (
            {"environ": {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}},
            "LG918",
        ),
        ({"environ": {"CUDA_LAUNCH_BLOCKING": "1"}}, "LG919"),
    ],
)
def test_each_machine_problem_is_found(change: dict[str, object], code: str) -> None:
    assert codes(replace(HEALTHY, **change)) == [code]  # type: ignore[arg-type]


def test_messages_distinguish_one_gpu_or_process_from_several() -> None:
    processes = (GpuProcess(pid=1, bytes=40 * GiB), GpuProcess(pid=2, bytes=GiB))

    def messages(**change: object) -> list[str]:
        machine = replace(HEALTHY, **change)  # type: ignore[arg-type]
        return [finding.message.partition(". ")[0] for finding in diagnose(machine, TORCH).findings]

    partitioned = replace(GPU, is_mig=True)
    assert messages(gpus=(partitioned,)) == ["GPU 0 is partitioned into MIG instances"]
    assert messages(gpus=(partitioned, replace(partitioned, index=1))) == [
        "GPUs 0, 1 are partitioned into MIG instances"
    ]
    assert messages(gpus=(replace(GPU, processes=processes[:1]),)) == [
        "Another process (1) uses 40.00 GiB of 80.00 GiB on GPU 0."
    ]
    assert messages(gpus=(replace(GPU, processes=processes),)) == [
        "Other processes (1, 2) use 41.00 GiB of 80.00 GiB on GPU 0."
    ]
    assert messages(environ={"CUDA_VISIBLE_DEVICES": "3"}) == [
        "CUDA_VISIBLE_DEVICES contains '3', but only GPU 0 is available"
    ]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"error": "ImportError: libcudnn.so.9", "device_count": 1}, "LG903"),
        ({"device_count": 0}, "LG905"),
        ({"cudnn": ""}, "LG906"),
        ({"nccl": "", "device_count": 2}, "LG907"),
        ({"devices": (DeviceResult(device="cuda:0", error="CUDA error"),)}, "LG920"),
        ({"architectures": ("sm_50", "sm_80")}, "LG921"),
    ],
)
def test_each_torch_problem_is_found(change: dict[str, object], code: str) -> None:
    assert codes(HEALTHY, replace(TORCH, **change)) == [code]  # type: ignore[arg-type]


def test_cpu_build_on_a_machine_with_a_gpu_is_found() -> None:
    machine = replace(HEALTHY, torch="2.13.0+cpu", torch_cuda="")
    assert codes(machine, TorchFacts(version="2.13.0+cpu")) == ["LG904"]


def test_cuda_libraries_on_the_library_path_are_named(tmp_path: Path) -> None:
    (tmp_path / "libcudnn.so.8").touch()
    found = checks.library_path(replace(HEALTHY, environ={"LD_LIBRARY_PATH": f"/nonexistent:{tmp_path}"}))
    assert [finding.code for finding in found.findings] == ["LG908"]
    assert "libcudnn.so" in found.findings[0].message


@pytest.mark.parametrize(
    ("capability", "architectures", "has"),
    [
        ((9, 0), ("sm_80", "sm_90a"), True),
        ((8, 6), ("sm_80",), True),
        ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_90",), False),
        ((12, 0), ("sm_90", "compute_90"), True),
    ],
)
def test_architectures_that_support_a_gpu_are_recognized(
    capability: tuple[int, int], architectures: tuple[str, ...], has: bool
) -> None:
    assert checks._has_kernels(capability, architectures) is has


def test_hang_is_reported_for_its_device() -> None:
    program = (
        "import json, time; print(json.dumps({'version': '2.13'}), flush=True);"
        "print(json.dumps({'device': 'cuda:1', 'name': 'X', 'error': 'started'}), flush=True); time.sleep(60)"
    )
    result = check_torch(seconds=3, command=[sys.executable, "-S", "-c", program])
    assert result.hung
    assert [(device.device, device.error) for device in result.devices] == [
        ("cuda:1", "no response within 3 s")
    ]


def test_crash_without_output_is_reported_for_torch() -> None:
    result = check_torch(
        command=[sys.executable, "-S", "-c", "raise ImportError('libcudnn.so.9: cannot open')"]
    )
    assert result.error == "ImportError: libcudnn.so.9: cannot open"


def test_computation_on_the_cpu_succeeds() -> None:
    assert compute("cpu") == ""


def test_computation_on_a_virtual_gpu_succeeds():
    with VirtualGPU("1GiB"):
        assert compute("cuda:0") == ""


def test_checks_relevant_to_an_error_are_reported() -> None:
    result = check_machine("LG703", replace(HEALTHY, shared_free=64 * MiB))
    assert result[0] == "/dev/shm: 64.0 MiB free of 64.00 GiB"
    assert result[1].startswith("LG915: ")


def test_missing_gpu_is_reported_instead_of_gpu_checks() -> None:
    assert check_machine("LG725", Machine()) != ()
    assert check_machine("LG714", HEALTHY) == ()


def test_this_machine_can_be_inspected() -> None:
    assert inspect_machine().torch
