"""Coordinates the ranks of a model. If memory runs out on one rank, all ranks discard the step and repeat it with the
same smaller micro-batches.

    ranks = ranks_for(model)                      # a DDP or FSDP2 model; every rank calls it
    plan = ranks.plan(batch_size, micro)          # the same number of passes on all ranks
    for index in range(plan.passes):
        with ranks.micro_batch(index, plan.passes):
            loss(...).backward()
    ...                                           # after an out-of-memory error: free its tensors, ranks.complete_pending()
    retry_size = ranks.agree(failure, proposal)   # None: step the optimizer; a size: roll back and plan again

A failed rank completes its pending collectives (see `pending_collectives`), so no rank hangs.

At the end of the passes, the ranks exchange a few integers. The integers show whether the step is valid on all ranks
and how many passes the next step has. The exchange uses gloo between the hosts, so the GPU continues with its queued
work.

Under FSDP2, the number of passes must be the same on all ranks. If batch sizes differ and a rank needs more passes than
the ranks agreed on, the ranks exchange another message before the step.
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
from legroom.train.guarding.retry import RetryOnOOM
from legroom.train.ranks.announcements import Announcements
from legroom.train.ranks.collectives import intercept_collectives
from legroom.train.ranks.pending_collectives import PendingCollectives
from legroom.train.ranks.protocol import RankCoordinator, SingleProcess, SplitPlan
from legroom.train.ranks.rank_errors import PeerFailed, RankMissing
from legroom.train.ranks.replicas import Replicas, no_ddp_sync
from legroom.train.ranks.shards import Shards, sharded_roots
from legroom.train.ranks.waiting import TIMEOUT, gone_ranks, group_store, wait_for_ranks, waiting

_MAX_SHORTAGES = 2  # after this many steps with too few passes, ranks agree on the number before every step
_RESPONSE_SECONDS = 5.0  # a rank that is alive responds within this time
T = TypeVar("T")
_instance_numbers = itertools.count()


def ranks_for(model: nn.Module, *, timeout: float = TIMEOUT) -> "DistributedRanks | None":
    """Return the coordinator of the ranks that share this model, or None if only one process has the model.

    Every rank that shares the model must call this function. `timeout` is the time in seconds to wait for another rank
    before raising RankMissing.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    wrapped, roots = _replicated(model), sharded_roots(model)
    if not (wrapped or roots):
        return None
    shards = Shards(roots)
    shards.reshard()
    return DistributedRanks(model, [Replicas(module) for module in wrapped], shards, timeout)


@contextmanager
def ranks_for_evaluation(model: nn.Module) -> Iterator[RankCoordinator]:
    """Yield a coordinator for forward passes only, for the duration of an evaluation.

    If the model is sharded, every rank must call this function. A replicated model can be evaluated on one rank.
    """
    with ExitStack() as stack:
        for module in _replicated(model):
            stack.enter_context(no_ddp_sync(module))
        shards = Shards(sharded_roots(model))
        shards.reshard()
        if not shards.meshes():
            yield SingleProcess()
            return
        ranks = DistributedRanks(model, [], shards, TIMEOUT, trains=False)
        stack.callback(ranks.close)
        yield ranks


