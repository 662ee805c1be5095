"""Compares Legroom with plain Ray Tune on a space in which many configurations do not fit, by lost trials, best value
and time.

    python -m bench.tuning.lost_trials --out rows.jsonl            # continues where it stopped; --table prints the results

The space is `convnet_space` on a virtual GPU, or another space with `--space`. These are the systems:

- `ray`: Ray Tune as in its documentation, with one trial on the GPU at a time. A trial that runs out of memory fails.
  Trials use the number of threads with which a trial is fastest, which is measured first. See `lost_trials_ray` for
  the settings.
- `ray, catches`: The function catches the error and reports infinity.
- `ray, learns at once`: The function fails, and Bayesian optimization is configured without random trials.
- `ray, half`: Two trials run at a time with half of the memory each (`{"gpu": 0.5}`).
- `legroom on ray`, `legroom local`: Legroom with each engine, default settings and the same number of trials.

Every study runs in its own process. The clock starts when that process has imported Ray, torch and the searchers.
Seeds, names and ranges are the same, so all systems propose the same configurations until one can never fit. All
systems of one seed run before the next seed, so that the results of an interrupted run can be compared.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.lib.command_line import command_line
from bench.tuning.lost_trials_table import show
from bench.tuning.other_program import REAL, gpu_of, other_program

SPACES = ("convnet_space", "transformer_space", "gpt_space")
"""The modules of this folder that define a search space. The last module is for a real GPU on which another program
uses most of the memory."""
SEARCHES = ("random", "optuna", "hyperopt", "bayes")
SYSTEMS = ("ray", "ray, catches", "ray, learns at once", "ray, half", "legroom on ray", "legroom local")
TRIALS = {"random": 16, "optuna": 16, "hyperopt": 20, "bayes": 16}
"""The number of trials per study. The number is at least the number of random trials of the searcher (ten, or twenty
for HyperOpt)."""
LONGEST = 240.0
"""The maximum time in seconds for a plain Ray study."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--space", choices=SPACES, default=SPACES[0], help="the search space; one per file")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--trials", type=int, help="trials per study; default: depends on the searcher")
    parser.add_argument("--epochs", type=int, default=3, help="epochs per trial")
    parser.add_argument("--gpu", default="", help="size of the virtual GPU")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=SEARCHES)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=("ray", "legroom on ray"))
    parser.add_argument("--out", type=Path, default=Path("lost_trials.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the results in the file and run nothing")
    parser.add_argument(
        "--plain", choices=SYSTEMS, default="ray", help="the system that others are compared with"
    )
    parser.add_argument("--study", nargs=4, help=argparse.SUPPRESS)  # system, search, seed, threads
    options = parser.parse_args()
    if options.study:
        system, search, seed, threads = options.study
        trials = options.trials or TRIALS[search]
        row = study(
            options.space, system, search, int(seed), trials, options.epochs, options.gpu, int(threads)
        )
        print(json.dumps(row))
        return
    others = {row.get("space", SPACES[0]) for row in read(options.out)} - {options.space}
    if others:
        parser.error(f"{options.out} holds studies of {others.pop()}: give that --space, or another --out")
    if not options.table:
        threads = fastest_threads(options.out, options.space)
        gpu = options.gpu or importlib.import_module(f"bench.tuning.{options.space}").GPU
        studies = itertools.product(options.seeds, options.searches, options.systems)
        with other_program() if gpu == REAL else contextlib.nullcontext():
            for seed, search, system in studies:
                trials = options.trials or TRIALS[search]
                add(options.out, options.space, system, search, seed, trials, options.epochs, gpu, threads)
    show([row for row in read(options.out) if "system" in row], options.plain)


def fastest_threads(path: Path, space: str) -> int:
    """Return the number of threads with which a typical trial is fastest on this machine. The number is saved, so
    that all studies of a file use the same number."""
    for row in read(path):
        if "threads" in row:
            return int(row["threads"])
    measured = subprocess.run(
        [sys.executable, "-c", f"from bench.tuning.lost_trials import time_threads; time_threads('{space}')"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds = {int(threads): took for threads, took in json.loads(measured.stdout).items()}
    fastest = min(seconds, key=lambda threads: seconds[threads])
    with path.open("a") as file:
        file.write(json.dumps({"space": space, "threads": fastest, "seconds": seconds}) + "\n")
    reported = ", ".join(f"{took:.2f} s with {threads}" for threads, took in seconds.items())
    print(f"seconds of a typical trial by number of threads: {reported}", flush=True)
    return fastest


def time_threads(space: str) -> None:
    """Print the seconds of a typical trial by number of threads as JSON. The result is the best of two runs."""
    import torch

    from bench.tuning.plain_step import plain_step
    from legroom.gpus.machine import processors

    searched = importlib.import_module(f"bench.tuning.{space}")
    took: dict[int, float] = {}
    with gpu_of(searched.GPU):
        all_of_them = [threads for threads in (1, 2, 4, 8, 16) if threads <= processors()]
        for threads in (1, *all_of_them, *all_of_them):  # the first run is a warm-up
            torch.set_num_threads(threads)
            began = time.perf_counter()
            list(searched.epochs(searched.TYPICAL, "cuda", plain_step))
            seconds = time.perf_counter() - began
            took[threads] = min(seconds, took.get(threads, seconds))
    print(json.dumps(took))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(
    path: Path,
    space: str,
    system: str,
    search: str,
    seed: int,
    trials: int,
    epochs: int,
    gpu: str,
    threads: int,
) -> None:
    """Run one study and append it to the file, unless the file contains it already."""
    if (system, search, seed) in {(r["system"], r["search"], r["seed"]) for r in read(path) if "system" in r}:
        return
    study_of = ["--study", system, search, str(seed), str(threads)]
    order = ["--space", space, "--trials", str(trials), "--epochs", str(epochs), "--gpu", gpu, *study_of]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.tuning.lost_trials", *order],
            stdout=subprocess.PIPE,
            text=True,
            timeout=2 * LONGEST,
            check=True,
        )
    except (
        subprocess.SubprocessError
    ) as error:  # continue with the other studies; the next call repeats this one
        print(f"seed {seed} {search}, {system}: {error}", flush=True)
        return
    row = json.loads(done.stdout.splitlines()[-1])
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    lost = sum(trial["lost"] for trial in row["trials"])
    print(
        f"seed {seed} {search}, {system}: {len(row['trials'])} started, {lost} lost, {row['rejected']} rejected, "
        f"best {min((loss for trial in row['trials'] for _, loss in trial['losses']), default=float('nan')):.4f}, {row['seconds']:.0f} s",
        flush=True,
    )


def study(
    space: str, system: str, search: str, seed: int, trials: int, epochs: int, gpu: str, threads: int
) -> dict[str, Any]:
    """Run one study and return it as a row. The row contains each trial with its losses and their times in seconds
    since the start of the search."""
    from bench.tuning import lost_trials_ray  # imported before the clock starts, for every system

    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  Ray's workers would be passed over by any other program
    if system.startswith("ray"):
        row = lost_trials_ray.run_plain(
            space, search, seed, trials, epochs, gpu,
            help=lost_trials_ray.HELP[system], threads=threads, longest=LONGEST,
        )  # fmt: skip
    else:
        row = run_legroom(space, search, seed, trials, epochs, gpu, engine=system.split()[-1])
    return {
        "space": space,
        "system": system,
        "search": search,
        "seed": seed,
        "requested": trials,
        "gpu": gpu,
        **row,
    }


def run_legroom(
    space: str, search: str, seed: int, trials: int, epochs: int, gpu: str, *, engine: str
) -> dict[str, Any]:
    from legroom.tuning.api import tune

    searched = importlib.import_module(f"bench.tuning.{space}")

    def run(folder: Path, clock: Clock) -> Any:
        return tune(
            f"bench/tuning/{space}.py:train", {**searched.SPACE, "epochs": epochs}, metric="loss", search=search, seed=seed,
            gpu=None if gpu == REAL else gpu, engine=engine, trials=trials, storage=folder, callbacks=[clock],
        )  # fmt: skip

    return legroom_row(run)


def legroom_row(search: Callable[[Path, "Clock"], Any]) -> dict[str, Any]:
    """Run a Legroom study in its own folder, and return it as a row."""
    from legroom.tuning.trial.records import TrialState

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        found = search(Path(folder) / "study", clock)
    if found.interrupted:
        sys.exit("the study was interrupted; its result is discarded")
    failed = [trial.why for trial in found.trials if trial.state is TrialState.FAILED]
    if failed:
        sys.exit(f"a trial failed for another reason than memory: {failed[0]}")
    started = sorted(
        (trial for trial in found.trials if trial.started is not None), key=lambda t: t.started or 0.0
    )
    return {
        "trials": [
            {
                "lost": trial.state is TrialState.OUT_OF_MEMORY,
                "ended": trial.state.is_final,
                "seconds": (trial.ended or trial.started or 0.0) - (trial.started or 0.0),
                "losses": clock.losses.get(trial.number, []),
                "split": trial.memory.micro_batch is not None,
                "config": trial.config,
            }
            for trial in started
        ],
        "proposed": [trial.config for trial in found.trials],
        "rejected": found.state_counts().get(TrialState.NEVER_FITS, 0),
        "ooms": sum(trial.memory.ooms for trial in started),
        "seconds": clock.last,
    }


class Clock:
    """A callback that records the time of each reported loss."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.losses: dict[int, list[list[float]]] = {}
        self.last = 0.0

    def on_trial_update(self, record: Any) -> None:
        reported = self.losses.setdefault(record.number, [])
        for report in record.reports[len(reported) :]:
            self.last = time.perf_counter() - self._began
            reported.append([self.last, report.metrics["loss"]])

    def on_study_start(self, job: Any, records: Any) -> None:
        """Do nothing, because the clock started when the search was requested."""

    def on_message(self, message: str) -> None:
        print(message, file=sys.stderr)

    def on_study_end(self) -> None:
        """Do nothing, because there is nothing to close."""


if __name__ == "__main__":
    main()
