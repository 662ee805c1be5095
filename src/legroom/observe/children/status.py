"""Publishes the state of a process that a recorded program started (`mp.spawn`, torchrun), for `legroom monitor`.

On a virtual GPU, the state comes from the events of each step. The allocator history of a real GPU is rarely read, so a
background thread publishes the state of a process on a real GPU.
"""

import multiprocessing.util
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legroom.memory.events import Event, Step
from legroom.memory.live.folder import LiveFile
from legroom.memory.live.history import StepHistory
from legroom.memory.live.status import DeviceStatus, RunStatus
from legroom.user_cache import read_json

INTERVAL = 0.5
"""The minimum number of seconds between two updates of the live file."""
PARENT = "parent.json"
"""The file that describes the process that `legroom run` started. The file is in the folder for captures."""
_MAX_PARENT_BYTES = 1 << 20


class ChildStatus:
    """Updates the live file of this process. After an error, the file is no longer updated, and the process
    continues.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parent: Mapping[str, Any] = {}
        self._file: LiveFile | None = None
        self._history = StepHistory()
        self._steps: dict[int, Step] = {}
        self._started = time.time()
        self._next_update = 0.0

    def add(self, event: Event) -> None:
        if isinstance(event, Step):
            self._steps[event.device] = event
            if time.monotonic() >= self._next_update:
                self._next_update = time.monotonic() + INTERVAL
                self.publish(event.step + 1, event.seconds)

    def publish(self, step: int, seconds: float, devices: tuple[DeviceStatus, ...] | None = None) -> None:
        if self._file is None:
            self._file = LiveFile()
            # A process of `multiprocessing` does not call the functions that are registered with `atexit`.
            multiprocessing.util.Finalize(self._file, self._file.remove, exitpriority=0)
        self._file.publish(lambda: self._status(step, seconds, devices))

    def _status(self, step: int, seconds: float, given: tuple[DeviceStatus, ...] | None) -> RunStatus:
        devices = given or tuple(self._device(self._steps[index]) for index in sorted(self._steps))
        self._history.add(step, sum(device.allocated for device in devices))
        parent = self._describe_parent()
        return RunStatus(
            pid=os.getpid(),
            verb=str(parent.get("verb", "run")),
            script=str(parent.get("script", "")),
            command=str(parent.get("command", "")),
            folder=str(parent.get("folder", "")),
            started=self._started,
            updated=time.time(),
            **rank_of_this_process(),
            step=step,
            seconds_per_step=seconds if seconds > 0 else None,
            trend=self._history.trend,
            history=self._history.sizes,
            devices=devices,
        )

    def _device(self, step: Step) -> DeviceStatus:
        known = self._describe_parent().get("devices")
        found = next(
            (
                each
                for each in (known if isinstance(known, list) else [])
                if isinstance(each, dict) and each.get("index") == step.device
            ),
            {},
        )
        return DeviceStatus(
            index=step.device,
            name=str(found.get("name", "")),
            kind=str(found.get("kind", "virtual")),
            capacity=int(found.get("capacity", 0)),
            allocated=step.allocated,
            reserved=step.reserved,
            peak_allocated=step.peak_allocated,
            peak_reserved=step.peak_reserved,
        )

    def _describe_parent(self) -> Mapping[str, Any]:
        if not self._parent:
            document = read_json(self._folder / PARENT, max_bytes=_MAX_PARENT_BYTES)
            self._parent = document if isinstance(document, dict) else {"verb": "run"}
        return self._parent


def rank_of_this_process() -> dict[str, Any]:
    """Return the rank of this process and the number of ranks, or an empty dictionary if there is no process group."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return {}
    return {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
