"""Periodically samples GPU memory, utilization, temperature, power and processes for `legroom monitor`.

`GpuSampler` keeps NVML open, because opening it takes longer than all queries together. NVML may fail at any time, for
example after a driver update, after the loss of a GPU, or because a permission is missing. A value that cannot be read
is `NA`, and a GPU that was seen once stays in the list. NVML is opened again after a few seconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from legroom.gpus import nvml as nvml_library
from legroom.gpus.nvml import NA, Count, NotAvailable, as_text, query

REOPEN_SECONDS = 5.0
_TEMPERATURE_OF_GPU = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOnGpu:
    """A process that uses a GPU, as the driver reports it.

    In a container, the driver may report no processes, or the process IDs of the host.
    """

    pid: int
    memory: Count
    kind: str
    """`C` for computation, `G` for graphics, or `C+G`."""
    utilization: Count = NA
    """The percentage of the sample period in which a kernel of the process ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """The state of a GPU at one moment."""

    index: int
    name: str
    uuid: str
    total: Count = NA
    used: Count = NA
    utilization: Count = NA
    """The percentage of the sample period in which a kernel ran."""
    memory_utilization: Count = NA
    """The percentage of the sample period in which memory was read or written."""
    temperature: Count = NA
    """The temperature in degrees Celsius."""
    power: Count = NA
    """The power use in milliwatts."""
    power_limit: Count = NA
    """The power limit in milliwatts."""
    fan: Count = NA
    is_mig: bool | NotAvailable = NA
    processes: tuple[ProcessOnGpu, ...] | NotAvailable = NA

    @property
    def known_processes(self) -> tuple[ProcessOnGpu, ...]:
        return () if isinstance(self.processes, NotAvailable) else self.processes


class GpuSampler:
    """Reads all GPUs. Only one thread at a time may use an instance."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nvml: Any = None
        self._open_at = 0.0
        self._known: list[tuple[Any, GpuSample]] = []
        """The handle of each GPU, and its values that do not change."""
        self._seen: dict[int, int] = {}
        self.driver: str | NotAvailable = NA

    def read(self) -> list[GpuSample]:
        if self._nvml is None and self._clock() >= self._open_at:
            self._open()
        if self._nvml is None:
            return [gpu for _, gpu in self._known]
        samples = [self._sample(handle, gpu) for handle, gpu in self._known]
        if samples and all(sample.used is NA and sample.utilization is NA for sample in samples):
            self.close()  # the driver was unloaded, or the library lost its connection
        return samples

    def close(self) -> None:
        if self._nvml is not None:
            _call(self._nvml, "nvmlShutdown")
            self._nvml = None
            self._open_at = self._clock() + REOPEN_SECONDS

    def _open(self) -> None:
        self._nvml = nvml = nvml_library.start()
        self._open_at = self._clock() + REOPEN_SECONDS
        if nvml is None:
            return
        version = _call(nvml, "nvmlSystemGetDriverVersion")
        self.driver = self.driver if version is NA else as_text(version)
        count = _call(nvml, "nvmlDeviceGetCount")
        if count is NA or (count == 0 and self._known):
            self.close()
            return
        known = []
        for index in range(count):
            handle = _call(nvml, "nvmlDeviceGetHandleByIndex", index)
            if handle is not NA:
                known.append((handle, _fixed_values(nvml, handle, index)))
        self._known = known or self._known

    def _sample(self, handle: Any, gpu: GpuSample) -> GpuSample:
        nvml = self._nvml
        total, used = nvml_library.read_memory(nvml, handle)
        rates = _call(nvml, "nvmlDeviceGetUtilizationRates", handle)
        return replace(
            gpu,
            total=gpu.total if isinstance(total, NotAvailable) else total,
            used=used,
            utilization=NA if rates is NA else rates.gpu,
            memory_utilization=NA if rates is NA else rates.memory,
            temperature=_call(nvml, "nvmlDeviceGetTemperature", handle, _TEMPERATURE_OF_GPU),
            power=_call(nvml, "nvmlDeviceGetPowerUsage", handle),
            fan=_call(nvml, "nvmlDeviceGetFanSpeed", handle),
            processes=self._processes(handle, gpu.index),
        )

    def _processes(self, handle: Any, index: int) -> tuple[ProcessOnGpu, ...] | NotAvailable:
        found: dict[int, ProcessOnGpu] = {}
        answered = False
        for kind, name in (
            ("C", "nvmlDeviceGetComputeRunningProcesses"),
            ("G", "nvmlDeviceGetGraphicsRunningProcesses"),
        ):
            listed = _call(self._nvml, name, handle)
            if isinstance(listed, NotAvailable):
                continue
            answered = True
            for each in listed:
                size = NA if each.usedGpuMemory is None else each.usedGpuMemory
                kinds = "C+G" if each.pid in found and kind == "G" else kind
                found[each.pid] = ProcessOnGpu(pid=each.pid, memory=size, kind=kinds)
        if not answered:
            return NA
        if found:
            for pid, percent in self._utilization(handle, index).items():
                if pid in found:
                    found[pid] = replace(found[pid], utilization=percent)
        return tuple(found.values())

    def _utilization(self, handle: Any, index: int) -> dict[int, int]:
        """Return the latest utilization of each process, which many GPUs and most containers do not report."""
        samples = _call(self._nvml, "nvmlDeviceGetProcessUtilization", handle, self._seen.get(index, 0))
        if isinstance(samples, NotAvailable):
            return {}
        latest: dict[int, Any] = {}
        for sample in samples:
            if sample.pid not in latest or sample.timeStamp > latest[sample.pid].timeStamp:
                latest[sample.pid] = sample
        self._seen[index] = max([self._seen.get(index, 0), *(each.timeStamp for each in latest.values())])
        return {pid: int(sample.smUtil) for pid, sample in latest.items() if sample.smUtil <= 100}


def _fixed_values(nvml: Any, handle: Any, index: int) -> GpuSample:
    name, uuid = _call(nvml, "nvmlDeviceGetName", handle), _call(nvml, "nvmlDeviceGetUUID", handle)
    mig = _call(nvml, "nvmlDeviceGetMigMode", handle)
    return GpuSample(
        index=index,
        name="GPU" if name is NA else as_text(name),
        uuid="" if uuid is NA else as_text(uuid),
        total=nvml_library.read_memory(nvml, handle)[0],
        power_limit=_call(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle),
        is_mig=NA if mig is NA else bool(mig[0]),
    )


def _call(nvml: Any, name: str, *args: Any) -> Any:
    """Call an NVML function that an older pynvml may not have."""
    return query(lambda: getattr(nvml, name)(*args))
