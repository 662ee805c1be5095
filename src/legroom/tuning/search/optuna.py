"""A searcher with Optuna's tree-structured Parzen estimator, used as in Ray Tune's `OptunaSearch`. The same seed gives
the same proposals. The user can pass another Optuna sampler.

A configuration that can never fit is reported to Optuna as a violated constraint. The configuration therefore ranks
below all completed trials, and larger configurations rank lower.
"""

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from legroom.errors import UsageError
from legroom.tuning.search.protocol import Result
from legroom.tuning.space.domains import AnyDomain, Categorical, FloatRange, IntRange, PowerRange
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode

_SHORTAGE = "shortage"


class OptunaSearcher:
    """A searcher with an in-memory Optuna study. The sampler is the user's sampler, or TPE. The first ten trials of TPE
    are random.
    """

    startup_trials: int | None = 10

    def __init__(
        self,
        space: Space,
        mode: Mode,
        seed: int,
        more_modes: Sequence[Mode] = (),
        sampler: BaseSampler | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._own_sampler = sampler
        if sampler is not None:
            self.startup_trials = 0  # not known
        self._study = optuna.create_study(
            directions=["minimize" if each == "min" else "maximize" for each in (mode, *more_modes)],
            sampler=_sampler(seed) if sampler is None else sampler,
        )
        self._asked: dict[int, optuna.Trial] = {}
        self._is_exhausted = False
        # A sampler with a finite number of configurations (GridSampler) calls this method after the last one.
        self._study.stop = self._stop  # type: ignore[method-assign]

    def propose(self, number: int) -> Config | None:
        if self._is_exhausted:
            return None
        if self._own_sampler is None:
            return self._propose(number)
        try:
            return self._propose(number)
        except Exception as error:  # a missing package, or a space that the sampler does not support
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UsageError(
                f"{type(self._own_sampler).__name__} cannot propose a configuration: {reason}. Use another sampler, "
                "or set `search='optuna'`."
            ) from error

    def _propose(self, number: int) -> Config:
        trial = self._study.ask()
        config = dict(self._space.constants)
        for parameter in self._space.parameters:
            if parameter.is_active_in(config):
                config[parameter.name] = _suggested(trial, parameter.name, parameter.domain)
        self._asked[number] = trial
        return config

    def learn(self, number: int, config: Config, result: Result) -> None:
        trial = self._trial_of(number, config)
        if result.shortage is not None:
            _break_constraint(trial, result.shortage)
            self._study.tell(trial, state=TrialState.PRUNED)
        elif result.value is None:
            self._study.tell(trial, state=TrialState.FAIL)
        elif result.is_partial:
            trial.report(result.value, result.step)
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, result.values or result.value)

    def _stop(self) -> None:
        self._is_exhausted = True

    def _trial_of(self, number: int, config: Config) -> optuna.Trial:
        """Return the Optuna trial for a proposal. If population-based training changed the configuration, a new
        Optuna trial replaces the old one."""
        known = [parameter for parameter in self._space.parameters if parameter.name in config]
        params = {p.name: _internal_value(p.domain, config[p.name]) for p in known}
        trial = self._asked.pop(number)
        if trial.params == params:
            return trial
        self._study.tell(trial, state=TrialState.FAIL)
        self._study.enqueue_trial(params)
        replacement = self._study.ask()
        for parameter in known:
            _suggested(replacement, parameter.name, parameter.domain)
        return replacement


def _sampler(seed: int) -> TPESampler:
    """Create the default sampler. Optuna 5 reads constraints from the trials, while older versions call a function
    that returns the constraints."""
    if hasattr(FrozenTrial, "constraints"):
        return TPESampler(seed=seed)
    return TPESampler(seed=seed, constraints_func=lambda trial: (trial.user_attrs.get(_SHORTAGE, 0.0),))


def _break_constraint(trial: optuna.Trial, shortage: float) -> None:
    if hasattr(trial, "set_constraint"):
        trial.set_constraint(_SHORTAGE, shortage)
    else:
        trial.set_user_attr(_SHORTAGE, shortage)


def _suggested(trial: optuna.Trial, name: str, domain: AnyDomain) -> Any:
    if isinstance(domain, Categorical):
        return trial.suggest_categorical(name, domain.options)
    if isinstance(domain, FloatRange):
        return trial.suggest_float(name, domain.low, domain.high, log=domain.log, step=domain.step)
    if isinstance(domain, IntRange):
        return trial.suggest_int(name, domain.low, domain.high, log=domain.log)
    assert isinstance(domain, PowerRange), "check_search rejects functions"
    return 2 ** trial.suggest_int(name, domain.low, domain.high)


def _internal_value(domain: AnyDomain, value: Any) -> Any:
    return int(value).bit_length() - 1 if isinstance(domain, PowerRange) else value
