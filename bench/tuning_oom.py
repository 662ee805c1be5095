"""A search over a space that is full of what does not fit (see `tuning_space`): trials lost, work wasted, best value, time.

    python -m bench.tuning_oom --seeds 5 --trials 16 --out rows.jsonl

Legroom's local engine with each search, and the same engine without its memory: nothing is estimated, split or told to the searcher, which is what a
search without Legroom does, less the price of another engine. `bench.tuning_oom_ray` adds plain Ray Tune and Legroom on Ray to the same file, and
`--table rows.jsonl` prints all that is in it.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from bench import tuning_space
from bench.table import print_table
from legroom.tuning.admission import Admission, Fit, Place, Verdict, virtual_places
from legroom.tuning.api import tune
from legroom.tuning.conductor import Conductor
from legroom.tuning.engine import Job
from legroom.tuning.function import TrainFunction
from legroom.tuning.local_engine import LocalEngine
from legroom.tuning.memory_gate import OpenGate
from legroom.tuning.records import TrialRecord, TrialState
from legroom.tuning.searchers import make_searcher
from legroom.tuning.space import Config, read_space
from legroom.tuning.store import Store
from legroom.tuning.study import Study

SEARCHES = ("random", "optuna", "hyperopt", "bayes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--searches", nargs="+", default=SEARCHES)
    parser.add_argument("--out", type=Path, default=Path("tuning_oom.jsonl"))
    parser.add_argument("--table", action="store_true", help="print what the file holds and run nothing")
    asked = parser.parse_args()
    if not asked.table:
        for seed in range(asked.seeds):
            for search in asked.searches:
                for study in (run_plainly, run):
                    row = study(search, seed, asked.trials)
                    with asked.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(f"{row['system']} seed {seed}: {_words(row)}", flush=True)
    show([json.loads(line) for line in asked.out.read_text().splitlines()])


def run(search: str, seed: int, trials: int, *, engine: str = "local") -> dict[str, Any]:
    """One study with Legroom as a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        study = tune(
            "bench/tuning_space.py:train", tuning_space.SPACE, metric=tuning_space.METRIC, mode="min", search=search,
            trials=trials, gpu=tuning_space.GPUS, seed=seed, engine=engine, storage=Path(folder) / "study", parallel=2,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    name = "legroom" if engine == "local" else f"legroom/{engine}"
    return row_of(f"{name}+{search}", seed, study, seconds)


def run_plainly(search: str, seed: int, trials: int) -> dict[str, Any]:
    """The same study, without anything that knows of memory."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        job = Job(
            function=TrainFunction.of("bench/tuning_space.py:train_plainly"), space=read_space(tuning_space.SPACE),
            metric=tuning_space.METRIC, mode="min", search=search, trials=trials, places=virtual_places(tuning_space.GPUS),
            parallel=2, seed=seed, folder=Path(folder) / "study",
        )  # fmt: skip
        searcher = make_searcher(search, job.space, "min", seed)
        store = Store(job.folder, resume=False, mode="min", facts={})
        conductor = Conductor(job, searcher, None, _NoGate(job.places), store)
        LocalEngine().run(job, conductor)
        conductor.close()
        seconds = time.perf_counter() - began
        study = Study(
            metric=job.metric, mode="min", trials=conductor.records, folder=job.folder, space=job.space
        )
    return row_of(f"plain+{search}", seed, study, seconds)


class _NoGate(OpenGate):
    """Every trial may start, on any GPU, and has it to itself."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._fits = {place.index: Fit(predicted=0, safe=place.memory) for place in places}

    def ask(self, config: Config) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        answer.set_result(Admission(verdict=Verdict.FITS, fits=self._fits))
        return answer


def row_of(system: str, seed: int, study: Study, seconds: float) -> dict[str, Any]:
    started = [trial for trial in study.trials if trial.started is not None]
    lost = [trial for trial in started if trial.state is TrialState.OUT_OF_MEMORY]
    ended = sorted((t for t in started if t.ended is not None), key=lambda t: t.ended or 0.0)
    best, by_trial, curve = math.inf, [], []
    for trial in ended:
        value = trial.value(study.metric, study.mode)
        best = best if value is None else min(best, value)
        by_trial.append(best)
        curve.append([trial.ended, best])
    return {
        "system": system,
        "seed": seed,
        "proposed": len(study.trials),
        "started": len(started),
        "lost": len(lost),
        "rejected": study.counted().get(TrialState.NEVER_FITS, 0),
        "split": sum(trial.memory.micro_batch is not None for trial in started),
        "wasted_seconds": sum(_wasted(trial) for trial in lost),
        "ooms": sum(trial.memory.ooms for trial in started),
        "best": best,
        "seconds": seconds,
        "curve": curve,
        "best_by_trial": by_trial,
    }


def _wasted(trial: TrialRecord) -> float:
    return (trial.ended or 0.0) - (trial.started or 0.0)


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each system, over its seeds."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = []
    for system in systems:
        mine = [row for row in rows if row["system"] == system]
        started, lost = sum(row["started"] for row in mine), sum(row["lost"] for row in mine)
        rejected = sum(row.get("rejected", 0) for row in mine)
        lines.append(
            [
                system,
                str(len(mine)),
                str(started),
                f"{lost} ({lost / max(1, started):.0%})",
                str(rejected),
                str(sum(row.get("split", 0) for row in mine)),
                f"{statistics.fmean(row['wasted_seconds'] for row in mine):.1f} s",
                f"{statistics.median(row['best'] for row in mine):.3f}",
                f"{statistics.fmean(row['seconds'] for row in mine):.0f} s",
            ]
        )
    header = [
        "system",
        "seeds",
        "started",
        "lost to memory",
        "rejected before",
        "split",
        "wasted a study",
        "median best",
        "time a study",
    ]
    print_table(f"A space on a virtual GPU of {tuning_space.GPU}", header, lines)
    _compare(rows)


def _compare(rows: Sequence[dict[str, Any]]) -> None:
    """Time until the plain system's own best value was reached, with Legroom: a ratio for each seed and search."""
    lines = []
    for plain in dict.fromkeys(row["system"] for row in rows if not row["system"].startswith("legroom")):
        search = plain.partition("+")[2]
        for ours in dict.fromkeys(
            row["system"]
            for row in rows
            if row["system"].startswith("legroom") and row["system"].endswith(f"+{search}")
        ):
            ratios = []
            for row in rows:
                other = next((r for r in rows if r["system"] == ours and r["seed"] == row["seed"]), None)
                if row["system"] == plain and other is not None and math.isfinite(row["best"]):
                    ratios.append(_reached(other, row["best"]) / _reached(row, row["best"]))
            if ratios:
                lines.append(
                    [
                        ours,
                        plain,
                        f"{statistics.median(ratios):.2f}",
                        " ".join(f"{ratio:.2f}" for ratio in ratios),
                    ]
                )
    if lines:
        print_table(
            "Time to the plain system's best value, Legroom / plain",
            ["with", "against", "median", "each seed"],
            lines,
        )


def _reached(row: dict[str, Any], value: float) -> float:
    return float(next((seconds for seconds, best in row["curve"] if best <= value), math.inf))


def _words(row: dict[str, Any]) -> str:
    return f"{row['started']} started, {row['lost']} lost, {row['rejected']} rejected, best {row['best']:.3f}, {row['seconds']:.0f} s"


if __name__ == "__main__":
    main()
