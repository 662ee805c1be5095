"""Publishes the state of `legroom.watch` for `legroom monitor`. If `legroom run` already publishes the state of the
process, this module publishes nothing.

All loops of a process share one live file, which contains the state of the loop that published last.
"""

import atexit
import os
import sys
import time
from collections.abc import Sequence

import torch

from legroom import shell
from legroom.memory.live.folder import LiveFile, other_writer
from legroom.memory.live.status import DeviceStatus, RunStatus
from legroom.observe.virtual import active_virtual_gpu


class LoopStatus:
    def __init__(self) -> None:
        self._file: LiveFile | None = None
        self._pid = os.getpid()
        self._started = time.time()

    def write(
        self,
        *,
        step: int,
        total: int | None,
        seconds: float,
        trend: int | None,
        history: Sequence[int],
        finding: str,
    ) -> None:
        """Write the state of a loop to the live file. `seconds` is the average duration of a step."""
        if self._file is None or self._pid != os.getpid():
            self._file, self._pid = LiveFile(), os.getpid()
            atexit.register(self._file.remove)
        if other_writer(self._file):  # `legroom run` records this process
            return

        def make_status() -> RunStatus:
            devices = _devices()
            return RunStatus(
                pid=os.getpid(),
                verb="watch",
                script=sys.argv[0] if sys.argv and sys.argv[0] else "python",
                command=shell.join(sys.orig_argv),
                folder=os.getcwd(),
                started=self._started,
                updated=time.time(),
                step=step,
                total_steps=total,
                seconds_per_step=seconds or None,
                trend=trend if devices else None,
                finding=finding,
                history=tuple(history) if devices else (),
                devices=devices,
            )

        self._file.publish(make_status)

    def remove(self) -> None:
        if self._file is not None:
            self._file.remove()


def _devices() -> tuple[DeviceStatus, ...]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    is_virtual = active_virtual_gpu() is not None
    found = []
    for index in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(index)
        if reserved or index == 0:
            properties = torch.cuda.get_device_properties(index)
            uuid = str(getattr(properties, "uuid", "") or "")
            found.append(
                DeviceStatus(
                    index=index,
                    name=properties.name,
                    kind="virtual" if is_virtual else "cuda",
                    uuid=f"GPU-{uuid}" if uuid and not is_virtual else "",
                    capacity=properties.total_memory,
                    allocated=torch.cuda.memory_allocated(index),
                    reserved=reserved,
                    peak_allocated=torch.cuda.max_memory_allocated(index),
                    peak_reserved=torch.cuda.max_memory_reserved(index),
                )
            )
    return tuple(found)
