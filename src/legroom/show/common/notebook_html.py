"""Parts of the HTML that notebooks show: sentences, tables and legends.

All styles are attributes, because a notebook may strip style elements. Text has no color of its own, because the theme
of the notebook may be light or dark. All text is escaped.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape

from legroom.diagnose.report.device_memory import MemorySnapshot
from legroom.show.common.formatting import clean
from legroom.show.common.memory_svg import share_fill
from legroom.units import format_size

_CELL = "padding:1px 14px 1px 0;border:0;background:none;vertical-align:top;text-align:"
MUTED = "opacity:.75"
_CODE_STYLE = 'style="font-size:12px;background:none;color:inherit;padding:0"'


def text(value: str) -> str:
    return escape(clean(value))


def plain(value: str) -> str:
    return clean(value)


def block(*parts: str) -> str:
    return (
        '<div style="font:13px/1.45 system-ui,sans-serif;max-width:740px;font-variant-numeric:tabular-nums">'
        f"{''.join(parts)}</div>"
    )


def sentence(value: str, *, bold: bool = False, muted: bool = False) -> str:
    style = "margin:4px 0" + (";font-weight:600" if bold else "") + (f";{MUTED}" if muted else "")
    return f'<p style="{style}">{_CODE.sub(_as_code, text(value))}</p>' if value else ""


_CODE = re.compile("`([^`]+)`")


def _as_code(found: re.Match[str]) -> str:
    return f"<code {_CODE_STYLE}>{found[1]}</code>"


def heading(value: str, remark: str = "") -> str:
    aside = f' <span style="font-weight:400;{MUTED}">{text(remark)}</span>' if remark else ""
    return f'<p style="margin:10px 0 2px;font-weight:600">{text(value)}{aside}</p>'


def table(rows: Iterable[Sequence[str]], *, align: str, head: Sequence[str] = ()) -> str:
    """Return a table whose cells are HTML. `align` has one letter per column: `l` for left, `r` for right."""
    sides = [{"l": "left", "r": "right"}[letter] for letter in align]
    sides = [*(f"{side};white-space:nowrap" for side in sides[:-1]), sides[-1]]  # only the last column wraps

    def row(cells: Sequence[str], tag: str) -> str:
        styled = (
            f'<{tag} style="{_CELL}{side}">{cell}</{tag}>' for cell, side in zip(cells, sides, strict=True)
        )
        return f'<tr style="background:none">{"".join(styled)}</tr>'

    top = f"<thead>{row(head, 'th')}</thead>" if head else ""
    body = "".join(row(cells, "td") for cells in rows)
    return (
        '<table style="border-collapse:collapse;margin:2px 0;border:0;font-size:13px">'
        f"{top}<tbody>{body}</tbody></table>"
    )


def legend(snapshot: MemorySnapshot) -> str:
    def percent(size: int) -> str:
        share = 100 * size / snapshot.capacity
        return "<1%" if 0 < share < 1 else f"{share:.0f}%"

    rows = [
        (swatch(share_fill(each)) + text(each.label), format_size(each.bytes), escape(percent(each.bytes)))
        for each in snapshot.shares
    ]
    return table([*rows, ("total", format_size(snapshot.capacity), "100%")], align="lrr")


def code(value: str) -> str:
    return f"<code {_CODE_STYLE}>{text(value)}</code>"


def swatch(fill: str) -> str:
    color = "transparent" if fill == "none" else fill
    return (
        f'<span style="display:inline-block;width:10px;height:10px;border-radius:2px;background:{color};'
        'border:1px solid rgba(128,128,128,.6);margin-right:6px"></span>'
    )


def pre(value: str) -> str:
    return (
        '<pre style="margin:4px 0;padding:0;border:0;background:none;color:inherit;font-size:12px;line-height:1.35;'
        f'white-space:pre;overflow-x:auto">{text(value)}</pre>'
    )
