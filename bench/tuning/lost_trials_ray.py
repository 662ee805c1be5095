"""Runs plain Ray Tune on a space of `bench.tuning.lost_trials`.

The program follows Ray Tune's documentation and does not consider memory. A trial that runs out of memory fails, and
the searcher is notified of an error. Two settings help Ray. Workers are reused between trials (`reuse_actors`), so
torch is imported only once, and again after each failed trial. A learning searcher waits for the previous trial
(`ConcurrencyLimiter`).

`BayesOptSearch` stalls once one of its first ten trials has failed: `suggest` returns nothing until there are ten
results, and `on_trial_complete` drops failed trials. `Help` contains workarounds that a user could apply.
"""

import importlib
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import ray
import torch
from ray import tune as ray_tune
from ray.tune.search import ConcurrencyLimiter, SearchAlgorithm, Searcher
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.bayesopt import BayesOptSearch
from ray.tune.search.hyperopt import HyperOptSearch
from ray.tune.search.optuna import OptunaSearch

from bench.tuning.other_program import REAL, gpu_of
from bench.tuning.plain_step import plain_step
from legroom.gpus.machine import processors
from legroom.tuning.engines.ray.cluster import QUIET
from legroom.tuning.space.space import read_space


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """Workarounds applied by hand."""

    half: bool = False
    """True if two trials run at a time on the GPU, each with half of its memory."""
    catches: bool = False
    """True if the function catches the error and reports infinity, which Bayesian optimization ignores. A lost trial
    then does not end its worker."""
    learns_at_once: bool = False
    """True if Bayesian optimization runs without random trials (`random_search_steps=0`)."""


HELP = {
    "ray": Help(),
    "ray, catches": Help(catches=True),
    "ray, learns at once": Help(learns_at_once=True),
    "ray, half": Help(half=True),
}

VIRTUAL = "virtual_gpu"
"""The Ray resource that represents the virtual GPU."""
STILL = 10.0
"""A searcher counts as stalled after this many seconds without a running trial or a proposal."""


def run_plain(
    space: str,
    search: str,
    seed: int,
    trials: int,
    epochs: int,
    gpu: str,
    *,
    help: Help,
    threads: int,
    longest: float,
) -> dict[str, Any]:
    """Run one study for at most `longest` seconds. `space` is the module of the space in `bench.tuning`. `threads` is
    the number of threads per trial."""
    searched = importlib.import_module(f"bench.tuning.{space}")
    os.environ.update(QUIET)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # one traceback per failed trial
    logging.getLogger("optuna").setLevel(logging.CRITICAL)
    watch = ResultRecorder(lambda drawn: configuration(searched, search, drawn))
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=processors(),
        num_gpus=int(gpu == REAL),
        resources={VIRTUAL: 1},
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            results = ray_tune.Tuner(
                ray_tune.with_resources(
                    partial(
                        train, space=space, search=search, help=help, epochs=epochs, gpu=gpu, threads=threads
                    ),
                    {"cpu": 1, "gpu" if gpu == REAL else VIRTUAL: 0.5 if help.half else 1},
                ),
                param_space=space_for(searched, search),
                tune_config=ray_tune.TuneConfig(
                    metric="loss",
                    mode="min",
                    num_samples=trials,
                    search_alg=searcher(search, seed, help, longest),
                    time_budget_s=longest,
                    reuse_actors=True,
                ),
                run_config=ray_tune.RunConfig(
                    name="plain", storage_path=folder, verbose=0, callbacks=[watch]
                ),
            ).fit()
    finally:
        ray.shutdown()
    others = [str(error) for error in results.errors if "OutOfMemoryError" not in str(error)]
    if others:
        sys.exit(f"a trial failed for another reason than memory: {others[0][-2000:]}")
    return watch.row()


def train(
    config: dict[str, Any], *, space: str, search: str, help: Help, epochs: int, gpu: str, threads: int
) -> None:
    """Train a trial of Ray Tune. The training is the same as for Legroom, in a loop without a guard."""
    searched = importlib.import_module(f"bench.tuning.{space}")
    torch.set_num_threads(threads)
    whole = {
        **read_space(searched.SPACE).with_constants(configuration(searched, search, config)),
        "epochs": epochs,
    }
    try:
        with gpu_of(gpu):
            if help.half:
                torch.cuda.set_per_process_memory_fraction(0.5, 0)
            for loss in searched.epochs(whole, "cuda", plain_step):
                ray_tune.report({"loss": loss})
    except torch.OutOfMemoryError:
        if not help.catches:
            raise
        ray_tune.report({"loss": math.inf})


