"""Snapshots of a machine with two GPUs, three processes and two runs."""

from dataclasses import replace
from typing import Any

from legroom.gpus.nvml import NA
from legroom.gpus.processes import HostSample, ProcessSample
from legroom.gpus.sampling import GpuSample, ProcessOnGpu
from legroom.memory.live.status import DeviceStatus, RunStatus
from legroom.show.monitor.snapshot import Sampler, Snapshot

GiB, MiB = 1 << 30, 1 << 20
NOW = 1_800_000_000.0

RUN = RunStatus(
    pid=4242,
    verb="run",
    script="/home/ada/train.py",
    command="legroom run train.py --epochs 3",
    folder="/home/ada",
    started=NOW - 600,
    updated=NOW - 0.2,
    step=1234,
    seconds_per_step=0.35,
    trend=12 * MiB // 10,
    finding="LG101 train.py:41 losses (list, 412 items) → tensor → graph of 37 nodes → 1.2 MiB per step",
    advice="Store `loss.item()`.",
    history=tuple(range(60)),
    devices=(
        DeviceStatus(
            index=0,
            name="NVIDIA H200",
            kind="cuda",
            uuid="GPU-a",
            capacity=140 * GiB,
            allocated=50 * GiB,
            reserved=60 * GiB,
            peak_allocated=55 * GiB,
            peak_reserved=61 * GiB,
        ),
    ),
)
VIRTUAL = replace(
    RUN,
    pid=4343,
    script="small.py",
    command="legroom run --gpu 8GiB small.py",
    step=7,
    trend=0,
    finding="",
    advice="",
    devices=(
        replace(
            RUN.devices[0], kind="virtual", uuid="", name="Legroom virtual GPU 0", capacity=8 * GiB, allocated=GiB, reserved=2 * GiB
        ),
    ),
)  # fmt: skip
PROCESSES = {
    4242: ProcessSample(pid=4242, user="ada", name="python", command="/usr/bin/python3 -m legroom run train.py", state="running", parent=1, threads=12, started=NOW - 600, cpu=101.5, resident=3 * GiB),
    5001: ProcessSample(pid=5001, user="grace", name="python", command="python serve.py --port 80", state="sleeping", parent=1, threads=4, started=NOW - 7200, cpu=3.0, resident=GiB),
    5002: ProcessSample(pid=5002),
    4343: ProcessSample(pid=4343, user="ada", name="python", command="python -m legroom run --gpu 8GiB small.py", state="running", parent=1, threads=2, started=NOW - 60, cpu=99.0, resident=GiB),
}  # fmt: skip
GPUS = (
    GpuSample(
        index=0,
        name="NVIDIA H200",
        uuid="GPU-a",
        total=140 * GiB,
        used=77 * GiB,
        utilization=88,
        memory_utilization=40,
        temperature=61,
        power=410_000,
        power_limit=700_000,
        is_mig=False,
        processes=(
            ProcessOnGpu(pid=4242, memory=61 * GiB, kind="C", utilization=85),
            ProcessOnGpu(pid=5001, memory=16 * GiB, kind="C", utilization=3),
        ),
    ),
    GpuSample(
        index=1,
        name="NVIDIA H200",
        uuid="GPU-b",
        total=140 * GiB,
        used=135 * GiB,
        utilization=NA,
        temperature=NA,
        power=NA,
        is_mig=False,
        processes=(ProcessOnGpu(pid=5002, memory=NA, kind="C"),),
    ),
)
HOST = HostSample(
    name="node1",
    cores=16,
    cpu=42.0,
    load=3.5,
    memory_total=128 * GiB,
    memory_used=40 * GiB,
    memory_limited=False,
    swap_total=8 * GiB,
    swap_used=0,
)


class FakeGpuSampler:
    """A GpuSampler with given GPUs."""

    def __init__(self, gpus: tuple[GpuSample, ...] = GPUS) -> None:
        self.gpus = gpus
        self.driver = "580.1" if gpus else NA

    def read(self) -> list[GpuSample]:
        return list(self.gpus)

    def close(self) -> None: ...


class FakeProcessSampler:
    """A ProcessSampler with given processes."""

    def __init__(self, processes: dict[int, ProcessSample]) -> None:
        self.processes = processes

    def read(self, pids: set[int]) -> dict[int, ProcessSample]:
        return {pid: self.processes.get(pid, ProcessSample(pid=pid)) for pid in sorted(pids)}

    def host(self) -> HostSample:
        return HOST


def sampler(gpus: Any = GPUS, runs: Any = (RUN, VIRTUAL), processes: Any = PROCESSES) -> Sampler:
    made = Sampler(FakeGpuSampler(gpus), lambda: runs)  # type: ignore[arg-type]
    made._processes = FakeProcessSampler(processes)  # type: ignore[assignment]
    return made


def snapshot(**changes: Any) -> Snapshot:
    return replace(sampler(**changes).read(), time=NOW)
