"""Records the processes that a program on real GPUs spawns (`mp.spawn`), each in its own capture."""

import multiprocessing.util
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING

from legroom.memory.live.periodic_thread import PeriodicThread
from legroom.observe.children.captures import capture_folder, sink_of_this_process
from legroom.observe.children.spawned_processes import (
    CallWhenUnpickled,
    after_torch_import,
    in_spawned_processes,
)
from legroom.observe.children.status import INTERVAL, ChildStatus

if TYPE_CHECKING:
    from legroom.observe.session import Session


@contextmanager
def spawned_processes_recorded() -> Iterator[None]:
    with in_spawned_processes(CallWhenUnpickled(record_this_process)):
        yield


def record_this_process() -> None:
    # A process without GPU memory writes no capture.
    after_torch_import(_record)


def _record() -> None:
    from legroom.observe.session import Session

    sink, folder = sink_of_this_process(publishes=False), capture_folder()
    if sink is None or folder is None:
        return
    session = Session(sink)
    session.__enter__()  # a CUDA history starts when CUDA is initialized
    status = ChildStatus(folder)
    thread = PeriodicThread(lambda: _publish(session, status), repeat(INTERVAL), name="legroom-status")
    thread.start()
    # A process of `multiprocessing` does not call the functions that are registered with `atexit`. The capture is closed
    # with priority 0, after the last events.
    multiprocessing.util.Finalize(thread, thread.stop, exitpriority=20)
    multiprocessing.util.Finalize(session, session.finish, exitpriority=10)


def _publish(session: "Session", status: ChildStatus) -> None:
    step, seconds, _ = session.progress
    devices = session.device_statuses()
    if any(device.peak_reserved for device in devices):
        status.publish(step, seconds, devices)
