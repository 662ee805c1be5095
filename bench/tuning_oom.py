"""A search over a space that is full of what does not fit (see `tuning_space`): plain Ray Tune beside Legroom, on one virtual GPU.

    python -m bench.tuning_oom --out rows.jsonl            # goes on where it was stopped; --table prints what is there

- `ray`: Ray Tune as its documentation shows it, one trial on the GPU at a time; a trial that runs out of memory errs. Its workers are kept from
  trial to trial (`reuse_actors`), so that it pays for importing torch once, not in every trial.
- `ray, half`: the same with `{"gpu": 0.5}`, two trials at a time with half of the memory each: what one can do by hand.
- `legroom on ray`, `legroom local`: Legroom with either engine, as it is called by default. After the asked number of trials it goes on until
  plain Ray's time is over, so that both can be compared: equal trials, equal time.

Every study is a process of its own: none finds anything warm. Searchers are each system's own, with the same seeds; random search draws the very same
configurations in all of them. All of one seed is done before the next one begins, so what is there when it is stopped can be compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.tuning_oom_table import show

SEARCHES = ("random", "optuna", "hyperopt", "bayes")
SYSTEMS = ("ray", "ray, half", "legroom on ray", "legroom local")
LONGEST = 300.0
"""Seconds for one study."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6, help="of one trial: its length")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=SEARCHES)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--out", type=Path, default=Path("tuning_oom.jsonl"))
    parser.add_argument("--table", action="store_true", help="print what the file holds and run nothing")
    parser.add_argument("--study", nargs=4, help=argparse.SUPPRESS)  # system, search, seed, seconds
    asked = parser.parse_args()
    if asked.study:
        system, search, seed, seconds = asked.study
        print(
            json.dumps(study(system, search, int(seed), asked.trials, asked.epochs, float(seconds) or None))
        )
        return
    if not asked.table:
        for seed in asked.seeds:
            for search in asked.searches:
                for system in asked.systems:
                    add(asked.out, system, search, seed, asked.trials, asked.epochs)
    show(read(asked.out), asked.trials)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(path: Path, system: str, search: str, seed: int, trials: int, epochs: int) -> None:
    """One study into the file, unless it is there."""
    known = {(row["system"], row["search"], row["seed"]): row for row in read(path)}
    if (system, search, seed) in known:
        return
    plain = known.get(("ray", search, seed))
    seconds = plain["seconds"] if plain is not None and system.startswith("legroom") else 0.0
    order = [
        "--trials",
        str(trials),
        "--epochs",
        str(epochs),
        "--study",
        system,
        search,
        str(seed),
        str(seconds),
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.tuning_oom", *order],
            stdout=subprocess.PIPE,
            text=True,
            timeout=LONGEST,
            check=True,
        )
    except subprocess.SubprocessError as error:  # the others go on; the next call tries it again
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
    system: str, search: str, seed: int, trials: int, epochs: int, seconds: float | None
) -> dict[str, Any]:
    """One study as a row: each trial with its losses and when they were reported, in seconds since the search was asked for."""
    from bench import tuning_space

    space = {**tuning_space.SPACE, "epochs": epochs}
    if system.startswith("ray"):
        from bench.tuning_oom_ray import run_plain

        row = run_plain(space, search, seed, trials, half=system == "ray, half", longest=LONGEST / 2)
    else:
        row = run_legroom(space, search, seed, trials, engine=system.split()[-1], seconds=seconds)
    return {"system": system, "search": search, "seed": seed, **row}


def run_legroom(
    space: dict[str, Any], search: str, seed: int, trials: int, *, engine: str, seconds: float | None
) -> dict[str, Any]:
    from bench import tuning_space
    from legroom.tuning.api import tune

    if engine == "ray":
        import ray.tune  # noqa: F401  (plain Ray's clock begins after that, too)

    def asked(folder: Path, clock: Clock) -> Any:
        return tune(
            "bench/tuning_space.py:train", space, metric="loss", search=search, seed=seed, gpu=tuning_space.GPU, engine=engine,
            trials=trials if seconds is None else 4 * trials, time_budget=seconds, storage=folder, watchers=[clock],
        )  # fmt: skip

    return legroom_row(asked)


def legroom_row(search: Callable[[Path, "Clock"], Any]) -> dict[str, Any]:
    """A study of Legroom's, in a folder of its own and watched by a clock."""
    from legroom.tuning.records import TrialState

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        found = search(Path(folder) / "study", clock)
    failed = [trial.why for trial in found.trials if trial.state is TrialState.FAILED]
    if failed:
        sys.exit(f"a trial failed otherwise than for want of memory: {failed[0]}")
    started = sorted(
        (trial for trial in found.trials if trial.started is not None), key=lambda t: t.started or 0.0
    )
    return {
        "trials": [
            {
                "lost": trial.state is TrialState.OUT_OF_MEMORY,
                "ended": trial.state.is_final and "time was up" not in trial.why,
                "seconds": (trial.ended or trial.started or 0.0) - (trial.started or 0.0),
                "losses": clock.losses.get(trial.number, []),
                "split": trial.memory.micro_batch is not None,
                "config": trial.config,
            }
            for trial in started
        ],
        "rejected": found.counted().get(TrialState.NEVER_FITS, 0),
        "ooms": sum(trial.memory.ooms for trial in started),
        "seconds": clock.last,
    }


class Clock:
    """When each loss was reported."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.losses: dict[int, list[list[float]]] = {}
        self.last = 0.0

    def changed(self, record: Any) -> None:
        told = self.losses.setdefault(record.number, [])
        for report in record.reports[len(told) :]:
            self.last = time.perf_counter() - self._began
            told.append([self.last, report.metrics["loss"]])

    def begun(self, job: Any, records: Any) -> None:
        """The clock began when the search was asked for."""

    def said(self, sentence: str) -> None:
        print(sentence, file=sys.stderr)

    def closed(self) -> None:
        """There is nothing to close."""


if __name__ == "__main__":
    main()
