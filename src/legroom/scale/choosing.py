"""`auto`: the cheapest strategy that fits, from estimates; the reason and the runners-up in a table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy and why."""

    strategy: str
    reason: str
    told: str = ""
    """What a person should read now; empty where there was nothing to choose."""
