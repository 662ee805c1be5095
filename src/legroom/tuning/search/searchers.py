"""Searchers that do not learn (random and grid), and a function that creates any searcher by name.

With the same seed and the same results, all searchers propose the same configurations as Ray Tune's searchers
(`BasicVariantGenerator`, `OptunaSearch`, `HyperOptSearch`, `BayesOptSearch`). Proposals differ after a configuration
that can never fit, because Ray's searchers receive an error, while Legroom's searchers receive the missing memory.
Trials start in the order in which they are proposed, unless the searcher is an `OrderingSearcher`.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from legroom.errors import MissingExtra, UsageError
from legroom.tuning.search.protocol import Result, Searcher
from legroom.tuning.space.domains import Categorical, Sampled
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode


class RandomSearcher:
    """Samples all configurations from one random stream, so a configuration depends only on the number of its trial."""

    startup_trials: int | None = None

    def __init__(self, space: Space, seed: int) -> None:
        import numpy

        self._space, self._rng = space, numpy.random.default_rng(seed)
        self._drawn: list[Config] = []

    def propose(self, number: int) -> Config | None:
        while len(self._drawn) <= number:
            self._drawn.append(self._space.draw(self._rng))
        return dict(self._drawn[number])

    def learn(self, number: int, config: Config, result: Result) -> None:
        pass  # proposals do not depend on results


class GridSearcher:
    startup_trials: int | None = None

    def __init__(self, space: Space) -> None:
        self._remaining: Iterator[Config] = space.grid()
        self._configs: list[Config] = []
        first = next(self._remaining)  # raises at once if a range has no grid
        self._configs.append(first)

    def propose(self, number: int) -> Config | None:
        while len(self._configs) <= number:
            config = next(self._remaining, None)
            if config is None:
                return None
            self._configs.append(config)
        return dict(self._configs[number])

    def learn(self, number: int, config: Config, result: Result) -> None:
        pass  # proposals do not depend on results


SEARCHES = ("random", "grid", "bayes", "hyperopt", "optuna")


def make_searcher(
    search: str, space: Space, mode: Mode, seed: int, more_modes: Sequence[Mode] = (), sampler: Any = None
) -> Searcher:
    check_search(search, space)
    if search == "random":
        return RandomSearcher(space, seed)
    if search == "grid":
        return GridSearcher(space)
    package = {"bayes": "bayes_opt", "hyperopt": "hyperopt", "optuna": "optuna"}[search]
    try:
        if search == "optuna":
            from legroom.tuning.search.optuna import OptunaSearcher

            return OptunaSearcher(space, mode, seed, more_modes, sampler)
        if search == "hyperopt":
            from legroom.tuning.search.hyperopt import HyperoptSearcher

            return HyperoptSearcher(space, mode, seed)
        from legroom.tuning.search.bayes import BayesSearcher

        return BayesSearcher(space, mode, seed)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtra(_PACKAGES[search], "tune") from None


def optuna_sampler(search: Any) -> Any:
    """Return `search` if it is an Optuna sampler, and None otherwise. The check does not import Optuna."""
    optuna = sys.modules.get("optuna")
    return search if optuna is not None and isinstance(search, optuna.samplers.BaseSampler) else None


def check_search(search: str, space: Space) -> None:
    if search not in SEARCHES:
        raise UsageError(
            f"Unknown search `{search}`. Choose {_listed([f'`{name}`' for name in SEARCHES], 'or')}, or pass an Optuna sampler."
        )
    sampled = [p.name for p in space.parameters if isinstance(p.domain, Sampled)]
    if sampled and search != "random":
        raise UsageError(
            f"`{sampled[0]}` is sampled by a function (sample_from), which only random search supports. Specify its range, for "
            "example `{'int_log2': [2, 9]}` for powers of two, or use tune.choice."
        )
    if search == "bayes":
        choices = [p.name for p in space.parameters if isinstance(p.domain, Categorical)]
        if choices:
            raise UsageError(
                f"`bayes` needs ranges, but {_listed(choices, 'and')} {'is a list' if len(choices) == 1 else 'are lists'} of choices. "
                "Use the search `optuna` or `hyperopt`, or specify powers of two as `{int_log2 = [1, 4]}`."
            )
        if space.has_conditions:
            raise UsageError(
                "`bayes` does not support conditions (`when = ...`). Use the search `optuna` or `hyperopt`."
            )


_PACKAGES = {"bayes": "bayesian-optimization", "hyperopt": "HyperOpt", "optuna": "Optuna"}


def _listed(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
