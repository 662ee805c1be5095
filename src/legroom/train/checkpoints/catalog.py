"""What a folder of checkpoints holds: which is the newest, which the best, which may go.

There are no pointer files that could be stale: every checkpoint carries a manifest, and the answers are read off the
manifests. "Newest" goes by the order of saving, not by the step: a run that was resumed from an earlier step goes on
from there.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legroom.errors import CheckpointError
from legroom.train.checkpoints.files.checked_files import Checksum, write_file

MANIFEST = "legroom.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint, as its manifest tells it."""

    path: Path
    step: int
    serial: int
    """Counts the checkpoints of a folder, in the order of saving."""
    metrics: dict[str, float]
    ranks: int
    modules: tuple[str, ...]
    parts: tuple[str, ...]
    sharded: bool
    files: dict[str, Checksum] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files.values())


def write_manifest(folder: Path, saved: Saved) -> None:
    told = {
        "format": FORMAT,
        "step": saved.step,
        "serial": saved.serial,
        "metrics": saved.metrics,
        "ranks": saved.ranks,
        "modules": saved.modules,
        "parts": saved.parts,
        "sharded": saved.sharded,
        "files": {name: file.as_json() for name, file in saved.files.items()},
    }
    write_file(folder / MANIFEST, json.dumps(told, indent=1).encode())


def read_manifest(folder: Path) -> Saved:
    path = folder / MANIFEST
    try:
        told: Any = json.loads(path.read_bytes())
        if told["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} was written by another version of Legroom (format {told['format']}; this one reads {FORMAT})"
            )
        return Saved(
            path=folder,
            step=int(told["step"]),
            serial=int(told["serial"]),
            metrics={str(name): float(value) for name, value in told["metrics"].items()},
            ranks=int(told["ranks"]),
            modules=tuple(told["modules"]),
            parts=tuple(told["parts"]),
            sharded=bool(told["sharded"]),
            files={str(name): Checksum.from_json(file) for name, file in told["files"].items()},
        )
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no checkpoint: it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{path} is damaged: it is no manifest. Resume from another checkpoint of that folder"
        ) from None


def all_saved(folder: Path, passed_over: list[str] | None = None) -> list[Saved]:
    """Every checkpoint in a folder, the newest first. What is wrong with those that cannot be read is added to `passed_over`."""
    found = []
    for path in folder.glob("step-*"):
        try:
            found.append(read_manifest(path))
        except CheckpointError as error:
            if passed_over is not None:
                passed_over.append(str(error).partition(". Resume")[0])
    return sorted(found, key=lambda saved: saved.serial, reverse=True)


def best_of(saved: Iterable[Saved], metric: str, *, higher: bool) -> Saved | None:
    """The one with the best figure, the newer of equals; None if no checkpoint has it."""
    told = [one for one in saved if not math.isnan(one.metrics.get(metric, math.nan))]
    sign = 1 if higher else -1
    return max(told, key=lambda one: (sign * one.metrics[metric], one.serial), default=None)


def superfluous(saved: list[Saved], keep: int | None, best: Saved | None) -> list[Saved]:
    """What may be removed: neither among the `keep` newest nor the best."""
    if keep is None:
        return []
    return [one for one in saved[keep:] if best is None or one.serial != best.serial]


def free_name(folder: Path, step: int) -> str:
    """A name for the checkpoint of a step. One that is there already is never replaced in place: it may be the last good one."""
    name, count = f"step-{step:08d}", 1
    while (folder / name).exists():
        count += 1
        name = f"step-{step:08d}.{count}"
    return name
