"""The protocol of a searcher, and the results from which a searcher learns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from legroom.tuning.memory.admission import Admission
from legroom.tuning.space.space import Config


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a trial for the searcher. A result has a value or a `shortage`, or neither if the trial failed."""

    value: float | None = None
    """The metric as reported, regardless of `mode`."""
    shortage: float | None = None
    """For a configuration that can never fit, the missing memory as a fraction of the memory of the largest GPU."""
    is_partial: bool = False
    step: int = 0
    best: float | None = None
    """The best reported value, by which trials are ranked."""
    values: tuple[float, ...] = ()
    seconds: float | None = None
    """The runtime in seconds, if the trial was started only once."""


class Searcher(Protocol):
    """Proposes configurations.

    A searcher receives the result of every trial, and proposes trials in the order of their numbers. A searcher stores
    nothing on disk. A resumed study creates a new searcher and repeats all calls in the same order, which must lead to
    the same proposals.
    """

    startup_trials: int | None
    """The number of first proposals that do not depend on results, or None if proposals never depend on results. These
    first proposals can be requested before any trial has ended.
    """

    def propose(self, number: int) -> Config | None:
        """Return the configuration of trial `number`, or None if there are no further configurations."""

    def learn(self, number: int, config: Config, result: Result) -> None: ...


@runtime_checkable
class OrderingSearcher(Protocol):
    """A searcher that also chooses the start order of waiting trials. All random proposals of the searcher are
    requested at once.
    """

    def start_order(self, waiting: Mapping[int, Admission]) -> list[int]: ...
