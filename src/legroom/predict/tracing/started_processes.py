"""Handles processes that a traced script starts. Only the first rank of `torch.multiprocessing.spawn` is traced."""

import contextlib
import functools
import multiprocessing.process
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from legroom.observe.virtual.patching import Replacement, optional_module, replaced, table
from legroom.observe.virtual.single_rank import first_of_spawned_ranks
from legroom.predict.tracing.trace import NOT_TRACED

Note = Callable[[str], None]


@contextlib.contextmanager
def first_spawned_rank_in_this_process(folder: Path, note: Note) -> Iterator[None]:
    """Inside the `with` block, `torch.multiprocessing.spawn` runs only its first rank, in this process.

    A trace cannot follow other processes. The process group of the first rank has the full world size, although the
    other ranks do not exist. Objects that the rank broadcasts are stored in `folder`.
    """
    module, package = optional_module("torch.multiprocessing.spawn"), optional_module("torch.multiprocessing")
    with contextlib.ExitStack() as ranks:

        def start_processes(
            fn: Callable[..., object], args: Sequence[Any] = (), nprocs: int = 1, join: bool = True, *rest: Any, **options: Any
        ) -> Any:  # fmt: skip
            note(
                f"The script starts {nprocs} {'process' if nprocs == 1 else 'processes'} with `spawn`. "
                "Only the first process was traced"
            )
            ranks.enter_context(first_of_spawned_ranks(nprocs, folder))
            fn(0, *args)
            return None if join else _Finished()

        names = {
            name: functools.wraps(plain)(start_processes)
            for name in ("spawn", "start_processes")
            if callable(plain := getattr(module, name, None))
        }
        # `torch.multiprocessing.spawn` is the function, which hides the module of that name.
        with replaced([*table(module, names), *table(package, names)]):
            yield


class _Finished:
    """The result of `spawn(..., join=False)` when the spawned function has already returned."""

    processes: tuple[Any, ...] = ()

    def join(self, timeout: float | None = None, *rest: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


@contextlib.contextmanager
def started_processes_noted(note: Note) -> Iterator[None]:
    """Call `note` for each process that the script starts inside the `with` block, because the process may use the GPU."""
    plain_start = multiprocessing.process.BaseProcess.start

    @functools.wraps(plain_start)
    def start(process: Any) -> None:
        target = getattr(process, "_target", None)
        # Workers of a DataLoader, managers and pools are not noted.
        module = str(getattr(target, "__module__", ""))
        if target is not None and not module.startswith(("torch.", "multiprocessing.")):
            name = getattr(target, "__name__", "a function")
            note(
                f"{NOT_TRACED} (`{name}`), which are not part of the estimate. Use `legroom run --gpu` "
                "to include these processes"
            )
        plain_start(process)

    with replaced([Replacement(multiprocessing.process.BaseProcess, "start", start)]):
        yield
