"""Sizes that worked, remembered across runs: one small JSON file per situation in the user's cache folder.

A situation is all that decides what fits: the model (names, shapes and types of what it holds), the GPU, its memory, the
precision, the shapes of a batch without its rows, torch and the allocator's settings. Anything else, and it is another one.

Remembering is a convenience, so nothing here fails: a folder that cannot be written is left, a file that cannot be
read, or that something else wrote, is as if it were not there. Files are replaced whole, so that processes that write
at the same time leave one of their answers, never a mixture. `LEGROOM_CACHE=off` switches it off; as a path, it is the folder.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from legroom.train.sizes.capacity import memory_fraction

VERSION = 1
LARGEST_FILE = 64 * 1024
"""Bytes: what is longer was not written here."""


def plan_key(
    model: nn.Module, *, batch: Any = None, precision: str | None = None, device: torch.device | None = None
) -> str:
    """Names a situation. Two runs have the same key if and only if the same sizes should fit."""
    facts = {
        "model": sorted(
            (name, list(tensor.shape), str(tensor.dtype), tensor.requires_grad)
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        ),
        "mode": model.training,
        "precision": precision,
        "batch": list(_shapes(batch)),
        "torch": torch.__version__,
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        **_gpu(device),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def recall(key: str) -> dict[str, Any] | None:
    """What was remembered under `key`; None if nothing was, or it cannot be read."""
    folder = plans_folder()
    if folder is None:
        return None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        path = folder / f"{key}.json"
        if path.stat().st_size <= LARGEST_FILE:
            told = json.loads(path.read_text(encoding="utf-8"))
            if (
                isinstance(told, dict)
                and told.get("format") == VERSION
                and isinstance(told.get("plan"), dict)
            ):
                plan: dict[str, Any] = told["plan"]
                return plan
    return None


def remember(key: str, plan: Mapping[str, Any]) -> bool:
    """Keep `plan` (plain data) under `key`. Whether that worked."""
    folder = plans_folder()
    if folder is None:
        return False
    written: str | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({"format": VERSION, "plan": dict(plan)})
        descriptor, written = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(written, folder / f"{key}.json")
    except (OSError, TypeError, ValueError):
        if written is not None:
            with contextlib.suppress(OSError):
                os.unlink(written)
        return False
    return True


def plans_folder() -> Path | None:
    """Where plans are kept; None where they are not wanted, or this user has no home."""
    chosen = os.environ.get("LEGROOM_CACHE", "")
    if chosen.strip().lower() in ("off", "0", "no", "none", "false"):
        return None
    if chosen:
        return Path(chosen) / "plans"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):
        return (Path(cache) if cache else Path.home() / ".cache") / "legroom" / "plans"
    return None


def _gpu(device: torch.device | None) -> dict[str, Any]:
    if device is None or device.type != "cuda":
        return {"gpu": None if device is None else device.type}
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "memory": properties.total_memory,
        "fraction": round(memory_fraction(device), 4),
    }


def _shapes(value: Any) -> Iterator[tuple[list[int], str]]:
    """Of the tensors in a batch, without their rows, in order."""
    if isinstance(value, torch.Tensor):
        yield list(value.shape[1:]), str(value.dtype)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _shapes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _shapes(item)
