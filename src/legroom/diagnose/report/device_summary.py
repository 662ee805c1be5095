"""The devices of a run with their peak memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legroom.errors import UsageError
from legroom.memory.events import Oom
from legroom.memory.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """One device and the peak memory that the run used on it."""

    index: int
    name: str
    kind: str
    """`virtual`, `cuda` or `host`."""
    capacity: int
    other: int
    """The bytes of the capacity that PyTorch cannot use, such as the CUDA context."""
    peak_allocated: int
    peak_reserved: int

    @property
    def title(self) -> str:
        if self.kind == "virtual":
            return f"virtual GPU {self.index}"
        return f"GPU {self.index} ({self.name})" if self.kind == "cuda" else "host memory"


def devices_of(run: Mapping[str, Any], ledger: Ledger) -> tuple[DeviceSummary, ...]:
    """Return the devices in the capture's header. Invalid entries are ignored, because the file may be untrusted."""
    entries = run.get("devices")
    devices = []
    for entry in entries if isinstance(entries, list) else ():
        index = entry.get("index") if isinstance(entry, dict) else None
        if not isinstance(index, int):
            continue
        allocated, reserved = ledger.peak_of_steps(index)
        devices.append(
            DeviceSummary(
                index=index,
                name=str(entry.get("name", "")),
                kind=str(entry.get("kind", "")),
                capacity=_size(entry.get("capacity")),
                other=_size(entry.get("other")),
                # Events may have been dropped to limit the capture; steps are never dropped and may show a higher peak.
                peak_allocated=max(ledger.peak(index).bytes, allocated),
                peak_reserved=max(ledger.peak(index, "reserved").bytes, reserved),
            )
        )
    return tuple(devices)


def _size(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def device_of_interest(
    devices: Sequence[DeviceSummary], oom: Oom | None, chosen: int | None
) -> DeviceSummary | None:
    """Return the chosen device, or else the device that ran out of memory, or else the fullest device."""
    if chosen is not None:
        found = next((device for device in devices if device.index == chosen), None)
        if found is None:
            known = ", ".join(str(device.index) for device in devices) or "none"
            raise UsageError(f"The capture has no device {chosen}. Devices: {known}.")
        return found
    if oom is not None:
        return next((device for device in devices if device.index == oom.device), None)
    return max(devices, key=lambda device: device.peak_reserved / max(device.capacity, 1), default=None)
