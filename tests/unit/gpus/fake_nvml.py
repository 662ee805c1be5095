"""A fake NVML with two GPUs, whose functions can be made to fail."""

from types import SimpleNamespace
from typing import Any

GiB = 1 << 30


class FakeNvml:
    """The part of pynvml that `GpuSampler` uses."""

    nvmlMemory_v2 = object()  # noqa: N815

    def __init__(self) -> None:
        self.failing: set[str] = set()
        """The names of functions that raise an exception, or `all`."""
        self.calls: list[str] = []
        self.processes = [(101, 30 * GiB), (102, None)]
        self.name: str | bytes = b"NVIDIA H200"

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("nvml") or name == "nvmlMemory_v2":
            return object.__getattribute__(self, name)
        self.calls.append(name)
        if name in self.failing or "all" in self.failing:
            raise RuntimeError("GPU is lost")
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return self.name

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:
        return (0, 0)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: Any = None) -> Any:
        return SimpleNamespace(total=141 * GiB, reserved=GiB, used=(70 if handle == 0 else 1) * GiB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=88 - handle * 80, memory=40)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61 + handle

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 410_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def nvmlDeviceGetFanSpeed(self, handle: int) -> int:
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=size)
            for pid, size in (self.processes if handle == 0 else [])
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=101, usedGpuMemory=30 * GiB)] if handle == 0 else []

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[Any]:
        return [
            SimpleNamespace(pid=101, timeStamp=1, smUtil=10),
            SimpleNamespace(pid=101, timeStamp=2, smUtil=85),
        ]
