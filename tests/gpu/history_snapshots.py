"""Saves snapshots of the CUDA allocator history, together with the markers of the recorder.

`watch` records snapshots on a real GPU. The unit tests replay the snapshots without a GPU. The saved paths do not
depend on the machine.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from legroom.memory.event_base import Category
from legroom.memory.events import Step
from legroom.observe.cuda.address_owners import OwnedAddresses
from legroom.observe.cuda.history_events import LoaderBatch, PendingEvent, TickRecord
from legroom.observe.cuda.markers import Marker, Markers

PROJECT = "/home/someone/project"
"""The folder that replaces the script's folder in all paths."""
_TORCH = "<torch>"


@dataclass
class HistorySnapshot:
    """The arguments of `DeviceHistory.read`, and the markers that the entry metadata refers to."""

    trace: list[dict[str, Any]]
    segments: list[dict[str, Any]]
    markers: list[Marker]
    records: list[TickRecord]
    settings: dict[str, Any]
    started: float
    after_gap: bool

    def new_markers(self) -> Markers:
        """Return the markers at the time of the snapshot. Sets the metadata of the entries to refer to these
        markers."""
        stamps: list[str] = []
        markers = Markers()
        markers.start(stamps.append)
        markers._markers = [Marker(*mark) for mark in self.markers]
        for entry in self.trace:
            if entry["mark"] is None:
                entry["user_metadata"] = ""
            else:
                tick, activity, module = entry["mark"]
                markers._prefix = f"L{tick}"
                markers.enter_module(activity, module)
                entry["user_metadata"] = stamps[-1]
        markers.tick = self.markers[-1].tick
        return markers


def save(
    path: Path, snapshot: Mapping[str, Any], markers: Markers, records: Sequence[TickRecord], project: Path
) -> None:
    """Write one snapshot. Each stack is stored only once."""
    stacks: dict[str, int] = {}

    def packed(item: Mapping[str, Any]) -> dict[str, Any]:
        frames = [[_neutral(f["filename"], project), f["line"], f["name"]] for f in item.get("frames", ())]
        kept = {key: value for key, value in item.items() if key in _KEPT}
        return kept | {"stack": stacks.setdefault(json.dumps(frames), len(stacks))}

    def with_mark(entry: Mapping[str, Any]) -> dict[str, Any]:
        mark = markers.read(entry.get("user_metadata") or "", entry["time_us"])
        return packed(entry) | {"mark": mark and [mark.tick, mark.activity, mark.module]}

    data = {
        "trace": [with_mark(entry) for entry in snapshot["trace"]],
        "segments": [
            packed(segment) | {"blocks": [packed(block) for block in segment["blocks"]]}
            for segment in snapshot["segments"]
        ],
        "marks": markers._markers,
        "moments": [_plain(record) for record in records],
        "settings": snapshot["settings"],
        "began": snapshot["started"],
        "after_gap": snapshot["after_gap"],
        "stacks": [json.loads(stack) for stack in stacks],
    }
    path.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))


def load(path: Path) -> HistorySnapshot:
    data = json.loads(gzip.decompress(path.read_bytes()))
    torch_folder = str(Path(torch.__file__).parent)
    stacks = [
        [
            {"filename": file.replace(_TORCH, torch_folder), "line": line, "name": name}
            for file, line, name in frames
        ]
        for frames in data["stacks"]
    ]

    def unpacked(item: dict[str, Any]) -> dict[str, Any]:
        return item | {"frames": stacks[item["stack"]]}

    return HistorySnapshot(
        trace=[unpacked(entry) for entry in data["trace"]],
        segments=[
            unpacked(segment) | {"blocks": [unpacked(block) for block in segment["blocks"]]}
            for segment in data["segments"]
        ],
        markers=[Marker(*mark) for mark in data["marks"]],
        records=[_tick_record(*record) for record in data["moments"]],
        settings=data["settings"],
        started=data["began"],
        after_gap=data["after_gap"],
    )


_KEPT = frozenset(
    [
        "action",
        "addr",
        "address",
        "size",
        "stream",
        "time_us",
        "total_size",
        "requested_size",
        "state",
        "is_expandable",
        "device_free",
        "segment_type",
    ]
)


def _neutral(file: str, project: Path) -> str:
    return file.replace(str(Path(torch.__file__).parent), _TORCH).replace(str(project), PROJECT)


def _plain(record: TickRecord) -> list[Any]:
    if isinstance(record, OwnedAddresses):
        return ["sighting", record.tick, str(record.category), record.addresses, record.details]
    if isinstance(record, LoaderBatch):
        return ["batch", record.tick, sorted(record.sizes)]
    return ["pending", record.tick, list(record.event) if isinstance(record.event, Step) else None]


def _tick_record(kind: str, tick: int, *rest: Any) -> TickRecord:
    if kind == "sighting":
        category, addresses, details = rest
        return OwnedAddresses(
            tick, Category(category), addresses, [(size, module) for size, module in details]
        )
    if kind == "batch":
        return LoaderBatch(tick, frozenset(rest[0]))
    return PendingEvent(tick, Step(*rest[0]))
