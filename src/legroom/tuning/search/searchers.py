"""Where configurations come from: the protocol of a searcher, and the two that learn nothing, random and grid.

A searcher is told every trial that ended and asked for the next one, in the order of their numbers. It writes nothing down:
a resumed study makes a new one, asks and tells it all once more in the same order, and it must then go on as if nothing had been.

With the same seed all of them propose what Ray Tune's do (`BasicVariantGenerator`, `OptunaSearch`, `HyperOptSearch`, `BayesOptSearch`), as long as
they are told the same. They part where a configuration can never fit: Ray's hear of an error then, and these of how much is missing. What was proposed is started in the same order too, unless a
searcher chooses among what waits (`Chooser`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from legroom.errors import MissingExtra, UsageError
from legroom.tuning.memory.admission import Admission
from legroom.tuning.space.domains import Choice
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode


@dataclass(frozen=True, slots=True)
class Result:
    """What a searcher learns from one trial. Exactly one of these holds: a value, a `shortage`, or neither (it failed)."""

    value: float | None = None
    """The metric, as reported (not turned round for `mode`)."""
    shortage: float | None = None
    """It can never fit: by which share of the largest GPU's memory it is too large, above 0."""
    is_partial: bool = False
    """The scheduler cut it short: the value is not its last word."""
    step: int = 0
    best: float | None = None
    """The best that was reported, which a trial is judged by in the end."""
    seconds: float | None = None
    """From its start to its end, where it was started once."""


class Searcher(Protocol):
    """One way to choose configurations."""

    start_up: int | None
    """Proposals that come first and do not depend on what is learned, so that they may be asked for early; None: all are like that."""

    def propose(self, number: int) -> Config | None:
        """The configuration of trial `number`; None when there are no more."""

    def learn(self, number: int, config: Config, result: Result) -> None:
        """A trial is over (or was rejected because it can never fit)."""


@runtime_checkable
class Chooser(Protocol):
    """A searcher that also says who should go first among those that were proposed and wait. What it draws before it has learned anything is asked for all at once."""

    def order(self, waiting: Mapping[int, Admission]) -> list[int]:
        """Trials that can start as soon as there is room, whoever should start first in front."""


class RandomSearcher:
    """One draw after the other from one stream of random numbers, so that a trial's configuration goes by its number alone."""

    start_up: int | None = None

    def __init__(self, space: Space, seed: int) -> None:
        import numpy

        self._space, self._dice = space, numpy.random.default_rng(seed)
        self._drawn: list[Config] = []

    def propose(self, number: int) -> Config | None:
        while len(self._drawn) <= number:
            self._drawn.append(self._space.draw(self._dice))
        return dict(self._drawn[number])

    def learn(self, number: int, config: Config, result: Result) -> None:
        """There is nothing to learn."""


class GridSearcher:
    """Every configuration once."""

    start_up: int | None = None

    def __init__(self, space: Space) -> None:
        self._left: Iterator[Config] = space.grid()
        self._known: list[Config] = []
        first = next(self._left)  # says at once what cannot be counted off
        self._known.append(first)

    def propose(self, number: int) -> Config | None:
        while len(self._known) <= number:
            config = next(self._left, None)
            if config is None:
                return None
            self._known.append(config)
        return dict(self._known[number])

    def learn(self, number: int, config: Config, result: Result) -> None:
        """There is nothing to learn."""


SEARCHES = ("random", "grid", "bayes", "hyperopt", "optuna")


def make_searcher(search: str, space: Space, mode: Mode, seed: int) -> Searcher:
    """A searcher by name; says what the space has that it cannot do, and what to use instead."""
    check_search(search, space)
    if search == "random":
        return RandomSearcher(space, seed)
    if search == "grid":
        return GridSearcher(space)
    package = {"bayes": "bayes_opt", "hyperopt": "hyperopt", "optuna": "optuna"}[search]
    try:
        if search == "optuna":
            from legroom.tuning.search.optuna import OptunaSearcher

            return OptunaSearcher(space, mode, seed)
        if search == "hyperopt":
            from legroom.tuning.search.hyperopt import HyperoptSearcher

            return HyperoptSearcher(space, mode, seed)
        from legroom.tuning.search.bayes import BayesSearcher

        return BayesSearcher(space, mode, seed)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtra(_PACKAGES[search], "tune") from None


def check_search(search: str, space: Space) -> None:
    """Raises `UsageError` for an unknown search, and for a space that this one cannot do."""
    if search not in SEARCHES:
        raise UsageError(f"the search '{search}' is not known: choose {_listed(SEARCHES, 'or')}")
    if search == "bayes":
        choices = [p.name for p in space.parameters if isinstance(p.domain, Choice)]
        if choices:
            raise UsageError(
                f"Bayesian optimization needs ranges, and {_listed(choices, 'and')} {'is a list' if len(choices) == 1 else 'are lists'} of choices: "
                "use the search optuna or hyperopt, or write powers of two as {int_log2 = [1, 4]}"
            )
        if space.has_conditions:
            raise UsageError(
                "Bayesian optimization cannot do conditions (when = ...): use the search optuna or hyperopt"
            )


_PACKAGES = {"bayes": "bayesian-optimization", "hyperopt": "HyperOpt", "optuna": "Optuna"}


def _listed(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
