"""Memory of one device at one moment, with nothing left unexplained.

The shares add up to the device's total: what is not PyTorch's, each category, what PyTorch keeps but does not use, and
what is free. What is known of one moment may be coarser than of another (only a failed allocation says how the unused
part divides into whole cached segments and holes), so a share carries its own label.
"""

from dataclasses import dataclass
from typing import Any

from legroom.memory.events import Category, Oom
from legroom.memory.ledger import Ledger
from legroom.memory.state import Holding, State

TOP_LINES = 50


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """A part of the device's memory."""

    label: str
    bytes: int
    category: Category | None = None
    """Set where the share is live memory of PyTorch's."""
    is_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """Memory of one device at one moment."""

    device: int
    capacity: int
    step: int
    phase: str
    time: float
    allocated: int
    reserved: int
    shares: tuple[MemoryShare, ...]
    by_category: dict[str, int]
    top: tuple[Holding, ...]
    """Lines by the bytes that they hold, largest first."""
    coverage: float
    """The part of the bytes whose line in the user's code is known."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "capacity_bytes": self.capacity,
            "step": self.step,
            "phase": self.phase,
            "seconds": round(self.time, 3),
            "allocated_bytes": self.allocated,
            "reserved_bytes": self.reserved,
            "by_category": dict(self.by_category),
            "top": [holding_as_dict(row) for row in self.top],
        }


def holding_as_dict(row: Holding) -> dict[str, Any]:
    """A line of `top` as programs read it."""
    return {
        "file": row.file or None,
        "line": row.line,
        "bytes": row.bytes,
        "category": str(row.category),
        "module": row.module,
        "function": row.function,
        "count": row.count,
    }


def snapshot_at_peak(
    ledger: Ledger, device: int, capacity: int, *, other: int = 0, reserved: int = 0, rest: str = "free"
) -> MemorySnapshot | None:
    """The moment of most live bytes; None where the device never held any.

    `reserved`: what PyTorch takes from the device in the end, where that may be more than at that moment. `rest` is
    what to call the remainder.
    """
    peak = ledger.peak(device)
    if peak.bytes <= 0:
        return None
    state = ledger.at(peak.index, device)
    reserved = max(reserved, state.reserved)
    shares = [
        MemoryShare("not PyTorch's", other),
        *_category_shares(state),
        MemoryShare("reserved, not in use", max(reserved - state.allocated, 0)),
    ]
    return _picture(
        state,
        device,
        capacity,
        shares,
        step=peak.step,
        phase=str(peak.phase),
        time=peak.time,
        reserved=reserved,
        rest=rest,
    )


def snapshot_at_oom(state: State, oom: Oom) -> MemorySnapshot:
    """The moment when an allocation failed."""
    barred = (
        max(oom.capacity - oom.other - max(oom.limit, oom.reserved), 0) if oom.limit < oom.capacity else 0
    )
    shares = [
        MemoryShare("not PyTorch's", oom.other),
        *_category_shares(state),
        MemoryShare("cached, reusable", oom.cached),
        MemoryShare("fragmented", oom.fragmented),
        MemoryShare("beyond the set fraction", barred),
    ]
    return _picture(
        state,
        oom.device,
        oom.capacity,
        shares,
        step=oom.step,
        phase=str(oom.phase),
        time=oom.time,
        reserved=oom.reserved,
    )


def budget_of(oom: Oom) -> int:
    """What PyTorch may take of the device in all."""
    return min(oom.limit, oom.capacity - oom.other)


def free_at(oom: Oom) -> int:
    """What an allocation could still have got, cached segments that could be given back included."""
    return max(budget_of(oom) - oom.reserved, 0) + oom.cached


def _category_shares(state: State) -> list[MemoryShare]:
    return [MemoryShare(str(category), size, category) for category, size in state.by_category().items()]


def _picture(
    state: State,
    device: int,
    capacity: int,
    shares: list[MemoryShare],
    *,
    step: int,
    phase: str,
    time: float,
    reserved: int | None = None,
    rest: str = "free",
) -> MemorySnapshot:
    told = sum(share.bytes for share in shares)
    if capacity > told:
        shares = [*shares, MemoryShare(rest, capacity - told, is_free=True)]
    return MemorySnapshot(
        device=device,
        capacity=max(capacity, told),
        step=step,
        phase=phase,
        time=time,
        allocated=state.allocated,
        reserved=state.reserved if reserved is None else reserved,
        shares=tuple(share for share in shares if share.bytes > 0),
        by_category={str(category): size for category, size in state.by_category().items()},
        top=tuple(state.top(TOP_LINES)),
        coverage=state.coverage(),
    )
