"""The upper part of the monitor: the host and each GPU, with bars and sparklines, on a terminal with at least 30
columns.
"""

import time
from dataclasses import dataclass

from rich.text import Text

from legroom.gpus.nvml import NotAvailable
from legroom.show.monitor.history import History, percent, sparkline
from legroom.show.monitor.snapshot import GpuRow, Snapshot, VirtualGpuRow
from legroom.show.monitor.tables import script_text
from legroom.units import GiB, MiB, format_size

TWO_BARS_FROM = 64
FULL_BAR, EMPTY_BAR = "█", "░"
WARNING, CRITICAL = 75.0, 90.0
"""The percentages at which a memory bar turns yellow and red."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled percentage."""

    label: str
    key: str
    percent: float | None
    warns: bool = False
    """Whether a high percentage is shown as a warning. The value is True for memory and False for utilization."""


@dataclass(frozen=True, slots=True)
class Device:
    """The host or a GPU: a title, facts from most to least important, and two bars."""

    title: str
    facts: tuple[str, ...]
    bars: tuple[Bar, Bar]


def render_panel(
    snapshot: Snapshot, history: History | None, width: int, *, height: int | None = None
) -> Text:
    """Return the panel. Without `history`, the panel has no sparklines. Every line has at most `width` columns. If the
    panel would be taller than `height`, each device has one line.
    """
    devices = devices_of(snapshot)
    lines_per_device = 2 if width >= TWO_BARS_FROM else 3
    compact = height is not None and 1 + lines_per_device * len(devices) > height
    lines = [_heading(snapshot, width)]
    for device in devices:
        lines += _compact(device, width) if compact else _full(device, history, width)
    return Text("\n").join(lines)


def devices_of(snapshot: Snapshot) -> list[Device]:
    return [
        _host(snapshot),
        *(_gpu(row) for row in snapshot.gpus),
        *(_virtual(row) for row in snapshot.virtual_gpus),
    ]


def _host(snapshot: Snapshot) -> Device:
    host = snapshot.host
    load = "N/A" if isinstance(host.load, NotAvailable) else f"{host.load:.2f}"
    swap = () if not host.swap_used else (f"swap {amount(host.swap_used, host.swap_total)}",)
    memory = amount(host.memory_used, host.memory_total) + (" (limit)" if host.memory_limited else "")
    return Device(
        "Host",
        (memory, f"{host.cores} core{'s' if host.cores != 1 else ''}, load {load}", *swap),
        (
            Bar("MEM", "host.memory", percent(host.memory_used, host.memory_total), warns=True),
            Bar("CPU", "host.cpu", percent(host.cpu)),
        ),
    )


def _gpu(row: GpuRow) -> Device:
    gpu = row.sample
    key = f"gpu{gpu.index}"
    memory = ("≥ " if row.is_lower_bound else "") + amount(gpu.used, gpu.total)
    temperature = "N/A °C" if isinstance(gpu.temperature, NotAvailable) else f"{gpu.temperature} °C"
    fan = () if isinstance(gpu.fan, NotAvailable) else (f"fan {gpu.fan}%",)
    mig = (" (MIG)",) if gpu.is_mig is True else ("",)
    return Device(
        f"GPU {gpu.index} {gpu.name.removeprefix('NVIDIA ')}{mig[0]}",
        (memory, temperature, _power(gpu.power, gpu.power_limit), *fan),
        (
            Bar("MEM", f"{key}.memory", percent(gpu.used, gpu.total), warns=True),
            Bar("UTL", f"{key}.utilization", percent(gpu.utilization)),
        ),
    )


def _virtual(row: VirtualGpuRow) -> Device:
    device, key = row.device, f"virtual{row.run.pid}.{row.device.index}"
    memory = amount(device.reserved, device.capacity)
    return Device(
        f"Virtual GPU {device.index}",
        (memory, f"PID {row.run.pid}", script_text(row.run)),
        (
            Bar("MEM", f"{key}.memory", percent(device.reserved, device.capacity), warns=True),
            Bar("ALLOC", f"{key}.allocated", percent(device.allocated, device.capacity)),
        ),
    )


