"""Processes that the script starts afresh (`torch.multiprocessing.spawn`, a loader's spawned workers) have virtual GPUs too.

A spawned process imports the script again before it does anything, so it must have its GPUs by then. The first thing it
reads is a dictionary of preparations; one more entry, which enters a virtual GPU when it is unpickled, is put there.
Every process has devices of the full size, since no process here sees what another holds, and its events go nowhere.
"""

import multiprocessing.spawn
from collections.abc import Iterable, Sequence
from typing import Any

from legroom.gpus.catalog import GpuSpec
from legroom.observe.virtual.patching import Replacement, table
from legroom.observe.virtual.protocols import Host


def replacements(host: Host) -> Iterable[Replacement]:
    plain = multiprocessing.spawn.get_preparation_data
    gpus = _VirtualGPUs([device.spec for device in host.devices])

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**plain(name), "legroom": gpus}

    spawn: Any = multiprocessing.spawn
    yield from table(spawn, {"get_preparation_data": get_preparation_data})


class _VirtualGPUs:
    """Becomes virtual GPUs in the process that unpickles it, for the life of that process."""

    def __init__(self, gpus: Sequence[GpuSpec]) -> None:
        self._gpus = gpus

    def __reduce__(self) -> tuple[Any, ...]:
        return enter, tuple(self._gpus)


def enter(*gpus: GpuSpec) -> None:
    """A spawned process gets its GPUs."""
    from legroom.observe.virtual.gpu import VirtualGPU  # the other way round at import

    if VirtualGPU._active is None:
        VirtualGPU(*gpus).__enter__()
