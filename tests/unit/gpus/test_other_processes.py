"""Who else is on a full GPU, as far as the driver says."""

import os

import pytest

from legroom.gpus import other_processes
from legroom.gpus.machine import NA, Gpu, GpuProcess
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
    ("processes", "words"),
    [
        ([GpuProcess(pid=os.getpid(), bytes=GiB)], ""),
        ([], ""),
        ([GpuProcess(pid=2**22 + 1, bytes=2 * GiB)], f"process {2**22 + 1} holds 2.00 GiB of this GPU"),
        ([GpuProcess(pid=2**22 + 1, bytes=NA)], f"process {2**22 + 1} holds some of this GPU"),
    ],
)
def test_other_processes_in_a_sentence(monkeypatch, processes: list[GpuProcess], words: str) -> None:
    monkeypatch.setattr(other_processes, "gpus", lambda: [gpu(*processes)])
    assert other_processes.others_on(0) == words


def test_without_a_driver_nothing_is_said(monkeypatch) -> None:
    monkeypatch.setattr(other_processes, "gpus", list)
    assert other_processes.others_on(0) == ""
