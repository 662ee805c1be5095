"""The interface between Guard and the coordination of ranks. `SingleProcess` is the implementation for a single process."""

import contextlib
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from legroom.diagnose.oom.recognize import ErrorClassification

T = TypeVar("T")


class SplitPlan(NamedTuple):
    micro_batch_size: int
    passes: int
    is_exact: bool = False
    """True if every rank must run exactly `passes` passes."""


class RankCoordinator(Protocol):
    keeps_finished_micro_batches: bool

    def plan(self, batch_size: int, micro: int) -> SplitPlan: ...
    def total_weight(self, total: float, *, counts_samples: bool) -> float: ...
    def micro_batch(self, index: int, count: int, kind: Hashable = None) -> AbstractContextManager[Any]: ...
    def complete_pending(self, failure: Any) -> None: ...
    def agree(self, failure: Any, proposal: int) -> int | None: ...
    def report_error(self, error: BaseException) -> int | None: ...
    def abort(self, reason: str) -> None: ...
    def join(self, batches: Iterable[T]) -> Iterator[T]: ...
    def no_sync(self) -> AbstractContextManager[Any]: ...
    def for_evaluation(self) -> "RankCoordinator": ...


class SingleProcess:
    keeps_finished_micro_batches = True

    def plan(self, batch_size: int, micro: int) -> SplitPlan:
        return SplitPlan(micro, -(-batch_size // micro))

    def total_weight(self, total: float, *, counts_samples: bool) -> float:
        return total

    def micro_batch(self, index: int, count: int, kind: Hashable = None) -> AbstractContextManager[Any]:
        return _NULL_CONTEXT

    def complete_pending(self, failure: ErrorClassification) -> None:
        pass

    def agree(self, failure: ErrorClassification | None, proposal: int) -> int | None:
        return None if failure is None else proposal

    def report_error(self, error: BaseException) -> int | None:
        return None

    def abort(self, reason: str) -> None:
        pass

    def join(self, batches: Iterable[T]) -> Iterator[T]:
        return iter(batches)

    def no_sync(self) -> AbstractContextManager[Any]:
        return _NULL_CONTEXT

    def for_evaluation(self) -> RankCoordinator:
        return self


_NULL_CONTEXT = contextlib.nullcontext()
