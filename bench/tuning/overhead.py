"""Measures the overhead of a search until its first report, per further trial, and per estimate, compared with plain
Ray Tune and plain Optuna.

    python -m bench.tuning.overhead --rounds 3 --trials 6

The function imports torch and reports once. Trials run one after another. Each system runs in its own process and
starts Ray, workers or a fork server within its time. Plain Optuna calls the function in its own process, one trial
after another. It therefore does not free the memory of a trial and does not survive a crash. Rounds alternate between
systems, so that load affects all of them.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from numpy.random import default_rng

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.tuning.api import tune
from legroom.tuning.engines.ray.cluster import QUIET
from legroom.tuning.memory.admission import virtual_gpus
from legroom.tuning.memory.gate import MemoryGate
from legroom.tuning.space.space import read_space
from legroom.tuning.trial.function import TrainFunction

Times = list[float]
"""The time of each trial's report, in seconds since the start of the search."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--configurations", type=int, default=12, help="configurations to estimate")
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.system:
        print(json.dumps(SYSTEMS[options.system](options.trials)))
        return
    first: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    further: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for _ in range(options.rounds):
        for name in SYSTEMS:
            times = in_process(name, options.trials)
            first[name].append(times[0])
            further[name].append((times[-1] - times[0]) / (len(times) - 1))
    print_table(
        f"{options.trials} trials one after another, median of {options.rounds} rounds, and relative to plain Ray Tune",
        ["system", "to the first report", "ratio", "each further trial", "ratio"],
        [
            [
                name,
                f"{statistics.median(first[name]):.1f} s",
                f"{_ratio(first, name):.2f}",
                f"{statistics.median(further[name]):.2f} s",
                f"{_ratio(further, name):.2f}",
            ]
            for name in SYSTEMS
        ],
    )
    estimates(options.configurations)


def in_process(system: str, trials: int) -> Times:
    """Run one search in its own process."""
    order = [sys.executable, "-m", "bench.tuning.overhead", "--trials", str(trials), "--system", system]
    done = subprocess.run(order, stdout=subprocess.PIPE, text=True, check=True)
    times: Times = json.loads(done.stdout.splitlines()[-1])
    return times


def report_once(config: dict[str, Any], trial: Any) -> None:
    """Train a trial of Legroom."""
    import torch  # noqa: F401  (what every training function does)

    trial.report(loss=config["lr"], at=time.time())


def report_once_to_ray(config: dict[str, Any]) -> None:
    """Train a trial of Ray Tune."""
    import torch  # noqa: F401
    from ray import tune as ray_tune

    ray_tune.report({"loss": config["lr"], "at": time.time()})


def plain_ray(trials: int, *, reuse: bool) -> Times:
    """Measure plain Ray Tune. With `reuse`, workers are reused between trials. Reuse is not Ray's default, because a
    trial's GPU memory may stay allocated."""
    began = time.time()
    import ray
    from ray import tune as ray_tune

    os.environ.update(QUIET)
    ray.init(
        address="local", include_dashboard=False, num_cpus=2, log_to_driver=False, logging_level=logging.ERROR
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            results = ray_tune.Tuner(
                ray_tune.with_resources(report_once_to_ray, {"cpu": 1}),
                param_space={"lr": ray_tune.uniform(0.0, 1.0)},
                tune_config=ray_tune.TuneConfig(
                    metric="loss", mode="min", num_samples=trials, max_concurrent_trials=1, reuse_actors=reuse
                ),
                run_config=ray_tune.RunConfig(name="plain", storage_path=folder, verbose=0),
            ).fit()
            return sorted(result.metrics["at"] - began for result in results)
    finally:
        ray.shutdown()


def plain_optuna(trials: int) -> Times:
    """Measure plain Optuna with a storage on disk, because Legroom also stores its studies on disk."""
    began = time.time()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        import torch  # noqa: F401

        trial.set_user_attr("at", time.time())
        return float(trial.suggest_float("lr", 0.0, 1.0))

    with tempfile.TemporaryDirectory() as folder:
        study = optuna.create_study(storage=f"sqlite:///{folder}/study.db")
        study.optimize(objective, n_trials=trials)
        return sorted(trial.user_attrs["at"] - began for trial in study.trials)


def legroom(trials: int, engine: str) -> Times:
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        study = tune(
            report_once, {"lr": {"uniform": [0.0, 1.0]}}, metric="loss", trials=trials, parallel=1,
            engine=engine, storage=Path(folder) / "study",
        )  # fmt: skip
        return sorted(trial.reports[0].metrics["at"] - began for trial in study.trials)


def estimates(count: int) -> None:
    """Measure the time of the memory gate for configurations of `convnet_space`, each requested twice."""
    from bench.tuning import (
        convnet_space,  # a trial's function is in this file and does not need scikit-learn
    )

    space = read_space(convnet_space.SPACE)
    gate = MemoryGate(
        TrainFunction.of("bench/tuning/convnet_space.py:train"), virtual_gpus(convnet_space.GPU), space
    )
    configs = [space.draw(default_rng(seed)) for seed in range(count)]
    try:
        start = _seconds_of(gate, configs[0])
        new, known = [], []
        for config in configs[1:]:
            new.append(_seconds_of(gate, config))
            known.append(_seconds_of(gate, config))
    finally:
        gate.close()
    print_table(
        f"An estimate, over {len(new)} configurations",
        ["", "median", "longest"],
        [
            ["the first, with the start of the tracing process", f"{start:.2f} s", ""],
            ["a new configuration", f"{statistics.median(new):.2f} s", f"{max(new):.2f} s"],
            [
                "a known configuration",
                f"{statistics.median(known) * 1e3:.1f} ms",
                f"{max(known) * 1e3:.1f} ms",
            ],
        ],
    )


def _seconds_of(gate: MemoryGate, config: dict[str, Any]) -> float:
    began = time.perf_counter()
    gate.request(config).result()
    return time.perf_counter() - began


SYSTEMS: dict[str, Callable[[int], Times]] = {
    "plain Ray Tune": partial(plain_ray, reuse=False),
    "plain Ray Tune, workers reused": partial(plain_ray, reuse=True),
    "plain Optuna": plain_optuna,
    "Legroom on Ray": partial(legroom, engine="ray"),
    "Legroom, local": partial(legroom, engine="local"),
}


def _ratio(times: dict[str, list[float]], name: str) -> float:
    """Return the median over rounds of the ratio to plain Ray Tune. Ratios are computed per round, because the load is
    similar within a round."""
    plain = times["plain Ray Tune"]
    return statistics.median(mine / theirs for mine, theirs in zip(times[name], plain, strict=True))


if __name__ == "__main__":
    main()
