"""Measures packing with real processes: the time of a study whose trials share virtual GPUs, relative to one trial per
GPU.

    python -m bench.tuning.packing_processes [--trials 24]

Every trial is a process that allocates its memory and runs its steps. A step consists of two small updates and a wait
instead of GPU work, so that trials do not compete for the CPU. The study runs twice: with sharing, and with one trial
per GPU. The result is compared with an oracle that knows the durations of the trials in advance.
"""

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from bench.tuning.packing import SLOTS, Work, bound, one_per_gpu, oracle
from legroom.tuning.api import tune
from legroom.tuning.memory.admission import virtual_gpus
from legroom.tuning.memory.packing import Packer
from legroom.tuning.study import Study
from legroom.tuning.trial.records import TrialState
from legroom.units import MiB

GPUS = "960MiB,320MiB"
SPACE = {"mebibytes": {"int_log": [40, 800]}, "steps": {"int": [4, 16]}}
SECONDS_PER_STEP = 1.0


def train(config: dict[str, Any], trial: Any) -> None:
    model = nn.Linear(8, 1).to(trial.device)
    guard = trial.guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    held = torch.empty(config["mebibytes"] * MiB, dtype=torch.uint8, device=trial.device)
    x = torch.randn(4, 8).to(trial.device)
    for _ in range(config["steps"]):
        for _ in range(2):  # a trace ends with the second step and does not wait
            loss = guard.step(lambda rows: model(rows).square().mean(), x)
        time.sleep(SECONDS_PER_STEP)
        trial.report(loss=float(loss))
    del held


def main() -> int:
    parser = command_line(__doc__)  # fmt: skip
    parser.add_argument("--trials", type=int, default=24)
    trials = parser.parse_args().trials
    packed = search(trials)
    with mock.patch.object(Packer, "_exclusive_size", return_value=0):
        alone = search(trials)
    gpus = virtual_gpus(GPUS)
    works = [
        Work(0.0, 0.0, trial.memory.safe or 0, (trial.ended or 0.0) - (trial.started or 0.0))
        for trial in packed.trials
    ]
    ours = makespan(packed)
    rows = [
        ["packed", f"{ours:.1f}", "1.00"],
        ["one per GPU", f"{makespan(alone):.1f}", f"{makespan(alone) / ours:.2f}"],
        ["one per GPU, planned", f"{one_per_gpu(works, gpus):.1f}", f"{one_per_gpu(works, gpus) / ours:.2f}"],
        ["oracle, planned", f"{oracle(works, gpus, random.Random(0)):.1f}", f"{oracle(works, gpus, random.Random(0)) / ours:.2f}"],
        ["bound", f"{bound(works, gpus):.1f}", f"{bound(works, gpus) / ours:.2f}"],
    ]  # fmt: skip
    print_table(f"{trials} trials on {GPUS}, at most {SLOTS} at once", ["", "seconds", "to packed"], rows)
    lost = [t.number for s in (packed, alone) for t in s.trials if t.state is not TrialState.FINISHED]
    print(f"lost: {lost or 'none'}")
    return 1 if lost else 0


def search(trials: int) -> Study:
    with tempfile.TemporaryDirectory() as folder:
        return tune(
            f"{Path(__file__)}:train", SPACE,
            trials=trials, gpu=GPUS, parallel=SLOTS, engine="local", storage=Path(folder) / "study", callbacks=[],
        )  # fmt: skip


def makespan(study: Study) -> float:
    """Return the seconds from the first start to the last end. Estimates before the first trial are not counted."""
    return max(t.ended or 0.0 for t in study.trials) - min(t.started or 0.0 for t in study.trials)


if __name__ == "__main__":
    sys.exit(main())
