"""One rank of many, traced alone: its process group has all the ranks it should have, and none of them is there.

A rank's memory depends on how many ranks there are (shards, shares of a batch, stages) and hardly on what they say. So for
an estimate nobody needs to come: torch's own fake group answers every collective at once and moves nothing. The launcher
asks for it with LEGROOM_LONE_RANK, beside RANK and WORLD_SIZE.

The fake group lives among torch's testing tools. Where a version has none, one rank of one is traced instead: what
shards would save is then not seen.
"""

import functools
import os
from collections.abc import Iterable, Iterator
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
                "broadcast_object_list": answer(),
                "monitored_barrier": answer(),
            },
        )
    parallel = getattr(optional_module("torch.nn.parallel"), "DistributedDataParallel", None)
    if parallel is not None and store is not None:
        yield from table(parallel, {"__init__": _reducing_at_once(parallel), "register_comm_hook": answer()})


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
