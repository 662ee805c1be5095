"""The space of `tuning_space` searched as plain Ray Tune does it and by Legroom, one after the other in the same run, for each seed.

    python -m bench.tuning_oom_ray --seeds 0 1 2 3 4 --trials 16 --out rows.jsonl

- `plain`: Ray Tune as its documentation shows it: a function, a searcher, so many samples; a trial whose function runs out of memory errs.
- `searchers`: Ray Tune's searchers, asked and told as Ray Tune does it (an error is `on_trial_complete(error=True)`), with trials in two
  processes that are there already. So the search is Ray's, and starting processes costs it nothing.
- `local`, `ray`: Legroom with each engine. It starts its processes itself, one for each trial, within its time.
"""

import argparse
import json
import logging
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache, partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune as ray_tune
from ray.tune.search import Searcher
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.bayesopt import BayesOptSearch
from ray.tune.search.hyperopt import HyperOptSearch
from ray.tune.search.optuna import OptunaSearch

from bench import tuning_space
from bench.tuning_oom import SEARCHES, run, show
from legroom import VirtualGPU
from legroom.tuning.ray_cluster import QUIET
from legroom.tuning.searchers import RandomSearcher
from legroom.tuning.space import read_space

WIDTHS, BATCHES = (6, 13), (5, 10)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--searches", nargs="+", default=SEARCHES)
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), default=("searchers", "local"))
    parser.add_argument("--out", type=Path, default=Path("tuning_oom.jsonl"))
    asked = parser.parse_args()
    os.environ.update(QUIET)
    for name in ("ray.tune", "optuna"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # a traceback for each trial that errs
    for seed in asked.seeds:
        for search in asked.searches:
            for system in asked.systems:
                row = SYSTEMS[system](search, seed, asked.trials)
                with asked.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(
                    f"{row['system']} seed {seed}: {row['lost']} of {row['started']} lost, best {row['best']:.3f}, {row['seconds']:.0f} s",
                    flush=True,
                )
    show([json.loads(line) for line in asked.out.read_text().splitlines()])


def losses(config: dict[str, Any]) -> Iterator[float]:
    """The same training as Legroom's, in a loop without a guard."""
    whole = {
        "width": round(2 ** config["width_log2"]) if "width_log2" in config else config["width"],
        "batch_size": round(2 ** config["batch_log2"]) if "batch_log2" in config else config["batch_size"],
        "depth": round(config["depth"]),
        "lr": 10 ** config["lr_log10"] if "lr_log10" in config else config["lr"],
        "dropout": config["dropout"],
    }
    with VirtualGPU(tuning_space.GPU):
        yield from tuning_space.epochs(whole, "cuda", tuning_space.plain_step)


def train(config: dict[str, Any]) -> None:
    """For Ray Tune."""
    for loss in losses(config):
        ray_tune.report({"loss": loss})


def run_plain(search: str, seed: int, trials: int) -> dict[str, Any]:
    """One study of plain Ray Tune as a row of the table."""
    tally = Tally()
    ray.init(
        address="local", include_dashboard=False, num_cpus=2, log_to_driver=False, logging_level=logging.ERROR
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            results = ray_tune.Tuner(
                ray_tune.with_resources(train, {"cpu": 1}),
                param_space=space_for(search),
                tune_config=ray_tune.TuneConfig(
                    metric="loss",
                    mode="min",
                    num_samples=trials,
                    search_alg=BasicVariantGenerator(random_state=seed)
                    if search == "random"
                    else searcher(search, seed),
                    max_concurrent_trials=2,
                ),
                run_config=ray_tune.RunConfig(
                    name="plain", storage_path=folder, verbose=0, callbacks=[Watch(tally)]
                ),
            ).fit()
    finally:
        ray.shutdown()
    others = [str(error) for error in results.errors if "OutOfMemoryError" not in str(error)]
    if others:
        raise RuntimeError(f"a trial failed otherwise than for want of memory: {others[0][-2000:]}")
    return tally.row(f"ray+{search}", seed)


def run_searchers(search: str, seed: int, trials: int) -> dict[str, Any]:
    """One study with a searcher of Ray's, as a row of the table."""
    pool = processes()
    tally = Tally()
    asked = searcher(search, seed)
    asked.set_search_properties("loss", "min", space_for(search))
    names = [f"{number:08d}" for number in range(trials)]
    running: dict[Future[list[float] | None], str] = {}
    while names or running:
        while names and len(running) < 2 and (config := asked.suggest(names[0])) is not None:
            running[pool.submit(try_out, config)] = names[0]
            tally.start(names.pop(0))
        if not running:
            break  # BayesOptSearch waits for ever for the value of each of its first ten trials, errored ones too
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            name, told = running.pop(future), future.result()
            if told is None:
                asked.on_trial_complete(name, error=True)
                tally.lost(name)
                continue
            results = [{"loss": loss, "training_iteration": step} for step, loss in enumerate(told, 1)]
            for result in results:
                asked.on_trial_result(name, result)
            asked.on_trial_complete(name, results[-1])
            tally.done(min(told))
    return tally.row(f"ray searchers+{search}", seed)


@cache
def processes() -> ProcessPoolExecutor:
    """Two, each with a virtual GPU of its own, as Legroom's trials have; started once and warm."""
    pool = ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("forkserver"), initializer=one_thread
    )
    list(pool.map(abs, range(8)))
    return pool


def one_thread() -> None:
    torch.set_num_threads(1)


def try_out(config: dict[str, Any]) -> list[float] | None:
    """The loss after each epoch; None where memory ran out."""
    try:
        return list(losses(config))
    except torch.OutOfMemoryError:
        return None


def space_for(search: str) -> dict[str, Any]:
    """The space as Ray writes it; Bayesian optimization there takes floats alone."""
    if search == "bayes":
        return {
            "width_log2": ray_tune.uniform(WIDTHS[0] - 0.49, WIDTHS[1] + 0.49),
            "batch_log2": ray_tune.uniform(BATCHES[0] - 0.49, BATCHES[1] + 0.49),
            "depth": ray_tune.uniform(0.51, 2.49),
            "lr_log10": ray_tune.uniform(-4, -1),
            "dropout": ray_tune.uniform(0.0, 0.5),
        }
    return {
        "width": ray_tune.choice([2**power for power in range(WIDTHS[0], WIDTHS[1] + 1)]),
        "batch_size": ray_tune.choice([2**power for power in range(BATCHES[0], BATCHES[1] + 1)]),
        "depth": ray_tune.randint(1, 3),
        "lr": ray_tune.loguniform(1e-4, 1e-1),
        "dropout": ray_tune.uniform(0.0, 0.5),
    }


def searcher(search: str, seed: int) -> Any:
    if search == "random":
        return Drawn(seed)
    if search == "optuna":
        return OptunaSearch(seed=seed)
    if search == "hyperopt":
        return HyperOptSearch(random_state_seed=seed)
    return BayesOptSearch(random_state=seed, skip_duplicate=False)


class Drawn(Searcher):
    """Random search with the very configurations that Legroom draws, so that the two differ in nothing else."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._drawn = RandomSearcher(read_space(tuning_space.SPACE), seed)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        return self._drawn.propose(int(trial_id))

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Nothing is learned."""


class Tally:
    """When each trial ended, with which value, and how many were lost."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._started: dict[str, float] = {}
        self._best, self._lost, self._wasted = math.inf, 0, 0.0
        self._curve: list[list[float]] = []

    def start(self, name: str) -> None:
        self._started[name] = time.perf_counter()

    def done(self, loss: float) -> None:
        self._best = min(self._best, loss)
        self._curve.append([time.perf_counter() - self._began, self._best])

    def lost(self, name: str) -> None:
        self._lost += 1
        self._wasted += time.perf_counter() - self._started[name]
        self._curve.append([time.perf_counter() - self._began, self._best])

    def row(self, system: str, seed: int) -> dict[str, Any]:
        return {
            "system": system,
            "seed": seed,
            "proposed": len(self._started),
            "started": len(self._started),
            "lost": self._lost,
            "rejected": 0,
            "split": 0,
            "wasted_seconds": self._wasted,
            "ooms": self._lost,
            "best": self._best,
            "seconds": time.perf_counter() - self._began,
            "curve": self._curve,
            "best_by_trial": [best for _, best in self._curve],
        }


class Watch(ray_tune.Callback):
    """Keeps the tally while Ray Tune runs."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._tally.start(trial.trial_id)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._tally.done(trial.metric_analysis["loss"]["min"])

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._tally.lost(trial.trial_id)


SYSTEMS: dict[str, Callable[[str, int, int], dict[str, Any]]] = {
    "plain": run_plain,
    "searchers": run_searchers,
    "local": run,
    "ray": partial(run, engine="ray"),
}


if __name__ == "__main__":
    main()
