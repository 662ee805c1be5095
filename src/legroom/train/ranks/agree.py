"""Ranks decide together: when memory fails on one, all give the step up, take the same smaller split and do it again.

    ranks = ranks_for(model)                      # a DDP or FSDP2 model; every rank calls it
    plan = ranks.plan(rows, micro)                # the same number of chunks everywhere
    for index in range(plan.chunks):
        with ranks.chunk(index, plan.chunks):
            loss(...).backward()
    ...                                           # after an out-of-memory error: ranks.failed(), its tensors being dead
    void = ranks.settle(failure, proposal)        # None: step the optimizer; a size: roll back, plan again

Three things make it work. A rank that failed keeps its appointments (see appointments), so nobody hangs. At the end of the
passes one exchange of a few integers tells everybody whether the step counts; it goes over gloo between the hosts, so it
waits for no GPU, and the device still has work queued meanwhile. And the next split rides along in that exchange, so that
once sizes have settled nothing else is exchanged: before a step there is an exchange only if a rank had to ask for more
passes than were agreed (ranks with unequal batches under FSDP2, where the number of passes must be the same).
"""

import itertools
import math
import socket
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from legroom.errors import UsageError
from legroom.train.guarding.retry import MakingRoom
from legroom.train.ranks.announcements import NoticeBoard
from legroom.train.ranks.collectives import seen
from legroom.train.ranks.coordination import AgreedRanks, Alone, Plan
from legroom.train.ranks.lost_ranks import PeerFailed, RankMissing
from legroom.train.ranks.pending_collectives import Appointments
from legroom.train.ranks.replicas import Replicas, silent
from legroom.train.ranks.shards import Shards, sharded_roots

PATIENCE = 1800.0  # seconds: as long as gloo waits by default
_SHORTAGES = 2  # after so many steps given up for lack of passes, ranks ask each other before every step
_GRACE = 5.0  # seconds in which a rank that is alive says so
Batches = TypeVar("Batches")
_numbers = itertools.count()


