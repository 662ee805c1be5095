"""Bayesian optimization with a Gaussian process (bayesian-optimization), asked as Ray Tune's `BayesOptSearch` does it: with the same seed it
proposes the same, as long as all fits and no trial runs while it is asked.

It knows numbers only. A plain range of floats is one as it is; every other range is laid onto the line from 0 to 1, where Ray's takes a
logarithmic range for a plain one and refuses whole numbers. Trials that run while it is asked count as
average ones: without that it would propose them once more.

Ray's proposes nothing any more once one of its ten random trials has erred. There this one goes its own way: what can never fit is learned as well, and after the random
points the one is proposed that promises most for its seconds among what probably fits (see `improvement`). The random points are the same ones, in an order of its own: what fits whole and is small
goes first, since that is over soonest, and as soon as a few results are there, what promises most.
"""

import statistics
import warnings
from collections.abc import Mapping

import numpy
from bayes_opt import BayesianOptimization, UtilityFunction

from legroom.tuning.memory.admission import Admission, Verdict
from legroom.tuning.search.expected_improvement import Known, Places, worth
from legroom.tuning.search.penalties import Penalties
from legroom.tuning.search.searchers import Result
from legroom.tuning.space.domains import Choice, FloatRange, IntRange, PowerRange
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode

RANDOM_FIRST, UTILITY = 10, UtilityFunction(kind="ucb", kappa=2.576)
"""Points at random before the process is asked, and by what it judges others: Ray Tune's settings."""

ENOUGH = 4
"""Values that say more about where to go on than chance does."""
FAR_AND_WIDE, CLOSE_BY, BEST = 2000, 300, 3
"""Candidates anywhere in the space, and around each of the best that ran."""
REACH = 0.1
"""How far around: the standard deviation, of a range's length."""

Range = FloatRange | IntRange | PowerRange
Point = dict[str, float]
"""Parameter → where on its line, as bayesian-optimization knows it."""


class BayesSearcher:
    """Proposes where the upper confidence bound is highest."""

    start_up: int | None = RANDOM_FIRST

    def __init__(self, space: Space, mode: Mode, seed: int) -> None:
        self._space = space
        self._penalties = Penalties(mode)
        self._ranges = _ranges(space)
        self._bounds = {name: _bounds(domain) for name, domain in self._ranges.items()}
        self._first = BayesianOptimization(f=None, pbounds=self._bounds, random_state=seed, verbose=0)
        """Knows nothing, so it draws at random."""
        self._seed, self._dice = seed, numpy.random.RandomState(seed)
        self._proposed = 0
        self._known: list[tuple[Point, Result]] = []
        self._running: dict[int, Point] = {}
        """What was proposed and has not ended."""

    def propose(self, number: int) -> Config | None:
        self._proposed += 1
        if self._proposed <= RANDOM_FIRST or len(self._ran) < ENOUGH:
            point = self._first.suggest(UTILITY)
        elif self._is_hindered:
            point = self._promising()
        else:
            point = self._informed().suggest(UTILITY)
        self._running[number] = {name: float(value) for name, value in point.items()}
        return self._config(self._running[number])

    def order(self, waiting: Mapping[int, Admission]) -> list[int]:
        """What fits whole before what is split; of these small before large, or by what they promise, once memory was in the way and a few have ended. Without GPUs as they were drawn."""
        is_split = {number: admission.verdict is Verdict.SPLIT for number, admission in waiting.items()}
        if len(self._ran) < ENOUGH or not self._is_hindered:
            return sorted(waiting, key=lambda number: (is_split[number], waiting[number].size, number))
        numbers = sorted(waiting)
        running = [point for number, point in self._running.items() if number not in waiting]
        worths = worth(
            self._places([self._running[number] for number in numbers]),
            self._all_known(),
            self._places(running),
            numpy.random.RandomState(self._seed),  # however often it is asked, proposals stay the same
            surely_fit=True,
        )
        best_first = [numbers[index] for index in numpy.argsort(-worths, kind="stable")]
        return sorted(best_first, key=lambda number: is_split[number])

    def learn(self, number: int, config: Config, result: Result) -> None:
        self._penalties.learn(result)
        point = self._running.pop(number)
        if self._config(point) != config:  # population-based training has moved it
            point = {name: _place(domain, config[name]) for name, domain in self._ranges.items()}
        if result.value is not None or result.shortage is not None:
            self._known.append((point, result))

    @property
    def _ran(self) -> list[tuple[Point, Result]]:
        return [(point, result) for point, result in self._known if result.value is not None]

    @property
    def _is_hindered(self) -> bool:
        """Whether something can never fit."""
        return any(result.shortage is not None for _, result in self._known)

    def _promising(self) -> Point:
        """Of many candidates the one that promises most."""
        known = self._all_known()
        candidates = self._candidates(known.ran[numpy.argsort(known.losses)[:BEST]])
        running = self._places(list(self._running.values()))
        chosen = candidates[int(numpy.argmax(worth(candidates, known, running, self._dice)))]
        return {
            name: _place(domain, domain.at(share))
            for (name, domain), share in zip(self._ranges.items(), chosen, strict=True)
        }

    def _all_known(self) -> Known:
        results = [result for _, result in self._ran]
        took = [result.seconds for result in results if result.seconds is not None]
        usual = statistics.median(took) if took else 1.0
        return Known(
            ran=self._places([point for point, _ in self._ran]),
            losses=[self._penalties.loss(result, by_best=True) for result in results],
            seconds=[usual if result.seconds is None else result.seconds for result in results],
            too_large=self._places([point for point, result in self._known if result.shortage is not None]),
        )

    def _candidates(self, best: Places) -> Places:
        """Anywhere, and close by the best, as shares of the ranges. Only what exists: of whole numbers and steps, these."""
        axes = len(self._ranges)
        near = [place + REACH * self._dice.normal(size=(CLOSE_BY, axes)) for place in best]
        places: Places = numpy.vstack([self._dice.uniform(size=(FAR_AND_WIDE, axes)), *near]).clip(0.0, 1.0)
        for axis, domain in enumerate(self._ranges.values()):
            places[:, axis] = [domain.share(domain.at(share)) for share in places[:, axis]]
        return places

    def _places(self, points: list[Point]) -> Places:
        """As shares of the ranges."""
        configs = [self._config(point) for point in points]
        rows = [[domain.share(config[name]) for name, domain in self._ranges.items()] for config in configs]
        return numpy.array(rows).reshape(len(points), len(self._ranges))

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
            {name: _value(domain, point[name]) for name, domain in self._ranges.items()}
        )


def _ranges(space: Space) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for parameter in space.parameters:
        assert not isinstance(parameter.domain, Choice), "check_search refuses choices"
        ranges[parameter.name] = parameter.domain
    return ranges


def _is_plain(domain: Range) -> bool:
    return isinstance(domain, FloatRange) and not domain.log and domain.step is None


def _bounds(domain: Range) -> tuple[float, float]:
    return (domain.low, domain.high) if _is_plain(domain) else (0.0, 1.0)


def _value(domain: Range, place: float) -> float:
    return place if _is_plain(domain) else domain.at(place)


def _place(domain: Range, value: float) -> float:
    """The other way round."""
    return value if _is_plain(domain) else domain.share(value)
