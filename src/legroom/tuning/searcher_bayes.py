"""Bayesian optimization with a Gaussian process (bayesian-optimization). It knows numbers only, so every range is laid onto the
line from 0 to 1; what can never fit is a point with a penalty."""

import warnings
from typing import Any

from bayes_opt import BayesianOptimization, UtilityFunction

from legroom.tuning.domains import AnyDomain, Choice
from legroom.tuning.penalties import Penalties
from legroom.tuning.records import Mode
from legroom.tuning.searchers import Result
from legroom.tuning.space import Config, Space

RANDOM_FIRST = 5
"""Points at random before the process is asked."""


class BayesSearcher:
    """Proposes where the upper confidence bound is highest; trials that still run count as average ones meanwhile."""

    def __init__(self, space: Space, mode: Mode, seed: int) -> None:
        self._space, self._seed = space, seed
        self._penalties = Penalties(mode)
        self._known: list[tuple[dict[str, float], Result]] = []
        self._running: dict[int, dict[str, float]] = {}

    def propose(self, number: int) -> Config | None:
        from random import Random

        dice = Random(f"{self._seed}/{number}")
        if len(self._known) < RANDOM_FIRST:
            point = {p.name: dice.random() for p in self._space.parameters}
        else:
            point = self._suggested(number)
        self._running[number] = point
        return self._space.with_constants(
            {p.name: _line(p.domain).at(point[p.name]) for p in self._space.parameters}
        )

    def learn(self, number: int, config: Config, result: Result) -> None:
        self._penalties.learn(result)
        self._running.pop(number, None)
        if result.value is not None or result.shortage is not None:
            point = {p.name: _line(p.domain).share(config[p.name]) for p in self._space.parameters}
            self._known.append((point, result))

    def _suggested(self, number: int) -> dict[str, float]:
        optimizer = BayesianOptimization(
            f=None,
            pbounds={p.name: (0.0, 1.0) for p in self._space.parameters},
            random_state=hash((self._seed, number)) & 0x7FFFFFFF,
            verbose=0,
            allow_duplicate_points=True,
        )
        losses = [self._penalties.loss(result) for _, result in self._known]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for (point, _), loss in zip(self._known, losses, strict=True):
                optimizer.register(point, -loss)
            for point in self._running.values():
                optimizer.register(point, -sum(losses) / len(losses))
            return {
                name: float(value)
                for name, value in optimizer.suggest(UtilityFunction(kind="ucb", kappa=2.5)).items()
            }


def _line(domain: AnyDomain) -> Any:
    assert not isinstance(domain, Choice), "check_search refuses choices"
    return domain
