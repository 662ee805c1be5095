"""The ranks that write one checkpoint together: they learn the same folder, and that all have done their part, or who
has not.

They talk in a gloo group of their own, so that a checkpoint written in the background never meets the training's
collectives.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from legroom.errors import CheckpointError, LegroomError

T = TypeVar("T")


class Crew:
    """This process and those it trains with; alone where there is no process group."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        self.group: Any = dist.new_group(backend="gloo") if together else None

    @property
    def main(self) -> bool:
        return self.rank == 0

    def is_current(self) -> bool:
        """Whether the process group is still the one it was made for."""
        together = dist.is_available() and dist.is_initialized()
        return (dist.get_world_size() if together else 1) == self.size

    def from_main(self, value: T | None) -> T:
        """What rank 0 has."""
        held = [value]
        if self.group is not None:
            dist.broadcast_object_list(held, src=0, group=self.group)
        return held[0]  # type: ignore[return-value]

    def each(self, work: Callable[[], T]) -> T:
        """This rank's result, once all have worked. Failing on one rank is failing on all, with that rank's reason."""
        result: T = self._done(work, shared=False)[self.rank]
        return result

    def together(self, work: Callable[[], T]) -> list[T]:
        """As `each`, with everyone's result: small things."""
        return self._done(work, shared=True)

    def _done(self, work: Callable[[], T], *, shared: bool) -> list[Any]:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:
            if self.group is None:
                raise
            failure = error
        if self.group is None:
            return [result]
        told: list[Any] = [None] * self.size
        mine = (None if failure is None else _told(failure), result if shared else None)
        dist.all_gather_object(told, mine, group=self.group)
        if failure is not None:
            raise failure
        for rank, (reason, _) in enumerate(told):
            if reason is not None:
                raise CheckpointError(f"rank {rank}: {reason}")
        results = [each for _, each in told]
        results[self.rank] = result
        return results


def _told(failure: Exception) -> str:
    return str(failure) if isinstance(failure, LegroomError) else f"{type(failure).__name__}: {failure}"
