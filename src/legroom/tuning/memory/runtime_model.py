"""Predicts the runtimes of trials from the runtimes of running and completed trials. The start order depends on these
predictions.

A trial's runtime is the time per report times the number of reports. The time per report is known after the first
report. The number of reports is known only at the end, because ASHA may stop the trial early. Therefore, the two
quantities are modeled separately. The logarithm of each quantity is a linear function of the parameters and the
memory, fitted by ridge regression. The residuals are kept, so a prediction is a set of equally likely samples instead
of a single number. Predictions need not be exact, because they affect only the order of waiting trials.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from legroom.tuning.space.domains import Categorical, Sampled
from legroom.tuning.space.space import Config, Space

if TYPE_CHECKING:
    import numpy

SAMPLES = 16
MIN_TRIALS = 4
"""The minimum number of trials before a prediction uses the parameters."""
MIN_EXPLAINED = 0.2
"""The minimum fraction of the variance that the parameters must explain, by leave-one-out cross-validation. Below this
fraction, a prediction does not use the parameters.
"""
RIDGE = 0.1
"""The ridge penalty on the weights of the parameters."""


@dataclass(frozen=True, slots=True)
class RuntimeSamples:
    """The predicted runtimes of trials: `SAMPLES` equally likely runtimes in seconds for each trial."""

    waiting: Mapping[int, Sequence[float]]
    """The possible total runtimes of each waiting trial, in seconds. All samples are equally likely."""
    running: Mapping[int, Sequence[float]]
    """The possible remaining runtimes of each running trial, in seconds. All samples are equally likely."""


@dataclass(slots=True)
class _Observation:
    """The measured progress of a trial."""

    features: list[float]
    started: float
    last: float
    from_start: bool
    """True if the trial started from scratch. A trial that continues from a checkpoint is not representative of other
    trials.
    """
    reports: int = 0
    is_over: bool = False

    @property
    def pace(self) -> float:
        return max(self.last - self.started, 1e-3) / max(1, self.reports)


class RuntimeModel:
    """Records the progress of trials and predicts their runtimes. All times are in seconds and may come from any clock."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._observations: dict[int, _Observation] = {}

    def started(self, number: int, config: Config, size: int, now: float, *, from_start: bool = True) -> None:
        """Record the start of a trial. `size` is the number of bytes reserved on a GPU, or 0 without a GPU.
        `from_start` is False if the trial continues from a checkpoint.
        """
        self._observations[number] = _Observation(self._features(config, size), now, now, from_start)

    def reported(self, number: int, now: float) -> None:
        if (observation := self._observations.get(number)) is not None:
            observation.reports += 1
            observation.last = now

    def ended(self, number: int, now: float) -> None:
        observation = self._observations.get(number)
        if observation is None or not observation.from_start or not observation.reports:
            self.forget(number)
        else:
            observation.is_over, observation.last = True, now

    def forget(self, number: int) -> None:
        self._observations.pop(number, None)

    def predict(self, waiting: Mapping[int, tuple[Config, int]], now: float) -> RuntimeSamples | None:
        """Predict the runtimes of running and waiting trials. `waiting` contains the configuration and the memory in
        bytes of each waiting trial. Return None if no trial has reported yet.
        """
        reported = [
            observation
            for observation in self._observations.values()
            if observation.reports and observation.from_start
        ]
        if not reported:
            return None
        paces = _LogLinearModel.of(
            [observation.features for observation in reported], [observation.pace for observation in reported]
        )
        over = [observation for observation in reported if observation.is_over]
        if over:
            reports = _LogLinearModel.of(
                [observation.features for observation in over],
                [float(observation.reports) for observation in over],
            )
        else:  # an arbitrary number, the same for all trials
            most = 2.0 * max(observation.reports for observation in reported)
            reports = _LogLinearModel.of([reported[0].features], [most])
        rng = random.Random(0)
        runtimes = {
            number: _products(paces.samples(features), reports.samples(features), rng)
            for number, (config, size) in waiting.items()
            for features in [self._features(config, size)]
        }
        left = {
            number: _remaining(observation, paces, reports, now - observation.started, rng)
            for number, observation in self._observations.items()
            if not observation.is_over
        }
        return RuntimeSamples(runtimes, left)

    def _features(self, config: Config, size: int) -> list[float]:
        """Return the features of a configuration: a constant, log2 of the memory, the centered position in each range,
        and one entry for each option of a choice. The entries of an inactive parameter are zeros.
        """
        features = [1.0, math.log2(size) if size else 0.0]
        for parameter in self._space.parameters:
            domain, is_set = parameter.domain, parameter.name in config
            value = config.get(parameter.name)
            if isinstance(domain, Categorical):
                features += [float(is_set and option == value) for option in domain.options]
            elif not isinstance(domain, Sampled):
                features.append(domain.to_unit(value) - 0.5 if is_set else 0.0)
        return features


@dataclass(frozen=True, slots=True)
class _LogLinearModel:
    """Predicts a positive number from features, with a log-linear model and its residuals."""

    weights: "numpy.ndarray"
    means: "numpy.ndarray"
    lowest: float
    highest: float
    """The largest observed logarithm, to which predictions are limited."""
    residuals: list[float]

    @classmethod
    def of(cls, features: list[list[float]], values: list[float]) -> Self:
        import numpy

        table, logs = numpy.array(features), numpy.log(numpy.array(values))
        count = len(logs)
        means = table.mean(axis=0)
        means[0] = 0.0
        table = table - means
        weights = numpy.zeros(table.shape[1])
        weights[0] = logs.mean()
        residuals = (logs - logs.mean()) * count / max(1, count - 1)
        if count >= MIN_TRIALS:
            ridge = RIDGE * numpy.eye(table.shape[1])
            ridge[0, 0] = 0.0  # the intercept is not penalized
            solved = numpy.linalg.solve(table.T @ table + ridge, table.T)
            leverage = (table * solved.T).sum(axis=1)
            left_out = (logs - table @ (solved @ logs)) / numpy.maximum(1 - leverage, 1e-6)
            if (left_out**2).sum() < (1 - MIN_EXPLAINED) * (residuals**2).sum():
                weights, residuals = solved @ logs, left_out
        return cls(weights, means, float(logs.min()), float(logs.max()), residuals.tolist())

    def samples(self, features: Sequence[float]) -> list[float]:
        predicted = float(self.weights @ (features - self.means))
        middle = min(max(predicted, self.lowest), self.highest)
        return [math.exp(middle + residual) for residual in self.residuals]


def _products(paces: Sequence[float], reports: Sequence[float], rng: random.Random) -> list[float]:
    return [a * b for a, b in zip(rng.choices(paces, k=SAMPLES), rng.choices(reports, k=SAMPLES), strict=True)]  # fmt: skip


def _remaining(
    observation: _Observation,
    paces: _LogLinearModel,
    reports: _LogLinearModel,
    elapsed: float,
    rng: random.Random,
) -> list[float]:
    """Return samples of the time that a running trial still needs. Samples below the elapsed time are dropped. If no
    sample is left, the remaining time is assumed to equal the elapsed time.
    """
    known = [observation.pace] if observation.reports else paces.samples(observation.features)
    more = [length - elapsed for length in _products(known, reports.samples(observation.features), rng) if length > elapsed]  # fmt: skip
    return rng.choices(more or [elapsed], k=SAMPLES)
