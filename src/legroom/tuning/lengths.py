"""How long a trial will probably take, by how long others took: what a packer needs to have the long ones done in time.

The logarithm of a trial's seconds is taken to be a sum of what each parameter adds (more layers, more epochs), found by least squares with a
little weight on adding nothing. It need not be right: it is used to order trials that wait, and for nothing else.
"""

import math

from legroom.tuning.domains import Choice
from legroom.tuning.space import Config, Space

FEWEST = 3
"""Trials that must have ended beyond one for each parameter, before anything is foretold."""
WORTH = 0.4
"""Of the differences between lengths, what configurations must explain: less is taken for luck."""
DOUBT = 0.1
"""Weight on a parameter adding nothing, against what one trial says."""


class Lengths:
    """Learns from trials that ended."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._seen: list[tuple[list[float], float]] = []
        self._weights: list[float] | None = None
        self._is_fitted = False

    def learn(self, config: Config, seconds: float) -> None:
        """A trial took so long, from its start to its end."""
        self._seen.append((self._features(config), math.log(max(seconds, 1e-3))))
        self._is_fitted = False

    def expected(self, config: Config) -> float | None:
        """Seconds; None as long as too few have ended, or configurations do not tell."""
        if not self._is_fitted:
            self._weights, self._is_fitted = self._fitted(), True
        if self._weights is None:
            return None
        logarithm = sum(w * x for w, x in zip(self._weights, self._features(config), strict=True))
        logarithms = [seen for _, seen in self._seen]
        return math.exp(min(max(logarithm, min(logarithms)), max(logarithms)))

    def _fitted(self) -> list[float] | None:
        import numpy

        rows = numpy.array([features for features, _ in self._seen])
        spare = len(rows) - (rows.shape[1] if len(rows) else 0)
        if spare < FEWEST:
            return None
        told = numpy.array([logarithm for _, logarithm in self._seen])
        doubt = DOUBT * numpy.eye(rows.shape[1])
        doubt[0, 0] = 0.0  # the mean is beyond doubt
        weights = numpy.linalg.solve(rows.T @ rows + doubt, rows.T @ told)
        left, whole = ((told - rows @ weights) ** 2).sum() / spare, told.var(ddof=1)
        return weights.tolist() if left < (1 - WORTH) * whole else None

    def _features(self, config: Config) -> list[float]:
        """A one for the mean; each range's place in it, around 0; each option of a choice. Of a parameter that is not set, zeros."""
        features = [1.0]
        for parameter in self._space.parameters:
            domain, is_set = parameter.domain, parameter.name in config
            value = config.get(parameter.name)
            if isinstance(domain, Choice):
                features += [float(is_set and option == value) for option in domain.options]
            else:
                features.append(domain.share(value) - 0.5 if is_set else 0.0)
        return features
