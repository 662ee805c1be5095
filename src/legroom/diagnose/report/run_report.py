"""The report of a run as plain data, built from the run's ledger or from its capture.

This module prints nothing and does not import torch. The keys of `RunReport.as_json()`, the output of
`--format json`, are stable.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import Any

from legroom import schemas, shell
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
    to_milliseconds,
)
from legroom.diagnose.report.device_summary import DeviceSummary, device_of_interest, devices_of
from legroom.diagnose.report.growing_lines import Leak, find_leaks
from legroom.diagnose.report.leaks import latest_leaks, leaks_from
from legroom.diagnose.report.source_lines import Sources
from legroom.errors import UsageError
from legroom.findings import Finding
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.annotations import (
    EvaluatedWithGradients,
    ExitReason,
    HistoryUnavailable,
    LibraryRetries,
    LoopWatched,
    OtherProcesses,
    RecordingFailed,
    RunEnded,
    SnapshotImported,
    SpillTotals,
    find_ending,
)
from legroom.memory.capture.capture import Capture
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Annotation, Category, Frame, Phase
from legroom.memory.events import Holder, Oom, Step
from legroom.memory.garbage_collection import no_garbage_collection
from legroom.memory.ledger import Ledger
from legroom.memory.live.folder import is_still_running
from legroom.observe.source.cells import short_location
from legroom.units import GiB

MIN_ESTIMATE_CAPACITY = 2 * GiB
"""The smallest GPU size for which the report suggests `legroom estimate`. An estimate includes library workspaces,
which would fill a smaller GPU."""
DEFAULT_GPU_SIZE = "8GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class OomReport:
    """An out-of-memory error with the failed request, the memory in use, and suggested changes."""

    event: Oom
    snapshot: MemorySnapshot
    holders: tuple[Holder, ...]
    advice: tuple[Finding, ...]
    ended_run: bool
    """True if the error ended the run, and False if the script caught it."""
    in_evaluation: bool = False
    """True if there is evidence that the program was evaluating a model."""

    @property
    def block(self) -> int:
        return block_of(self.event)

    @property
    def free(self) -> int:
        return free_at(self.event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The report of a run, which may still be in progress."""

    command: RunCommand
    started: str
    devices: tuple[DeviceSummary, ...]
    device: DeviceSummary | None
    """The device of `peak` and `history`: the device that ran out of memory, or else the fullest device."""
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
    """Remarks about parts of the run that could not be recorded, with the reason."""
    evaluation: Frame | None = None
    """The line that ran a model with gradients, if the peak was in an evaluation."""
    spilled: SpillTotals | None = None
    """Statistics about tensors that `--spill` moved to host memory."""
    sources: Sources = field(default_factory=dict)
    rank: int | None = None
    damaged: bool = False
    """True if the end of the run is unknown because the capture contains invalid data."""
    is_running: bool | None = None
    """Whether the process that records the capture is still running, or None if this is unknown."""

    def as_json(self) -> dict[str, Any]:
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
            "seconds": to_milliseconds(self.seconds),
            "oom_count": self.oom_count,
            "truncated": self.truncated,
            "damaged": self.damaged,
            "dropped_events": self.dropped,
            "remarks": list(self.remarks),
            "spill": _spill_as_dict(self.spilled) if self.spilled else None,
            "peak": self.peak.as_dict() if self.peak else None,
            "peak_in_evaluation": _line_as_dict(self.evaluation) if self.evaluation else None,
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
        """Return the lines of the user's code that the report shows, most important first."""
        frames: list[Frame] = []
        snapshots = [snapshot for snapshot in (self.oom and self.oom.snapshot, self.peak) if snapshot]
        if self.oom and self.oom.event.frame:
            frames.append(self.oom.event.frame)
        for snapshot in snapshots:
            frames += [
                Frame(each.file, each.line, each.function or "")
                for each in snapshot.top
                if each.file and each.line
            ]
        frames += [Frame(leak.file, leak.line, "") for leak in self.leaks if leak.file and leak.line]
        return frames

    @property
    def failed_with_oom(self) -> bool:
        return self.oom is not None and self.ending.exit_code != 0

    @property
    def failed_before_any_tensor(self) -> bool:
        """True if the script failed before it used memory, for example in its argument parser.

        A report would contain only the error, which the script has already printed.
        """
        failed = self.ending.reason in (ExitReason.RAISED, ExitReason.EXITED) and self.ending.exit_code != 0
        return failed and self.peak is None and not (self.steps or self.leaks or self.oom)

    @property
    def next_commands(self) -> list[tuple[str, str]]:
        return [*self.commands_to_try, *self.report_commands()]

    def report_commands(
        self, *options: str, comment: str = "show this report again"
    ) -> list[tuple[str, str]]:
        if not self.capture:
            return []
        command, page = ["legroom", "report", self.capture], PurePath(self.capture).with_suffix(".html").name
        return [
            (shell.join([*command, *options]), comment),
            (shell.join([*command, "--html", page]), "a web page with charts"),
        ]

    @property
    def commands_to_try(self) -> list[tuple[str, str]]:
        if self.command.is_record:
            return []
        if self._needs_gpu():
            return [(self.command.on_virtual_gpu(DEFAULT_GPU_SIZE).text, "on a virtual GPU")]
        if self.oom is None or not self.failed_with_oom:
            return []
        return list(self._commands_after_oom(self.oom))

    def _commands_after_oom(self, oom: OomReport) -> Iterator[tuple[str, str]]:
        first = oom.advice[0] if oom.advice else None
        if first is None:
            return
        evidence, codes = first.evidence, [each.code for each in oom.advice]
        if first.code == "LG603" and evidence.get("has_batch_size", True):
            if _changes(first):
                yield self._after_changes(first)
            elif "LG613" in codes and not self.command.is_launch:
                yield self.command.with_spilling().text, "with saved activations in host memory"
            else:
                yield self.command.text, "after changing the batch size"
            if evidence["unfinished"] and oom.event.capacity >= MIN_ESTIMATE_CAPACITY:
                yield self.command.estimate(oom.event.capacity), "find the largest batch size"
        elif first.code == "LG607":
            allocator = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
            yield self.command.with_environment(allocator), "with less fragmentation"
        elif first.code == "LG613" and not self.command.is_launch:
            yield self.command.with_spilling().text, "with saved activations in host memory"
        elif first.code in ("LG401", "LG604") and "LG613" in codes and not self.command.is_launch:
            may_fail = any(
                each.code == "LG613" and each.evidence.get("may_not_suffice") for each in oom.advice
            )
            remark = "without changing the code, but slower"
            yield self.command.with_spilling().text, "slower, may not be enough" if may_fail else remark
            yield self.command.text, "after changing the code"
        else:
            yield self._after_changes(first)

    def _after_changes(self, first: Finding) -> tuple[str, str]:
        """Return the command that repeats the run after all changes of a suggestion, and a comment that names them."""
        command, evidence = self.command, first.evidence
        if evidence.get("arguments") is not None:
            command = command.with_arguments(evidence["arguments"])
        environment = evidence.get("environment")
        text = command.with_environment(environment) if environment else command.text
        places = [(first.file, first.line)] if first.file and first.line else []
        places += [
            (each["file"], each["line"]) for each in (*evidence.get("lines", ()), *evidence.get("edits", ()))
        ]
        names = list(dict.fromkeys(short_location(file, line) for file, line in places))
        after = f"after the change{'s' if len(names) > 1 else ''} in {' and '.join(names)}" if names else ""
        if not names and not (first.code == "LG603" and _changes(first) and not evidence.get("optimizers")):
            after = "after changing the code"
        smaller = "with a smaller batch size" if command is not self.command or environment else ""
        return text, ", ".join(filter(None, (smaller, after)))

    def _needs_gpu(self) -> bool:
        if not self.ending.error or self.command.has_virtual_gpu:
            return False
        # Imported late: a successful run does not need the error patterns.
        from legroom.diagnose.explain.explain import explain

        return explain(self.ending.error).code == "LG724"


