"""`RunStatus`: the current step, memory and findings of one running process, and its JSON form.

The JSON form is read from files that another version of Legroom, or another program, may have written. Therefore
`RunStatus.from_json` checks every value and limits the length of every string.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_type_hints

from legroom.memory.live.history import HISTORY

MAX_TEXT = 2000
MAX_DEVICES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """The memory of one process on one device, in bytes."""

    index: int
    name: str
    kind: str
    """`cuda`, `virtual`, or `host` if the run has no GPU."""
    uuid: str = ""
    capacity: int
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of one process in a run."""

    pid: int
    verb: str
    """`run`, `launch` or `watch`. The value `watch` means a loop over `legroom.watch`."""
    script: str
    command: str
    folder: str
    started: float
    updated: float
    rank: int | None = None
    world_size: int | None = None
    step: int | None = None
    """The number of completed steps, or None if steps are not counted."""
    total_steps: int | None = None
    seconds_per_step: float | None = None
    trend: int | None = None
    """The growth of allocated memory in bytes per step. The growth is 0 if memory fluctuates, and None if it is not
    known yet.
    """
    finding: str = ""
    """The latest finding, for example `LG101 train.py:41 losses (list, 412 items) → …`."""
    advice: str = ""
    history: tuple[int, ...] = ()
    devices: tuple[DeviceStatus, ...] = field(default=())

    @property
    def allocated(self) -> int:
        return sum(device.allocated for device in self.devices)

    @property
    def reserved(self) -> int:
        return sum(device.reserved for device in self.devices)

    def as_json(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # faster than `asdict`
        return {**values, "history": list(self.history), "devices": [asdict(each) for each in self.devices]}

    @classmethod
    def from_json(cls, document: Any) -> "RunStatus | None":
        """Return the status, or None if the document is not a valid status. Unknown keys are ignored."""
        if not isinstance(document, dict):
            return None
        devices = document.get("devices")
        history = document.get("history")
        if not isinstance(devices, list) or not isinstance(history, list):
            return None
        try:
            return cls(
                **_checked(cls, document, without=("devices", "history")),
                history=tuple(int(each) for each in history[-HISTORY:]),
                devices=tuple(DeviceStatus(**_checked(DeviceStatus, each)) for each in devices[:MAX_DEVICES]),
            )
        except (TypeError, ValueError, OverflowError, KeyError):
            return None


def _checked(kind: type, document: dict[str, Any], *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the values in `document` for the fields of the dataclass `kind`. Raise TypeError if a value has the wrong
    type.
    """
    types = get_type_hints(kind)
    values = {}
    for each in fields(kind):
        if each.name in without or each.name not in document:
            continue
        value, expected = document[each.name], types[each.name]
        if expected in (float, float | None) and type(value) is int:
            value = float(value)
        if type(value) is bool or not isinstance(value, expected):
            raise TypeError(each.name)
        values[each.name] = value[:MAX_TEXT] if isinstance(value, str) else value
    return values
