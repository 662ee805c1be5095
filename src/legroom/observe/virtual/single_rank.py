"""Traces one rank alone, in a process group that has the full world size but no other ranks.

The memory of a rank depends on the world size, which determines the rank's shards, samples and pipeline stage. The
memory rarely depends on the data that the rank receives, so an estimate needs no other ranks. PyTorch's fake process
group completes every collective immediately and moves no data. However, a rank may need an object that another rank
creates and broadcasts, such as a plan or a path.

The sending rank stores this object in a folder, and the ranks that are traced later read it there. The environment
variable LEGROOM_SINGLE_RANK contains the path of the folder. The fake process group is one of torch's testing tools. If
this version of torch lacks the fake process group, rank 0 of 1 is traced instead, so the estimate does not include the
savings from sharding.
"""

import contextlib
import functools
import inspect
import os
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, answer, optional_module, replaced, table

VARIABLE = "LEGROOM_SINGLE_RANK"


def is_enabled() -> bool:
    return bool(os.environ.get(VARIABLE)) and "RANK" in os.environ and "WORLD_SIZE" in os.environ


def has_no_peers() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_backend() == "fake"


def modules_of_groups() -> tuple[Any, ...]:
    """Return the module that defines the process group functions, followed by the modules that import them. The result
    contains None for a module that this build of torch lacks.
    """
    names = "distributed.distributed_c10d", "distributed", "distributed.device_mesh"
    return tuple(optional_module(f"torch.{name}") for name in names)


def replacements() -> Iterable[Replacement]:
    """Return replacements for process groups, stores and rendezvous that let a rank run without other ranks. The rank
    and the world size come from torchrun's environment variables.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return _replacements(rank, size, Path(os.environ[VARIABLE]))


_early_names: dict[str, Any] = {}
"""The replacement functions of `first_of_spawned_ranks`, which `early_name` returns."""


def early_name(name: str) -> Any:
    """Return the replacement for the function `name`, for a script that imported `name` before it was replaced. Return
    None if `name` is not replaced.
    """
    return _early_names.get(name)


@contextlib.contextmanager
def first_of_spawned_ranks(size: int, folder: Path) -> Iterator[None]:
    """Inside the `with` block, this process is rank 0 of `size` ranks. A world size that the script passes takes
    precedence over `size`.
    """
    with replaced(_replacements(0, size, folder)):
        c10d, *_ = modules_of_groups()
        _early_names.update({name: getattr(c10d, name, None) for name in ("init_process_group", "new_group")})
        try:
            yield
        finally:
            _early_names.clear()


def _replacements(rank: int, size: int, folder: Path) -> Iterable[Replacement]:
    c10d, distributed, mesh = modules_of_groups()
    original_init = inspect.unwrap(getattr(c10d, "init_process_group", _no_function))
    original_group = inspect.unwrap(getattr(c10d, "new_group", _no_function))
    if original_init is _no_function or original_group is _no_function:
        return
    store = _fake_store()
    if store is None:
        rank, size = 0, 1
    backend = "fake" if store is not None else "gloo"

    @functools.wraps(original_init)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        if store is None:
            return original_init(backend, rank=0, world_size=1, store=distributed.HashStore())
        given = options.get("world_size", arguments[3] if len(arguments) > 3 else -1)
        world_size = given if isinstance(given, int) and given > rank else size
        return original_init(backend, rank=rank, world_size=world_size, store=store)

    @functools.wraps(original_group)
    def new_group(ranks: Any = None, *arguments: Any, **options: Any) -> Any:
        return original_group(ranks, backend=backend)

    def rendezvous(*arguments: Any, **options: Any) -> Iterator[tuple[Any, int, int]]:
        yield distributed.HashStore(), rank, size

    for owner in (c10d, distributed, mesh):
        yield from table(
            owner,
            {
                "init_process_group": init_process_group,
                "new_group": new_group,
                "rendezvous": rendezvous,
                "broadcast_object_list": _BroadcastFiles(rank, folder).broadcast,
                "all_gather_object": _gather_own_object,
                "monitored_barrier": answer(),
            },
        )
    # A device mesh selects the GPU of the local rank, but not if the process group is a fake one.
    yield from table(mesh, {"get_backend": answer("nccl")})
    yield from table(optional_module("torch.distributed.rendezvous"), {"rendezvous": rendezvous})
    parallel = getattr(optional_module("torch.nn.parallel"), "DistributedDataParallel", None)
    if parallel is not None and store is not None:
        yield from table(
            parallel, {"__init__": _with_local_reduction(parallel), "register_comm_hook": answer()}
        )


class _BroadcastFiles:
    """Stores broadcast objects in one file per sending rank, in order."""

    def __init__(self, rank: int, folder: Path) -> None:
        self._rank = rank
        self._folder = folder
        self._read: dict[int, int] = {}

    def broadcast(self, object_list: list[Any], src: int | None = None, *rest: Any, **options: Any) -> None:
        """Store the objects if this rank sends them. Otherwise, read the objects that the sending rank stored. If the
        sending rank was not traced, the objects stay unchanged.
        """
        sender = src if src is not None else options.get("group_src") or 0
        path = self._folder / f"from-{sender}.pickle"
        if sender == self._rank:
            with path.open("ab") as file:
                pickle.dump(list(object_list), file)
            return
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read.get(sender, 0))
                with contextlib.suppress(EOFError):  # the sender broadcast fewer objects
                    object_list[:] = pickle.load(file)
                self._read[sender] = file.tell()


def _gather_own_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _no_function() -> None: ...


def _fake_store() -> Any:
    fake = optional_module("torch.testing._internal.distributed.fake_pg")
    make = getattr(fake, "FakeStore", None)
    return None if make is None else make()


def _with_local_reduction(parallel: Any) -> Any:
    """Return a `DistributedDataParallel.__init__` that also registers a communication hook. The reducer needs a result
    for each bucket, but a fake process group returns none. Therefore the hook returns the bucket itself.
    """
    original_init, register = parallel.__init__, parallel.register_comm_hook

    @functools.wraps(original_init)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original_init(self, *arguments, **options)
        register(self, None, _return_bucket)
        getattr(self, "_comm_hooks", []).clear()  # the script has registered no hook

    return init


def _return_bucket(state, bucket):  # type: ignore[no-untyped-def]  # torch checks the annotations of hooks
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
