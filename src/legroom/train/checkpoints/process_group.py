"""The ranks that write a checkpoint together.

The ranks communicate in a separate gloo group, so writing a checkpoint in the background does not interfere with the
collectives of training.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from legroom.errors import CheckpointError, LegroomError
from legroom.log import log
from legroom.train.ranks.rank_errors import RankMissing
from legroom.train.ranks.waiting import (
    gone_ranks,
    group_store,
    log_on_all_ranks,
    wait_for_ranks,
    waiting,
)

T = TypeVar("T")
ARRIVAL_SECONDS = 5.0
"""The number of seconds that rank 0 waits for the other ranks in the first save."""
_CALL = "a method of Checkpoints"
_SAVE = "checkpoints.save()"
_ERROR = "error: "
_POLL_SECONDS = 0.005


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_main_rank() -> bool:
    return not is_distributed() or dist.get_rank() == 0


class CheckpointGroup:
    """A group of all ranks. If `alone` is set or if there is no process group, the group contains only this process."""

    def __init__(self, *, alone: bool = False) -> None:
        distributed = is_distributed() and not alone
        self.rank = dist.get_rank() if distributed else 0
        self.size = dist.get_world_size() if distributed else 1
        self.process_group: Any = None
        if distributed:
            wait_for_ranks(_CALL, "checkpoints")
            with waiting(_CALL):
                self.process_group = dist.new_group(backend="gloo")

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def is_current(self) -> bool:
        distributed = dist.is_available() and dist.is_initialized()
        return (dist.get_world_size() if distributed else 1) == self.size

    def broadcast(self, value: T | None) -> T:
        values = [value]
        if self.process_group is not None:
            with waiting(_CALL):
                dist.broadcast_object_list(values, src=0, group=self.process_group)
        return values[0]  # type: ignore[return-value]

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on all ranks and return this rank's result. If one rank fails, all ranks raise an error with the
        message of that rank."""
        result: T = self._run(work, gather=False)[self.rank]
        return result

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Run `work` on all ranks and return the results of all ranks. The results must be small."""
        return self._run(work, gather=True)

    def _run(self, work: Callable[[], T], *, gather: bool) -> list[Any]:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:
            if self.process_group is None:
                raise
            failure = error
        if self.process_group is None:
            return [result]
        gathered: list[Any] = [None] * self.size
        own = (None if failure is None else _message(failure), result if gather else None)
        with waiting(_CALL):
            dist.all_gather_object(gathered, own, group=self.process_group)
        if failure is not None:
            raise failure
        for rank, (message, _) in enumerate(gathered):
            if message is not None:
                raise CheckpointError(f"Rank {rank}: {message}")
        results = [each for _, each in gathered]
        results[self.rank] = result
        return results


class SaveCalls:
    """Determines whether all ranks call `save`, or only rank 0, as in `if rank == 0: checkpoints.save(step)`.

    Each rank that calls `save` writes a key to the store of the process group. Rank 0 waits for the keys of the other
    ranks and writes its decision. If all ranks have called `save` before, rank 0 waits for every rank that has not
    exited, without a time limit.
    """

    def __init__(self, folder: Path) -> None:
        self._store: Any = group_store(f"legroom/checkpoints/{folder}")
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._step, self._repeats = -1, 0
        self._is_alone = False

    def all_ranks(self, step: int, *, has_all_state: bool) -> bool | None:
        """Return True if all ranks save this step together. Return False if rank 0 must save it alone, and None if rank
        0 has already saved it alone.

        Raise an error if only rank 0 saves the step, but some weights are on other ranks.
        """
        if self._store is None:  # the ranks cannot be compared
            return True
        self._repeats = self._repeats + 1 if step == self._step else 0
        self._step = step
        key = f"{step}/{self._repeats}"
        self._store.set(f"called/{self._rank}", b"")
        self._store.set(f"{key}/{self._rank}", b"")
        with waiting(_SAVE):
            if self._rank == 0:
                decision = self._decide(key, has_all_state)
                self._store.set(f"{key}/decision", decision)
            else:
                decision = self._wait_for_decision(f"{key}/decision")
        if decision.startswith(_ERROR):
            raise CheckpointError(decision.removeprefix(_ERROR))
        if decision == "together":
            return True
        return None if self._rank else False

    def _wait_for_decision(self, key: str) -> str:
        while not self._store.check([key]):
            if (how := gone_ranks().get(0)) is not None:
                raise RankMissing(
                    f"Rank 0 {how}, and rank {self._rank} waited for it in {_SAVE}. Every rank must call save()."
                )
            time.sleep(_POLL_SECONDS)
        decision: bytes = self._store.get(key)
        return decision.decode()

    def _decide(self, key: str, has_all_state: bool) -> str:
        arrived = [f"{key}/{rank}" for rank in range(self._size)]
        called = [f"called/{rank}" for rank in range(self._size)]
        deadline = time.monotonic() + (0.0 if self._is_alone else ARRIVAL_SECONDS)
        gone: dict[int, str] = {}
        while not self._store.check(arrived):
            gone = {rank: how for rank, how in gone_ranks().items() if not self._store.check([arrived[rank]])}
            if gone or (time.monotonic() >= deadline and not self._store.check(called)):
                break
            time.sleep(_POLL_SECONDS)
        else:
            self._is_alone = False
            return "together"
        if not has_all_state:
            reason = "".join(f"Rank {rank} {how}. " for rank, how in gone.items())
            log_on_all_ranks(f"Rank 0 stopped: {reason}{_NOT_ALONE}")
            return f"{_ERROR}{reason}{_NOT_ALONE}"
        if not self._is_alone:
            log.warning(
                "Only rank 0 called checkpoints.save(). The checkpoint does not contain the random states and loader "
                "positions of the other ranks. To include them, call save() on every rank."
            )
        self._is_alone = True
        return "alone"


_NOT_ALONE = (
    "Only rank 0 called checkpoints.save(), but the weights are distributed across all ranks. Call save() on every rank, "
    "without `if rank == 0:`."
)


def _message(failure: Exception) -> str:
    return str(failure) if isinstance(failure, LegroomError) else f"{type(failure).__name__}: {failure}"
