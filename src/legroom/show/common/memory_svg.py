"""Memory as inline SVG, for notebooks: the memory by category over time, and a bar by category.

A notebook may strip scripts and style sheets, and its theme may be light or dark. Therefore the drawings contain no
scripts and no style elements. Text and lines have the color of the surrounding text, and the colors of the categories
are readable on both backgrounds. The text next to a drawing contains the same figures.
"""

from collections.abc import Sequence
from html import escape

from legroom.diagnose.report.device_memory import MemoryShare, MemorySnapshot
from legroom.memory.event_base import Category
from legroom.memory.timeline import Sample
from legroom.show.common.formatting import format_duration
from legroom.units import format_size

CATEGORY_FILLS = {
    Category.PARAMETER: "#4f7be8",
    Category.GRADIENT: "#a86cf0",
    Category.OPTIMIZER_STATE: "#dba514",
    Category.ACTIVATION: "#ee6a55",
    Category.INPUT: "#3fb59d",
    Category.BUFFER: "#86abea",
    Category.WORKSPACE: "#8d929b",
    Category.RESULT: "#45b05c",
    Category.TEMPORARY: "#b58059",
}
OTHER_FILL = "#767c86"
WIDTH = 720
_LEFT, _RIGHT, _TOP, _HEIGHT, _BOTTOM = 66, 8, 16, 150, 20
_CAPACITY_SHOWN_FROM = 0.25
"""The chart includes the capacity only if the peak is at least this fraction of the capacity. Otherwise, the peak would
be a thin line at the bottom.
"""
_FONT = "font:11px system-ui,sans-serif"


def share_fill(share: MemoryShare) -> str:
    if share.category is not None:
        return CATEGORY_FILLS[share.category]
    return "none" if share.is_free else OTHER_FILL


def timeline_svg(samples: Sequence[Sample], capacity: int, *, label: str) -> str:
    """Return a drawing of the memory by category over time, with a line for the capacity. `label` describes the drawing
    for screen readers.
    """
    peak = max((max(sample.allocated, sample.reserved) for sample in samples), default=0)
    if not samples or not peak:
        return ""
    shows_capacity = peak >= _CAPACITY_SHOWN_FROM * capacity
    top = max(capacity, peak) if shows_capacity else peak
    begin, end = samples[0].time, samples[-1].time
    plot = _Plot(begin, max(end - begin, 1e-9), top * 1.02)
    has_reserve = any(sample.reserved > sample.allocated for sample in samples)
    allocated = max(sample.allocated for sample in samples)
    lines = ["line: reserved"] if has_reserve else []
    lines.append(
        "dashed: capacity" if shows_capacity else f"capacity {format_size(capacity)}, above the chart"
    )
    parts = _axis(plot, allocated, capacity if shows_capacity else None, end - begin, ", ".join(lines))
    bottoms = [0] * len(samples)
    for category in Category:
        tops = [
            below + sample.by_category.get(category, 0)
            for below, sample in zip(bottoms, samples, strict=True)
        ]
        if tops != bottoms:
            path = plot.area(samples, bottoms, tops)
            parts.append(
                f'<path d="{path}" fill="{CATEGORY_FILLS[category]}"><title>{escape(category)}</title></path>'
            )
        bottoms = tops
    if has_reserve:
        line = plot.line(samples, [sample.reserved for sample in samples])
        parts.append(
            f'<path d="{line}" fill="none" stroke="currentColor" stroke-opacity=".55" stroke-width="1">'
            "<title>reserved by PyTorch</title></path>"
        )
    return _svg(_TOP + _HEIGHT + _BOTTOM, label, parts)


def bar_svg(snapshot: MemorySnapshot, *, label: str) -> str:
    """Return a bar with the shares of a device's memory, which add up to its total memory."""
    parts: list[str] = []
    scale, offset = (WIDTH - 2) / max(snapshot.capacity, 1), 0
    for share in snapshot.shares:
        left, width = 1 + offset * scale, max(share.bytes * scale, 1.0)
        title = f"{share.label}: {format_size(share.bytes)}"
        fill = share_fill(share)
        opacity = ' fill-opacity="0"' if fill == "none" else ""
        parts.append(
            f'<rect x="{left:.1f}" y="1" width="{width:.1f}" height="20" '
            f'fill="{"#888" if fill == "none" else fill}"{opacity}><title>{escape(title)}</title></rect>'
        )
        offset += share.bytes
    parts.append(
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="21" rx="3" fill="none" stroke="currentColor" '
        'stroke-opacity=".45"/>'
    )
    return _svg(22, label, parts)


class _Plot:
    def __init__(self, begin: float, seconds: float, top: float) -> None:
        self._begin = begin
        self._x_scale = (WIDTH - _LEFT - _RIGHT) / seconds
        self._y_scale = _HEIGHT / top

    def x(self, time: float) -> float:
        return _LEFT + (time - self._begin) * self._x_scale

    def y(self, size: float) -> float:
        return _TOP + _HEIGHT - size * self._y_scale

    def area(self, samples: Sequence[Sample], bottoms: Sequence[int], tops: Sequence[int]) -> str:
        """Return the SVG path of the area between two step lines. Memory is constant between two samples."""
        above = self.points(samples, tops)
        below = self.points(samples, bottoms)[::-1]
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (*above, *below)) + "Z"

    def line(self, samples: Sequence[Sample], values: Sequence[int]) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self.points(samples, values))

    def points(self, samples: Sequence[Sample], values: Sequence[int]) -> list[tuple[float, float]]:
        """Return the corners of a step line. Points in the middle of a horizontal line are omitted."""
        points: list[tuple[float, float]] = []
        for sample, value in zip(samples, values, strict=True):
            x, y = self.x(sample.time), self.y(value)
            if points:
                points.append((x, points[-1][1]))
            points.append((x, y))
        points.append((WIDTH - _RIGHT, points[-1][1]))
        return [
            point
            for at, point in enumerate(points)
            if at in (0, len(points) - 1) or not points[at - 1][1] == point[1] == points[at + 1][1]
        ]


def _axis(plot: _Plot, peak: int, capacity: int | None, seconds: float, legend: str) -> list[str]:
    base, right = _TOP + _HEIGHT, WIDTH - _RIGHT
    parts = [
        f'<path d="M{_LEFT} {base}H{right}" stroke="currentColor" stroke-opacity=".45" fill="none"/>',
        _text(_LEFT - 6, base, "0", "end"),
        _text(_LEFT, base + 14, "0 s", "start"),
        _text(right, base + 14, format_duration(seconds), "end"),
        _text(right, _TOP - 5, legend, "end"),
    ]
    top = plot.y(capacity) if capacity is not None else -_HEIGHT
    for size, dashes in ((peak, "1 3"), (capacity, "5 4")):
        if size is None:
            continue
        y = plot.y(size)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="currentColor" stroke-opacity=".6" '
            f'stroke-dasharray="{dashes}" fill="none"/>'
        )
        if size == capacity or y - top >= 13:  # otherwise the labels would overlap
            parts.append(_text(_LEFT - 6, y + 4, format_size(size), "end"))
    return parts


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="currentColor" style="{_FONT}">'
        f"{escape(text)}</text>"
    )


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}" style="display:block;width:100%;max-width:{WIDTH}px;height:auto">'
        f"{''.join(parts)}</svg>"
    )
