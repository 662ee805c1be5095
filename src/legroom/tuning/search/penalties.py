"""Computes losses for configurations that can never fit, for searchers that accept only numbers."""

import math

from legroom.tuning.search.protocol import Result
from legroom.tuning.trial.records import Mode


class Penalties:
    """Converts results to losses to be minimized. The loss of a configuration that never fits is higher than the worst
    result and grows with the size of the configuration. Therefore, a searcher that follows decreasing losses returns
    to configurations that fit.
    """

    def __init__(self, mode: Mode) -> None:
        self._sign = 1.0 if mode == "min" else -1.0
        self._seen: list[float] = []

    def learn(self, result: Result) -> None:
        if result.value is not None and math.isfinite(result.value):
            self._seen.append(self._sign * result.value)

    def loss(self, result: Result, *, by_best: bool = False) -> float:
        """Return the loss of a result. With `by_best`, the best value of the trial is used instead of its last
        value."""
        value = result.best if by_best and result.best is not None else result.value
        if value is not None:
            return self._sign * value if math.isfinite(value) else self._above(0.0)
        return self._above(result.shortage or 0.0)

    def _above(self, shortage: float) -> float:
        if not self._seen:
            return 1.0 + min(shortage, 1.0)
        worst, best = max(self._seen), min(self._seen)
        spread = (worst - best) or abs(worst) or 1.0
        return worst + 0.1 * spread * (1.0 + min(shortage, 1.0))
