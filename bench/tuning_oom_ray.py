"""Plain Ray Tune over the space of `tuning_space`, for `bench.tuning_oom`: a function, a searcher, so many samples.

What Ray Tune's documentation shows, and nothing that knows of memory: a trial whose function runs out of it errs, and the searcher hears of an error.
"""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import ray
import torch
from ray import tune as ray_tune
from ray.tune.search import Searcher
from ray.tune.search.bayesopt import BayesOptSearch
from ray.tune.search.hyperopt import HyperOptSearch
from ray.tune.search.optuna import OptunaSearch

from bench import tuning_space
from bench.plain_step import plain_step
from legroom import VirtualGPU
from legroom.tuning.ray_cluster import QUIET
from legroom.tuning.searchers import RandomSearcher
from legroom.tuning.space import read_space

POWERS = ("channels", "units", "batch_size")
"""Parameters that are powers of two."""


def run_plain(
    space: dict[str, Any], search: str, seed: int, trials: int, *, half: bool, longest: float
) -> dict[str, Any]:
    """One study. `half`: two trials at a time on the GPU, each with half of its memory."""
    os.environ.update(QUIET)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a traceback for each trial that errs
    logging.getLogger("optuna").setLevel(logging.CRITICAL)
    watch = Watch()
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=2,
        num_gpus=1,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            results = ray_tune.Tuner(
                ray_tune.with_resources(
                    partial(train, half=half, epochs=space["epochs"]), {"cpu": 1, "gpu": 0.5 if half else 1}
                ),
                param_space=None if search == "random" else space_for(search, space),
                tune_config=ray_tune.TuneConfig(
                    metric="loss",
                    mode="min",
                    num_samples=trials,
                    search_alg=searcher(search, seed, space),
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
        sys.exit(f"a trial failed otherwise than for want of memory: {others[0][-2000:]}")
    return watch.row()


def train(config: dict[str, Any], *, half: bool, epochs: int) -> None:
    """For Ray Tune: the same training as Legroom's, in a loop without a guard."""
    torch.set_num_threads(1)
    for loss in losses({**config, "epochs": epochs}, half):
        ray_tune.report({"loss": loss})


def losses(config: dict[str, Any], half: bool) -> Iterator[float]:
    whole = {
        name: round(2 ** config[f"{name}_log2"]) if f"{name}_log2" in config else config[name]
        for name in POWERS
    }
    lr = 10 ** config["lr_log10"] if "lr_log10" in config else config["lr"]
    with VirtualGPU(tuning_space.GPU):
        if half:
            torch.cuda.set_per_process_memory_fraction(0.5, 0)
        yield from tuning_space.epochs({**config, **whole, "lr": lr}, "cuda", plain_step)


def space_for(search: str, space: dict[str, Any]) -> dict[str, Any]:
    """The space as Ray writes it; Bayesian optimization there takes floats alone."""
    powers = {name: space[name]["int_log2"] for name in POWERS}
    if search == "bayes":
        floats = {
            f"{name}_log2": ray_tune.uniform(low - 0.49, high + 0.49) for name, (low, high) in powers.items()
        }
        return {
            **floats,
            "lr_log10": ray_tune.uniform(-4, -1),
            "dropout": ray_tune.uniform(0.0, 0.5),
        }
    choices = {
        name: ray_tune.choice([2**power for power in range(low, high + 1)])
        for name, (low, high) in powers.items()
    }
    return {**choices, "lr": ray_tune.loguniform(1e-4, 1e-1), "dropout": ray_tune.uniform(0.0, 0.5)}


def searcher(search: str, seed: int, space: dict[str, Any]) -> Searcher:
    if search == "random":
        return Drawn(space, seed)
    if search == "optuna":
        return OptunaSearch(seed=seed)
    if search == "hyperopt":
        return HyperOptSearch(random_state_seed=seed)
    return BayesOptSearch(random_state=seed, skip_duplicate=False)


class Drawn(Searcher):
    """Random search with the very configurations that Legroom draws, so that the two differ in nothing else."""

    def __init__(self, space: dict[str, Any], seed: int) -> None:
        super().__init__()
        self._drawn, self._next = RandomSearcher(read_space(space), seed), 0

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        config = self._drawn.propose(self._next)
        self._next += 1
        return config

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Nothing is learned."""

    def save(self, checkpoint_path: str) -> None:
        """It is not resumed."""

    def restore(self, checkpoint_path: str) -> None:
        """It is not resumed."""


class Watch(ray_tune.Callback):
    """Keeps account while Ray Tune runs."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._trials: dict[str, dict[str, Any]] = {}
        self._last = 0.0

    def row(self) -> dict[str, Any]:
        trials = list(self._trials.values())
        return {
            "trials": trials,
            "rejected": 0,
            "ooms": sum(trial["lost"] for trial in trials),
            "seconds": self._last,
        }

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._trials[trial.trial_id] = {
            "lost": False, "ended": False, "seconds": -self._now(), "losses": [], "split": False, "config": trial.config
        }  # fmt: skip

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
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
