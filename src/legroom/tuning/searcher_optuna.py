"""Optuna's tree-structured Parzen estimator. What can never fit is told to it as a broken constraint: it then ranks below all
that ran, the worse the further it is from fitting, and the estimator leaves that region."""

from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from legroom.tuning.domains import AnyDomain, Choice, FloatRange, IntRange, PowerRange
from legroom.tuning.records import Mode
from legroom.tuning.searchers import Result
from legroom.tuning.space import Config, Space


class OptunaSearcher:
    """TPE over an in-memory study that holds what it was told. It draws ten trials at random before it begins to model."""

    def __init__(self, space: Space, mode: Mode, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._seed = space, seed
        self._study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
        self._asked: dict[int, optuna.Trial] = {}

    def propose(self, number: int) -> Config | None:
        # A sampler of its own for each number: what it draws depends on the number and on what was learned, not on how often
        # it was asked before an interruption.
        self._study.sampler = _sampler(hash((self._seed, number)) & 0xFFFFFFFF)
        trial = self._study.ask()
        config = dict(self._space.constants)
        for parameter in self._space.parameters:
            if parameter.counts_in(config):
                config[parameter.name] = _suggested(trial, parameter.name, parameter.domain)
        self._asked[number] = trial
        return config

    def learn(self, number: int, config: Config, result: Result) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:  # its place is taken by what is known of it now
            self._study.tell(asked, state=TrialState.FAIL)
        if result.value is None and result.shortage is None:
            return
        known = [parameter for parameter in self._space.parameters if parameter.name in config]
        is_whole = result.value is not None and not result.is_partial
        self._study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if is_whole else TrialState.PRUNED,
                value=result.value if is_whole else None,
                params={p.name: _told(p.domain, config[p.name]) for p in known},
                distributions={p.name: _distribution(p.domain) for p in known},
                system_attrs={"constraints": [result.shortage or 0.0]},
                intermediate_values={} if is_whole or result.value is None else {result.step: result.value},
            )
        )


def _sampler(seed: int) -> TPESampler:
    """Optuna 5 looks at constraints by itself; before that it does only where a function gives them."""
    if hasattr(FrozenTrial, "constraints"):
        return TPESampler(seed=seed)
    return TPESampler(seed=seed, constant_liar=True, constraints_func=lambda trial: (0.0,))


def _distribution(domain: AnyDomain) -> BaseDistribution:
    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.options)
    if isinstance(domain, FloatRange):
        return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    if isinstance(domain, IntRange):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    return IntDistribution(domain.low, domain.high)


def _suggested(trial: optuna.Trial, name: str, domain: AnyDomain) -> Any:
    if isinstance(domain, Choice):
        return trial.suggest_categorical(name, domain.options)
    if isinstance(domain, FloatRange):
        return trial.suggest_float(name, domain.low, domain.high, log=domain.log, step=domain.step)
    if isinstance(domain, IntRange):
        return trial.suggest_int(name, domain.low, domain.high, log=domain.log)
    return 2 ** trial.suggest_int(name, domain.low, domain.high)


def _told(domain: AnyDomain, value: Any) -> Any:
    """As the estimator knows it: of a power of two, the exponent."""
    return int(value).bit_length() - 1 if isinstance(domain, PowerRange) else value
