"""Where to look next in a space of which part can never fit: where most improvement is expected for each second, by how likely it is to fit there.

Places are points of the unit cube. One Gaussian process knows the losses of what ran; another one what fitted (1) and what did not (-1). A place's worth is the improvement on the
best loss that the first expects, times the probability that the second gives it, divided by a power of the seconds that it will probably take: what is quick is tried sooner, what is slow
and promises much is not starved.

Losses count by the logarithm of their distance from the best, up to some length: that a trial diverged says where not to look, and how far nothing; left as they are, such losses would
level all differences between good ones. Every axis has a length of its own, since what decides the loss is often one of many. A handful of results does not tell these lengths, so none is
settled on: many are drawn, each counts by how well it explains the losses, and what they expect is averaged. Trials that run count as ended with what is expected of them, so that nothing is proposed
twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from scipy.special import ndtr

Places = NDArray[numpy.float64]
"""One row for each."""
Numbers = NDArray[numpy.float64]

NEAR, FAR = 0.1, 10.0
"""Of the way from the best loss to the median one: differences below the one hardly count, beyond the other not at all."""
DRAWN, KEPT = 96, 16
"""Guesses at the axes' lengths: how many are drawn, and how many of those that explain most are asked."""
MIDDLE, SPREAD = 0.7, 0.9
"""Of the lengths, as shares of a range: the median, and the deviation of the logarithm."""
LEAST_NOISE, MOST_NOISE = 1e-3, 1e-1
"""Of levelled losses, as shares of their variance: the same configuration does not end twice with the same loss."""
EDGE, EDGE_NOISE = 0.7, 0.05
"""Length and noise of what fits: at the edge a smooth line cannot follow."""
LEAST, LEAST_COUNTS = 0.5, 1e-6
"""What is less likely to fit than not counts as next to nothing: beyond the edge of what fits improvement would seem without end."""
SECONDS_COUNT = 0.5
"""The power of seconds by which improvement is divided."""
FEWEST, DOUBT = 4, 0.1
"""Lengths of trials that are known before places are thought to tell them, and the weight on an axis telling nothing."""


@dataclass(frozen=True, slots=True)
class Known:
    """What has ended."""

    ran: Places
    losses: Sequence[float]
    seconds: Sequence[float]
    """That each of them took."""
    too_large: Places
    """What can never fit."""


def worth(
    candidates: Places,
    known: Known,
    running: Places,
    dice: numpy.random.RandomState,
    *,
    surely_fit: bool = False,
) -> Numbers:
    """Of each candidate, the more the better. `running`: what has not ended yet. `surely_fit`: of all candidates that is known."""
    chance = numpy.ones(len(candidates)) if surely_fit else _chance(candidates, known)
    if not known.losses:
        return chance
    losses = _levelled(known.losses)
    process = _Process.of(known.ran, losses, dice)
    if len(running):
        process = process.with_more(running, process.mean(running))
    improvement = process.improvement(candidates, float(losses.min()))
    result: Numbers = chance * improvement / _seconds(candidates, known) ** SECONDS_COUNT
    return result


def _levelled(losses: Sequence[float]) -> Numbers:
    above = numpy.asarray(losses) - min(losses)
    middle = float(numpy.median(above)) or float(above.max()) or 1.0
    levelled: Numbers = numpy.log(numpy.minimum(above / middle, FAR) + NEAR)
    return levelled


def _chance(candidates: Places, known: Known) -> Numbers:
    """How likely each candidate is to fit."""
    fits = numpy.concatenate([numpy.ones(len(known.ran)), -numpy.ones(len(known.too_large))])
    axes = candidates.shape[1]
    process = _Process(
        numpy.vstack([known.ran, known.too_large]),
        fits,
        numpy.full((1, axes), EDGE),
        numpy.array([EDGE_NOISE]),
    )
    mean, deviation = process.foretold(candidates)
    chance: Numbers = ndtr(mean[0] / deviation[0])
    chance[chance < LEAST] *= LEAST_COUNTS
    return chance


def _seconds(candidates: Places, known: Known) -> Numbers:
    """How long each candidate will probably take: the logarithm is a sum of what each axis adds, within what was seen."""
    told = numpy.log(numpy.maximum(known.seconds, 1e-3))
    if len(told) < FEWEST:
        return numpy.full(len(candidates), math.exp(told.mean()))
    middle = known.ran.mean(axis=0)
    table = known.ran - middle
    weights = numpy.linalg.solve(
        table.T @ table + DOUBT * numpy.eye(table.shape[1]), table.T @ (told - told.mean())
    )
    foretold: Numbers = (candidates - middle) @ weights + told.mean()
    seconds: Numbers = numpy.exp(foretold.clip(told.min(), told.max()))
    return seconds


