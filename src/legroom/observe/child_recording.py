"""Records the spawned processes of a program on real GPUs (`mp.spawn`), each to a separate capture."""

import multiprocessing.util
from collections.abc import Iterator
from contextlib import contextmanager

from legroom.observe.child_captures import sink_of_this_process
from legroom.observe.spawned_processes import CallWhenUnpickled, after_torch_import, in_spawned_processes


@contextmanager
def spawned_processes_recorded() -> Iterator[None]:
    """Within the block, spawned processes that import torch are recorded."""
    with in_spawned_processes(CallWhenUnpickled(record_this_process)):
        yield


def record_this_process() -> None:
    """Record this process after it imports torch. A process without GPU memory writes no capture."""
    after_torch_import(_record)


def _record() -> None:
    from legroom.observe.session import Session

    sink = sink_of_this_process()
    if sink is None:
        return
    session = Session(sink)
    session.__enter__()  # a CUDA history starts when CUDA is initialized
    # A process of `multiprocessing` does not call the functions that are registered with `atexit`. The capture is closed
    # with priority 0, after the last events.
    multiprocessing.util.Finalize(session, session.finish, exitpriority=10)
