"""A searcher with HyperOpt's tree-structured Parzen estimator, used as in Ray Tune's `HyperOptSearch`. The same seed
gives the same proposals.

HyperOpt ignores failed trials. Therefore, a configuration that can never fit is reported with a loss above all other
losses, which increases with the size of the configuration.
"""

import contextlib
import logging
import math
from typing import Any

import numpy
from hyperopt import STATUS_OK, Domain, Trials, hp, tpe
from hyperopt.base import JOB_STATE_DONE, JOB_STATE_ERROR

from legroom.tuning.search.penalties import Penalties
from legroom.tuning.search.protocol import Result
from legroom.tuning.space.domains import AnyDomain, Categorical, FloatRange, IntRange, PowerRange, Sampled
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.records import Mode

STARTUP_TRIALS, GAMMA = 20, 0.25
"""The number of random trials before the model is used, and the fraction of trials that are treated as good, as in Ray
Tune.
"""


class HyperoptSearcher:
    """A searcher that samples every parameter in every trial. Inactive parameters are omitted from the
    configuration."""

    startup_trials: int | None = STARTUP_TRIALS

    def __init__(self, space: Space, mode: Mode, seed: int) -> None:
        logging.getLogger("hyperopt.tpe").setLevel(logging.WARNING)
        self._space = space
        self._rng = numpy.random.RandomState(seed)
        self._penalties = Penalties(mode)
        self._domain = Domain(
            lambda values: 0.0, {p.name: _expression(p.name, p.domain) for p in space.parameters}
        )
        self._trials = Trials()
        self._documents: dict[int, dict[str, Any]] = {}
        self._results: list[tuple[dict[str, Any], Result]] = []

    def propose(self, number: int) -> Config | None:
        for document, result in self._results:  # penalties depend on all results known now
            document["result"] = {"status": STATUS_OK, "loss": self._penalties.loss(result)}
        identities = self._trials.new_trial_ids(1)
        self._trials.refresh()
        with contextlib.redirect_stdout(None):
            suggested = tpe.suggest(
                identities,
                self._domain,
                self._trials,
                self._rng.randint(2**31 - 1),
                n_startup_jobs=STARTUP_TRIALS,
                gamma=GAMMA,
                verbose=False,
            )
        self._trials.insert_trial_docs(suggested)
        self._trials.refresh()
        self._documents[number] = suggested[0]
        return self._config(suggested[0])

    def learn(self, number: int, config: Config, result: Result) -> None:
        self._penalties.learn(result)
        document = self._documents.pop(number)
        if self._config(document) != config:  # population-based training has changed it
            for p in self._space.parameters:
                if p.name in config:
                    document["misc"]["vals"][p.name] = [_sampled(p.domain, config[p.name])]
        if result.value is None and result.shortage is None:
            document["state"] = JOB_STATE_ERROR
        else:
            document["state"] = JOB_STATE_DONE
            self._results.append((document, result))
        self._trials.refresh()

    def _config(self, document: dict[str, Any]) -> Config:
        sampled = document["misc"]["vals"]
        return self._space.with_constants(
            {p.name: _value(p.domain, sampled[p.name][0]) for p in self._space.parameters}
        )


def _expression(name: str, domain: AnyDomain) -> Any:
    if isinstance(domain, Categorical):
        return hp.choice(name, list(domain.options))
    if isinstance(domain, FloatRange):
        if domain.log:
            return hp.loguniform(name, math.log(domain.low), math.log(domain.high))
        if _has_multiples(domain):
            return hp.quniform(name, domain.low, domain.high, domain.step)
        return hp.uniform(name, domain.low, domain.high)
    if isinstance(domain, IntRange) and domain.log:
        return hp.qloguniform(name, math.log(domain.low), math.log(domain.high), 1.0)
    assert not isinstance(domain, Sampled), "check_search rejects functions"
    return hp.uniformint(name, domain.low, domain.high)  # for powers of two, the exponent


def _value(domain: AnyDomain, sampled: Any) -> Any:
    if isinstance(domain, Categorical):
        return domain.options[int(sampled)]
    if isinstance(domain, FloatRange):
        value = min(domain.high, max(domain.low, float(sampled)))
        return domain.from_unit(domain.to_unit(value)) if domain.step else value
    assert not isinstance(domain, Sampled), "check_search rejects functions"
    integer = min(domain.high, max(domain.low, int(sampled)))
    return 2**integer if isinstance(domain, PowerRange) else integer


def _sampled(domain: AnyDomain, value: Any) -> Any:
    if isinstance(domain, Categorical):
        return domain.options.index(value)
    return int(value).bit_length() - 1 if isinstance(domain, PowerRange) else value


def _has_multiples(domain: FloatRange) -> bool:
    """Return True if all values of the range are multiples of `step`. HyperOpt supports a range with steps only if all
    of its values are multiples of the step.
    """
    return domain.step is not None and math.isclose(
        domain.low / domain.step, round(domain.low / domain.step), abs_tol=1e-9
    )
