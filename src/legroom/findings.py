"""What everything that reasons yields and everything that shows renders: a Finding.

Codes: LG1xx retention, LG2xx inference, LG3xx transfer and loading, LG4xx precision, LG5xx distributed,
LG6xx fit (the run is sound but larger than the GPU), LG7xx errors that `legroom explain` knows, LG9xx environment.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing worth telling a person."""

    code: str
    """`LG101` and so on: stable, documented, searchable."""
    message: str
    """One sentence: what, and by how much."""
    fix: str
    """What to change, in words that name the user's own line or variable where known."""
    file: str | None = None
    line: int | None = None
    bytes: int = 0
    """How much memory this is about; with `saves`, findings are ranked by it."""
    saves: int = 0
    """How many bytes the fix is estimated to free at the moment in question; 0 where unknown."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Plain figures that a program may read."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
