"""`Finding`: a problem that an analysis reports and that `legroom.show` renders.

The first digit of a code is its group: LG1xx retained memory, LG2xx inference, LG3xx transfers and loading, LG4xx
precision, LG5xx distributed training, LG6xx runs that are too large for the GPU, LG7xx errors known to `legroom
explain`, LG9xx the environment.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that Legroom found, with its location and fix."""

    code: str
    """The code, for example `LG101`. Codes are stable and documented."""
    message: str
    """One sentence about the problem and the memory that it uses."""
    fix: str
    """The suggested change, with the user's line or variable if known."""
    file: str | None = None
    line: int | None = None
    bytes: int = 0
    """The memory that the problem uses. Findings are ranked by `saves`, then by `bytes`."""
    saves: int = 0
    """The estimated number of bytes that the fix frees, or 0 if unknown."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Values in JSON types, for programs that read the finding."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
