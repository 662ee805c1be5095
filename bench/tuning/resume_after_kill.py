"""Kills a study repeatedly and checks that no finished trial is lost or repeated.

    python -m bench.tuning.resume_after_kill --kills 20

One study of many short trials runs in its own process, gets SIGKILL at a random time, and is resumed. This is repeated
`--kills` times, and then the study finishes. Trials report as fast as they can, so that some kills occur between a
checkpoint, its report and the deletion of the previous checkpoint. Every trial that had finished before a kill must be
unchanged afterwards, and its function must not run again. The checkpoint of every other trial must exist and belong to
the step that is stored.
"""

import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.tuning.api import tune
from legroom.tuning.store import FILE, read_study
from legroom.tuning.trial.records import TrialRecord

STEPS = 40


def train(config: dict[str, Any], trial: Any) -> None:
    """Train a trial and log each call. Each step takes a short time."""
    calls = Path(config["calls"])
    with calls.open("a") as file:
        file.write(f"{trial.number}\n")
    state = trial.load_checkpoint()
    if (trial.step and state is None) or (state is not None and state["step"] != trial.step):
        raise RuntimeError(f"the checkpoint {state} does not belong to step {trial.step}")
    for step in range(trial.step, STEPS):
        trial.report(loss=abs(config["x"] - 0.3) - step, checkpoint={"step": step + 1})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=120)
    options = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls = folder / "calls.txt"
        calls.write_text("")
        lost = repeated = changed = unresumable = kills = moments = 0
        while kills < options.kills:
            if not killed_run(folder, options.trials, rng.uniform(0.05, 3.0)):
                break
            kills += 1
            unresumable += without_checkpoint(folder)
            before = ended(folder)
            moments += len(before)
            called = _calls(calls)
            killed_run(folder, options.trials, rng.uniform(0.05, 2.0))
            kills += 1
            unresumable += without_checkpoint(folder)
            after = ended(folder)
            lost += len(before.keys() - after.keys())
            changed += sum(after[number] != before[number] for number in before.keys() & after.keys())
            repeated += sum(_calls(calls)[len(called) :].count(number) for number in before)
        run(folder, options.trials)
        trials = read_study(folder / "study")[1]
        finished = sum(str(trial.state) == "finished" and trial.step == STEPS for trial in trials)
    header = [
        "kills",
        "finished trials seen at kills",
        "lost",
        "changed",
        "called again",
        "cannot resume",
        "finished at the end",
    ]
    row = [
        str(kills),
        str(moments),
        str(lost),
        str(changed),
        str(repeated),
        str(unresumable),
        f"{finished} of {options.trials}",
    ]
    print_table("A study killed at random moments and resumed", header, [row])


def killed_run(folder: Path, trials: int, seconds: float) -> bool:
    """Run the study in a fork and kill it `seconds` after the first trial of this run. Return True if the study was
    still running when it was killed."""
    calls = folder / "calls.txt"
    known = len(_calls(calls))
    child = os.fork()
    if child == 0:
        run(folder, trials)
        os._exit(0)
    while len(_calls(calls)) == known:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.02)
    time.sleep(seconds)
    running = os.waitpid(child, os.WNOHANG)[0] == 0
    if running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    time.sleep(
        0.3
    )  # trials are terminated with the study; wait, so that their last writes are not counted in the next run
    return running


def run(folder: Path, trials: int) -> None:
    space = {"x": {"uniform": [0.0, 1.0]}, "calls": str(folder / "calls.txt")}
    tune(
        train, space, metric="loss", search="random", trials=trials, gpu="cpu", engine="local", parallel=4,
        storage=folder / "study", resume=True,
    )  # fmt: skip


def ended(folder: Path) -> dict[int, TrialRecord]:
    if not (folder / "study" / FILE).exists():
        return {}
    return {trial.number: trial for trial in read_study(folder / "study")[1] if trial.state.is_final}


def without_checkpoint(folder: Path) -> int:
    """Return the number of unfinished trials whose stored checkpoint is missing or belongs to another step."""
    if not (folder / "study" / FILE).exists():
        return 0
    broken = 0
    for trial in read_study(folder / "study")[1]:
        if not trial.state.is_final and trial.last_checkpoint is not None:
            path = Path(trial.last_checkpoint)
            broken += not path.exists() or torch.load(path)["step"] != trial.checkpoint_step
    return broken


def _calls(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


if __name__ == "__main__":
    main()
