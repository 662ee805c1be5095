"""Population-based training. Poor trials continue from the weights and a perturbed configuration of good trials.

Every `interval` steps, a trial is compared with the latest reports of the other trials. A trial in the worst quarter
continues from the checkpoint of a trial in the best quarter, with the configuration of that trial. Each value of a
float range is perturbed, or sometimes sampled again. Integers and choices are copied unchanged, because they may
determine the shapes of the weights. If not all trials can run at the same time, a trial with more steps than other
trials pauses, so that waiting trials can run.
"""

import math

from numpy.random import Generator, default_rng

from legroom.errors import UsageError
from legroom.tuning.schedule.protocol import CONTINUE, Action, Decision
from legroom.tuning.space.domains import FloatRange
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode

QUANTILE = 0.25
RESAMPLE_PROBABILITY = 0.25
"""The probability that a parameter is sampled again instead of perturbed."""
PERTURBATION = 0.1


class PopulationBasedTraining:
    def __init__(self, space: Space, mode: Mode, seed: int, *, interval: int = 1) -> None:
        if interval < 1:
            raise UsageError(
                f"The interval of population-based training must be 1 step or more, not {interval}."
            )
        if not any(isinstance(parameter.domain, FloatRange) for parameter in space.parameters):
            raise UsageError(
                "Population-based training perturbs the values of float ranges, but the space has no float range. "
                "Use `asha` or `median`."
            )
        self._space, self._seed, self._interval = space, seed, interval
        self._sign = 1.0 if mode == "min" else -1.0
        self._scores: dict[int, tuple[int, float]] = {}
        self._configs: dict[int, Config] = {}
        self._ended: set[int] = set()

    def reported(self, number: int, config: Config, step: int, value: float) -> Decision:
        score = self._sign * value if math.isfinite(value) else math.inf
        self._scores[number], self._configs[number] = (step, score), config
        if step % self._interval or len(self._scores) < 2:
            return CONTINUE
        ranked = sorted(self._scores, key=lambda one: self._scores[one][1])
        few = max(1, math.floor(len(ranked) * QUANTILE))
        if number in ranked[-few:] and number not in ranked[:few]:
            rng = default_rng((self._seed, number, step))
            parent = ranked[int(rng.integers(few))]
            changed = self._perturbed(self._configs[parent], rng)
            reason = f"PBT at step {step}: rank {ranked.index(number) + 1} of {len(ranked)}; continuing from trial {parent}"
            return Decision(Action.EXPLOIT, reason, parent, changed)
        behind = [
            other for other in self._scores if other not in self._ended and self._scores[other][0] < step
        ]
        return (
            Decision(
                Action.PAUSE,
                f"PBT at step {step}: waiting for {len(behind)} other trial{'s' if len(behind) > 1 else ''}",
            )
            if behind
            else CONTINUE
        )

    def ended(self, number: int) -> None:
        self._ended.add(number)

    def _perturbed(self, config: Config, rng: Generator) -> Config:
        perturbed = dict(config)
        for parameter in self._space.parameters:
            if parameter.name in perturbed and isinstance(parameter.domain, FloatRange):
                perturbed[parameter.name] = _perturbed(parameter.domain, perturbed[parameter.name], rng)
        return self._space.with_constants(perturbed)


def _perturbed(domain: FloatRange, value: float, rng: Generator) -> float:
    if rng.random() < RESAMPLE_PROBABILITY:
        return domain.draw(rng)
    return domain.from_unit(domain.to_unit(value) + (PERTURBATION if rng.random() < 0.5 else -PERTURBATION))
