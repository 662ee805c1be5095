"""Population-based training: trials that lag behind take over the weights of those ahead, with a changed configuration.

Every `interval` steps a trial is compared with what the others had last reported. If it is among the worst quarter it goes on from
the checkpoint of one among the best quarter, with that one's configuration, each range of floats moved a little or, now and then,
drawn anew. Whole numbers and choices come along as they are: weights may have their shapes by them. With fewer places than trials, one that has come further than others that wait makes room for them.
"""

import math

from numpy.random import Generator, default_rng

from legroom.errors import UsageError
from legroom.tuning.schedule.schedulers import GO_ON, Action, Decision
from legroom.tuning.space.domains import FloatRange
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode

QUARTER = 0.25
DRAWN_ANEW = 0.25
"""How often a parameter is drawn anew instead of moved."""
MOVE = 0.1
"""Of a range, to either side."""


class Population:
    """The scheduler `pbt`."""

    def __init__(self, space: Space, mode: Mode, seed: int, *, interval: int = 1) -> None:
        if interval < 1:
            raise UsageError(
                f"population-based training looks every so many steps, 1 or more, not {interval}"
            )
        if not any(isinstance(parameter.domain, FloatRange) for parameter in space.parameters):
            raise UsageError(
                "population-based training moves ranges of floats, and the space has none: use asha or median"
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
            return GO_ON
        ranked = sorted(self._scores, key=lambda one: self._scores[one][1])
        few = max(1, math.floor(len(ranked) * QUARTER))
        if number in ranked[-few:] and number not in ranked[:few]:
            dice = default_rng((self._seed, number, step))
            parent = ranked[int(dice.integers(few))]
            changed = self._moved(self._configs[parent], dice)
            why = f"took over trial {parent} at step {step}: it was at place {ranked.index(number) + 1} of {len(ranked)}"
            return Decision(Action.TAKE_OVER, why, parent, changed)
        behind = [
            other for other in self._scores if other not in self._ended and self._scores[other][0] < step
        ]
        return Decision(Action.PAUSE, f"waits for {len(behind)} others at step {step}") if behind else GO_ON

    def ended(self, number: int) -> None:
        self._ended.add(number)

    def _moved(self, config: Config, dice: Generator) -> Config:
        moved = dict(config)
        for parameter in self._space.parameters:
            if parameter.name in moved and isinstance(parameter.domain, FloatRange):
                moved[parameter.name] = _moved(parameter.domain, moved[parameter.name], dice)
        return self._space.with_constants(moved)


def _moved(domain: FloatRange, value: float, dice: Generator) -> float:
    if dice.random() < DRAWN_ANEW:
        return domain.draw(dice)
    return domain.at(domain.share(value) + (MOVE if dice.random() < 0.5 else -MOVE))