def ranks_for(model: nn.Module, *, patience: float = PATIENCE) -> "Ranks | None":
    """How the ranks that hold this model agree; None if it is held by one process alone.

    Every rank that holds it must call this. `patience`: seconds to wait for another rank before saying which is missing.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    wrapped, roots = _replicated(model), sharded_roots(model)
    if not (wrapped or roots):
        return None
    return Ranks(model, [Replicas(module) for module in wrapped], Shards(roots), patience)


@contextmanager
def ranks_for_evaluation(model: nn.Module) -> Iterator[AgreedRanks]:
    """How the ranks agree on forward passes alone, for as long as an evaluation takes.

    Every rank that holds a shard must call this. A replica needs nobody, so a rank may evaluate that by itself.
    """
    with ExitStack() as entered:
        for module in _replicated(model):
            entered.enter_context(silent(module))
        roots = sharded_roots(model)
        if not roots:
            yield Alone()
            return
        ranks = Ranks(model, [], Shards(roots), PATIENCE, trains=False)
        entered.callback(ranks.close)
        yield ranks


class Ranks:
    """The ranks that hold one model, from the side of one of them."""

    keeps_finished_chunks = False
    """A failed attempt is done again whole: the passes that were finished had gathered zeros from the rank that failed."""

    def __init__(
        self,
        model: nn.Module,
        replicas: list[Replicas],
        shards: Shards,
        patience: float,
        *,
        trains: bool = True,
    ) -> None:
        """`trains`: its passes go backward; what they leave in gradients is theirs."""
        groups = [dist.group.WORLD, *(part.group for part in replicas), *shards.groups(), *_own_groups(model)]
        members = sorted(
            {rank for part in replicas for rank in dist.get_process_group_ranks(part.group)} | shards.ranks()
        )
        self._model, self._replicas, self._shards = model, replicas, shards
        self._trains = trains
        self._evaluating: Ranks | None = None
        self._members = members
        self._me = dist.get_rank()
        self._patience = patience
        self._flags = _host_group(members, patience)
        self._store = _store(f"legroom/{next(_numbers)}/{'-'.join(map(str, members))}")
        self._passes_matter = bool(shards.meshes())
        self._device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._appointments = Appointments(
            groups, self._device, NoticeBoard(self._store, len(members), patience)
        )
        self._chunks: int | None = None  # what was agreed; None: ask before the next attempt
        self._rows = self._most_rows = 0
        self._wish = 1
        self._planned = Plan(1, 1)
        self._shortages = 0
        self._attempt = 0
        self._next_pass = 0
        self._kind: Hashable = None
        self._under_way = False
        self._has_batch = True
        self._weighs = False
        self._weighed: float | None = None  # in this attempt: ranks may ask differently often
        self._averages_hold = True
        self._ours = sum(part.collectives() for part in replicas)
        self._more_than_ours = False

    def plan(self, rows: int, micro: int) -> Plan:
        """How this rank cuts its `rows`, wishing for chunks of `micro`: into as many chunks as all others."""
        needed = max(1, math.ceil(rows / max(1, micro)))
        if self._chunks is not None and needed > self._chunks and self._passes_matter:
            self._ask_for_more(needed)
        if self._chunks is None:
            self._chunks = int(self._exchange([needed])[0])
        self._rows = rows
        # A smaller batch than usual, the last of an epoch, says nothing about how the next ones are cut.
        self._wish = needed if rows >= self._most_rows else max(needed, self._chunks)
        self._most_rows = max(self._most_rows, rows)
        chunks = self._chunks if self._passes_matter else max(self._chunks, needed)
        self._planned = Plan(max(1, math.ceil(rows / chunks)), chunks, self._passes_matter)
        self._next_pass = 0
        self._averages_hold = True
        return self._planned

    def weights(self, total: float, *, by_rows: bool) -> float:
        """What to divide this rank's weights by, so that the mean over ranks is the weighted mean of all rows.

        `by_rows`: the weight is the number of rows. Then each rank counts the same, as DDP and FSDP2 have it.
        """
        if not by_rows:
            self._weighs = True
            if self._weighed is None:
                mine = total if self._has_batch else 0.0
                self._weighed = self._exchange([mine], dist.ReduceOp.SUM)[0] / len(self._members)
            total = self._weighed
        return total if self._has_batch else math.inf

    def together(self, batches: Iterable[Batches]) -> Iterator[Batches]:
        """The batches of this rank, for as long as any rank has some: none is left waiting by one that has fewer.

        A rank that has no more gets its last batch again, and it weighs nothing (the mean over ranks is still taken over
        all of them). Costs one more exchange in each step.
        """
        latest: list[Batches] = []
        waiting = iter(batches)
        try:
            while True:
                found = list(itertools.islice(waiting, 1))
                self._has_batch = bool(found)
                if not self._exchange([float(self._has_batch)])[0]:
                    return
                latest = found or latest
                if not latest:
                    raise UsageError(
                        f"Rank {self._me} has no batch at all: give every rank one, with a smaller batch size."
                    )
                yield latest[0]
        finally:
            self._has_batch = True

    @contextmanager
    def chunk(self, index: int, count: int, kind: Hashable = None) -> Iterator[None]:
        """Around forward and backward of one chunk. After the last one, gradients are averaged over ranks.

        `kind` tells apart steps that make other collectives: another loss function, another part of the model.
        """
        self._kind = kind
        self._begin(index, count)
        first, last = index == 0, index == count - 1
        with seen(self._appointments):
            with ExitStack() as entered:
                for part in self._replicas:
                    entered.enter_context(part.chunk(first, last))
                yield
            if last:
                self._averages_hold = all(tuple(part.finish() for part in self._replicas))
        if last or self._passes_matter:
            self._end(self._appointments.finish())

    def failed(self, failure: object = None) -> None:
        """This rank ran out of memory in a chunk. Called when the tensors of the attempt are dead.

        Its gradients go, and everything the other ranks still wait for in this attempt is done, with zeros.
        """
        for part in self._replicas:
            part.forget()
        self._shards.forget()
        if self._trains:
            for parameter in self._model.parameters():
                parameter.grad = None  # the attempt's, and worth nothing: there must be room for what follows
        with self._with_room():
            if self._under_way:
                self._end(self._appointments.keep())
            self._keep_whole_passes()

    def settle(self, failure: object | None, proposal: int) -> int | None:
        """The end of an attempt, on every rank. None: it counts everywhere.

        Otherwise nobody's counts, and all do it again: with chunks of the size returned, or, if that is 0, by other
        means than a smaller chunk. `proposal` is the size that this rank wants after its own failure, 0 for none.
        """
        if failure is None:
            return self._conclude(_Verdict(void=not self._averages_hold, chunks=self._wish))
        chunks = math.ceil(self._rows / proposal) if proposal else 0
        return self._conclude(_Verdict(void=True, oom=True, chunks=chunks, exhausted=not proposal))

    def raised(self, error: BaseException) -> int | None:
        """This rank raised an error that is not about memory. None: raise it again; the others stop as well.

        A size: another rank was out of memory meanwhile and sent zeros in place of its weights, which may be all that
        was wrong. The attempt is void, as if `settle` had said so.
        """
        if self._appointments.lost:
            raise self._missing("a collective of the step failed") from error
        self._say_why(_first_line(error))
        self.failed()
        verdict = _Verdict(void=True, chunks=self._planned.chunks, raised_by=self._me + 1)
        return self._conclude(verdict)

    def gave_up(self, why: str) -> None:
        """This rank alone cannot go on, between two steps: the others are told where they next meet."""
        if self._chunks is None:
            self._chunks = int(self._exchange([1])[0])
        self._say_why(why)
        self._sit_out(self._chunks)
        self._conclude(_Verdict(void=True, chunks=self._chunks, raised_by=self._me + 1))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, DDP communicates nothing: each rank calls the model as often as it likes. Shards still meet."""
        with ExitStack() as entered:
            for part in self._replicas:
                entered.enter_context(part.alone())
            yield

    def for_evaluation(self) -> AgreedRanks:
        """How ranks agree on forward passes alone. Every rank calls it before each evaluation.

        A replica needs nobody for those. Shards do, with plans and appointments of their own.
        """
        if not self._shards.meshes():
            return Alone()
        self._shards.reshard()
        if not self._trains:
            return self
        if self._evaluating is None:
            self._evaluating = Ranks(self._model, [], self._shards, self._patience, trains=False)
        return self._evaluating

    def close(self) -> None:
        """The group of the hosts goes; those that live as long as the job need not."""
        if self._flags is not dist.group.WORLD:
            dist.destroy_process_group(self._flags)

    def _with_room(self) -> AbstractContextManager[Any]:
        """Appointments are kept even if weights must wait in host memory meanwhile: the others cannot go on without."""
        if self._device.type == "cpu":
            return nullcontext()
        return MakingRoom(self._model.parameters, self._device)

    def _begin(self, index: int, count: int) -> None:
        """One diary per pass where each has collectives of its own; else one for all of them: then ranks may make
        different numbers of passes, and only the averages at the end are common.
        """
        self._next_pass = index + 1
        if self._passes_matter:
            self._appointments.begin((self._kind, index == 0, index == count - 1), f"{self._attempt}/{index}")
        elif index == 0:
            self._appointments.begin(self._kind, f"{self._attempt}")
        self._under_way = True

    def _end(self, collectives: int) -> None:
        """A diary is closed. More collectives than our own: the model makes some in its passes (SyncBatchNorm), and from
        the next attempt on all ranks must make the same number of passes. All ranks count the same.
        """
        self._under_way = False
        self._more_than_ours = collectives != self._ours

    def _keep_whole_passes(self) -> None:
        """The passes that the others make and this rank will not."""
        if not self._passes_matter and self._next_pass > 0:
            return
        chunks = self._planned.chunks if self._passes_matter else 1
        for index in range(self._next_pass, chunks):
            self._begin(index, chunks)
            self._end(self._appointments.keep())

    def _ask_for_more(self, needed: int) -> None:
        """This batch needs more passes than agreed, and the others do not know: let them make theirs in vain."""
        assert self._chunks is not None
        self._sit_out(self._chunks)
        self._conclude(_Verdict(void=True, short=True, chunks=needed))

    def _sit_out(self, chunks: int) -> None:
        """A whole attempt with zeros."""
        self._planned = Plan(1, chunks)
        self._next_pass = 0
        if self._weighs:
            self.weights(0.0, by_rows=False)
        with self._with_room():
            self._keep_whole_passes()

    def _conclude(self, mine: "_Verdict") -> int | None:
        """Everyone's verdicts become one; what follows from it is the same on every rank."""
        all_of_us = _Verdict(*map(int, self._exchange(list(astuple(mine)))))
        self._appointments.clear(wipe=self._me == self._members[0])
        attempt, self._attempt = self._attempt, self._attempt + 1
        self._weighed = None
        self._passes_matter = self._passes_matter or self._more_than_ours
        if all_of_us.raised_by and not all_of_us.oom:
            if mine.raised_by:
                return None
            raise PeerFailed(self._why(attempt, all_of_us.raised_by - 1))
        if all_of_us.short:
            self._shortages += 1
        asks = all_of_us.short or all_of_us.exhausted or self._shortages >= _SHORTAGES
        self._chunks = None if asks else all_of_us.chunks
        if not all_of_us.void:
            return None
        return 0 if all_of_us.exhausted else max(1, math.ceil(self._rows / all_of_us.chunks))

    def _exchange(self, numbers: list[float], how: Any = dist.ReduceOp.MAX) -> list[float]:
        told = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        try:
            dist.all_reduce(told, op=how, group=self._flags)
        except RuntimeError as error:
            raise self._missing("ranks were to meet at the end of a step") from error
        return told.tolist()

    def _missing(self, occasion: str) -> RankMissing:
        """Who does not answer."""
        here = f"here/{self._attempt}/"
        self._store.set(f"{here}{self._me}", b"")
        deadline = time.monotonic() + min(_GRACE, self._patience)
        away = [rank for rank in self._members if rank != self._me]
        while away and time.monotonic() < deadline:
            time.sleep(0.05)
            away = [rank for rank in away if not self._store.check([f"{here}{rank}"])]
        who = f"rank {away[0]} does" if len(away) == 1 else f"ranks {', '.join(map(str, away))} do"
        told = f"{who} not answer" if away else "every rank still answers"
        return RankMissing(
            f"Rank {self._me} waited in vain: {occasion} and {told}. "
            "A process that died or hangs says why in its own output; the job must be started again."
        )

    def _say_why(self, why: str) -> None:
        self._store.set(f"why/{self._attempt}/{self._me}", why[:400])

    def _why(self, attempt: int, rank: int) -> str:
        why = self._store.get(f"why/{attempt}/{rank}").decode()
        return f"Rank {rank} stopped, so this rank stops too: {why}"


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a rank says of its attempt. Joined over ranks by the largest of each."""

    void: int = 0
    oom: int = 0
    exhausted: int = 0
    """No smaller chunk is possible."""
    short: int = 0
    """More passes are needed than were agreed."""
    raised_by: int = 0
    """The rank that raised another error, plus one."""
    chunks: int = 1
    """How many this rank wants next."""


def _replicated(model: nn.Module) -> list[DistributedDataParallel]:
    return [module for module in model.modules() if isinstance(module, DistributedDataParallel)]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _own_groups(model: nn.Module) -> list[Any]:
    """Groups in which layers talk by themselves."""
    return [
        module.process_group
        for module in model.modules()
        if isinstance(module, nn.SyncBatchNorm) and module.process_group is not None
    ]


def _host_group(members: list[int], patience: float) -> Any:
    """A group of the hosts' own, beside the devices': what is said there waits for no GPU.

    Without gloo, the default group is used, and each step's exchange waits until the device has caught up.
    """
    if not dist.is_gloo_available():
        return dist.group.WORLD
    everyone = len(members) == dist.get_world_size()
    return dist.new_group(
        members,
        timeout=timedelta(seconds=patience),
        backend="gloo",
        use_local_synchronization=not everyone,
    )


def _store(prefix: str) -> Any:
    """The store through which the processes of the job found each other, a corner of it for us.

    The function that gives it is private to torch. Without it, ranks meet through a store of their own, which
    needs a free port on the first rank's machine.
    """
    found = getattr(distributed_c10d, "_get_default_store", None)
    return distributed_c10d.PrefixStore(prefix, found() if found is not None else _new_store())


def _new_store() -> Any:
    where: list[Any] = [None]
    store = None
    if dist.get_rank() == 0:
        host = socket.gethostname()
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        where = [(host, store.port)]
    dist.broadcast_object_list(where)
    return store if store is not None else TCPStore(where[0][0], where[0][1], is_master=False)
