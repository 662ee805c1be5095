"""Reads a snapshot that `torch.cuda.memory._dump_snapshot` wrote, as a capture.

A snapshot contains the history of the allocator, but no categories, modules, steps or capacity. The phase of an entry
follows from its stack: the optimizer's code, a module's call, or no Python code (the autograd engine). Steps are the
recorded calls to `Optimizer.step`. Categories follow from phases and lifetimes:

- a parameter is allocated while a module is created or moved to the device;
- a gradient is allocated in a backward pass and alive at the end of the step;
- optimizer state is allocated in the optimizer and alive at the end of the step;
- the other categories are determined in the same way as in a recorded run (`block_lifetimes`).

The file may be untrusted. Only plain data is read (`plain_pickle`), every value is checked, and files that the
snapshot names are never opened.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch

from legroom.errors import CaptureError, UsageError
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.annotations import SnapshotImported
from legroom.memory.capture.capture import Capture
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event, Free, SegmentChange, Step
from legroom.memory.garbage_collection import no_garbage_collection
from legroom.memory.ledger import Ledger
from legroom.observe.cuda.history_events import AllocationFailure, DeviceHistory, TimedEvent
from legroom.observe.cuda.markers import BACKWARD, FORWARD, OPTIMIZER, OTHER, Activity, Markers
from legroom.observe.cuda.plain_pickle import UnsafePickle, read_plain_pickle
from legroom.observe.cuda.torch_api import workspace_sizes
from legroom.observe.source.user_files import is_user_file

MAX_ENTRIES = 20_000_000
_MAX_FRAMES = 512
_MAX_NUMBER = 1 << 60
_TORCH_IN_FILE = re.compile(r"^.*/(?:site|dist)-packages/torch/")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\")
_STDLIB_IN_FILE = re.compile(r"^.*/lib/python3\.\d+/(?!site-packages/|dist-packages/)")
_LOCAL_TORCH = Path(torch.__file__).parent.as_posix() + "/"
_LOCAL_STDLIB = Path(re.__file__).parents[1].as_posix() + "/"
_WORKSPACES = workspace_sizes((8, 0), {}) | workspace_sizes((9, 0), {})
_ACTIONS = frozenset(
    ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom")
)  # fmt: skip
_MODULE_SETUP = re.compile(
    r"module\.(convert|<lambda>|_apply|cuda|to)|\w+\.(__init__|__new__|reset_parameters)"
)


def read_snapshot(path: Path) -> Capture:
    """Read a snapshot. Raise CaptureError if the file cannot be read or is not a snapshot."""
    with no_garbage_collection():
        return _read(path)


def _read(path: Path) -> Capture:
    try:
        snapshot = _Snapshot(read_plain_pickle(path.read_bytes()))
    except OSError as error:
        raise CaptureError(f"Cannot read {path}: {error.strerror or error}.") from None
    except UnsafePickle:
        raise CaptureError(
            f"{path} contains more than plain data. Loading it could run code, so Legroom does not load it. A snapshot written "
            "by torch.cuda.memory._dump_snapshot() contains only plain data."
        ) from None
    except ValueError as error:
        raise CaptureError(f"{path} is damaged or incomplete ({error}). Record the snapshot again.") from None
    except _NotASnapshot as error:
        raise CaptureError(
            f"{path} is a pickle, but not a memory snapshot ({error}). Pass a file that "
            "`torch.cuda.memory._dump_snapshot()` or `legroom run` wrote."
        ) from None
    try:
        events = snapshot.events()
    except (LookupError, ValueError, ArithmeticError) as error:  # entries that contradict each other
        raise CaptureError(
            f"{path} is inconsistent ({type(error).__name__}). Record the snapshot again."
        ) from None
    return Capture(path=path, run=snapshot.header(events), events=events, truncated=False, dropped=0)


class _NotASnapshot(Exception):  # noqa: N818
    pass


class _Snapshot:
    def __init__(self, content: Any) -> None:
        snapshot = _mapping(content, "content")
        self._stacks: dict[int, list[dict[str, Any]]] = {}
        self._originals: list[Any] = []
        self._segments: dict[int, list[dict[str, Any]]] = {}
        for each in _list(snapshot.get("segments"), "segments"):
            segment = _mapping(each, "segment")
            self._segments.setdefault(_number(segment.get("device"), "device"), []).append(
                self._segment(segment)
            )
        traces = [_list(each, "trace") for each in _list(snapshot.get("device_traces", []), "device_traces")]
        if sum(map(len, traces)) > MAX_ENTRIES:
            raise _NotASnapshot(f"it has more than {MAX_ENTRIES:,} entries")
        self._traces = [[self._entry(_mapping(entry, "entry")) for entry in trace] for trace in traces]
        self._settings = _mapping(snapshot.get("allocator_settings", {}), "allocator_settings")
        times = [trace[0]["time_us"] for trace in self._traces if trace]
        self._started = min(times, default=0)
        annotations = snapshot.get("external_annotations", [])
        self._step_ends = sorted(_step_ends(_list(annotations, "external_annotations")))

    # --- checking

    def _segment(self, segment: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "address": _number(segment.get("address"), "address"),
            "total_size": _number(segment.get("total_size"), "total_size"),
            "stream": _number(segment.get("stream"), "stream"),
            "is_expandable": segment.get("is_expandable") is True,
            "blocks": [
                self._block(_mapping(block, "block")) for block in _list(segment.get("blocks"), "blocks")
            ],
        }

    def _block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        checked = {
            "size": _number(block.get("size"), "size"),
            "state": str(block.get("state")),
            "frames": self._frames(block.get("frames")),
        }
        for name in ("address", "requested_size"):
            if name in block:
                checked[name] = _number(block[name], name)
        return checked

    def _entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        action = entry.get("action")
        return {
            "action": action if isinstance(action, str) and action in _ACTIONS else "other",
            "addr": _number(entry.get("addr", 0), "addr"),
            "size": _number(entry.get("size", 0), "size"),
            "stream": _number(entry.get("stream", 0), "stream"),
            "time_us": _number(entry.get("time_us", 0), "time_us"),
            "device_free": _number(entry.get("device_free", 0), "device_free"),
            "frames": self._frames(entry.get("frames")),
        }

    def _frames(self, frames: Any) -> list[dict[str, Any]]:
        """Return the Python frames of a stack. Paths of torch and Python are replaced by the paths on this machine. If
        the snapshot stores a stack only once, every use of the stack gets the same list.
        """
        if not frames:
            return []
        known = self._stacks.get(id(frames))
        if known is None:
            known = self._stacks[id(frames)] = [
                checked
                for frame in _list(frames, "frames")[:_MAX_FRAMES]
                if (checked := _python_frame(_mapping(frame, "frame"))) is not None
            ]
            self._originals.append(frames)  # keeps the frames alive, so that their `id` is not reused
        return known

    # --- converting

    def header(self, events: Sequence[Event]) -> dict[str, Any]:
        # Without a failed allocation, the capacity is unknown, and the peak reserved memory replaces it.
        ledger = Ledger(events)
        capacities = {oom.device: oom.capacity for oom in ledger.ooms()}
        script = self._script()
        return {
            "target": [script] if script else [],
            "allocator": self._settings_text(),
            "devices": [
                {
                    "index": device,
                    "name": "from a snapshot",
                    "kind": "cuda",
                    "capacity": capacities.get(device, ledger.peak(device, "reserved").bytes),
                }
                for device in ledger.devices()
            ],
        }

    def events(self) -> list[Event]:
        numbers = count(1)
        timed: list[TimedEvent] = []
        for device in range(max([len(self._traces) - 1, *self._segments], default=-1) + 1):
            trace = self._traces[device] if device < len(self._traces) else []
            segments = self._segments.get(device, [])
            if not trace and not segments:
                continue
            ends = [(each - self._started) / 1e6 for each in self._ends(trace)]
            history = DeviceHistory(device, self._mark(trace), numbers, _WORKSPACES)
            events = history.read(
                trace,
                segments,
                started=self._started / 1e6,
                settings=self._allocator_settings(),
                failure=self._failure(device, trace, segments),
            )
            timed += _with_steps(_with_categories(events, ends), ends, device)
        timed.sort(key=lambda item: item[0])
        end = timed[-1][0] if timed else 0.0
        return [*(event for _, event in timed), SnapshotImported(end)]

    def _ends(self, trace: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the times at which the steps of a device end. If the snapshot contains no optimizer calls, a step ends
        with the last entry of each sequence of optimizer entries.
        """
        if self._step_ends:
            first = trace[0]["time_us"] if trace else 0
            return [each for each in self._step_ends if each >= first]
        ends = []
        for entry, following in pairwise(trace):
            if _activity(entry) == OPTIMIZER and _activity(following) not in (OPTIMIZER, BACKWARD):
                ends.append(entry["time_us"])
        return ends

    def _mark(self, trace: list[dict[str, Any]]) -> Markers:
        stamps: list[str] = []
        markers = Markers()
        markers.KEEP = len(trace) + 1
        markers.start(stamps.append)
        ends = self._ends(trace)
        before: tuple[str, int] | None = None
        for entry in trace:
            activity, step = _activity(entry), bisect_left(ends, entry["time_us"])
            if (activity, step) != before:
                markers.step = step
                markers.advance(activity)
                before = activity, step
            entry["user_metadata"] = stamps[-1]
        return markers

    def _failure(
        self, device: int, trace: Sequence[Mapping[str, Any]], segments: Sequence[Mapping[str, Any]]
    ) -> AllocationFailure | None:
        last = next((entry for entry in reversed(trace) if entry["action"] in ("alloc", "oom")), None)
        if last is None or last["action"] != "oom":
            return None
        in_use = [
            sum(block["size"] for block in each["blocks"] if block["state"] != "inactive")
            for each in segments
        ]
        reserved = sum(each["total_size"] for each in segments)
        cached = sum(each["total_size"] for each, used in zip(segments, in_use, strict=True) if not used)
        capacity = reserved + last["device_free"]
        # With enough free memory, only a memory fraction explains the failure. The snapshot does not contain it.
        limit = capacity if last["device_free"] < last["size"] else reserved
        return AllocationFailure(
            device, last["size"], limit, capacity, last["device_free"], sum(in_use), reserved, cached,
            reserved - sum(in_use) - cached, "", _activity(last) == BACKWARD, "",
        )  # fmt: skip

    def _settings_text(self) -> str:
        text = self._settings.get("PYTORCH_CUDA_ALLOC_CONF")
        return text[:1000] if isinstance(text, str) else ""

    def _allocator_settings(self) -> AllocatorSettings | None:
        try:
            return AllocatorSettings.parse(self._settings_text())
        except UsageError:
            return None

    def _script(self) -> str:
        for frames in self._stacks.values():
            for frame in reversed(frames):
                if is_user_file(frame["filename"]):
                    return str(frame["filename"])
        return ""


