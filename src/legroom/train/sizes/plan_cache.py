"""Stores the micro-batch sizes that fit, so that the next run can use them. Each configuration has one small JSON file
in the user's cache folder.

A configuration includes everything that affects which micro-batch sizes fit. The configuration consists of the model
(names, shapes and dtypes of its tensors), the GPU and its memory, the precision, the shapes of a batch, the torch
version, and the allocator settings.

The cache is optional, so this module raises no errors. If the folder is not writable, nothing is stored. Files that
cannot be read or have a different format are ignored. Files are replaced atomically, so a file is complete even if
several processes write it. `LEGROOM_CACHE=off` disables the cache. `LEGROOM_CACHE=PATH` sets the folder of the cache.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from legroom.train.sizes.capacity import memory_fraction
from legroom.train.sizes.micro_batch_size import MicroBatchSizer
from legroom.user_cache import cache_folder, read_json, write_json

VERSION = 1
MAX_FILE_BYTES = 64 * 1024


class PlanCache:
    """Loads and stores the micro-batch sizes of one model. Sizes are cached only for GPUs."""

    def __init__(self, model: nn.Module, device: torch.device, precision: Any) -> None:
        self._model, self._device = model, device
        self._precision = precision if isinstance(precision, str) else getattr(precision, "name", None)
        self._key: str | None = None
        self._saved_choices = 0
        self._injected_failures = _injected_failures()
        self.is_unread = device.type == "cuda"

    def load(self, batch: Any, max_size: int | None) -> MicroBatchSizer | None:
        self.is_unread = False
        self._key = plan_key(self._model, batch=batch, precision=self._precision, device=self._device)
        state = load_plan(self._key)
        return None if state is None else MicroBatchSizer(max_size=max_size, state=state)

    def save(self, sizer: MicroBatchSizer) -> None:
        """Store the sizes if they have changed. Sizes that were chosen after an injected failure are not stored,
        because memory did not actually run out."""
        if _injected_failures() != self._injected_failures:
            return
        if self._key is not None and len(sizer.choices) != self._saved_choices:
            self._saved_choices = len(sizer.choices)
            save_plan(self._key, sizer.state_dict())


def _injected_failures() -> int:
    virtual_oom: Any = sys.modules.get("legroom.observe.virtual.oom")  # not imported without a virtual GPU
    return 0 if virtual_oom is None else virtual_oom.Faults.injected


def plan_key(
    model: nn.Module, *, batch: Any = None, precision: str | None = None, device: torch.device | None = None
) -> str:
    configuration = {
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
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:32]


def load_plan(key: str) -> dict[str, Any] | None:
    folder = plans_folder()
    stored = read_json(folder / f"{key}.json", max_bytes=MAX_FILE_BYTES) if folder is not None else None
    if isinstance(stored, dict) and stored.get("format") == VERSION and isinstance(stored.get("plan"), dict):
        plan: dict[str, Any] = stored["plan"]
        return plan
    return None


def save_plan(key: str, plan: Mapping[str, Any]) -> bool:
    folder = plans_folder()
    return folder is not None and write_json(folder / f"{key}.json", {"format": VERSION, "plan": dict(plan)})


def plans_folder() -> Path | None:
    return cache_folder("plans")


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
    """Yield the dtypes of the tensors in a batch, and their shapes without the first dimension."""
    if isinstance(value, torch.Tensor):
        yield list(value.shape[1:]), str(value.dtype)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _shapes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _shapes(item)
