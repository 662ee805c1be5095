"""The memory of one device at the peak or at a failed allocation.

A snapshot divides the memory of the device into shares: non-PyTorch memory, one share for each category, reserved
memory that is unused, and free memory. For a failed allocation, the unused reserved memory is divided into cached
segments and fragments.
"""

from dataclasses import dataclass
from typing import Any

from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Oom
from legroom.memory.ledger import Ledger
from legroom.memory.state import Holding, State

TOP_LINES = 50


def to_milliseconds(seconds: float) -> float:
    """Round a time to milliseconds. The result is the same for a time that was read from a capture, which stores
    microseconds.
    """
    return round(round(seconds * 1e6) / 1e6, 3)


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """A labeled part of the device's memory."""

    label: str
    bytes: int
    category: Category | None = None
    is_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """The memory of one device at one moment."""

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
    """The lines that allocated the most live bytes, largest first."""
    between_passes: bool = False
    """True if the forward pass of this step was complete and its backward pass had not begun, for example in the
    computation of the loss or the accuracy."""
    coverage: float
    """The fraction of the live bytes that are attributed to a line in the user's code."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "capacity_bytes": self.capacity,
            "step": self.step,
            "phase": self.phase,
            "seconds": to_milliseconds(self.time),
            "allocated_bytes": self.allocated,
            "reserved_bytes": self.reserved,
            "by_category": dict(self.by_category),
            "top": [holding_as_dict(each) for each in self.top],
        }


def holding_as_dict(holding: Holding) -> dict[str, Any]:
    return {
        "file": holding.file or None,
        "line": holding.line,
        "bytes": holding.bytes,
        "category": str(holding.category),
        "module": holding.module,
        "function": holding.function,
        "count": holding.count,
    }


def snapshot_at_peak(
    ledger: Ledger, device: int, capacity: int, *, other: int = 0, reserved: int = 0, rest: str = "free"
) -> MemorySnapshot | None:
    """Return the snapshot at peak allocated memory, or None if no memory was allocated on the device.

    `reserved` is the peak of the reserved memory, which can occur after the peak of the allocated memory. `rest` is
    the label of the remaining memory.
    """
    peak = ledger.peak(device)
    if peak.bytes <= 0:
        return None
    state = ledger.at(peak.index, device)
    reserved = max(reserved, state.reserved)
    shares = [
        MemoryShare("non-PyTorch", other),
        *_category_shares(state),
        MemoryShare("reserved, unallocated", max(reserved - state.allocated, 0)),
    ]
    return _snapshot(
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
    """Return the memory at the failure, as parts of the memory that the process may use."""
    shares = [
        MemoryShare("non-PyTorch", 0 if is_limited(oom) else oom.other),
        *_category_shares(state),
        MemoryShare("cached, reusable", oom.cached),
        MemoryShare("fragmented", oom.fragmented),
    ]
    return _snapshot(
        state,
        oom.device,
        capacity_for(oom),
        shares,
        step=oom.step,
        phase=str(oom.phase),
        time=oom.time,
        reserved=oom.reserved,
    )


def is_limited(oom: Oom) -> bool:
    """Return whether a memory fraction, and not the size of the device, limits the process."""
    return oom.limit < oom.capacity - oom.other


def capacity_for(oom: Oom) -> int:
    """Return the memory that the process may use, including non-PyTorch memory if no memory fraction limits it."""
    return oom.limit if is_limited(oom) else oom.capacity


def budget_of(oom: Oom) -> int:
    return min(oom.limit, oom.capacity - oom.other)


def free_at(oom: Oom) -> int:
    """Return the number of bytes that are available to an allocation, including cached segments that PyTorch can
    free.
    """
    return max(budget_of(oom) - oom.reserved, 0) + oom.cached


def _category_shares(state: State) -> list[MemoryShare]:
    return [MemoryShare(str(category), size, category) for category, size in state.by_category().items()]


def _snapshot(
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
    known = sum(share.bytes for share in shares)
    if capacity > known:
        shares = [*shares, MemoryShare(rest, capacity - known, is_free=True)]
    return MemorySnapshot(
        device=device,
        capacity=max(capacity, known),
        step=step,
        phase=phase,
        time=time,
        allocated=state.allocated,
        reserved=state.reserved if reserved is None else reserved,
        shares=tuple(share for share in shares if share.bytes > 0),
        by_category={str(category): size for category, size in state.by_category().items()},
        top=tuple(state.top(TOP_LINES)),
        coverage=state.coverage(),
        between_passes=phase == Phase.OTHER and _awaits_backward(state, step),
    )


def _awaits_backward(state: State, step: int) -> bool:
    own = [each for each in state.live if each.step == step]
    return any(each.category is Category.ACTIVATION for each in own) and not any(
        each.phase is Phase.BACKWARD and each.category is not Category.GRADIENT for each in own
    )