def _activity(entry: Mapping[str, Any]) -> Activity:
    # The autograd engine has no Python frames.
    frames = entry["frames"]
    if not frames:
        return BACKWARD
    for frame in frames:
        file = frame["filename"]
        if not file.startswith(_LOCAL_TORCH):
            continue
        part, name = file[len(_LOCAL_TORCH) :], frame["name"]
        if part.startswith("optim/"):
            return OTHER if "zero_grad" in name else OPTIMIZER
        if part in ("autograd/__init__.py", "autograd/graph.py") and "backward" in name:
            return BACKWARD
        if part == "nn/functional.py" or (part == "nn/modules/module.py" and name.endswith("_call_impl")):
            return FORWARD
    return OTHER


def _with_categories(events: Sequence[TimedEvent], ends: Sequence[float]) -> Iterator[TimedEvent]:
    freed = {event.id: time for time, event in events if isinstance(event, Free)}
    for time, event in events:
        if isinstance(event, Alloc) and event.category is Category.TEMPORARY:
            position = bisect_right(ends, time)
            outlives_step = position < len(ends) and freed.get(event.id, ends[-1]) >= ends[position]
            category = Category(event.category)
            if event.phase is Phase.OTHER and _MODULE_SETUP.fullmatch(event.op):
                category = Category.PARAMETER
            elif event.phase is Phase.BACKWARD and outlives_step:
                category = Category.GRADIENT
            elif event.phase is Phase.OPTIMIZER and outlives_step:
                category = Category.OPTIMIZER_STATE
            yield time, event._replace(category=category)
        else:
            yield time, event


