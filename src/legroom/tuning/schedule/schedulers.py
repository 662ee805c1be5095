"""When a trial is cut short: the protocol of a scheduler, successive halving (ASHA) and the median rule.

A scheduler is told every report and decides about the trial that made it. Like a searcher it writes nothing down: told the
same reports in the same order it decides the same, which is how a resumed study gets its state back.
"""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from legroom.errors import UsageError
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode


class Action(StrEnum):
    """What a trial does after a report."""

    GO_ON = "go on"
    STOP = "stop"
    PAUSE = "pause"
    """End the process; go on from the checkpoint when there is a place."""
    TAKE_OVER = "take over"
    """End the process; go on from another trial's checkpoint with a changed configuration."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, and its reason in a few words."""

    action: Action = Action.GO_ON
    why: str = ""
    parent: int | None = None
    """Whose checkpoint to take over."""
    config: Config | None = None
    """What to go on with."""
    is_done: bool = False
    """It stops because it has come to its end, and is not cut short."""


GO_ON = Decision()


class Scheduler(Protocol):
    """One way to save time on trials that promise little."""

    def reported(self, number: int, config: Config, step: int, value: float) -> Decision:
        """Trial `number` reported `value` (as the user reports it) at `step`."""

    def ended(self, number: int) -> None:
        """No more reports will come from it."""


class Asha:
    """Asynchronous successive halving: at steps `grace`, `grace * reduction`, ... only the best 1/`reduction` go on.

    `most_steps`: where a trial is done, however well it does.
    """

    def __init__(
        self, mode: Mode, *, grace: int = 1, reduction: float = 2, most_steps: int | None = None
    ) -> None:
        if grace < 1 or reduction <= 1:
            raise UsageError(
                f"ASHA needs a grace period of 1 or more and a reduction factor above 1, not {grace} and {reduction}"
            )
        self._sign = 1.0 if mode == "min" else -1.0
        self.grace, self.reduction, self.most_steps = grace, reduction, most_steps
        self._rungs: dict[int, dict[int, float]] = defaultdict(dict)
        self._passed: dict[int, int] = {}

    def reported(self, number: int, config: Config, step: int, value: float) -> Decision:
        if self.most_steps is not None and step >= self.most_steps:
            return Decision(Action.STOP, f"done after {step} steps, as many as were asked for", is_done=True)
        rung = self._rung_at(step)
        if rung is None or self._passed.get(number, 0) >= rung:
            return GO_ON
        self._passed[number] = rung
        score = self._sign * value if math.isfinite(value) else math.inf
        others = self._rungs[rung]
        others[number] = score
        kept = sorted(others.values())[max(0, math.floor(len(others) / self.reduction) - 1)]
        if score <= kept or len(others) == 1:
            return GO_ON
        rank = 1 + sum(other < score for other in others.values())
        few = math.floor(len(others) / self.reduction) or 1
        who = "only the best goes on" if few == 1 else f"the best {few} go on"
        return Decision(Action.STOP, f"ASHA at step {rung}: place {rank} of {len(others)}, and {who}")

    def ended(self, number: int) -> None:
        """Its scores stay: they are what others are measured by."""

    def _rung_at(self, step: int) -> int | None:
        """The highest rung that is at or below `step`."""
        rung, found = float(self.grace), None
        while round(rung) <= step:
            found = round(rung)
            rung *= self.reduction
        return found


class Median:
    """A trial stops when its best value so far is worse than the median of the others' means up to the same step."""

    def __init__(self, mode: Mode, *, grace: int = 1, fewest: int = 3) -> None:
        self._sign = 1.0 if mode == "min" else -1.0
        self.grace, self.fewest = grace, fewest
        self._told: dict[int, list[tuple[int, float]]] = defaultdict(list)

    def reported(self, number: int, config: Config, step: int, value: float) -> Decision:
        self._told[number].append((step, self._sign * value if math.isfinite(value) else math.inf))
        if step < self.grace:
            return GO_ON
        means = [
            statistics.fmean(score for at, score in told if at <= step)
            for other, told in self._told.items()
            if other != number and told[-1][0] >= step
        ]
        if len(means) < self.fewest:
            return GO_ON
        best = min(score for _, score in self._told[number])
        if best <= statistics.median(means):
            return GO_ON
        return Decision(Action.STOP, f"worse than the median of {len(means)} others at step {step}")

    def ended(self, number: int) -> None:
        """Its values stay: they are what others are measured by."""


SCHEDULERS = ("asha", "median", "pbt")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """What the schedulers can be told; each takes what concerns it."""

    grace: int = 1
    reduction: float = 2
    most_steps: int | None = None
    interval: int = 1
    """Steps between two looks of population-based training."""


def make_scheduler(
    scheduler: str | None, space: Space, mode: Mode, seed: int, options: SchedulerOptions
) -> Scheduler | None:
    """A scheduler by name."""
    if scheduler is None:
        return None
    if scheduler == "asha":
        return Asha(mode, grace=options.grace, reduction=options.reduction, most_steps=options.most_steps)
    if scheduler == "median":
        return Median(mode, grace=options.grace)
    if scheduler == "pbt":
        from legroom.tuning.schedule.population import Population

        return Population(space, mode, seed, interval=options.interval)
    raise UsageError(f"the scheduler '{scheduler}' is not known: choose {', '.join(SCHEDULERS)} or none")
