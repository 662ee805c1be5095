"""Bayesian optimization with a Gaussian process (the bayesian-optimization package), with the settings of Ray Tune's
`BayesOptSearch`.

With the same seed, this searcher proposes the same configurations as Ray, as long as all configurations fit and trials
run one after the other.

Only numeric parameters are supported. Linear float ranges are used unchanged, and every other range is mapped to the
interval from 0 to 1. Ray treats logarithmic ranges as linear and rejects integer ranges. Running trials are assumed to
have an average result, because their configurations would otherwise be proposed again.

Unlike Ray's searcher, this searcher continues if one of its ten random trials fails, and learns from configurations
that can never fit. After the random points, the searcher proposes the point with the best score among the points that
probably fit (see `expected_improvement`). The random points are the same as Ray's, but unsplit and small trials start
first, because they finish first. Once a few results are known, the most promising point starts first.
"""

import statistics
import warnings
from collections.abc import Mapping

import numpy
from bayes_opt import BayesianOptimization, UtilityFunction

from legroom.tuning.memory.admission import Admission, AdmissionVerdict
from legroom.tuning.search.expected_improvement import Observations, Points, score
from legroom.tuning.search.penalties import Penalties
from legroom.tuning.search.protocol import Result
from legroom.tuning.space.domains import Categorical, FloatRange, IntRange, PowerRange, Sampled
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode

STARTUP_TRIALS, UTILITY = 10, UtilityFunction(kind="ucb", kappa=2.576)
"""The number of random points before the model is used, and the acquisition function, as in Ray Tune."""

MIN_RESULTS = 4
"""The minimum number of results before proposals are based on them."""
GLOBAL_CANDIDATES, LOCAL_CANDIDATES, BEST_TRIALS = 2000, 300, 3
"""The number of candidates from the whole space, the number of candidates near each of the best trials, and the number
of best trials.
"""
LOCAL_SPREAD = 0.1
"""The standard deviation of the candidates around a trial, as a fraction of the range."""

Range = FloatRange | IntRange | PowerRange
Point = dict[str, float]