def _with_steps(events: Iterator[TimedEvent], ends: Sequence[float], device: int) -> Iterator[TimedEvent]:
    live: dict[int, int] = {}
    allocated = reserved = peak_allocated = peak_reserved = number = 0
    begin = 0.0
    for time, event in events:
        while number < len(ends) and time > ends[number]:
            end = ends[number]
            yield (
                end,
                Step(end, number, end - begin, device, allocated, reserved, peak_allocated, peak_reserved),
            )
            peak_allocated, peak_reserved, begin = allocated, reserved, end
            number += 1
        yield time, event
        if isinstance(event, Alloc):
            live[event.id] = event.block_bytes
            allocated += event.block_bytes
        elif isinstance(event, Free):
            allocated -= live.pop(event.id, 0)
        elif isinstance(event, SegmentChange):
            reserved += event.bytes
        peak_allocated, peak_reserved = max(peak_allocated, allocated), max(peak_reserved, reserved)
    for end in ends[number:]:
        yield end, Step(end, number, end - begin, device, allocated, reserved, peak_allocated, peak_reserved)
        peak_allocated, peak_reserved, begin, number = allocated, reserved, end, number + 1


def _step_ends(annotations: list[Any]) -> Iterator[int]:
    for each in annotations:
        annotation = _mapping(each, "annotation")
        name = annotation.get("name")
        if isinstance(name, str) and name.startswith("Optimizer.step#") and annotation.get("stage") == "END":
            yield _number(annotation.get("time_us"), "time_us")


def _python_frame(frame: Mapping[str, Any]) -> dict[str, Any] | None:
    file, name, line = frame.get("filename"), frame.get("name"), frame.get("line")
    if not (isinstance(file, str) and isinstance(name, str) and type(line) is int):
        raise _NotASnapshot("a frame has no file, line or name")
    if not (file.endswith(".py") or file.startswith("<")):
        return None
    if _WINDOWS_PATH.match(file):
        file = file.replace("\\", "/")
    file = _TORCH_IN_FILE.sub(lambda _: _LOCAL_TORCH, file[:4096])
    file = _STDLIB_IN_FILE.sub(lambda _: _LOCAL_STDLIB, file)
    return {"filename": file, "line": max(line, 0), "name": name[:1000]}


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _NotASnapshot(f"`{what}` is not a dict")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _NotASnapshot(f"`{what}` is not a list")
    return value


def _number(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise _NotASnapshot(f"`{what}` is not a valid number")
    return value
