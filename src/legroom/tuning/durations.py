"""Times as people write them."""

import re

from legroom.errors import UsageError

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(h|min|m|s)?", re.IGNORECASE)
_SECONDS = {"h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}


def parse_seconds(written: float | str) -> float:
    """`90`, `"90s"`, `"20min"`, `"1h 30min"` as seconds.

    >>> parse_seconds("1h 30min"), parse_seconds(90)
    (5400.0, 90.0)
    """
    if isinstance(written, int | float) and not isinstance(written, bool):
        seconds = float(written)
    else:
        parts = list(_PART.finditer(str(written)))
        if not parts or "".join(part.group(0) for part in parts).replace(" ", "") != str(written).replace(
            " ", ""
        ):
            raise UsageError(f"'{written}' is no time: write it like 90s, 20min or 1h30min")
        seconds = sum(float(part.group(1)) * _SECONDS[(part.group(2) or "s").lower()] for part in parts)
    if seconds <= 0:
        raise UsageError(f"a time of {seconds:g} s is too short")
    return seconds
