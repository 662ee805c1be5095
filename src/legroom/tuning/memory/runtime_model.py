"""How long trials will probably take, told by those that run and those that ended: what a packer plans with.

A trial's length is its pace, seconds for each report, times how often it reports. Its pace is seen at its first report, its number of reports
only at its end (ASHA may cut it short), so they are learned apart: the logarithm of each is taken to be a sum of what each parameter adds, and its
memory, found by least squares with some weight on adding nothing. What these do not explain is luck, and luck is kept: nothing is foretold as
one number, but as several futures, all as likely as each other. They need not be right: trials that wait are ordered by them, and no more.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from legroom.tuning.space.domains import Choice
from legroom.tuning.space.space import Config, Space

if TYPE_CHECKING:
    import numpy

FUTURES = 16
FEWEST = 4
"""Trials that must have been seen before parameters are thought to say anything."""
WORTH = 0.2
"""Of the differences between trials, what parameters must foretell of one from all others: less is taken for luck."""
DOUBT = 0.1
"""Weight on a parameter adding nothing, against what one trial says."""


@dataclass(frozen=True, slots=True)
class Futures:
    """Seconds in each of `FUTURES` futures, by trial."""

    waiting: Mapping[int, Sequence[float]]
    """From its start to its end."""
    running: Mapping[int, Sequence[float]]
    """From now to its end."""


@dataclass(slots=True)
class _Seen:
    """What is known of a trial that was started."""

    features: list[float]
    started: float
    last: float
    """When it last reported, or ended."""
    is_whole: bool
    """It began at its beginning: how long it takes says something of others."""
    reports: int = 0
    is_over: bool = False

    @property
    def pace(self) -> float:
        return max(self.last - self.started, 1e-3) / max(1, self.reports)


class Lengths:
    """Told what happens to trials, on any one clock, in seconds."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._seen: dict[int, _Seen] = {}

    def started(self, number: int, config: Config, size: int, now: float, *, is_whole: bool = True) -> None:
        """`size`: bytes of a GPU that the trial was given; 0 on the host. `is_whole`: it does not go on from somewhere in the middle."""
        self._seen[number] = _Seen(self._features(config, size), now, now, is_whole)

    def reported(self, number: int, now: float) -> None:
        if (seen := self._seen.get(number)) is not None:
            seen.reports += 1
            seen.last = now

    def ended(self, number: int, now: float) -> None:
        """A trial came to its end, or was cut short on purpose."""
        seen = self._seen.get(number)
        if seen is None or not seen.is_whole or not seen.reports:
            self.forget(number)
        else:
            seen.is_over, seen.last = True, now

    def forget(self, number: int) -> None:
        """A trial failed or was interrupted: how long it took says nothing."""
        self._seen.pop(number, None)

    def futures(self, waiting: Mapping[int, tuple[Config, int]], now: float) -> Futures | None:
        """`waiting`: configuration and bytes of each trial that could start. None as long as none has reported."""
        heard = [seen for seen in self._seen.values() if seen.reports and seen.is_whole]
        if not heard:
            return None
        paces = _Rule.of([seen.features for seen in heard], [seen.pace for seen in heard])
        over = [seen for seen in heard if seen.is_over]
        if over:
            reports = _Rule.of([seen.features for seen in over], [float(seen.reports) for seen in over])
        else:  # any number serves, the same for all
            most = 2.0 * max(seen.reports for seen in heard)
            reports = _Rule.of([heard[0].features], [most])
        dice = random.Random(0)
        lengths = {
            number: _products(paces.likely(features), reports.likely(features), dice)
            for number, (config, size) in waiting.items()
            for features in [self._features(config, size)]
        }
        left = {
            number: _left(seen, paces, reports, now - seen.started, dice)
            for number, seen in self._seen.items()
            if not seen.is_over
        }
        return Futures(lengths, left)

    def _features(self, config: Config, size: int) -> list[float]:
        """A one for the mean; its memory; each range's place in it, around 0; each option of a choice. Of a parameter that is not set, zeros."""
        features = [1.0, math.log2(size) if size else 0.0]
        for parameter in self._space.parameters:
            domain, is_set = parameter.domain, parameter.name in config
            value = config.get(parameter.name)
            if isinstance(domain, Choice):
                features += [float(is_set and option == value) for option in domain.options]
            else:
                features.append(domain.share(value) - 0.5 if is_set else 0.0)
        return features


@dataclass(frozen=True, slots=True)
class _Rule:
    """Foretells a positive number from features: what they say, times luck."""

    weights: "numpy.ndarray"
    means: "numpy.ndarray"
    lowest: float
    highest: float
    """Logarithms that were seen: nothing beyond them is foretold."""
    luck: list[float]
    """By what each of those seen was missed, foretold from all others; logarithms."""

    @classmethod
    def of(cls, rows: list[list[float]], seen: list[float]) -> Self:
        import numpy

        table, told = numpy.array(rows), numpy.log(numpy.array(seen))
        count = len(told)
        means = table.mean(axis=0)
        means[0] = 0.0
        table = table - means
        alone = numpy.zeros(table.shape[1])
        alone[0] = told.mean()
        luck = (told - told.mean()) * count / max(1, count - 1)
        if count >= FEWEST:
            doubt = DOUBT * numpy.eye(table.shape[1])
            doubt[0, 0] = 0.0  # the mean is beyond doubt
            solved = numpy.linalg.solve(table.T @ table + doubt, table.T)
            own = (table * solved.T).sum(axis=1)  # how much each was foretold by itself
            missed = (told - table @ (solved @ told)) / numpy.maximum(1 - own, 1e-6)
            if (missed**2).sum() < (1 - WORTH) * (luck**2).sum():
                alone, luck = solved @ told, missed
        return cls(alone, means, float(told.min()), float(told.max()), luck.tolist())

    def likely(self, features: Sequence[float]) -> list[float]:
        """Values as likely as each other."""
        foretold = float(self.weights @ (features - self.means))
        middle = min(max(foretold, self.lowest), self.highest)
        return [math.exp(middle + luck) for luck in self.luck]


def _products(paces: Sequence[float], reports: Sequence[float], dice: random.Random) -> list[float]:
    return [a * b for a, b in zip(dice.choices(paces, k=FUTURES), dice.choices(reports, k=FUTURES), strict=True)]  # fmt: skip


def _left(seen: _Seen, paces: _Rule, reports: _Rule, elapsed: float, dice: random.Random) -> list[float]:
    """Of a trial that runs: futures in which it was over by now are none; if all were, it takes as long again."""
    known = [seen.pace] if seen.reports else paces.likely(seen.features)
    more = [length - elapsed for length in _products(known, reports.likely(seen.features), dice) if length > elapsed]  # fmt: skip
    return dice.choices(more or [elapsed], k=FUTURES)