def space_for(searched: ModuleType, search: str) -> dict[str, Any]:
    """Return the space in Ray's format, with the same names in the same order. Ray's Bayesian optimization accepts
    only floats."""
    space: dict[str, Any] = {}
    for name, kind, low, high in ranges(searched):
        if kind == "uniform":
            space[name] = ray_tune.uniform(low, high)
        elif search == "bayes":
            space[name] = ray_tune.uniform(0.0, 1.0)
        elif kind == "log":
            space[name] = ray_tune.loguniform(low, high)
        else:  # an integer, or the exponent of a power of two; Ray excludes the upper end
            space[name] = ray_tune.randint(low, high + 1)
    return space


def configuration(searched: ModuleType, search: str, drawn: dict[str, Any]) -> dict[str, Any]:
    """Convert a configuration that Ray proposed to the arguments of the training function."""
    domains: dict[str, Any] = {
        parameter.name: parameter.domain for parameter in read_space(searched.SPACE).parameters
    }
    config: dict[str, Any] = {}
    for name, kind, _, _ in ranges(searched):
        if search == "bayes" and kind != "uniform":
            config[name] = domains[name].at(drawn[name])
        else:
            config[name] = 2 ** drawn[name] if kind == "int_log2" else drawn[name]
    return config


def ranges(searched: ModuleType) -> list[tuple[str, str, Any, Any]]:
    """Yield the name, kind and ends of each searched parameter. The other parameters are constant."""
    return [
        (name, kind, *ends)
        for name, written in searched.SPACE.items()
        if isinstance(written, dict)
        for kind, ends in written.items()
    ]


def searcher(search: str, seed: int, help: Help, longest: float) -> SearchAlgorithm | Searcher:
    if search == "random":
        return BasicVariantGenerator(random_state=seed)
    made: Searcher
    if search == "optuna":
        made = OptunaSearch(seed=seed)
    elif search == "hyperopt":
        made = HyperOptSearch(random_state_seed=seed)
    else:
        made = BayesOptSearch(
            random_state=seed, skip_duplicate=False, random_search_steps=0 if help.learns_at_once else 10
        )
    return TimeLimited(made, 2 if help.half else 1, longest)


class TimeLimited(ConcurrencyLimiter):
    """A searcher that proposes nothing after the time limit or after it has stalled. Ray does not check the time
    while it waits for a proposal."""

    def __init__(self, searcher: Searcher, max_concurrent: int, seconds: float) -> None:
        super().__init__(searcher, max_concurrent)
        self._end = time.monotonic() + seconds
        self._moved = math.inf

    def suggest(self, trial_id: str) -> Any:
        proposal = super().suggest(trial_id)
        now = time.monotonic()
        if proposal is not None or self.live_trials:
            self._moved = now
        return (
            Searcher.FINISHED if proposal is None and now > min(self._end, self._moved + STILL) else proposal
        )


class ResultRecorder(ray_tune.Callback):
    """Records results while Ray Tune runs."""

    def __init__(self, configured: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._configured = configured
        self._began = time.perf_counter()
        self._trials: dict[str, dict[str, Any]] = {}
        self._last = 0.0

    def row(self) -> dict[str, Any]:
        trials = list(self._trials.values())
        return {
            "trials": trials,
            "proposed": [trial["config"] for trial in trials],
            "rejected": 0,
            "ooms": sum(trial["lost"] for trial in trials),
            "seconds": self._last,
            "still": time.perf_counter() - self._began - self._last,
        }

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._trials[trial.trial_id] = {
            "lost": False, "ended": False, "seconds": -self._now(), "losses": [], "split": False,
            "config": self._configured(trial.config),
        }  # fmt: skip

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if math.isinf(result["loss"]):
            self._trials[trial.trial_id]["lost"] = True
        else:
            self._trials[trial.trial_id]["losses"].append([self._now(), result["loss"]])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ended(trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ended(trial)
        self._trials[trial.trial_id]["lost"] = True

    def _ended(self, trial: Any) -> None:
        known = self._trials[trial.trial_id]
        known["seconds"] += self._now()
        known["ended"] = True

    def _now(self) -> float:
        self._last = time.perf_counter() - self._began
        return self._last
