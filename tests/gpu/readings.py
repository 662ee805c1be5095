"""One reading of a CUDA history as a file: what the allocator told, and what had been noted beside it.

Recorded on a real GPU by `watch`, replayed without one by the unit tests. Paths are made independent of the machine.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from legroom.memory.events import Category, Step
from legroom.observe.cuda.address_owners import Sighting
from legroom.observe.cuda.history_events import Batch, Moment, Pending
from legroom.observe.cuda.markers import Mark, Marks

PROJECT = "/home/someone/project"
"""Stands for the folder that the script ran in."""
_TORCH = "<torch>"


@dataclass
class Reading:
    """The arguments of `DeviceHistory.read`, and the marks that its stamps refer to."""

    trace: list[dict[str, Any]]
    segments: list[dict[str, Any]]
    marks: list[Mark]
    moments: list[Moment]
    settings: dict[str, Any]
    began: float
    after_gap: bool

    def new_marks(self) -> Marks:
        """Marks as they were when the reading was made, with the entries stamped as they stamp."""
        stamps: list[str] = []
        marks = Marks()
        marks.start(stamps.append)
        marks._marks = [Mark(*mark) for mark in self.marks]
        for entry in self.trace:
            if entry["mark"] is None:
                entry["user_metadata"] = ""
            else:
                tick, activity, module = entry["mark"]
                marks._prefix = f"L{tick}"
                marks.at_work(activity, module)
                entry["user_metadata"] = stamps[-1]
        marks.tick = self.marks[-1].tick
        return marks


def save(
    path: Path, reading: Mapping[str, Any], marks: Marks, moments: Sequence[Moment], project: Path
) -> None:
    """Write one reading, with each stack once."""
    stacks: dict[str, int] = {}

    def packed(item: Mapping[str, Any]) -> dict[str, Any]:
        frames = [[_neutral(f["filename"], project), f["line"], f["name"]] for f in item.get("frames", ())]
        kept = {key: value for key, value in item.items() if key in _KEPT}
        return kept | {"stack": stacks.setdefault(json.dumps(frames), len(stacks))}

    def stamped(entry: Mapping[str, Any]) -> dict[str, Any]:
        mark = marks.read(entry.get("user_metadata") or "", entry["time_us"])
        return packed(entry) | {"mark": mark and [mark.tick, mark.activity, mark.module]}

    data = {
        "trace": [stamped(entry) for entry in reading["trace"]],
        "segments": [
            packed(segment) | {"blocks": [packed(block) for block in segment["blocks"]]}
            for segment in reading["segments"]
        ],
        "marks": marks._marks,
        "moments": [_plain(moment) for moment in moments],
        "settings": reading["settings"],
        "began": reading["began"],
        "after_gap": reading["after_gap"],
        "stacks": [json.loads(stack) for stack in stacks],
    }
    path.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))


def load(path: Path) -> Reading:
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

    return Reading(
        trace=[unpacked(entry) for entry in data["trace"]],
        segments=[
            unpacked(segment) | {"blocks": [unpacked(block) for block in segment["blocks"]]}
            for segment in data["segments"]
        ],
        marks=[Mark(*mark) for mark in data["marks"]],
        moments=[_moment(*moment) for moment in data["moments"]],
        settings=data["settings"],
        began=data["began"],
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


def _plain(moment: Moment) -> list[Any]:
    if isinstance(moment, Sighting):
        return ["sighting", moment.tick, str(moment.category), moment.addresses, moment.about]
    if isinstance(moment, Batch):
        return ["batch", moment.tick, sorted(moment.sizes)]
    return ["pending", moment.tick, list(moment.event) if isinstance(moment.event, Step) else None]


def _moment(kind: str, tick: int, *rest: Any) -> Moment:
    if kind == "sighting":
        category, addresses, about = rest
        return Sighting(tick, Category(category), addresses, [(size, module) for size, module in about])
    if kind == "batch":
        return Batch(tick, frozenset(rest[0]))
    return Pending(tick, Step(*rest[0]))