def _changes(finding: Finding) -> bool:
    return any(finding.evidence.get(key) for key in ("arguments", "environment", "edits"))


def report_from_capture(capture: Capture, *, path: str | None = None, device: int | None = None) -> RunReport:
    """Return the report for a recorded run."""
    with no_garbage_collection():
        ledger = Ledger(capture.events)
    report = report_from_ledger(
        ledger,
        capture.run,
        path=path,
        truncated=capture.truncated,
        dropped=capture.dropped,
        device=device,
    )
    return replace(report, damaged=capture.damaged, is_running=is_still_running(capture.run.get("recorder")))


def report_from_ledger(
    ledger: Ledger,
    run: Mapping[str, Any],
    *,
    path: str | None = None,
    truncated: bool = False,
    dropped: int = 0,
    device: int | None = None,
) -> RunReport:
    """Return the report of a run with the given ledger.

    `run` is the header of the capture, and `dropped` is the number of events that are missing from the capture.
    """
    annotations = ledger.annotations()
    ending = find_ending(annotations)
    spills = [each for each in annotations if isinstance(each, SpillTotals)]
    steps = ledger.steps()
    devices = devices_of(run, ledger)
    ooms = ledger.ooms()
    failure = _ending_oom(ooms, ending, device)
    shown = device_of_interest(devices, ooms[failure] if failure is not None else None, device)
    holders = _unique_holders(ledger.holders(failure)) if failure is not None else []
    leaks = _leaks(ledger, devices, shown, annotations, holders)
    command = RunCommand.from_header(run)
    rank = run.get("rank")
    peak = _peak(ledger, shown) if shown else None
    return RunReport(
        command=command,
        started=str(run.get("started", "")),
        devices=devices,
        device=shown,
        ending=ending,
        seconds=ledger.seconds if ending.reason is ExitReason.UNKNOWN else ending.time or ledger.seconds,
        steps=max((step.step + 1 for step in steps), default=0),
        history=tuple(step for step in steps if shown is not None and step.device == shown.index),
        peak=peak,
        evaluation=_evaluation_at(peak, annotations),
        oom=_oom_report(ledger, failure, ending, holders, leaks, command, run)
        if failure is not None
        else None,
        oom_count=sum(device in (None, oom.device) for oom in ooms),
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
    """Return the leaks that the detector found, or the growth in the ledger if the detector did not finish."""
    measured = [leak for each in devices for leak in find_leaks(ledger, each.index, holders)]
    detected = latest_leaks(annotations)
    if not detected and not any(isinstance(each, LoopWatched) for each in annotations):
        return tuple(measured)
    steps = max((step.step + 1 for step in ledger.steps()), default=0)
    detected = [each if each.file else _with_allocating_line(each, ledger, device) for each in detected]
    return tuple(leaks_from(detected, measured, steps, device.index if device else 0))


def _with_allocating_line(leak: DetectedLeak, ledger: Ledger, device: DeviceSummary | None) -> DetectedLeak:
    """If no variable is known for a leak, add the line that allocated the most storages that were alive at the peak.

    Parameters do not count, because they do not grow.
    """
    if device is None:
        return leak
    live = ledger.at(ledger.peak(device.index).index, device.index).live
    repeated = Counter(
        each.frame for each in live if each.frame and each.category is not Category.PARAMETER
    ).most_common(1)
    if not repeated:
        return leak
    frame = repeated[0][0]
    return replace(leak, file=frame.file, line=frame.line, function=frame.function)


def _remark(annotation: Annotation) -> str | None:
    match annotation:
        case HistoryUnavailable(reason=reason):
            return f"{reason}, so only memory totals per step were recorded"
        case SnapshotImported():
            return (
                "the events come from a PyTorch snapshot, which contains no modules and no GPU size. Phases and categories "
                "are derived from the stacks, and the total is the reserved memory unless memory ran out"
            )
        case LibraryRetries(count=count):
            allocations = "1 allocation" if count == 1 else f"{count:,} allocations"
            return f"{allocations} failed inside a library, such as cuDNN, and the library continued with less memory"
        case RecordingFailed(message=text) | OtherProcesses(description=text):
            return text
    return None


def _peak(ledger: Ledger, device: DeviceSummary) -> MemorySnapshot | None:
    # Other processes may use a real device, and their usage at the peak is not recorded.
    rest = "free" if device.kind == "virtual" else "free or non-PyTorch"
    return snapshot_at_peak(ledger, device.index, device.capacity, other=device.other, rest=rest)


def _evaluation_at(peak: MemorySnapshot | None, annotations: Sequence[Annotation]) -> Frame | None:
    """Return the line that evaluated a model with gradients at the peak."""
    if peak is None or peak.phase not in (Phase.FORWARD, Phase.OTHER):
        return None
    for each in annotations:
        if isinstance(each, EvaluatedWithGradients) and peak.step in each.steps:
            return Frame(each.file, each.line, each.function)
    return None


def _line_as_dict(frame: Frame) -> dict[str, Any]:
    return {"file": frame.file, "line": frame.line, "code": "LG201"}


def _ending_oom(ooms: Sequence[Oom], ending: RunEnded, device: int | None) -> int | None:
    """Return the index of the out-of-memory event that ended the run.

    If none ended the run, return the index of the last out-of-memory event.

    If `device` is given, only the events of this device count. All replicas of `DataParallel` may run out of memory,
    but PyTorch raises only the error of the first replica.
    """
    text = f"{ending.error}\n{ending.traceback}"
    numbers = [number for number, oom in enumerate(ooms) if device in (None, oom.device)]
    raised = [number for number in numbers if ooms[number].message and _identity(ooms[number]) in text]
    return next(reversed(raised or numbers), None)


def _identity(oom: Oom) -> str:
    """Return the start of an error message, which contains the request and the device."""
    return oom.message.partition(" has a total capacity")[0]


def _oom_report(
    ledger: Ledger,
    last: int,
    ending: RunEnded,
    holders: Sequence[Holder],
    leaks: Sequence[Leak],
    command: RunCommand,
    run: Mapping[str, Any],
) -> OomReport:
    event, state = ledger.ooms()[last], ledger.at_oom(last)
    settings = allocator_settings(run)
    evidence = Evidence(
        oom=event,
        state=state,
        allocations=lambda: ledger.allocations_before_oom(last),
        progress=ledger.progress(last),
        holders=holders,
        leaks=[leak for leak in leaks if leak.device == event.device],
        details=ledger.details(last),
        arguments=command.arguments,
        steps=ledger.steps(event.device),
        peak=ledger.peak(event.device).bytes,
        peak_in=lambda *phases: ledger.peak_in(phases, last),
        spills=any(option.startswith("--spill") for option in command.options),
        expandable_segments=settings is not None and settings.expandable_segments,
        traceback=ending.traceback if _ended_with_oom(ending) else "",
        earlier_oom=ledger.ooms()[last - 1] if last else None,
    )
    return OomReport(
        event=event,
        snapshot=snapshot_at_oom(state, event),
        holders=tuple(holders),
        advice=advise(evidence),
        ended_run=_ended_with_oom(ending),
        in_evaluation=evidence.is_proven_evaluation,
    )


def allocator_settings(run: Mapping[str, Any]) -> AllocatorSettings | None:
    """Return the allocator settings of the run. Invalid settings are ignored, because the file may be untrusted."""
    text, torch_version = run.get("allocator"), run.get("torch")
    version = torch_version if isinstance(torch_version, str) else None
    try:
        return AllocatorSettings.from_environment(
            {"PYTORCH_CUDA_ALLOC_CONF": text} if isinstance(text, str) and text else {}, version
        )
    except (UsageError, ValueError):
        return None


def _ended_with_oom(ending: RunEnded) -> bool:
    """Return True if the uncaught exception or its cause is an out-of-memory error."""
    # The lines of a traceback that are not indented name the exceptions.
    chain = [line for line in ending.traceback.splitlines() if not line.startswith(" ")]
    return is_oom(ending.error) or is_oom("\n".join(chain))


def _unique_holders(holders: Sequence[Holder]) -> list[Holder]:
    """Return the variables that retain memory, largest first.

    For a variable that is passed through several functions, only the innermost function is listed.
    """
    unique: dict[tuple[str, int], Holder] = {}
    for holder in holders:
        unique.setdefault((holder.path, holder.bytes), holder)
    return sorted(unique.values(), key=lambda holder: -holder.bytes)


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
        "by_category": dict(oom.snapshot.by_category),
        "top": [holding_as_dict(each) for each in oom.snapshot.top],
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
        "in_evaluation": oom.in_evaluation,
        "module": event.module,
        "block_bytes": oom.block,
        "capacity_bytes": event.capacity,
        "allocated_bytes": event.allocated,
        "reserved_bytes": event.reserved,
        "cached_bytes": event.cached,
        "fragmented_bytes": event.fragmented,
        "free_bytes": oom.free,
        "other_bytes": event.other,
        "message": event.message,
    }
