"""`Snapshot`: the GPUs, the host, the processes and the runs at one moment, combined for the screen and for JSON.

The names, commands and users in a snapshot come from other programs and may contain control characters, which are
replaced.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from legroom import schemas
from legroom.gpus.nvml import NA, Count, NotAvailable
from legroom.gpus.processes import HostSample, Number, ProcessSample, ProcessSampler, Text
from legroom.gpus.sampling import GpuSample, GpuSampler
from legroom.log import printable
from legroom.memory.live.folder import read_all
from legroom.memory.live.status import DeviceStatus, RunStatus

SILENT_SECONDS = 5.0
"""The number of seconds without an update of the live file after which a run is shown as silent. A running program
updates the file twice per second, unless it is suspended or a library blocks all threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """A process on one device."""

    gpu: str
    """The GPU: its index, `v0` for a virtual GPU, or "" for the host."""
    memory: Count
    memory_source: str
    utilization: Count
    process: ProcessSample
    run: RunStatus | None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def key(self) -> str:
        return f"{self.gpu}:{self.pid}"

    @property
    def command(self) -> str:
        """The command line with the name of the program instead of its path, or only the name if the command line is
        hidden."""
        if self.process.command:
            program, space, rest = str(self.process.command).partition(" ")
            return f"{program.rpartition('/')[2] or program}{space}{rest}"
        return str(self.process.name or (self.run.command if self.run else NA))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A GPU in a snapshot."""

    sample: GpuSample
    is_lower_bound: bool
    """True if the driver reported less memory than Legroom runs have reserved. `sample.used` is then the reserved memory. In
    some containers, the driver reports that no memory is used.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualGpuRow:
    """A virtual GPU of a run."""

    run: RunStatus
    device: DeviceStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of this machine at one moment."""

    time: float
    driver: Text
    host: HostSample
    gpus: tuple[GpuRow, ...]
    virtual_gpus: tuple[VirtualGpuRow, ...]
    runs: tuple[RunStatus, ...]
    processes: tuple[ProcessRow, ...]

    def seconds_silent(self, run: RunStatus) -> float:
        age = self.time - run.updated
        return age if run.step is not None and age > SILENT_SECONDS else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot in JSON types. A value that is not available is null."""
        host = self.host
        return {
            "schema": schemas.MONITOR,
            "time": round(self.time, 3),
            "driver": _json(self.driver),
            "host": {
                "name": host.name,
                "cores": host.cores,
                "cpu_percent": _json(host.cpu),
                "load": _json(host.load),
                "memory_total_bytes": _json(host.memory_total),
                "memory_used_bytes": _json(host.memory_used),
                "memory_is_limited": host.memory_limited,
                "swap_total_bytes": _json(host.swap_total),
                "swap_used_bytes": _json(host.swap_used),
            },
            "gpus": [_gpu_json(row) for row in self.gpus],
            "virtual_gpus": [
                {"pid": row.run.pid, "script": row.run.script, **_device_json(row.device)}
                for row in self.virtual_gpus
            ],
            "runs": [_run_json(run, self.seconds_silent(run)) for run in self.runs],
            "processes": [_process_json(row) for row in self.processes],
        }


class Sampler:
    """Reads snapshots of this machine. CPU use is measured between two consecutive snapshots."""

    def __init__(
        self, gpus: GpuSampler | None = None, runs: Callable[[], Iterable[RunStatus]] = read_all
    ) -> None:
        self._gpus = gpus or GpuSampler()
        self._processes = ProcessSampler()
        self._runs = runs
        self._is_reading = False

    def read(self) -> Snapshot:
        self._is_reading = True
        try:
            return self._read()
        finally:
            self._is_reading = False

    def _read(self) -> Snapshot:
        gpus = [_printable(gpu) for gpu in self._gpus.read()]
        runs = {run.pid: _printable(run) for run in self._runs()}
        pids = {process.pid for gpu in gpus for process in gpu.known_processes} | set(runs)
        processes = {pid: _printable(found) for pid, found in self._processes.read(pids).items()}
        rows = _rows(gpus, runs, processes)
        return Snapshot(
            time=time.time(),
            driver=self._gpus.driver,
            host=_printable(self._processes.host()),
            gpus=tuple(_with_reported_memory(gpu, rows) for gpu in gpus),
            virtual_gpus=tuple(
                VirtualGpuRow(run=run, device=device)
                for run in runs.values()
                for device in _devices_in_use(run)
                if device.kind == "virtual"
            ),
            runs=tuple(runs.values()),
            processes=tuple(rows),
        )

    def close(self) -> None:
        """Close the driver's library, unless a call in another thread is still running."""
        if not self._is_reading:
            self._gpus.close()


