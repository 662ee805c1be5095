"""The progress line of `legroom.watch`: progress, speed, memory in use and its trend."""

from typing import NamedTuple

from legroom.log import printable
from legroom.units import format_size

BAR_WIDTH = 10


class ProgressStats(NamedTuple):
    description: str
    done: int
    total: int | None
    seconds: float
    allocated: int
    peak: int
    host: int
    """The resident memory of the process in bytes."""
    bytes_per_step: int | None
    """The change in bytes per step, or None if there are too few measurements."""


def bar_text(stats: ProgressStats, columns: int) -> str:
    """Return one line of at most `columns` characters. If the line is too long, the bar is omitted first, then the
    elapsed time, the speed and the peak. Memory and its trend are always shown.
    """
    parts = _parts(stats)
    for dropped in (
        (),
        ("bar",),
        ("bar", "clock"),
        ("bar", "clock", "speed"),
        ("bar", "clock", "speed", "peak"),
    ):
        text = "  ".join(text for name, text in parts if text and name not in dropped)
        if len(text) <= columns:
            return text
    return text[:columns]


def plain_text(stats: ProgressStats) -> str:
    return ", ".join(text for name, text in _parts(stats) if text and name != "bar")


def _parts(stats: ProgressStats) -> list[tuple[str, str]]:
    done, total, seconds = stats.done, stats.total, max(stats.seconds, 1e-9)
    speed = done / seconds
    count = f"{done:,}/{total:,}" if total else f"{done:,}"
    filled = min(int(BAR_WIDTH * done / total), BAR_WIDTH) if total else 0
    remaining = f"<{_clock((total - done) / speed)}" if total and 0 < done < total else ""
    if stats.allocated or stats.peak:
        memory, peak = f"{format_size(stats.allocated)} allocated", f"peak {format_size(stats.peak)}"
    else:
        memory, peak = f"host {format_size(stats.host)}", ""
    return [
        ("description", printable(stats.description)),
        ("count", count),
        ("bar", "█" * filled + "░" * (BAR_WIDTH - filled) if total else ""),
        ("clock", f"{_clock(seconds)}{remaining}"),
        ("speed", (f"{speed:.1f} it/s" if speed >= 1 else f"{1 / speed:.1f} s/it") if done else ""),
        ("memory", memory),
        ("peak", peak),
        ("trend", trend_text(stats.bytes_per_step)),
    ]


def trend_text(bytes_per_step: int | None) -> str:
    if bytes_per_step is None:
        return ""
    if bytes_per_step == 0:
        return "steady"
    sign = "+" if bytes_per_step > 0 else "-"
    return f"{sign}{format_size(abs(bytes_per_step))}/step"


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return (f"{hours}:" if hours else "") + f"{rest // 60:02}:{rest % 60:02}"
