"""Selects the process to report on, if the script starts other processes that use GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from legroom.memory.capture.capture import Capture
from legroom.memory.events import Event
from legroom.memory.ledger import Ledger
from legroom.units import format_size


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """One of the script's processes and the memory events that it recorded."""

    name: str
    ledger: Ledger
    events: Sequence[Event] = ()
    ranks: Mapping[str, Any] = field(default_factory=dict)
    """The rank of the process and the world size, if it has a process group."""

    @classmethod
    def from_capture(cls, capture: Capture) -> "RecordedProcess":
        ranks: dict[str, Any] = {
            key: capture.run[key] for key in ("rank", "world_size") if key in capture.run
        }
        name = f"rank {ranks['rank']}" if ranks else f"process {capture.run.get('process')}"
        return cls(name, Ledger(capture.events), capture.events, ranks)

    @property
    def peak(self) -> int:
        return max((self.ledger.peak(device).bytes for device in self.ledger.devices()), default=0)

    @property
    def importance(self) -> tuple[bool, int]:
        """A sort key: whether the process ran out of memory, then its peak."""
        return bool(self.ledger.ooms()), self.peak


def describe_processes(
    chosen: RecordedProcess, main: RecordedProcess, others: Sequence[RecordedProcess]
) -> str:
    rest = [process for process in (main, *others) if process is not chosen and process.peak]
    about = f"this report is about {chosen.name}" + ("" if chosen is main else ", which the script started")
    if not rest:
        return f"{about}; no other process used GPU memory"
    if len(rest) == 1:
        return f"{about}; {rest[0].name} used up to {format_size(rest[0].peak)}"
    highest = format_size(max(process.peak for process in rest))
    return f"{about}; {len(rest)} other processes used up to {highest} each"