class DistributedRanks:
    keeps_finished_micro_batches = False
    """Whether micro-batches that finished before a failure are kept. The value is always False, because the failed
    rank may have sent zeros to the other ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        replicas: list[Replicas],
        shards: Shards,
        timeout: float,
        *,
        trains: bool = True,
    ) -> None:
        """If `trains` is False, the coordinator runs forward passes only and never discards gradients."""
        groups = [
            dist.group.WORLD,
            *(part.group for part in replicas),
            *shards.groups(),
            *_layer_groups(model),
        ]
        members = sorted(
            {rank for part in replicas for rank in dist.get_process_group_ranks(part.group)} | shards.ranks()
        )
        self._model, self._replicas, self._shards = model, replicas, shards
        self._trains = trains
        self._evaluation_ranks: DistributedRanks | None = None
        self._members = members
        self._rank = dist.get_rank()
        self._timeout = timeout
        self._host_group = _host_group(members, timeout, "Guard()" if trains else "evaluate()")
        self._store = _store(f"legroom/{next(_instance_numbers)}/{'-'.join(map(str, members))}")
        self._needs_equal_passes = bool(shards.meshes())
        self._device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._pending = PendingCollectives(
            groups, self._device, Announcements(self._store, len(members), timeout)
        )
        self._agreed_passes: int | None = None  # None: exchange before the next attempt
        self._batch_size = self._max_batch_size = 0
        self._proposed_passes = 1
        self._plan = SplitPlan(1, 1)
        self._shortages = 0
        self._attempt = 0
        self._next_pass = 0
        self._kind: Hashable = None
        self._in_pass = False
        self._has_batch = True
        self._exchanges_weights = False
        self._mean_weight: float | None = (
            None  # exchanged once per attempt, because the number of calls to total_weight may differ between ranks
        )
        self._averages_valid = True
        self._own_collectives = sum(part.collectives() for part in replicas)
        self._model_communicates = False

    def plan(self, batch_size: int, micro: int) -> SplitPlan:
        """Return how to split this rank's batch, with the same number of passes on all ranks."""
        needed = max(1, math.ceil(batch_size / max(1, micro)))
        if self._agreed_passes is not None and needed > self._agreed_passes and self._needs_equal_passes:
            self._request_more_passes(needed)
        if self._agreed_passes is None:
            self._agreed_passes = int(self._exchange([needed])[0])
        self._batch_size = batch_size
        # The split of a smaller batch (the last batch of an epoch) does not apply to the next batches.
        self._proposed_passes = (
            needed if batch_size >= self._max_batch_size else max(needed, self._agreed_passes)
        )
        self._max_batch_size = max(self._max_batch_size, batch_size)
        passes = self._agreed_passes if self._needs_equal_passes else max(self._agreed_passes, needed)
        self._plan = SplitPlan(max(1, math.ceil(batch_size / passes)), passes, self._needs_equal_passes)
        self._next_pass = 0
        self._averages_valid = True
        return self._plan

    def total_weight(self, total: float, *, counts_samples: bool) -> float:
        """Return the number by which the weights of this rank's samples are divided. With this divisor, the mean over
        all ranks is the weighted mean over all samples.

        With `counts_samples`, the divisor is the number of samples on this rank, so every rank contributes equally to
        the mean, as in DDP and FSDP2.
        """
        if not counts_samples:
            self._exchanges_weights = True
            if self._mean_weight is None:
                own = total if self._has_batch else 0.0
                self._mean_weight = self._exchange([own], dist.ReduceOp.SUM)[0] / len(self._members)
            total = self._mean_weight
        return total if self._has_batch else math.inf

    def join(self, batches: Iterable[T]) -> Iterator[T]:
        """Iterate over this rank's batches until all ranks are done.

        A rank without further batches gets its last batch again, with weight 0. The gradients are still averaged over
        all ranks. The ranks exchange one additional message per step.
        """
        latest: list[T] = []
        remaining = iter(batches)
        try:
            while True:
                found = list(itertools.islice(remaining, 1))
                self._has_batch = bool(found)
                if not self._exchange([float(self._has_batch)])[0]:
                    return
                latest = found or latest
                if not latest:
                    raise UsageError(
                        f"Rank {self._rank} has no batch. Use a smaller batch size, so that every rank has "
                        "at least one batch."
                    )
                yield latest[0]
        finally:
            self._has_batch = True

    @contextmanager
    def micro_batch(self, index: int, count: int, kind: Hashable = None) -> Iterator[None]:
        """Wrap the forward and backward pass of one micro-batch. After the last micro-batch, gradients are averaged
        across ranks.

        `kind` identifies steps that issue the same collectives. Use different kinds for steps with different loss
        functions, or for steps that use different parts of the model.
        """
        self._kind = kind
        self._begin_pass(index, count)
        first, last = index == 0, index == count - 1
        with intercept_collectives(self._pending):
            with ExitStack() as stack:
                for part in self._replicas:
                    stack.enter_context(part.micro_batch(first, last))
                yield
            if last:
                self._averages_valid = all(tuple(part.finish() for part in self._replicas))
        if last or self._needs_equal_passes:
            self._end_pass(self._pending.finish())

    def complete_pending(self, failure: object = None) -> None:
        """Issue, with zeros, the collectives for which other ranks still wait in this attempt, and free the gradients
        of this rank. A rank that ran out of memory calls this method after it has freed the tensors of the attempt.
        """
        for part in self._replicas:
            part.discard()
        self._shards.discard()
        if self._trains:
            for parameter in self._model.parameters():
                parameter.grad = None  # invalid, and their memory is needed
        with self._retry_on_oom():
            if self._in_pass:
                self._end_pass(self._pending.complete_with_zeros())
            self._complete_remaining_passes()

    def agree(self, failure: object | None, proposal: int) -> int | None:
        """Exchange the results of an attempt between all ranks. Return None if the attempt is valid on all ranks.

        If the attempt is not valid, all ranks repeat it with micro-batches of the returned size, or with a fallback
        if the size is 0. `proposal` is the size that this rank proposes after its own failure, or 0 if no smaller
        size is possible.
        """
        if failure is None:
            return self._conclude(
                _AttemptResult(invalid=not self._averages_valid, passes=self._proposed_passes)
            )
        passes = math.ceil(self._batch_size / proposal) if proposal else 0
        return self._conclude(_AttemptResult(invalid=True, oom=True, passes=passes, exhausted=not proposal))

    def report_error(self, error: BaseException) -> int | None:
        """Report an error that is not an out-of-memory error.

        If no rank ran out of memory, return None, so that the caller raises the error and the other ranks stop too. If
        another rank ran out of memory, the zeros that it sent may have caused the error. In that case, return the size
        for the next attempt, like `agree`.
        """
        if self._pending.lost:
            raise self._missing_ranks("a collective failed during the step") from error
        self._store_reason(_first_line(error))
        self.complete_pending()
        return self._conclude(
            _AttemptResult(invalid=True, passes=self._plan.passes, raised_by=self._rank + 1)
        )

    def abort(self, reason: str) -> None:
        """Stop this rank between two steps. In the next exchange, the other ranks receive the reason."""
        if self._agreed_passes is None:
            self._agreed_passes = int(self._exchange([1])[0])
        self._store_reason(reason)
        self._sit_out(self._agreed_passes)
        self._conclude(_AttemptResult(invalid=True, passes=self._agreed_passes, raised_by=self._rank + 1))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Disable DDP's communication inside the block. Sharded parameters are still gathered."""
        with ExitStack() as stack:
            for part in self._replicas:
                stack.enter_context(part.no_sync())
            yield

    def for_evaluation(self) -> RankCoordinator:
        """Return the coordinator for an evaluation. If the model is sharded, every rank must call this method before
        each evaluation.

        A replicated model can be evaluated without the other ranks. A sharded model has a separate coordinator for
        evaluation.
        """
        self._shards.reshard()
        if not self._shards.meshes():
            return SingleProcess()
        if not self._trains:
            return self
        if self._evaluation_ranks is None:
            self._evaluation_ranks = DistributedRanks(
                self._model, [], self._shards, self._timeout, trains=False
            )
        return self._evaluation_ranks

    def close(self) -> None:
        if self._host_group is not dist.group.WORLD:
            dist.destroy_process_group(self._host_group)

    def _retry_on_oom(self) -> AbstractContextManager[Any]:
        """Inside the block, collectives that run out of memory are retried, and weights are moved to host memory if
        needed. The collectives must complete, because other ranks wait for them.
        """
        if self._device.type == "cpu":
            return nullcontext()
        return RetryOnOOM(self._model.parameters, self._device)

    def _begin_pass(self, index: int, count: int) -> None:
        """Start recording the collectives of a pass.

        If the model issues collectives in every pass, each pass has its own record. If the only collectives are the
        averages of the gradients in the last pass, one record covers all passes, and ranks may run different numbers of
        passes.
        """
        self._next_pass = index + 1
        if self._needs_equal_passes:
            self._pending.begin((self._kind, index == 0, index == count - 1), f"{self._attempt}/{index}")
        elif index == 0:
            self._pending.begin(self._kind, f"{self._attempt}")
        self._in_pass = True

    def _end_pass(self, collectives: int) -> None:
        """End a pass, and check the number of its collectives.

        If the pass issued more collectives than Guard's own, the model itself communicates (SyncBatchNorm), and all
        ranks must run the same number of passes from the next attempt on. All ranks make the same decision, because
        they issue the same collectives.
        """
        self._in_pass = False
        self._model_communicates = collectives != self._own_collectives

    def _complete_remaining_passes(self) -> None:
        """Take part in the remaining passes of the other ranks by sending zeros."""
        if not self._needs_equal_passes and self._next_pass > 0:
            return
        passes = self._plan.passes if self._needs_equal_passes else 1
        for index in range(self._next_pass, passes):
            self._begin_pass(index, passes)
            self._end_pass(self._pending.complete_with_zeros())

    def _request_more_passes(self, needed: int) -> None:
        """Ask the other ranks to run more passes. The other ranks have already started the attempt with the old number
        of passes, so this attempt is discarded.
        """
        assert self._agreed_passes is not None
        self._sit_out(self._agreed_passes)
        self._conclude(_AttemptResult(invalid=True, short=True, passes=needed))

    def _sit_out(self, passes: int) -> None:
        """Send zeros as this rank's gradients in all passes of an attempt, so that the other ranks do not wait."""
        self._plan = SplitPlan(1, passes)
        self._next_pass = 0
        if self._exchanges_weights:
            self.total_weight(0.0, counts_samples=False)
        with self._retry_on_oom():
            self._complete_remaining_passes()

    def _conclude(self, own: "_AttemptResult") -> int | None:
        combined = _AttemptResult(*map(int, self._exchange(list(astuple(own)))))
        self._pending.clear(delete=self._rank == self._members[0])
        attempt, self._attempt = self._attempt, self._attempt + 1
        self._mean_weight = None
        self._needs_equal_passes = self._needs_equal_passes or self._model_communicates
        if combined.raised_by and not combined.oom:
            if own.raised_by:
                return None
            raise PeerFailed(self._stop_message(attempt, combined.raised_by - 1))
        if combined.short:
            self._shortages += 1
        must_exchange = combined.short or combined.exhausted or self._shortages >= _MAX_SHORTAGES
        self._agreed_passes = None if must_exchange else combined.passes
        if not combined.invalid:
            return None
        return 0 if combined.exhausted else max(1, math.ceil(self._batch_size / combined.passes))

    def _exchange(self, numbers: list[float], operation: Any = dist.ReduceOp.MAX) -> list[float]:
        tensor = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        try:
            with waiting("a method of Guard" if self._trains else "evaluate()"):
                dist.all_reduce(tensor, op=operation, group=self._host_group)
        except RuntimeError as error:
            raise self._missing_ranks("communication between ranks failed") from error
        return tensor.tolist()

    def _missing_ranks(self, occasion: str) -> RankMissing:
        prefix = f"here/{self._attempt}/"
        self._store.set(f"{prefix}{self._rank}", b"")
        deadline = time.monotonic() + min(_RESPONSE_SECONDS, self._timeout)
        missing = [rank for rank in self._members if rank != self._rank]
        gone: dict[int, str] = {}
        while set(missing) - set(gone) and time.monotonic() < deadline:
            time.sleep(0.05)
            missing = [rank for rank in missing if not self._store.check([f"{prefix}{rank}"])]
            gone = gone_ranks()
        states = [f"rank {rank} {gone.get(rank, 'does not respond')}" for rank in missing]
        status = ", ".join(states) or "all ranks still respond"
        return RankMissing(
            f"Rank {self._rank} stopped: {occasion}, and {status}. "
            "Check the output of the other processes for the cause, then restart the job."
        )

    def _store_reason(self, reason: str) -> None:
        self._store.set(f"reason/{self._attempt}/{self._rank}", reason[:400])

    def _stop_message(self, attempt: int, rank: int) -> str:
        reason = self._store.get(f"reason/{attempt}/{rank}").decode()
        return f"This rank stops because rank {rank} stopped: {reason}"