class _Process:
    """A Gaussian process (Matérn 5/2) for each of several guesses at its lengths, all at once: the first index is the guess."""

    def __init__(self, places: Places, values: Numbers, lengths: Numbers, noises: Numbers) -> None:
        self._places, self._values, self._lengths, self._noises = places, values, lengths, noises
        self._weights, self._scale, self._middle = numpy.ones(len(lengths)), numpy.ones(len(lengths)), 0.0
        self._solve()

    @classmethod
    def of(cls, places: Places, values: Numbers, dice: numpy.random.RandomState) -> "_Process":
        """With lengths that are drawn, each with the weight that the values give it; those that have hardly any are left out."""
        lengths = numpy.exp(dice.normal(math.log(MIDDLE), SPREAD, size=(DRAWN, places.shape[1])))
        noises = numpy.exp(dice.uniform(math.log(LEAST_NOISE), math.log(MOST_NOISE), size=DRAWN))
        middle, spread = float(values.mean()), float(values.std()) or 1.0
        every = cls(places, (values - middle) / spread, lengths, noises)
        explained = every._explained()
        best = numpy.argsort(-explained)[:KEPT]
        kept = cls(places, values - middle, lengths[best], noises[best])
        shares = numpy.exp(explained[best] - explained[best[0]])
        kept._weights, kept._middle = shares / shares.sum(), middle
        kept._scale = spread * numpy.sqrt((every._misfit()[best] + 1) / (len(values) + 1))
        return kept

    def with_more(self, places: Places, values: Numbers) -> "_Process":
        """The same guesses, with more that is known."""
        more = _Process(
            numpy.vstack([self._places, places]),
            numpy.concatenate([self._values, values - self._middle]),
            self._lengths,
            self._noises,
        )
        more._weights, more._scale, more._middle = self._weights, self._scale, self._middle
        return more

    def mean(self, places: Places) -> Numbers:
        mean: Numbers = self._weights @ self.foretold(places)[0]
        return mean

    def improvement(self, places: Places, best: float) -> Numbers:
        """How much lower than the best each is expected to be, counting what is higher as nothing."""
        mean, deviation = self.foretold(places)
        better = (best - mean) / deviation
        density = numpy.exp(-(better**2) / 2) / math.sqrt(2 * math.pi)
        improvement: Numbers = self._weights @ (deviation * (better * ndtr(better) + density))
        return improvement

    def foretold(self, places: Places) -> tuple[Numbers, Numbers]:
        """Mean and deviation, guess by guess."""
        near = _alike(places, self._places, self._lengths)
        mean = self._middle + (near @ self._solved[..., None])[..., 0]
        told = (near @ self._inverse.transpose(0, 2, 1)) ** 2
        deviation = self._scale[:, None] * numpy.sqrt(numpy.maximum(1 - told.sum(axis=-1), 1e-9))
        return mean, deviation

    def _solve(self) -> None:
        alike = _alike(self._places, self._places, self._lengths)
        alike += self._noises[:, None, None] * numpy.eye(len(self._places))
        self._root = numpy.linalg.cholesky(alike)
        self._inverse = numpy.linalg.inv(self._root)
        self._residues: Numbers = self._inverse @ self._values
        self._solved = (self._inverse.transpose(0, 2, 1) @ self._residues[..., None])[..., 0]

    def _misfit(self) -> Numbers:
        misfit: Numbers = (self._residues**2).sum(axis=-1)
        return misfit

    def _explained(self) -> Numbers:
        """The logarithm of how likely the values are, whatever their scale."""
        volume = numpy.log(numpy.diagonal(self._root, axis1=1, axis2=2)).sum(axis=-1)
        explained: Numbers = -len(self._values) / 2 * numpy.log(self._misfit() + 1) - volume
        return explained


def _alike(ones: Places, others: Places, lengths: Numbers) -> Numbers:
    """How much two places have to do with each other, guess by guess: 1 for the same."""
    one, other = ones[None] / lengths[:, None], others[None] / lengths[:, None]
    squares = (one**2).sum(axis=-1)[:, :, None] + (other**2).sum(axis=-1)[:, None, :]
    apart = numpy.sqrt(5 * numpy.maximum(squares - 2 * one @ other.transpose(0, 2, 1), 0))
    alike: Numbers = (1 + apart + apart**2 / 3) * numpy.exp(-apart)
    return alike
