"""HyperOpt's tree of Parzen estimators. It forgets trials that failed, so what can never fit gets a penalty: a loss above all
that were seen, and the higher the further it is from fitting."""

import contextlib
import logging
import math
from typing import Any

import numpy
from hyperopt import STATUS_OK, Domain, Trials, hp, tpe
from hyperopt.base import JOB_STATE_DONE

from legroom.tuning.domains import AnyDomain, Choice, FloatRange, IntRange
from legroom.tuning.penalties import Penalties
from legroom.tuning.records import Mode
from legroom.tuning.searchers import Result
from legroom.tuning.space import Config, Space

RANDOM_FIRST = 10
"""Trials at random before it begins to model, as many as Optuna's: a search of thirty learns little from HyperOpt's own twenty."""


class HyperoptSearcher:
    """Every parameter is drawn in every trial; those whose condition does not hold are left out of the configuration."""

    def __init__(self, space: Space, mode: Mode, seed: int) -> None:
        logging.getLogger("hyperopt.tpe").setLevel(logging.WARNING)
        self._space, self._seed = space, seed
        self._penalties = Penalties(mode)
        self._domain = Domain(
            lambda values: 0.0, {p.name: _expression(p.name, p.domain) for p in space.parameters}
        )
        self._drawn: dict[int, dict[str, Any]] = {}
        self._known: list[tuple[int, dict[str, Any], Result]] = []

    def propose(self, number: int) -> Config | None:
        trials = self._trials()
        with contextlib.redirect_stdout(None):
            suggested = tpe.suggest(
                [number],
                self._domain,
                trials,
                hash((self._seed, number)) & 0x7FFFFFFF,
                n_startup_jobs=RANDOM_FIRST,
                verbose=False,
            )
        drawn = {name: values[0] for name, values in suggested[0]["misc"]["vals"].items()}
        self._drawn[number] = drawn
        return self._space.with_constants(
            {p.name: _value(p.domain, drawn[p.name]) for p in self._space.parameters}
        )

    def learn(self, number: int, config: Config, result: Result) -> None:
        self._penalties.learn(result)
        drawn = self._drawn.pop(number, None)
        if drawn is None:  # proposed before an interruption
            drawn = {
                p.name: _drawn(p.domain, config[p.name]) for p in self._space.parameters if p.name in config
            }
        if result.value is not None or result.shortage is not None:
            self._known.append((number, drawn, result))

    def _trials(self) -> Trials:
        """What was learned, as HyperOpt keeps it, with penalties that go by all that is known now."""
        trials = Trials()
        documents = []
        for number, drawn, result in self._known:
            names = [p.name for p in self._space.parameters]
            misc = {
                "tid": number,
                "cmd": ("domain_attachment", "FMinIter_Domain"),
                "idxs": {name: [number] if name in drawn else [] for name in names},
                "vals": {name: [drawn[name]] if name in drawn else [] for name in names},
            }
            loss = self._penalties.loss(result)
            document = trials.new_trial_docs([number], [None], [{"status": STATUS_OK, "loss": loss}], [misc])[
                0
            ]
            document["state"] = JOB_STATE_DONE
            documents.append(document)
        if documents:
            trials.insert_trial_docs(documents)
        trials.refresh()
        return trials


def _expression(name: str, domain: AnyDomain) -> Any:
    if isinstance(domain, Choice):
        return hp.choice(name, list(domain.options))
    if isinstance(domain, FloatRange):
        if domain.log:
            return hp.loguniform(name, math.log(domain.low), math.log(domain.high))
        return hp.uniform(name, domain.low, domain.high)
    if isinstance(domain, IntRange) and not domain.log:
        return hp.uniformint(name, domain.low, domain.high)
    return hp.uniform(name, 0.0, 1.0)  # its place on the line


def _value(domain: AnyDomain, drawn: Any) -> Any:
    """A value of the domain from what HyperOpt drew."""
    if isinstance(domain, Choice):
        return domain.options[int(drawn)]
    if isinstance(domain, FloatRange):
        return (
            domain.at(domain.share(float(drawn)))
            if domain.step
            else min(domain.high, max(domain.low, float(drawn)))
        )
    if isinstance(domain, IntRange) and not domain.log:
        return min(domain.high, max(domain.low, int(drawn)))
    return domain.at(float(drawn))


def _drawn(domain: AnyDomain, value: Any) -> Any:
    """The other way round."""
    if isinstance(domain, Choice):
        return domain.options.index(value)
    if isinstance(domain, FloatRange) or (isinstance(domain, IntRange) and not domain.log):
        return numpy.float64(value) if isinstance(domain, FloatRange) else int(value)
    return domain.share(value)
