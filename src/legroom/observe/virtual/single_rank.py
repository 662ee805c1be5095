"""One rank of many, traced alone: its process group has all the ranks it should have, and none of them is there.

A rank's memory depends on how many ranks there are (shards, shares of a batch, stages) and hardly on what they say. So for
an estimate nobody needs to come: torch's own fake group answers every collective at once and moves nothing. Only objects
that one rank decides on and broadcasts (a plan, a path) matter: LEGROOM_LONE_RANK names a folder where the rank that
sends them leaves them, for those that are traced after it.

The fake group lives among torch's testing tools. Where a version has none, one rank of one is traced instead: what
shards would save is then not seen.
"""

import contextlib
import functools
import os
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, answer, optional_module, table

VARIABLE = "LEGROOM_LONE_RANK"


def is_wanted() -> bool:
    return bool(os.environ.get(VARIABLE)) and "RANK" in os.environ and "WORLD_SIZE" in os.environ


def replacements() -> Iterable[Replacement]:
    """Groups, stores and meetings of a rank that is alone."""
    distributed = optional_module("torch.distributed")
    c10d = optional_module("torch.distributed.distributed_c10d")
    plain_init = getattr(c10d, "init_process_group", None)
    plain_group = getattr(c10d, "new_group", None)
    if plain_init is None or plain_group is None:
        return
    store = _fake_store()
    rank, size = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if store is not None else (0, 1)
    backend = "fake" if store is not None else "gloo"

    @functools.wraps(plain_init)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        place = store if store is not None else distributed.HashStore()
        return plain_init(backend, rank=rank, world_size=size, store=place)

    @functools.wraps(plain_group)
    def new_group(ranks: Any = None, *arguments: Any, **options: Any) -> Any:
        return plain_group(ranks, backend=backend)

    def rendezvous(*arguments: Any, **options: Any) -> Iterator[tuple[Any, int, int]]:
        yield distributed.HashStore(), rank, size

    for owner in (c10d, distributed):
        yield from table(
            owner,
            {
                "init_process_group": init_process_group,
                "new_group": new_group,
                "rendezvous": rendezvous,
                "broadcast_object_list": _Letters(rank).broadcast,
                "monitored_barrier": answer(),
            },
        )
    yield from table(optional_module("torch.distributed.rendezvous"), {"rendezvous": rendezvous})
    parallel = getattr(optional_module("torch.nn.parallel"), "DistributedDataParallel", None)
    if parallel is not None and store is not None:
        yield from table(parallel, {"__init__": _reducing_at_once(parallel), "register_comm_hook": answer()})


class _Letters:
    """Objects that were broadcast, kept in order, one file for each rank that sends."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._folder = Path(os.environ[VARIABLE])
        self._read: dict[int, int] = {}

    def broadcast(self, object_list: list[Any], src: int | None = None, *rest: Any, **options: Any) -> None:
        """Leave the objects, if this rank sends them; take them, if the sender was there; else they stay as they are."""
        sender = src if src is not None else options.get("group_src") or 0
        path = self._folder / f"from-{sender}.pickle"
        if sender == self._rank:
            with path.open("ab") as file:
                pickle.dump(list(object_list), file)
            return
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read.get(sender, 0))
                with contextlib.suppress(EOFError):  # it sent fewer than are asked for here
                    object_list[:] = pickle.load(file)
                self._read[sender] = file.tell()


def _fake_store() -> Any:
    fake = optional_module("torch.testing._internal.distributed.fake_pg")
    make = getattr(fake, "FakeStore", None)
    return None if make is None else make()


def _reducing_at_once(parallel: Any) -> Any:
    """The reducer wants a result of each bucket, which a fake group does not give: the bucket itself it is."""
    plain_init, register = parallel.__init__, parallel.register_comm_hook

    @functools.wraps(plain_init)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        plain_init(self, *arguments, **options)
        register(self, None, _as_it_is)

    return init


def _as_it_is(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, and wants its own
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
