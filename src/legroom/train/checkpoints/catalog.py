"""Lists the checkpoints in a folder, selects the newest and the best checkpoint, and selects the checkpoints to
remove.

All information comes from the manifests of the checkpoints, because a separate file with the name of the newest
checkpoint could become outdated. "Newest" refers to the order of saving, not to the step, because a run may resume
from an earlier step.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legroom.errors import CheckpointError
from legroom.train.checkpoints.files.checked_files import ADVICE, Checksum, write_file

MANIFEST = "legroom.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint, as described by its manifest."""

    path: Path
    step: int
    serial: int
    metrics: dict[str, float]
    ranks: int
    modules: tuple[str, ...]
    parts: tuple[str, ...]
    sharded: bool
    files: dict[str, Checksum] = field(repr=False)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


def write_manifest(folder: Path, info: CheckpointInfo) -> None:
    manifest = {
        "format": FORMAT,
        "step": info.step,
        "serial": info.serial,
        "metrics": info.metrics,
        "ranks": info.ranks,
        "modules": info.modules,
        "parts": info.parts,
        "sharded": info.sharded,
        "files": {name: file.as_json() for name, file in info.files.items()},
    }
    write_file(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def read_manifest(folder: Path) -> CheckpointInfo:
    path = folder / MANIFEST
    try:
        manifest: Any = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has checkpoint format {manifest['format']}, but this version of Legroom reads only "
                f"format {FORMAT}."
            )
        return CheckpointInfo(
            path=folder,
            step=int(manifest["step"]),
            serial=int(manifest["serial"]),
            metrics={str(name): float(value) for name, value in manifest["metrics"].items()},
            ranks=int(manifest["ranks"]),
            modules=tuple(manifest["modules"]),
            parts=tuple(manifest["parts"]),
            sharded=bool(manifest["sharded"]),
            files={str(name): Checksum.from_json(file) for name, file in manifest["files"].items()},
        )
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint: the folder contains no {MANIFEST}.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is damaged: the file is not a valid manifest. {ADVICE}") from None


def list_checkpoints(folder: Path, problems: list[str] | None = None) -> list[CheckpointInfo]:
    """Return all checkpoints in a folder, newest first. The errors from unreadable checkpoints are appended to
    `problems`."""
    found = []
    for path in folder.glob("step-*"):
        try:
            found.append(read_manifest(path))
        except CheckpointError as error:
            if problems is not None:
                problems.append(without_advice(error))
    return sorted(found, key=lambda info: info.serial, reverse=True)


def without_advice(error: CheckpointError) -> str:
    """Return the message without the advice to resume from a different checkpoint, because Legroom selects that
    checkpoint itself."""
    return str(error).removesuffix(ADVICE).rstrip()


def best_checkpoints(
    checkpoints: Iterable[CheckpointInfo], metric: str, *, higher: bool
) -> list[CheckpointInfo]:
    """Return the checkpoints that have the metric, best first. If several checkpoints have the same value, the newest of
    them comes first."""
    with_metric = [info for info in checkpoints if not math.isnan(info.metrics.get(metric, math.nan))]
    sign = 1 if higher else -1
    return sorted(with_metric, key=lambda info: (sign * info.metrics[metric], info.serial), reverse=True)


def removable(
    checkpoints: list[CheckpointInfo], keep: int | None, best: list[CheckpointInfo]
) -> list[CheckpointInfo]:
    if keep is None:
        return []
    kept = {info.serial for info in best}
    return [info for info in checkpoints[keep:] if info.serial not in kept]


def unused_name(folder: Path, step: int) -> str:
    """Return an unused name for the checkpoint of a step. Existing checkpoints are not replaced, because one of them
    may be the last complete checkpoint."""
    name, count = f"step-{step:08d}", 1
    while (folder / name).exists():
        count += 1
        name = f"step-{step:08d}.{count}"
    return name
