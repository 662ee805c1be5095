"""Bayesian optimization with a Gaussian process (bayesian-optimization), asked as Ray Tune's `BayesOptSearch` does it: with the same seed it
proposes the same, as long as no trial runs while it is asked.

It knows numbers only. A plain range of floats is one as it is; every other range is laid onto the line from 0 to 1, where Ray's takes a
logarithmic range for a plain one and refuses whole numbers. What can never fit is a point with a penalty. Trials that run while it is asked count as
average ones: without that it would propose them once more.
"""

import warnings

import numpy
from bayes_opt import BayesianOptimization, UtilityFunction

from legroom.tuning.domains import AnyDomain, Choice, FloatRange
from legroom.tuning.penalties import Penalties
from legroom.tuning.records import Mode
from legroom.tuning.searchers import Result
from legroom.tuning.space import Config, Space

RANDOM_FIRST, CAUTION = 10, 2.576
"""Points at random before the process is asked, and how many standard deviations above its mean it hopes for: Ray Tune's settings."""

Point = dict[str, float]


class BayesSearcher:
    """Proposes where the upper confidence bound is highest."""

    start_up: int | None = RANDOM_FIRST

    def __init__(self, space: Space, mode: Mode, seed: int) -> None:
        self._space = space
        self._penalties = Penalties(mode)
        self._bounds = {p.name: _bounds(p.domain) for p in space.parameters}
        self._first = BayesianOptimization(f=None, pbounds=self._bounds, random_state=seed, verbose=0)
        """Knows nothing, so it draws at random."""
        self._dice = numpy.random.RandomState(seed)
        self._known: list[tuple[Point, Result]] = []
        self._running: dict[int, Point] = {}

    def propose(self, number: int) -> Config | None:
        optimizer = self._first if len(self._known) < RANDOM_FIRST else self._informed()
        point = optimizer.suggest(UtilityFunction(kind="ucb", kappa=CAUTION))
        self._running[number] = {name: float(value) for name, value in point.items()}
        return self._config(self._running[number])

    def learn(self, number: int, config: Config, result: Result) -> None:
        self._penalties.learn(result)
        point = self._running.pop(number)
        if self._config(point) != config:  # population-based training has moved it
            point = {p.name: _place(p.domain, config[p.name]) for p in self._space.parameters}
        if result.value is not None or result.shortage is not None:
            self._known.append((point, result))

    def _informed(self) -> BayesianOptimization:
        """An optimizer that knows all, with penalties that go by all that is known now."""
        optimizer = BayesianOptimization(
            f=None, pbounds=self._bounds, random_state=self._dice, verbose=0, allow_duplicate_points=True
        )
        losses = [self._penalties.loss(result) for _, result in self._known]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for (point, _), loss in zip(self._known, losses, strict=True):
                optimizer.register(point, -loss)
            for point in self._running.values():
                optimizer.register(point, -sum(losses) / len(losses))
        return optimizer

    def _config(self, point: Point) -> Config:
        return self._space.with_constants(
            {p.name: _value(p.domain, point[p.name]) for p in self._space.parameters}
        )


def _is_plain(domain: AnyDomain) -> bool:
    return isinstance(domain, FloatRange) and not domain.log and domain.step is None


def _bounds(domain: AnyDomain) -> tuple[float, float]:
    assert not isinstance(domain, Choice), "check_search refuses choices"
    return (domain.low, domain.high) if _is_plain(domain) else (0.0, 1.0)


def _value(domain: AnyDomain, place: float) -> float:
    assert not isinstance(domain, Choice)
    return place if _is_plain(domain) else domain.at(place)


def _place(domain: AnyDomain, value: float) -> float:
    """The other way round."""
    assert not isinstance(domain, Choice)
    return value if _is_plain(domain) else domain.share(value)