@dataclass(frozen=True, slots=True)
class _AttemptResult:
    """The result of an attempt on one rank, as integers. The combined result of all ranks contains the maximum of each
    field.
    """

    invalid: int = 0
    oom: int = 0
    exhausted: int = 0
    """1 if this rank cannot use a smaller micro-batch, otherwise 0."""
    short: int = 0
    """1 if this rank needs more passes than the ranks agreed on, otherwise 0."""
    raised_by: int = 0
    """1 + the rank that raised an error other than an out-of-memory error, or 0 if no rank raised such an error."""
    passes: int = 1
    """The number of passes that this rank proposes for the next attempt."""


def _replicated(model: nn.Module) -> list[DistributedDataParallel]:
    return [module for module in model.modules() if isinstance(module, DistributedDataParallel)]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _layer_groups(model: nn.Module) -> list[Any]:
    return [
        module.process_group
        for module in model.modules()
        if isinstance(module, nn.SyncBatchNorm) and module.process_group is not None
    ]


def _host_group(members: list[int], timeout: float, call: str) -> Any:
    """Return a gloo group between the hosts, whose exchanges do not wait for a GPU.

    Without gloo, the default group is used, whose exchanges synchronize with the device.
    """
    if not dist.is_gloo_available():
        return dist.group.WORLD
    all_ranks = len(members) == dist.get_world_size()
    wait_for_ranks(call, "host_group", members, timeout=timeout)
    with waiting(call):
        return dist.new_group(
            members,
            timeout=timedelta(seconds=timeout),
            backend="gloo",
            use_local_synchronization=not all_ranks,
        )


def _store(prefix: str) -> Any:
    """Return the key-value store of the default process group, with a prefix for all keys.

    The store comes from a private torch function. If torch lacks this function, a new store is created, which needs a
    free port on the machine of the first rank.
    """
    return group_store(prefix) or distributed_c10d.PrefixStore(prefix, _new_store())


def _new_store() -> Any:
    address: list[Any] = [None]
    store = None
    if dist.get_rank() == 0:
        host = socket.gethostname()
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        address = [(host, store.port)]
    with waiting("Guard()"):
        dist.broadcast_object_list(address)
    return store if store is not None else TCPStore(address[0][0], address[0][1], is_master=False)
