"""The ranks that write one checkpoint together.

These ranks communicate in a separate gloo group, so a checkpoint that is written in the background never interferes
with the collectives of the training.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from legroom.errors import CheckpointError, LegroomError

T = TypeVar("T")


class CheckpointGroup:
    """The processes of the training, or a single process if there is no process group."""

    def __init__(self) -> None:
        distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if distributed else 0
        self.size = dist.get_world_size() if distributed else 1
        self.process_group: Any = dist.new_group(backend="gloo") if distributed else None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def is_current(self) -> bool:
        """Return True if the number of ranks has not changed since the group was created."""
        distributed = dist.is_available() and dist.is_initialized()
        return (dist.get_world_size() if distributed else 1) == self.size

    def broadcast(self, value: T | None) -> T:
        """Return the value of rank 0."""
        values = [value]
        if self.process_group is not None:
            dist.broadcast_object_list(values, src=0, group=self.process_group)
        return values[0]  # type: ignore[return-value]

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on all ranks and return this rank's result. If one rank fails, all ranks raise its error
        message."""
        result: T = self._run(work, gather=False)[self.rank]
        return result

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Run `work` on all ranks and return the results of all ranks, which must be small."""
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
        dist.all_gather_object(gathered, own, group=self.process_group)
        if failure is not None:
            raise failure
        for rank, (message, _) in enumerate(gathered):
            if message is not None:
                raise CheckpointError(f"Rank {rank}: {message}")
        results = [each for _, each in gathered]
        results[self.rank] = result
        return results


def _message(failure: Exception) -> str:
    return str(failure) if isinstance(failure, LegroomError) else f"{type(failure).__name__}: {failure}"
