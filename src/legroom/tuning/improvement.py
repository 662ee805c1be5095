"""Where to look next in a space of which part can never fit: where most improvement is expected, by how likely it is to fit there.

Places are points of the unit cube. One Gaussian process knows the losses of what ran; another one what fitted (1) and what did not (-1). A place's worth is the
improvement on the best loss that the first expects, times the probability that the second gives it.

Losses count by the logarithm of their distance from the best, up to some length: that a trial diverged says where not to look, and how far nothing; left as they are, such losses would
level all differences between good ones. Every axis has a length of its own, since what decides the loss is often one of many. Trials that run count as ended with what is expected of
them, so that nothing is proposed twice.
"""

import math
import warnings
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

Places = NDArray[numpy.float64]
"""One row for each."""

NEAR, FAR = 0.1, 10.0
"""Of the way from the best loss to the median one: differences below the one hardly count, beyond the other not at all."""
NOISE = 1e-3
"""Of levelled losses, as a share of their variance: the same configuration does not end twice with the same loss."""
LEAST, LEAST_COUNTS = 0.5, 1e-6
"""What is less likely to fit than not counts as next to nothing: beyond the edge of what fits improvement would seem without end."""


def most_promising(
    candidates: Places,
    ran: Places,
    losses: Sequence[float],
    too_large: Places,
    running: Places,
    dice: numpy.random.RandomState,
) -> int:
    """Which of the candidates to try next. `ran`: what has ended, with its `losses`; `too_large`: what can never fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lengths at the end of their range
        worth = _chance(candidates, ran, too_large, dice)
        worth[worth < LEAST] *= LEAST_COUNTS
        if losses:
            worth = worth * _improvement(candidates, ran, _levelled(losses), running, dice)
    return int(numpy.argmax(worth))


def _levelled(losses: Sequence[float]) -> Places:
    above = numpy.asarray(losses) - min(losses)
    middle = float(numpy.median(above)) or float(above.max()) or 1.0
    levelled: Places = numpy.log(numpy.minimum(above / middle, FAR) + NEAR)
    return levelled


def _improvement(
    candidates: Places, ran: Places, losses: Places, running: Places, dice: numpy.random.RandomState
) -> Places:
    """How much lower than the best loss each candidate is expected to be, counting what is higher as nothing."""
    lengths = Matern(numpy.full(ran.shape[1], 0.5), (0.1, 5.0), nu=2.5)
    process = GaussianProcessRegressor(
        ConstantKernel(1.0, (0.05, 20.0)) * lengths,
        alpha=NOISE,
        normalize_y=True,
        n_restarts_optimizer=2,
        random_state=dice,
    ).fit(ran, losses)
    if len(running):
        expected = process.predict(running)
        process = GaussianProcessRegressor(
            process.kernel_, alpha=NOISE, normalize_y=True, optimizer=None
        ).fit(numpy.vstack([ran, running]), numpy.concatenate([losses, expected]))
    mean, deviation = process.predict(candidates, return_std=True)
    deviation = numpy.maximum(deviation, 1e-9)
    better = (losses.min() - mean) / deviation
    density = numpy.exp(-(better**2) / 2) / math.sqrt(2 * math.pi)
    improvement: Places = deviation * (better * _below(better) + density)
    return improvement


def _chance(candidates: Places, ran: Places, too_large: Places, dice: numpy.random.RandomState) -> Places:
    """How likely each candidate is to fit."""
    fits = numpy.concatenate([numpy.ones(len(ran)), -numpy.ones(len(too_large))])
    smooth = ConstantKernel(1.0, (0.1, 10.0)) * Matern(0.7, (0.2, 3.0), nu=2.5)
    doubt = WhiteKernel(1e-2, (1e-4, 0.3))  # at the edge, where a smooth line cannot follow
    process = GaussianProcessRegressor(smooth + doubt, random_state=dice)
    process.fit(numpy.vstack([ran, too_large]), fits)
    mean, deviation = process.predict(candidates, return_std=True)
    return _below(mean / numpy.maximum(deviation, 1e-9))


def _below(deviations: Places) -> Places:
    """The probability that a normal number is below each."""
    below: Places = (1 + numpy.vectorize(math.erf)(deviations / math.sqrt(2))) / 2
    return below