def amount(used: int | NotAvailable, total: int | NotAvailable) -> str:
    """Format a size and its total in one unit, for example `12.0 of 24.0 GiB`."""
    if isinstance(total, NotAvailable):
        return "N/A"
    unit, name = (GiB, "GiB") if total >= GiB else (MiB, "MiB")
    shown = "N/A" if isinstance(used, NotAvailable) else f"{used / unit:.1f}"
    if not isinstance(used, NotAvailable) and used < unit / 10:
        return f"{format_size(used)} of {total / unit:.1f} {name}"
    return f"{shown} of {total / unit:.1f} {name}"


def _power(power: int | NotAvailable, limit: int | NotAvailable) -> str:
    if isinstance(power, NotAvailable):
        return "N/A W"
    return (
        f"{power / 1000:.0f} W"
        if isinstance(limit, NotAvailable)
        else f"{power / 1000:.0f} of {limit / 1000:.0f} W"
    )


# --- lines


def _heading(snapshot: Snapshot, width: int) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    driver = "" if isinstance(snapshot.driver, NotAvailable) else f"driver {snapshot.driver}"
    gpus = "" if snapshot.gpus else "no GPU found"
    left = Text("legroom monitor", style="bold")
    for part in (snapshot.host.name, driver or gpus):
        if part and left.cell_len + len(part) + 4 + len(clock) <= width:
            left.append(f"  {part}", style="dim")
    return _spread(left, Text(clock, style="dim"), width)


def _full(device: Device, history: History | None, width: int) -> list[Text]:
    title = Text(device.title, style="bold")
    title.truncate(width, overflow="ellipsis")
    facts = ""
    for fact in device.facts:
        longer = f"{facts}  {fact}" if facts else fact
        if title.cell_len + 2 + len(longer) <= width:
            facts = longer
    lines = [_spread(title, Text(facts), width)]
    if width >= TWO_BARS_FROM:
        half = (width - 2) // 2
        pair = Text("  ").join([_bar(device.bars[0], history, half), _bar(device.bars[1], history, half)])
        return [*lines, pair]
    return [*lines, *(_bar(bar, history, width) for bar in device.bars)]


def _compact(device: Device, width: int) -> list[Text]:
    """Return one line with the title and the percentages of both bars, followed by facts if the line is wide enough."""
    first, second = device.bars
    figures = f"{first.label} {_percent(first)} {second.label} {_percent(second)}"
    for fact in device.facts:
        if len(figures) + 2 + len(fact) + 12 <= width:
            figures += f"  {fact}"
    title = Text(device.title, style="bold")
    title.truncate(max(width - len(figures) - 2, 1), overflow="ellipsis")
    return [_spread(title, Text(figures, style=_color(first)), width)]


def _bar(bar: Bar, history: History | None, width: int) -> Text:
    """Return a bar and its sparkline, each about half as wide as the line."""
    label = f"{bar.label} "
    number = f" {_percent(bar)}"
    space = max(width - len(label) - len(number), 2)
    spark = 0 if history is None else max(min(space // 2, space - 8) - 1, 0)
    length = space - (spark + 1 if spark else 0)
    filled = 0 if bar.percent is None else round(bar.percent / 100 * length)
    line = Text(label)
    line.append(FULL_BAR * filled, style=_color(bar))
    line.append(EMPTY_BAR * (length - filled), style="dim")
    line.append(number)
    if history is not None and spark:
        line.append(" " + sparkline(history.values(bar.key), spark), style=_color(bar))
    return line


def _percent(bar: Bar) -> str:
    return " N/A" if bar.percent is None else f"{bar.percent:3.0f}%"


def _color(bar: Bar) -> str:
    value = bar.percent
    if value is None:
        return "dim"
    if not bar.warns:
        return "cyan"
    return "red" if value >= CRITICAL else "yellow" if value >= WARNING else "green"


def _spread(left: Text, right: Text, width: int) -> Text:
    gap = max(width - left.cell_len - right.cell_len, 1 if right.plain else 0)
    return Text.assemble(left, " " * gap, right)
