"""The other processes on a full GPU, as far as the driver reports them."""

import os

import pytest

from legroom.gpus import usage
from legroom.gpus.machine import Gpu, GpuProcess
from legroom.gpus.nvml import NA
from legroom.units import GiB


def gpu(*processes: GpuProcess) -> Gpu:
    return Gpu(
        index=0,
        name="T4",
        uuid="GPU-a",
        total=16 * GiB,
        used=GiB,
        utilization=NA,
        is_mig=NA,
        processes=processes,
    )


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([GpuProcess(pid=os.getpid(), bytes=GiB)], ""),
        ([], ""),
        ([GpuProcess(pid=2**22 + 1, bytes=2 * GiB)], f"process {2**22 + 1} uses 2.00 GiB of this GPU"),
        ([GpuProcess(pid=2**22 + 1, bytes=NA)], f"process {2**22 + 1} uses some of this GPU"),
    ],
)
def test_other_processes_are_named_in_one_line(
    monkeypatch, processes: list[GpuProcess], expected: str
) -> None:
    monkeypatch.setattr(usage, "gpus", lambda: [gpu(*processes)])
    assert usage.other_processes(0) == expected


def test_without_a_driver_no_process_is_named(monkeypatch) -> None:
    monkeypatch.setattr(usage, "gpus", list)
    assert usage.other_processes(0) == ""
