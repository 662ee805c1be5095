"""The recent values of the bars in the monitor, from which sparklines are drawn."""

from collections import deque
from collections.abc import Sequence

from legroom.gpus.nvml import NotAvailable
from legroom.show.monitor.snapshot import Snapshot

LENGTH = 120
"""The number of values that are kept for each bar: two minutes at one value per second."""
_LEVELS = "▁▂▃▄▅▆▇█"


class History:
    def __init__(self) -> None:
        self._values: dict[str, deque[float | None]] = {}

    def add(self, snapshot: Snapshot) -> None:
        now = dict(percentages(snapshot))
        for key in set(self._values) - set(now):
            del self._values[key]
        for key, value in now.items():
            self._values.setdefault(key, deque(maxlen=LENGTH)).append(value)

    def values(self, key: str) -> list[float | None]:
        return list(self._values.get(key, ()))

    def as_json(self) -> dict[str, list[float | None]]:
        return {
            key: [None if value is None else round(value, 1) for value in values]
            for key, values in self._values.items()
        }


def percentages(snapshot: Snapshot) -> list[tuple[str, float | None]]:
    """Return the key and the percentage of every bar. A value that is not available is None."""
    host = snapshot.host
    bars = [("host.cpu", percent(host.cpu)), ("host.memory", percent(host.memory_used, host.memory_total))]
    for row in snapshot.gpus:
        gpu = row.sample
        bars.append((f"gpu{gpu.index}.memory", percent(gpu.used, gpu.total)))
        bars.append((f"gpu{gpu.index}.utilization", percent(gpu.utilization)))
    for each in snapshot.virtual_gpus:
        key = f"virtual{each.run.pid}.{each.device.index}"
        bars.append((f"{key}.memory", percent(each.device.reserved, each.device.capacity)))
        bars.append((f"{key}.allocated", percent(each.device.allocated, each.device.capacity)))
    return bars


def percent(value: float | NotAvailable, total: float | NotAvailable = 100) -> float | None:
    """Return `value` as a percentage of `total`, or None if one of them is not available."""
    if isinstance(value, NotAvailable) or isinstance(total, NotAvailable) or total <= 0:
        return None
    return min(max(100.0 * value / total, 0.0), 100.0)


def sparkline(values: Sequence[float | None], width: int, *, low: float = 0.0, high: float = 100.0) -> str:
    """Return the latest values as block characters, right-aligned. A missing value is shown as a space."""
    shown = list(values)[-width:] if width > 0 else []
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    blocks = (
        " " if value is None else _LEVELS[round(min(max(value - low, 0.0), high - low) * scale)]
        for value in shown
    )
    return "".join(blocks).rjust(width)
