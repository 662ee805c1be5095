"""Parses and formats sizes. All other modules represent a size as a number of bytes."""

import re

from legroom.errors import UsageError

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
TiB = 1 << 40

_UNITS = {
    "": 1, "b": 1,
    "k": KiB, "kib": KiB, "kb": 1000,
    "m": MiB, "mib": MiB, "mb": 1000**2,
    "g": GiB, "gib": GiB, "gb": 1000**3,
    "t": TiB, "tib": TiB, "tb": 1000**4,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def parse_size(text: str | int) -> int:
    """Return the number of bytes for a size such as `"8GiB"`, `"512 MiB"`, `"24g"`, `"24GB"` (decimal) or a plain
    number.

    >>> parse_size("1.5GiB") == 3 * 512 * MiB
    True
    """
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise UsageError(
            f"A size must be given as a string such as `8GiB` or as a number of bytes, not {type(text).__name__}."
        )
    if isinstance(text, int):
        if text <= 0:
            raise UsageError(f"{text} is not a valid size. A size must be positive.")
        return text
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"`{text}` is not a valid size. Examples: `8GiB`, `512MiB`, `24GB`.")
    size = int(float(match.group(1)) * unit)
    if size <= 0:
        raise UsageError(f"`{text}` is not a valid size. A size must be positive.")
    return size


def is_size(text: str) -> bool:
    """Return True if `text` is a number with a unit, such as `8GiB`. `8` and `train.py` are not sizes."""
    match = _SIZE.fullmatch(text)
    return match is not None and match.group(2) != "" and match.group(2).lower() in _UNITS


def format_size(size: float) -> str:
    """Format `size` in the largest binary unit in which it is at least 1, with at most two decimals.

    >>> format_size(3 * 512 * MiB), format_size(-20 * MiB), format_size(512)
    ('1.50 GiB', '-20.0 MiB', '512 B')
    """
    magnitude = abs(size)
    for unit, name, digits in ((TiB, "TiB", 2), (GiB, "GiB", 2), (MiB, "MiB", 1), (KiB, "KiB", 1)):
        if magnitude >= unit:
            return f"{size / unit:.{digits}f} {name}"
    return f"{size:.0f} B"