class BayesSearcher:
    """Proposes the point with the highest upper confidence bound. If any configuration did not fit, the searcher
    proposes the point with the highest score instead (see `expected_improvement`).
    """

    startup_trials: int | None = STARTUP_TRIALS

    def __init__(self, space: Space, mode: Mode, seed: int) -> None:
        self._space = space
        self._penalties = Penalties(mode)
        self._ranges = _ranges(space)
        self._bounds = {name: _bounds(domain) for name, domain in self._ranges.items()}
        self._first = BayesianOptimization(f=None, pbounds=self._bounds, random_state=seed, verbose=0)
        self._seed, self._rng = seed, numpy.random.RandomState(seed)
        self._proposed = 0
        self._results: list[tuple[Point, Result]] = []
        self._running: dict[int, Point] = {}

    def propose(self, number: int) -> Config | None:
        self._proposed += 1
        if self._proposed <= STARTUP_TRIALS or len(self._with_value) < MIN_RESULTS:
            point = self._first.suggest(UTILITY)
        elif self._has_misfits:
            point = self._most_promising()
        else:
            point = self._fitted().suggest(UTILITY)
        self._running[number] = {name: float(value) for name, value in point.items()}
        return self._config(self._running[number])

    def start_order(self, waiting: Mapping[int, Admission]) -> list[int]:
        """Return the waiting trials in the order in which they should start.

        Unsplit trials come before split trials, and small trials before large trials. If any configuration did not fit
        and a few results are known, the score replaces the size in this order.
        """
        is_split = {
            number: admission.verdict is AdmissionVerdict.SPLIT for number, admission in waiting.items()
        }
        if len(self._with_value) < MIN_RESULTS or not self._has_misfits:
            return sorted(waiting, key=lambda number: (is_split[number], waiting[number].size, number))
        numbers = sorted(waiting)
        running = [point for number, point in self._running.items() if number not in waiting]
        scores = score(
            self._points([self._running[number] for number in numbers]),
            self._observations(),
            self._points(running),
            numpy.random.RandomState(
                self._seed
            ),  # a separate generator: the number of calls must not change proposals
            all_fit=True,
        )
        best_first = [numbers[index] for index in numpy.argsort(-scores, kind="stable")]
        return sorted(best_first, key=lambda number: is_split[number])

    def learn(self, number: int, config: Config, result: Result) -> None:
        self._penalties.learn(result)
        point = self._running.pop(number)
        if self._config(point) != config:  # population-based training has changed it
            point = {name: _coordinate(domain, config[name]) for name, domain in self._ranges.items()}
        if result.value is not None or result.shortage is not None:
            self._results.append((point, result))

    @property
    def _with_value(self) -> list[tuple[Point, Result]]:
        return [(point, result) for point, result in self._results if result.value is not None]

    @property
    def _has_misfits(self) -> bool:
        return any(result.shortage is not None for _, result in self._results)

    def _most_promising(self) -> Point:
        observed = self._observations()
        candidates = self._candidates(observed.ran[numpy.argsort(observed.losses)[:BEST_TRIALS]])
        running = self._points(list(self._running.values()))
        chosen = candidates[int(numpy.argmax(score(candidates, observed, running, self._rng)))]
        return {
            name: _coordinate(domain, domain.from_unit(share))
            for (name, domain), share in zip(self._ranges.items(), chosen, strict=True)
        }

    def _observations(self) -> Observations:
        results = [result for _, result in self._with_value]
        took = [result.seconds for result in results if result.seconds is not None]
        usual = statistics.median(took) if took else 1.0
        return Observations(
            ran=self._points([point for point, _ in self._with_value]),
            losses=[self._penalties.loss(result, by_best=True) for result in results],
            seconds=[usual if result.seconds is None else result.seconds for result in results],
            too_large=self._points([point for point, result in self._results if result.shortage is not None]),
        )

    def _candidates(self, best: Points) -> Points:
        """Return candidates from the whole space and around the best points, in the unit cube. The candidates are
        rounded to possible values."""
        axes = len(self._ranges)
        near = [point + LOCAL_SPREAD * self._rng.normal(size=(LOCAL_CANDIDATES, axes)) for point in best]
        points: Points = numpy.vstack([self._rng.uniform(size=(GLOBAL_CANDIDATES, axes)), *near]).clip(
            0.0, 1.0
        )
        for axis, domain in enumerate(self._ranges.values()):
            points[:, axis] = [domain.to_unit(domain.from_unit(share)) for share in points[:, axis]]
        return points

    def _points(self, points: list[Point]) -> Points:
        configs = [self._config(point) for point in points]
        rows = [[domain.to_unit(config[name]) for name, domain in self._ranges.items()] for config in configs]
        return numpy.array(rows).reshape(len(points), len(self._ranges))

    def _fitted(self) -> BayesianOptimization:
        """Create an optimizer with all results. The optimizer cannot be reused, because a new result changes the
        penalties of earlier results.
        """
        optimizer = BayesianOptimization(
            f=None, pbounds=self._bounds, random_state=self._rng, verbose=0, allow_duplicate_points=True
        )
        losses = [self._penalties.loss(result) for _, result in self._results]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for (point, _), loss in zip(self._results, losses, strict=True):
                optimizer.register(point, -loss)
            for point in self._running.values():
                optimizer.register(point, -sum(losses) / len(losses))
        return optimizer

    def _config(self, point: Point) -> Config:
        return self._space.with_constants(
            {name: _value(domain, point[name]) for name, domain in self._ranges.items()}
        )


def _ranges(space: Space) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for parameter in space.parameters:
        assert not isinstance(parameter.domain, Categorical | Sampled), (
            "check_search rejects choices and functions"
        )
        ranges[parameter.name] = parameter.domain
    return ranges


def _is_linear(domain: Range) -> bool:
    return isinstance(domain, FloatRange) and not domain.log and domain.step is None


def _bounds(domain: Range) -> tuple[float, float]:
    return (domain.low, domain.high) if _is_linear(domain) else (0.0, 1.0)


def _value(domain: Range, point: float) -> float:
    return point if _is_linear(domain) else domain.from_unit(point)


def _coordinate(domain: Range, value: float) -> float:
    return value if _is_linear(domain) else domain.to_unit(value)
