"""Records the spawned processes of a program on real GPUs (`mp.spawn`), each to a separate capture."""

import multiprocessing.util
from collections.abc import Iterator
from contextlib import contextmanager

from legroom.observe.child_captures import sink_of_this_process
from legroom.observe.spawned_processes import CallWhenUnpickled, after_torch_import, in_spawned_processes


@contextmanager
def spawned_processes_recorded() -> Iterator[None]:
    """Within the block, spawned processes are recorded from the moment at which they initialize CUDA."""
    with in_spawned_processes(CallWhenUnpickled(record_on_cuda_start)):
        yield


def record_on_cuda_start() -> None:
    """Record this process when it initializes CUDA. Most loader workers never do."""
    after_torch_import(_call_on_cuda_start)


def _call_on_cuda_start() -> None:
    import torch

    call_lazily = getattr(torch.cuda, "_lazy_call", None)
    if call_lazily is not None:
        call_lazily(_record)


def _record() -> None:
    from legroom.observe.session import Session

    sink = sink_of_this_process()
    if sink is None:
        return
    session = Session(sink)
    session.__enter__()
    # A process of `multiprocessing` does not call the functions that are registered with `atexit`. The capture is closed
    # with priority 0, after the last events.
    multiprocessing.util.Finalize(session, session.finish, exitpriority=10)
