"""The line of `legroom.watch`: how far, how fast, how much memory, and whether it grows."""

from dataclasses import dataclass

from legroom.units import format_size

BAR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the line shows."""

    description: str
    done: int
    total: int | None
    seconds: float
    allocated: int
    """Device bytes now; 0 where there is no device."""
    peak: int
    host: int
    """The process's own memory."""
    bytes_per_step: int | None
    """The trend; None while it is too early to tell."""


def bar_text(figures: Figures, columns: int) -> str:
    """One line no longer than `columns`: the bar gives way first, then the pace; memory and its trend stay."""
    parts = _parts(figures)
    for without in (
        (),
        ("bar",),
        ("bar", "clock"),
        ("bar", "clock", "pace"),
        ("bar", "clock", "pace", "peak"),
    ):
        text = "  ".join(text for name, text in parts if text and name not in without)
        if len(text) <= columns:
            return text
    return text[:columns]


def plain_text(figures: Figures) -> str:
    """The same for a log."""
    return ", ".join(text for name, text in _parts(figures) if text and name != "bar")


def _parts(figures: Figures) -> list[tuple[str, str]]:
    done, total, seconds = figures.done, figures.total, max(figures.seconds, 1e-9)
    pace = done / seconds
    counted = f"{done:,}/{total:,}" if total else f"{done:,}"
    filled = min(int(BAR * done / total), BAR) if total else 0
    left = f"<{_clock((total - done) / pace)}" if total and 0 < done < total else ""
    if figures.allocated or figures.peak:
        memory, peak = f"{format_size(figures.allocated)} allocated", f"peak {format_size(figures.peak)}"
    else:
        memory, peak = f"host {format_size(figures.host)}", ""
    return [
        ("what", figures.description),
        ("count", counted),
        ("bar", "█" * filled + "░" * (BAR - filled) if total else ""),
        ("clock", f"{_clock(seconds)}{left}"),
        ("pace", (f"{pace:.1f}/s" if pace >= 1 else f"{1 / pace:.1f} s each") if done else ""),
        ("memory", memory),
        ("peak", peak),
        ("trend", trend_words(figures.bytes_per_step)),
    ]


def trend_words(bytes_per_step: int | None) -> str:
    if bytes_per_step is None:
        return ""
    if bytes_per_step == 0:
        return "steady"
    sign = "+" if bytes_per_step > 0 else "-"
    return f"{sign}{format_size(abs(bytes_per_step))}/step"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return (f"{hours}:" if hours else "") + f"{rest // 60:02}:{rest % 60:02}"
