"""What a run did to memory, as plain data: made from its ledger, folded as the run went or from its capture, as often as wanted.

Nothing here prints and nothing here is torch's. `RunReport.as_json()` is what `--format json` shows; its keys are stable.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from legroom import schemas
from legroom.diagnose.oom.advice import advise
from legroom.diagnose.oom.evidence import Evidence, block_of
from legroom.diagnose.oom.recognize import is_oom
from legroom.diagnose.report import source_lines
from legroom.diagnose.report.command import RunCommand
from legroom.diagnose.report.device_memory import (
    MemorySnapshot,
    free_at,
    holding_as_dict,
    snapshot_at_oom,
    snapshot_at_peak,
)
from legroom.diagnose.report.growing_lines import Leak, find_leaks
from legroom.diagnose.report.leaks import latest_leaks, leaks_from
from legroom.diagnose.report.source_lines import Sources
from legroom.findings import Finding
from legroom.memory.annotations import (
    Annotation,
    HistoryUnavailable,
    LibraryRetries,
    LoopWatched,
    OtherProcesses,
    RecordingFailed,
    RunEnded,
    SpillTotals,
    find_ending,
)
from legroom.memory.capture.capture import Capture
from legroom.memory.events import Frame, Holder, Oom, Step
from legroom.memory.garbage_collection import no_garbage_collection
from legroom.memory.ledger import Ledger
from legroom.observe.source.batch_argument import find_batch_argument
from legroom.units import GiB

LEAST_TO_ESTIMATE = 2 * GiB
"""An estimate counts the workspaces of libraries: nothing would fit a virtual GPU of a few MiB."""
A_COMMON_SIZE = "8GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """One device as the run had it."""

    index: int
    name: str
    kind: str
    """`virtual`, `cuda` or `host`."""
    capacity: int
    other: int
    """Of that, what is known not to be PyTorch's: the CUDA context."""
    peak_allocated: int
    peak_reserved: int

    @property
    def title(self) -> str:
        """`virtual GPU 0`, `GPU 0 (NVIDIA H200)`, `host memory`."""
        if self.kind == "virtual":
            return f"virtual GPU {self.index}"
        return f"GPU {self.index} ({self.name})" if self.kind == "cuda" else "host memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class OomReport:
    """An out-of-memory error: what was asked for, who held the rest, what to change."""

    event: Oom
    picture: MemorySnapshot
    holders: tuple[Holder, ...]
    advice: tuple[Finding, ...]
    ended_run: bool
    """Whether the run died of it; otherwise the script caught it."""

    @property
    def block(self) -> int:
        """What PyTorch wanted to take from the device for it."""
        return block_of(self.event)

    @property
    def free(self) -> int:
        """What the device still had for this process."""
        return free_at(self.event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run, ended or not."""

    command: RunCommand
    """As it was started."""
    started: str
    devices: tuple[DeviceSummary, ...]
    device: DeviceSummary | None
    """The one that `peak` and `history` are about: where memory ran out, else the fullest."""
    ending: RunEnded
    seconds: float
    steps: int
    history: tuple[Step, ...]
    peak: MemorySnapshot | None
    oom: OomReport | None
    oom_count: int
    leaks: tuple[Leak, ...]
    capture: str | None
    truncated: bool
    dropped: int
    remarks: tuple[str, ...]
    """What the watcher had to say of itself: what it could not see, and why."""
    spilled: SpillTotals | None = None
    """What went to host memory, where that was asked for."""
    sources: Sources = field(default_factory=dict)
    """Lines of the user's code that the report speaks of."""
    rank: int | None = None
    """Of a launch; None for a run by itself."""

    def as_json(self) -> dict[str, Any]:
        """The stable keys first, what else may help a program after them."""
        return {
            "schema": schemas.RUN,
            "exit_code": self.ending.exit_code,
            "steps": self.steps,
            "peak_allocated_bytes": max((device.peak_allocated for device in self.devices), default=0),
            "peak_reserved_bytes": max((device.peak_reserved for device in self.devices), default=0),
            "oom": _oom_as_dict(self.oom) if self.oom else None,
            "leaks": [leak.as_dict() for leak in self.leaks],
            "capture": self.capture,
            **({"rank": self.rank} if self.rank is not None else {}),
            "command": self.command.text,
            "next": [command for command, _ in self.next_commands],
            "ended": self.ending.reason,
            "error": self.ending.error or None,
            "seconds": round(self.seconds, 3),
            "oom_count": self.oom_count,
            "truncated": self.truncated,
            "dropped_events": self.dropped,
            "remarks": list(self.remarks),
            "spill": _spill_as_dict(self.spilled) if self.spilled else None,
            "peak": self.peak.as_dict() if self.peak else None,
            "devices": [
                {
                    "index": device.index,
                    "name": device.name,
                    "kind": device.kind,
                    "capacity_bytes": device.capacity,
                    "peak_allocated_bytes": device.peak_allocated,
                    "peak_reserved_bytes": device.peak_reserved,
                }
                for device in self.devices
            ],
        }

    def frames(self) -> list[Frame]:
        """The lines of the user's code that the report speaks of, most important first."""
        frames: list[Frame] = []
        pictures = [picture for picture in (self.oom and self.oom.picture, self.peak) if picture]
        if self.oom and self.oom.event.frame:
            frames.append(self.oom.event.frame)
        for picture in pictures:
            frames += [
                Frame(row.file, row.line, row.function or "") for row in picture.top if row.file and row.line
            ]
        frames += [Frame(leak.file, leak.line, "") for leak in self.leaks if leak.file and leak.line]
        return frames

    @property
    def died_of_memory(self) -> bool:
        """Whether memory ran out and the run did not get over it."""
        return self.oom is not None and self.ending.exit_code != 0

    @property
    def next_commands(self) -> list[tuple[str, str]]:
        """What to type next, and what it is for."""
        look = [(f"legroom report {shlex.quote(self.capture)}", "this report again")] if self.capture else []
        if self._lacked_a_gpu():
            return [(self.command.on_virtual_gpu(A_COMMON_SIZE).text, "without a GPU"), *look]
        if self.oom is None or not self.died_of_memory:
            return look
        first = self.oom.advice[0] if self.oom.advice else None
        batch = find_batch_argument(self.command.arguments)
        if first is not None and first.code == "LG603":
            if first.evidence["unfinished"] and self.oom.event.capacity >= LEAST_TO_ESTIMATE:
                look = [
                    (self.command.estimate(self.oom.event.capacity), "the largest batch that fits"),
                    *look,
                ]
            smaller = batch.smaller(first.evidence["fraction"]) if batch is not None else None
            if smaller is not None:
                again = self.command.with_arguments(smaller.replace_in(self.command.arguments))
                return [(again.text, "with the smaller batch"), *look]
        if first is not None and first.code == "LG607":
            return [
                (f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {self.command.text}", "in one piece"),
                *look,
            ]
        return [(self.command.text, "again, after the change"), *look]

    def _lacked_a_gpu(self) -> bool:
        """Whether the run died because the script wants a GPU and there is none."""
        if not self.ending.error or self.command.has_virtual_gpu:
            return False
        # A thousand patterns, which a run that goes well never needs.
        from legroom.diagnose.explain.explain import explain

        return explain(self.ending.error).code == "LG724"


def run_report(capture: Capture, *, path: str | None = None) -> RunReport:
    """Read a run off its capture. `path` is where the capture lies, None where it was not kept."""
    with no_garbage_collection():
        ledger = Ledger(capture.events)
    return report_of(ledger, capture.run, path=path, truncated=capture.truncated, dropped=capture.dropped)


def report_of(
    ledger: Ledger,
    run: Mapping[str, Any],
    *,
    path: str | None = None,
    truncated: bool = False,
    dropped: int = 0,
) -> RunReport:
    """The report of a run that was folded as it went, or read back. `run`: what its capture's header says of it;
    `dropped`: how many events its capture is without."""
    annotations = ledger.annotations()
    ending = find_ending(annotations)
    spills = [each for each in annotations if isinstance(each, SpillTotals)]
    steps = ledger.steps()
    devices = _devices(run, ledger)
    ooms = ledger.ooms()
    device = _device_of_interest(devices, ooms)
    holders = _named_once(ledger.holders(len(ooms) - 1)) if ooms else []
    leaks = _leaks(ledger, devices, device, annotations, holders)
    command = RunCommand.from_run(run)
    rank = run.get("rank")
    return RunReport(
        command=command,
        started=str(run.get("started", "")),
        devices=devices,
        device=device,
        ending=ending,
        seconds=ending.time or ledger.seconds,
        steps=max((step.step + 1 for step in steps), default=0),
        history=tuple(step for step in steps if device is not None and step.device == device.index),
        peak=_peak(ledger, device) if device else None,
        oom=_last_oom(ledger, ending, holders, leaks, command) if ooms else None,
        oom_count=len(ooms),
        leaks=leaks,
        capture=path,
        truncated=truncated,
        dropped=dropped,
        remarks=tuple(dict.fromkeys(filter(None, map(_remark, annotations)))),
        spilled=spills[-1] if spills else None,
        sources=source_lines.from_annotations(annotations),
        rank=rank if isinstance(rank, int) else None,
    )


def _leaks(
    ledger: Ledger,
    devices: Sequence[DeviceSummary],
    device: DeviceSummary | None,
    annotations: Sequence[Annotation],
    holders: Sequence[Holder],
) -> tuple[Leak, ...]:
    """What the detector saw; where it was not at work to the end, what the ledger says grew."""
    measured = [leak for each in devices for leak in find_leaks(ledger, each.index, holders)]
    kept = latest_leaks(annotations)
    if not kept and not any(isinstance(each, LoopWatched) for each in annotations):
        return tuple(measured)
    steps = max((step.step + 1 for step in ledger.steps()), default=0)
    return tuple(leaks_from(kept, measured, steps, device.index if device else 0))


def _remark(annotation: Annotation) -> str | None:
    """What the user should know about how the run was recorded."""
    match annotation:
        case HistoryUnavailable(reason=reason):
            return f"{reason}, so only memory totals per step were recorded"
        case LibraryRetries(count=count):
            allocations = "1 allocation" if count == 1 else f"{count:,} allocations"
            return f"{allocations} failed inside a library (for example cuDNN testing algorithms), which continued with less memory"
        case RecordingFailed(message=text) | OtherProcesses(description=text):
            return text
    return None


def _peak(ledger: Ledger, device: DeviceSummary) -> MemorySnapshot | None:
    # Only a virtual device is known to hold nothing else: who else is on a real one was not asked at that moment.
    rest = "free" if device.kind == "virtual" else "free, or not PyTorch's"
    return snapshot_at_peak(ledger, device.index, device.capacity, other=device.other, rest=rest)


def _last_oom(
    ledger: Ledger,
    ending: RunEnded,
    holders: Sequence[Holder],
    leaks: Sequence[Leak],
    command: RunCommand,
) -> OomReport:
    last = len(ledger.ooms()) - 1
    event, state = ledger.ooms()[last], ledger.at_oom(last)
    evidence = Evidence(
        oom=event,
        state=state,
        births=lambda: ledger.allocations_before_oom(last),
        progress=ledger.progress(last),
        holders=holders,
        leaks=[leak for leak in leaks if leak.device == event.device],
        batch=find_batch_argument(command.arguments),
    )
    return OomReport(
        event=event,
        picture=snapshot_at_oom(state, event),
        holders=tuple(holders),
        advice=advise(evidence),
        ended_run=_died_of_memory(ending),
    )


def _died_of_memory(ending: RunEnded) -> bool:
    """By the error that left the script, or one that it came from: the lines of a traceback that are not indented."""
    chain = [line for line in ending.traceback.splitlines() if not line.startswith(" ")]
    return is_oom(ending.error) or is_oom("\n".join(chain))


def _named_once(holders: Sequence[Holder]) -> list[Holder]:
    """A variable passed down through several functions is named where it was found first: innermost."""
    named: dict[tuple[str, int], Holder] = {}
    for holder in holders:
        named.setdefault((holder.path, holder.bytes), holder)
    return sorted(named.values(), key=lambda holder: -holder.bytes)


def _devices(run: Mapping[str, Any], ledger: Ledger) -> tuple[DeviceSummary, ...]:
    """The devices that the capture's header names. It may come from a stranger: anything odd is left out."""
    listed = run.get("devices")
    devices = []
    for row in listed if isinstance(listed, list) else ():
        index = row.get("index") if isinstance(row, dict) else None
        if not isinstance(index, int):
            continue
        allocated, reserved = ledger.peak_of_steps(index)
        devices.append(
            DeviceSummary(
                index=index,
                name=str(row.get("name", "")),
                kind=str(row.get("kind", "")),
                capacity=_size(row.get("capacity")),
                other=_size(row.get("other")),
                # Steps outlive what was dropped to keep a capture small, so they may know of a higher peak.
                peak_allocated=max(ledger.peak(index).bytes, allocated),
                peak_reserved=max(ledger.peak(index, "reserved").bytes, reserved),
            )
        )
    return tuple(devices)


def _size(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _device_of_interest(devices: Sequence[DeviceSummary], ooms: Sequence[Oom]) -> DeviceSummary | None:
    if ooms:
        return next((device for device in devices if device.index == ooms[-1].device), None)
    return max(devices, key=lambda device: device.peak_reserved / max(device.capacity, 1), default=None)


def _spill_as_dict(spilled: SpillTotals) -> dict[str, Any]:
    totals = asdict(spilled)
    del totals["time"]
    return totals


def _oom_as_dict(oom: OomReport) -> dict[str, Any]:
    event = oom.event
    return {
        "file": event.frame.file if event.frame else None,
        "line": event.frame.line if event.frame else None,
        "op": event.op,
        "requested_bytes": event.requested,
        "by_category": dict(oom.picture.by_category),
        "top": [holding_as_dict(row) for row in oom.picture.top],
        "holders": [
            {
                "path": holder.path,
                "bytes": holder.bytes,
                "storages": holder.storages,
                "file": holder.frame.file if holder.frame else None,
                "line": holder.frame.line if holder.frame else None,
            }
            for holder in oom.holders
        ],
        "advice": [finding.as_dict() for finding in oom.advice],
        "ended_run": oom.ended_run,
        "device": event.device,
        "step": event.step,
        "phase": str(event.phase),
        "module": event.module,
        "capacity_bytes": event.capacity,
        "allocated_bytes": event.allocated,
        "reserved_bytes": event.reserved,
        "cached_bytes": event.cached,
        "fragmented_bytes": event.fragmented,
        "free_bytes": oom.free,
        "other_bytes": event.other,
        "message": event.message,
    }
