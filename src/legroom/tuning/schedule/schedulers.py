"""Schedulers that stop poor trials early: successive halving (ASHA) and median stopping.

Optuna's pruners and Ray's schedulers follow the same rules, but depend on their own trial objects and storage. The
schedulers in this module are pure functions of the reports, so every engine can use them, and a resumed study can
replay the reports.
"""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

from legroom.errors import UsageError
from legroom.tuning.schedule.population import PopulationBasedTraining
from legroom.tuning.schedule.protocol import CONTINUE, Action, Decision, Scheduler
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode


class Asha:
    """Stops trials by asynchronous successive halving (ASHA). At the steps `grace_period`, `grace_period *
    reduction_factor`, ..., only the best 1/`reduction_factor` of the trials continue.

    A trial is complete after `max_steps` steps.
    """

    def __init__(
        self, mode: Mode, *, grace_period: int = 1, reduction_factor: float = 2, max_steps: int | None = None
    ) -> None:
        if grace_period < 1 or reduction_factor <= 1:
            raise UsageError(
                f"ASHA needs a grace period of 1 or more and a reduction factor above 1, not {grace_period} and {reduction_factor}."
            )
        self._sign = 1.0 if mode == "min" else -1.0
        self.grace_period, self.reduction_factor, self.max_steps = grace_period, reduction_factor, max_steps
        self._rungs: dict[int, dict[int, float]] = defaultdict(dict)
        self._passed: dict[int, int] = {}

    def reported(self, number: int, config: Config, step: int, value: float) -> Decision:
        if self.max_steps is not None and step >= self.max_steps:
            return Decision(
                Action.STOP, f"Complete after {step} step{'s' if step > 1 else ''} (max_steps)", is_done=True
            )
        rung = self._rung_at(step)
        if rung is None or self._passed.get(number, 0) >= rung:
            return CONTINUE
        self._passed[number] = rung
        score = self._sign * value if math.isfinite(value) else math.inf
        others = self._rungs[rung]
        others[number] = score
        cutoff = sorted(others.values())[max(0, math.floor(len(others) / self.reduction_factor) - 1)]
        if score <= cutoff or len(others) == 1:
            return CONTINUE
        rank = 1 + sum(other < score for other in others.values())
        few = math.floor(len(others) / self.reduction_factor) or 1
        which = "only the best trial continues" if few == 1 else f"the best {few} continue"
        return Decision(Action.STOP, f"ASHA at step {rung}: rank {rank} of {len(others)}; {which}")

    def ended(self, number: int) -> None:
        """Keep the scores of the trial for the comparison with later trials."""

    def _rung_at(self, step: int) -> int | None:
        rung, found = float(self.grace_period), None
        while round(rung) <= step:
            found = round(rung)
            rung *= self.reduction_factor
        return found


class MedianStopping:
    """Stops a trial whose best value so far is worse than the median of the other trials' averages up to the same step."""

    def __init__(self, mode: Mode, *, grace_period: int = 1, min_samples: int = 3) -> None:
        self._sign = 1.0 if mode == "min" else -1.0
        self.grace_period, self.min_samples = grace_period, min_samples
        self._scores: dict[int, list[tuple[int, float]]] = defaultdict(list)

    def reported(self, number: int, config: Config, step: int, value: float) -> Decision:
        self._scores[number].append((step, self._sign * value if math.isfinite(value) else math.inf))
        if step < self.grace_period:
            return CONTINUE
        means = [
            statistics.fmean(score for at, score in scores if at <= step)
            for other, scores in self._scores.items()
            if other != number and scores[-1][0] >= step
        ]
        if len(means) < self.min_samples:
            return CONTINUE
        best = min(score for _, score in self._scores[number])
        if best <= statistics.median(means):
            return CONTINUE
        return Decision(
            Action.STOP,
            f"Worse than the median of {len(means)} other trial{'s' if len(means) > 1 else ''} at step {step}",
        )

    def ended(self, number: int) -> None:
        """Keep the values of the trial for the comparison with later trials."""


SCHEDULERS = ("asha", "median", "pbt")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """The options of all schedulers."""

    grace_period: int = 1
    reduction_factor: float = 2
    max_steps: int | None = None
    interval: int = 1


def make_scheduler(
    scheduler: str | None, space: Space, mode: Mode, seed: int, options: SchedulerOptions
) -> Scheduler | None:
    if scheduler is None:
        return None
    if scheduler == "asha":
        return Asha(
            mode,
            grace_period=options.grace_period,
            reduction_factor=options.reduction_factor,
            max_steps=options.max_steps,
        )
    if scheduler == "median":
        return MedianStopping(mode, grace_period=options.grace_period)
    if scheduler == "pbt":
        return PopulationBasedTraining(space, mode, seed, interval=options.interval)
    raise UsageError(f"Unknown scheduler `{scheduler}`. Choose `asha`, `median`, `pbt` or `none`.")
