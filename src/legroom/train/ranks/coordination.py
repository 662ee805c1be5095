"""What a Guard asks of the other ranks; `Alone` is the answer where there are none."""

import contextlib
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from legroom.diagnose.oom.recognize import ErrorClassification

T = TypeVar("T")


class Plan(NamedTuple):
    """What every rank does with its batch."""

    micro: int
    chunks: int
    is_exact: bool = False
    """Whether every rank must make that many passes, no fewer."""


class AgreedRanks(Protocol):
    """How ranks that train one model decide together."""

    keeps_finished_chunks: bool

    def plan(self, batch_size: int, micro: int) -> Plan: ...
    def weights(self, total: float, *, by_rows: bool) -> float: ...
    def chunk(self, index: int, count: int, kind: Hashable = None) -> AbstractContextManager[Any]: ...
    def failed(self, failure: Any) -> None: ...
    def settle(self, failure: Any, proposal: int) -> int | None: ...
    def raised(self, error: BaseException) -> int | None: ...
    def gave_up(self, why: str) -> None: ...
    def together(self, batches: Iterable[T]) -> Iterator[T]: ...
    def apart(self) -> AbstractContextManager[Any]: ...
    def for_evaluation(self) -> "AgreedRanks": ...


class Alone:
    """One process: nobody to ask."""

    keeps_finished_chunks = True

    def plan(self, batch_size: int, micro: int) -> Plan:
        return Plan(micro, -(-batch_size // micro))

    def weights(self, total: float, *, by_rows: bool) -> float:
        return total

    def chunk(self, index: int, count: int, kind: Hashable = None) -> AbstractContextManager[Any]:
        return _NOTHING

    def failed(self, failure: ErrorClassification) -> None:
        pass

    def settle(self, failure: ErrorClassification | None, proposal: int) -> int | None:
        return None if failure is None else proposal

    def raised(self, error: BaseException) -> int | None:
        return None

    def gave_up(self, why: str) -> None:
        pass

    def together(self, batches: Iterable[T]) -> Iterator[T]:
        return iter(batches)

    def apart(self) -> AbstractContextManager[Any]:
        return _NOTHING

    def for_evaluation(self) -> AgreedRanks:
        return self


_NOTHING = contextlib.nullcontext()
