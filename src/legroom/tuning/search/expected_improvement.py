"""Scores candidates in a space where some configurations can never fit.

Points are in the unit cube. One Gaussian process models the losses of completed trials, and another models whether a
point fits (1) or not (-1). The score is the expected improvement on the best loss, times the probability that the
point fits, divided by a power of the predicted runtime. Therefore, fast configurations are preferred, but slow
configurations with a high expected improvement are still tried.

Losses are transformed to the logarithm of their distance from the best loss, with an upper limit. A diverged trial
therefore marks a region to avoid, without hiding the differences between good trials. Every dimension has its own
length scale, because the loss often depends on only one of many parameters. A few results do not determine the length
scales, so the prediction averages over many sampled length scales, weighted by their likelihood. Running trials are
assumed to end with their predicted loss, so that no configuration is proposed twice.

The Gaussian processes of scikit-learn and BoTorch are not used. They fit a single set of length scales, which overfits
if only four results are known. BoTorch is also a large dependency.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from scipy.special import ndtr

Points = NDArray[numpy.float64]
Numbers = NDArray[numpy.float64]

NEAR, FAR = 0.1, 10.0
"""Limits of the transformed losses, relative to the distance between the best and the median loss. Differences below
NEAR have little effect, and differences above FAR have no effect.
"""
DRAWN, KEPT = 96, 16
"""The number of sampled length scales, and the number of the most likely samples that are used."""
LENGTH_MEDIAN, LENGTH_SPREAD = 0.7, 0.9
"""The median of the length scales as a fraction of a range, and the standard deviation of their logarithms. Both
values define the prior.
"""
MIN_NOISE, MAX_NOISE = 1e-3, 1e-1
"""The range of the noise variance of transformed losses. The noise variance is not zero, because two runs of the same
configuration do not end with exactly the same loss.
"""
FIT_LENGTH, FIT_NOISE = 0.7, 0.05
"""The length scale and noise of the model that predicts whether a point fits. The noise allows the model to represent a
sharp boundary.
"""
MIN_PROBABILITY, UNLIKELY_FACTOR = 0.5, 1e-6
"""If the probability that a point fits is below MIN_PROBABILITY, the probability is multiplied by UNLIKELY_FACTOR. The
factor compensates for the expected improvement of such points, which is overestimated.
"""
RUNTIME_EXPONENT = 0.5
MIN_TRIALS, RIDGE = 4, 0.1
"""The minimum number of runtimes for a prediction from the parameters, and the ridge penalty of this prediction."""


@dataclass(frozen=True, slots=True)
class Observations:
    """The results of completed trials."""

    ran: Points
    losses: Sequence[float]
    seconds: Sequence[float]
    too_large: Points


def score(
    candidates: Points,
    observed: Observations,
    running: Points,
    rng: numpy.random.RandomState,
    *,
    all_fit: bool = False,
) -> Numbers:
    """Return the score of each candidate. Higher is better. `running` contains the points of running trials. If
    `all_fit` is set, all candidates are known to fit.
    """
    probability = numpy.ones(len(candidates)) if all_fit else _fit_probability(candidates, observed)
    if not observed.losses:
        return probability
    losses = _compressed(observed.losses)
    process = _GaussianProcesses.of(observed.ran, losses, rng)
    if len(running):
        process = process.with_more(running, process.mean(running))
    improvement = process.improvement(candidates, float(losses.min()))
    result: Numbers = probability * improvement / _seconds(candidates, observed) ** RUNTIME_EXPONENT
    return result


def _compressed(losses: Sequence[float]) -> Numbers:
    above = numpy.asarray(losses) - min(losses)
    middle = float(numpy.median(above)) or float(above.max()) or 1.0
    compressed: Numbers = numpy.log(numpy.minimum(above / middle, FAR) + NEAR)
    return compressed


def _fit_probability(candidates: Points, observed: Observations) -> Numbers:
    fits = numpy.concatenate([numpy.ones(len(observed.ran)), -numpy.ones(len(observed.too_large))])
    axes = candidates.shape[1]
    process = _GaussianProcesses(
        numpy.vstack([observed.ran, observed.too_large]),
        fits,
        numpy.full((1, axes), FIT_LENGTH),
        numpy.array([FIT_NOISE]),
    )
    mean, deviation = process.predict(candidates)
    probability: Numbers = ndtr(mean[0] / deviation[0])
    probability[probability < MIN_PROBABILITY] *= UNLIKELY_FACTOR
    return probability


def _seconds(candidates: Points, observed: Observations) -> Numbers:
    """Return the predicted runtime of each candidate, which is log-linear in the parameters and limited to the observed
    range.
    """
    logs = numpy.log(numpy.maximum(observed.seconds, 1e-3))
    if len(logs) < MIN_TRIALS:
        return numpy.full(len(candidates), math.exp(logs.mean()))
    middle = observed.ran.mean(axis=0)
    table = observed.ran - middle
    weights = numpy.linalg.solve(
        table.T @ table + RIDGE * numpy.eye(table.shape[1]), table.T @ (logs - logs.mean())
    )
    predict: Numbers = (candidates - middle) @ weights + logs.mean()
    seconds: Numbers = numpy.exp(predict.clip(logs.min(), logs.max()))
    return seconds


class _GaussianProcesses:
    """Gaussian processes with a Matérn 5/2 kernel, one per sample of the length scales. The first axis of each array is
    the sample.
    """

    def __init__(self, points: Points, values: Numbers, length_scales: Numbers, noises: Numbers) -> None:
        self._points, self._values, self._length_scales, self._noises = points, values, length_scales, noises
        self._weights, self._scale, self._middle = (
            numpy.ones(len(length_scales)),
            numpy.ones(len(length_scales)),
            0.0,
        )
        self._solve()

    @classmethod
    def of(cls, points: Points, values: Numbers, rng: numpy.random.RandomState) -> "_GaussianProcesses":
        """Sample length scales, and weight each sample by the likelihood of the values. Samples with nearly zero weight
        are dropped.
        """
        length_scales = numpy.exp(
            rng.normal(math.log(LENGTH_MEDIAN), LENGTH_SPREAD, size=(DRAWN, points.shape[1]))
        )
        noises = numpy.exp(rng.uniform(math.log(MIN_NOISE), math.log(MAX_NOISE), size=DRAWN))
        middle, spread = float(values.mean()), float(values.std()) or 1.0
        all_samples = cls(points, (values - middle) / spread, length_scales, noises)
        log_likelihood = all_samples._log_likelihood()
        best = numpy.argsort(-log_likelihood)[:KEPT]
        selected = cls(points, values - middle, length_scales[best], noises[best])
        shares = numpy.exp(log_likelihood[best] - log_likelihood[best[0]])
        selected._weights, selected._middle = shares / shares.sum(), middle
        selected._scale = spread * numpy.sqrt((all_samples._squared_error()[best] + 1) / (len(values) + 1))
        return selected

    def with_more(self, points: Points, values: Numbers) -> "_GaussianProcesses":
        more = _GaussianProcesses(
            numpy.vstack([self._points, points]),
            numpy.concatenate([self._values, values - self._middle]),
            self._length_scales,
            self._noises,
        )
        more._weights, more._scale, more._middle = self._weights, self._scale, self._middle
        return more

    def mean(self, points: Points) -> Numbers:
        mean: Numbers = self._weights @ self.predict(points)[0]
        return mean

    def improvement(self, points: Points, best: float) -> Numbers:
        mean, deviation = self.predict(points)
        better = (best - mean) / deviation
        density = numpy.exp(-(better**2) / 2) / math.sqrt(2 * math.pi)
        improvement: Numbers = self._weights @ (deviation * (better * ndtr(better) + density))
        return improvement

    def predict(self, points: Points) -> tuple[Numbers, Numbers]:
        near = _kernel(points, self._points, self._length_scales)
        mean = self._middle + (near @ self._solved[..., None])[..., 0]
        logs = (near @ self._inverse.transpose(0, 2, 1)) ** 2
        deviation = self._scale[:, None] * numpy.sqrt(numpy.maximum(1 - logs.sum(axis=-1), 1e-9))
        return mean, deviation

    def _solve(self) -> None:
        kernel = _kernel(self._points, self._points, self._length_scales)
        kernel += self._noises[:, None, None] * numpy.eye(len(self._points))
        self._root = numpy.linalg.cholesky(kernel)
        self._inverse = numpy.linalg.inv(self._root)
        self._residuals: Numbers = self._inverse @ self._values
        self._solved = (self._inverse.transpose(0, 2, 1) @ self._residuals[..., None])[..., 0]

    def _squared_error(self) -> Numbers:
        squared_error: Numbers = (self._residuals**2).sum(axis=-1)
        return squared_error

    def _log_likelihood(self) -> Numbers:
        """Return the log marginal likelihood of the values, with the scale integrated out."""
        volume = numpy.log(numpy.diagonal(self._root, axis1=1, axis2=2)).sum(axis=-1)
        log_likelihood: Numbers = -len(self._values) / 2 * numpy.log(self._squared_error() + 1) - volume
        return log_likelihood


def _kernel(ones: Points, others: Points, length_scales: Numbers) -> Numbers:
    one, other = ones[None] / length_scales[:, None], others[None] / length_scales[:, None]
    squares = (one**2).sum(axis=-1)[:, :, None] + (other**2).sum(axis=-1)[:, None, :]
    distance = numpy.sqrt(5 * numpy.maximum(squares - 2 * one @ other.transpose(0, 2, 1), 0))
    kernel: Numbers = (1 + distance + distance**2 / 3) * numpy.exp(-distance)
    return kernel
