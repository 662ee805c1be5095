"""Rejects a script that starts its own ranks (`mp.spawn`) in each rank of a launch.

Without this check, the processes of all ranks would use the same port and wait for each other. Processes that do not
start a process group are not affected.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from legroom.errors import UsageError
from legroom.observe.children.spawned_processes import (
    CallWhenUnpickled,
    after_torch_import,
    in_spawned_processes,
)


@contextmanager
def nested_ranks_rejected(script: str) -> Iterator[None]:
    """Inside the `with` block, `init_process_group` raises an error in the processes that this rank starts. `script` is
    the command line of the script.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1:  # no second rank with the same port
        yield
        return
    after_torch_import(lambda: reject_process_group(script, os.getpid()))
    with in_spawned_processes(CallWhenUnpickled(reject_in_this_process, script)):
        yield


def reject_in_this_process(script: str) -> None:
    after_torch_import(lambda: reject_process_group(script, None))


def reject_process_group(script: str, rank_process: int | None) -> None:
    """Make `init_process_group` raise an error, except in the process of the rank itself."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    original = dist.init_process_group

    def init_process_group(*arguments: Any, **options: Any) -> None:
        if os.getpid() == rank_process:
            return original(*arguments, **options)
        raise UsageError(
            "The script starts its own ranks (for example with mp.spawn), and `legroom launch` starts ranks too. Start the "
            f"script with `legroom run {script}`, or remove mp.spawn and call the function once in each rank."
        )

    for module in (dist, dist.distributed_c10d):  # virtual GPUs replace the function in the second module
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