def _rows(
    gpus: Iterable[GpuSample], runs: dict[int, RunStatus], processes: dict[int, ProcessSample]
) -> list[ProcessRow]:
    rows: dict[str, ProcessRow] = {}
    by_uuid = {gpu.uuid: gpu for gpu in gpus if gpu.uuid}
    for gpu in gpus:
        for each in gpu.known_processes:
            row = ProcessRow(
                gpu=str(gpu.index),
                memory=each.memory,
                memory_source="driver",
                utilization=each.utilization,
                process=processes[each.pid],
                run=runs.get(each.pid),
            )
            rows[row.key] = row
    for pid, run in runs.items():
        devices: list[DeviceStatus | None] = [*_devices_in_use(run)] or [None]
        for device in devices:
            row = ProcessRow(
                gpu=_device_label(device, by_uuid),
                memory=device.reserved if device is not None and device.kind != "host" else NA,
                memory_source="run",
                utilization=NA,
                process=processes[pid],
                run=run,
            )
            known = rows.get(row.key)
            if known is None:
                rows[row.key] = row
            elif isinstance(known.memory, NotAvailable) or (known.memory == 0 and row.memory):
                rows[row.key] = replace(known, memory=row.memory, memory_source="run")
    return list(rows.values())


def _devices_in_use(run: RunStatus) -> Iterable[DeviceStatus]:
    return [device for device in run.devices if device.reserved] or run.devices[:1]


def _device_label(device: DeviceStatus | None, by_uuid: dict[str, GpuSample]) -> str:
    if device is None or device.kind == "host":
        return ""
    if device.kind == "virtual":
        return f"v{device.index}"
    gpu = by_uuid.get(device.uuid)
    return str(device.index if gpu is None else gpu.index)


def _with_reported_memory(gpu: GpuSample, rows: Iterable[ProcessRow]) -> GpuRow:
    reported = sum(
        row.memory
        for row in rows
        if row.gpu == str(gpu.index)
        and row.memory_source == "run"
        and not isinstance(row.memory, NotAvailable)
    )
    if reported and not isinstance(gpu.used, NotAvailable) and gpu.used < reported:
        return GpuRow(sample=replace(gpu, used=reported), is_lower_bound=True)
    return GpuRow(sample=gpu, is_lower_bound=False)


Record = TypeVar("Record", GpuSample, HostSample, ProcessSample, RunStatus, DeviceStatus)


def _printable(record: Record) -> Record:
    changed: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, str):
            changed[field.name] = one_line(value)
        elif field.name == "devices":
            changed[field.name] = tuple(_printable(device) for device in value)
    return replace(record, **changed)


def one_line(text: str) -> str:
    return printable(text.replace("\n", " ").replace("\t", " "))


# --- JSON


def _json(value: Number | Count | Text | bool) -> Any:
    if isinstance(value, NotAvailable):
        return None
    return round(value, 2) if isinstance(value, float) else value


def _watts(value: Count) -> float | None:
    return None if isinstance(value, NotAvailable) else round(value / 1000, 1)


def _gpu_json(row: GpuRow) -> dict[str, Any]:
    gpu = row.sample
    return {
        "index": gpu.index,
        "name": gpu.name,
        "uuid": gpu.uuid or None,
        "is_mig": _json(gpu.is_mig),
        "memory_total_bytes": _json(gpu.total),
        "memory_used_bytes": _json(gpu.used),
        "memory_used_is_lower_bound": row.is_lower_bound,
        "utilization_percent": _json(gpu.utilization),
        "memory_utilization_percent": _json(gpu.memory_utilization),
        "temperature_celsius": _json(gpu.temperature),
        "power_watts": _watts(gpu.power),
        "power_limit_watts": _watts(gpu.power_limit),
        "fan_percent": _json(gpu.fan),
    }


def _device_json(device: DeviceStatus) -> dict[str, Any]:
    return {
        "device": device.index,
        "kind": device.kind,
        "name": device.name,
        "uuid": device.uuid or None,
        "capacity_bytes": device.capacity,
        "allocated_bytes": device.allocated,
        "reserved_bytes": device.reserved,
        "peak_allocated_bytes": device.peak_allocated,
        "peak_reserved_bytes": device.peak_reserved,
    }


def _run_json(run: RunStatus, silent: float) -> dict[str, Any]:
    return {
        "pid": run.pid,
        "command_name": run.verb,
        "script": run.script,
        "command": run.command,
        "folder": run.folder,
        "rank": run.rank,
        "world_size": run.world_size,
        "started": round(run.started, 3),
        "updated": round(run.updated, 3),
        "silent_seconds": round(silent, 1),
        "step": run.step,
        "total_steps": run.total_steps,
        "seconds_per_step": run.seconds_per_step,
        "allocated_bytes": run.allocated,
        "reserved_bytes": run.reserved,
        "trend_bytes_per_step": run.trend,
        "finding": run.finding or None,
        "advice": run.advice or None,
        "devices": [_device_json(device) for device in run.devices],
        "history_allocated_bytes": list(run.history),
    }


def _process_json(row: ProcessRow) -> dict[str, Any]:
    process = row.process
    return {
        "gpu": row.gpu or None,
        "pid": process.pid,
        "user": _json(process.user),
        "name": _json(process.name),
        "command": _json(process.command),
        "gpu_memory_bytes": _json(row.memory),
        "gpu_memory_source": row.memory_source,
        "gpu_utilization_percent": _json(row.utilization),
        "cpu_percent": _json(process.cpu),
        "memory_bytes": _json(process.resident),
        "started": _json(process.started),
        "state": _json(process.state),
        "parent": _json(process.parent),
        "threads": _json(process.threads),
        "is_run": row.run is not None,
    }
