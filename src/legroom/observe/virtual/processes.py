"""Activates the virtual GPUs in other processes of the program. Tensors that are sent between processes stay on their
device.

Each process can use the full size of its devices: memory that other processes use is not subtracted. The events of
other processes are recorded separately (see `children.captures`). As on CUDA, a tensor that is sent to another process
is shared, and its memory counts for the process that allocated it.
"""

import contextlib
import json
import multiprocessing.reduction
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.children.spawned_processes import in_spawned_processes
from legroom.observe.dispatch.storages import storage_of
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import optional_module

VARIABLE = "LEGROOM_VIRTUAL_GPUS"
_FOLDER = str(Path(__file__).with_name("inherited"))
_host: VirtualHost | None = None


@contextlib.contextmanager
def other_processes(
    host: VirtualHost, enter_when_unpickled: Callable[[Sequence[GpuSpec]], object]
) -> Iterator[None]:
    global _host
    specs = [device.spec for device in host.devices]
    with (
        in_spawned_processes(enter_when_unpickled(specs)),
        _inherited_by_programs(specs),
        _sent_tensors(host),
    ):
        _host = host
        try:
            yield
        finally:
            _host = None


# --- programs


@contextlib.contextmanager
def _inherited_by_programs(specs: Sequence[GpuSpec]) -> Iterator[None]:
    """Inside the `with` block, Python programs that inherit the environment of this process (`subprocess`, `os.system`,
    torchrun) have the same GPUs.

    At startup, Python imports `inherited/sitecustomize.py` from PYTHONPATH. `python -I` and `python -E` ignore
    PYTHONPATH, so programs that are started with these options have no virtual GPUs.
    """
    before = os.environ.get(VARIABLE)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ[VARIABLE] = json.dumps({"gpus": [asdict(spec) for spec in specs], "visible": visible})
    os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER, *_other_folders()])
    try:
        yield
    finally:
        if before is not None:
            os.environ[VARIABLE] = before
        else:
            os.environ.pop(VARIABLE, None)
            remaining = _other_folders()
            if remaining:
                os.environ["PYTHONPATH"] = os.pathsep.join(remaining)
            else:
                os.environ.pop("PYTHONPATH", None)


def _other_folders() -> list[str]:
    path = os.environ.get("PYTHONPATH", "")
    return [folder for folder in path.split(os.pathsep) if folder != _FOLDER] if path else []


def inherited_gpus() -> list[GpuSpec]:
    """Return the GPUs that this process inherits from its parent process and that CUDA_VISIBLE_DEVICES does not hide."""
    text = os.environ.get(VARIABLE)
    if not text:
        return []
    content = json.loads(text)
    specs = [
        GpuSpec(**{**gpu, "capability": tuple(gpu["capability"]), "aliases": tuple(gpu["aliases"])})
        for gpu in content["gpus"]
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or visible == content["visible"]:
        return specs
    selected = []
    for index in visible.split(","):
        if not index.strip().isdecimal() or int(index) >= len(specs):
            break  # like CUDA, which ignores the first invalid entry and all later entries
        selected.append(specs[int(index)])
    return selected


# --- tensors


@contextlib.contextmanager
def _sent_tensors(host: VirtualHost) -> Iterator[None]:
    """Inside the `with` block, `torch.multiprocessing` sends device tensors through shared host memory. The receiving
    process places the tensors on the same device.
    """
    reductions = optional_module("torch.multiprocessing.reductions")
    reducers: Any = getattr(multiprocessing.reduction.ForkingPickler, "_extra_reducers", None)
    if reductions is None or reducers is None:
        yield
        return

    def reduce_tensor(tensor: Any) -> tuple[Any, tuple[Any, ...]]:
        index = host.device_of(tensor)
        with torch._C.DisableTorchFunction():  # inside, the tensor is on the CPU
            reduced: tuple[Any, tuple[Any, ...]] = reductions.reduce_tensor(tensor)
        return reduced if index is None else (rebuild_on_device, (index, *reduced))

    def reduce_storage(storage: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return reductions.reduce_storage(storage)

    own = {reductions.reduce_tensor: reduce_tensor, reductions.reduce_storage: reduce_storage}
    before = dict(reducers)
    reducers.update({kind: own.get(reducer, reducer) for kind, reducer in before.items()})
    try:
        yield
    finally:
        for kind, reducer in before.items():
            if reducers.get(kind) in own.values():
                reducers[kind] = reducer


def rebuild_on_device(index: int, rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return a tensor that another process sent. If this process has no virtual GPU, the result is a CPU tensor."""
    with torch._C.DisableTorchFunction():
        tensor = rebuild(*arguments)
        storage = storage_of(tensor)
    if _host is not None and storage is not None and index < len(_host.devices):
        _host.mark(storage, index, counted=False)
    return tensor
