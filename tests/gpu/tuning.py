"""A study on a real GPU: trials share it, none is lost to memory, what can never fit is not started.

    python -m tests.gpu.tuning [FOLDER]

The grid has trials that are small (several share the GPU), one batch that needs more than the GPU has (it is split), and widths
whose parameters alone are too large (rejected before they start). Prints the table and a line per check; FOLDER gets `tuning.json`.
Where there is no GPU it says so and does nothing.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import legroom
from legroom.tuning.records import TrialRecord, TrialState
from legroom.tuning.study import Study

SPACE = {"width": [1024, 4096, 8192, 131072], "batch_size": [4096, 65536, 3 << 19]}


def train(config: dict[str, Any], trial: Any) -> None:
    torch.manual_seed(0)
    width = config["width"]
    model = nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    ).to(trial.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    guard = trial.guard(model, optimizer)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(x), y)

    x = torch.randn(config["batch_size"], 32, device=trial.device)
    y = x[:, :1].sin()
    for _ in range(3):
        trial.report(loss=guard.step(loss_of, x, y).item())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("Skipped: there is no CUDA device here.")
        return 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as storage:
        study = legroom.tune(
            train,
            SPACE,
            search="grid",
            trials=12,
            engine="local",
            storage=Path(storage) / "study",
            parallel=4,
        )
    for trial in study.trials:
        memory = trial.memory
        print(
            f"{trial.number:2} {trial.state:12} {trial.config} micro {memory.micro_batch} "
            f"foretold {gib(memory.predicted)} at most {gib(memory.safe)} seen {gib(memory.actual)} "
            f"{trial.started or 0:.1f} to {trial.ended or 0:.1f} s {trial.why}"
        )
    print(f"{time.perf_counter() - began:.0f} s")
    failed = 0
    for name, is_right, told in checks(study):
        failed += not is_right
        print(f"{'right' if is_right else 'WRONG'}  {name}: {told}")
    if options.folder:
        told = [record.as_dict() for record in study.trials]
        (options.folder / "tuning.json").write_text(json.dumps(told, indent=1))
    return 1 if failed else 0


def checks(study: Study) -> Iterator[tuple[str, bool, str]]:
    by_state = {state: [t for t in study.trials if t.state is state] for state in TrialState}
    finished, never = by_state[TrialState.FINISHED], by_state[TrialState.NEVER_FITS]
    yield "every trial that can fit finished", len(finished) == 9, f"{len(finished)} of 9"
    yield (
        "what can never fit was not started",
        len(never) == 3 and all(t.started is None and t.config["width"] == 131072 for t in never),
        f"{len(never)} of 3",
    )
    split = [t for t in finished if t.memory.micro_batch is not None]
    largest = {"width": 8192, "batch_size": 3 << 19}
    yield (
        "the batch that is larger than the GPU was split",
        largest in [t.config for t in split],
        ", ".join(f"{t.config['width']}×{t.config['batch_size']} by {t.memory.micro_batch}" for t in split),
    )
    over = [t for t in finished if (t.memory.actual or 0) > (t.memory.safe or 0)]
    yield "no trial took more than it was given room for", not over, f"{len(over)} did"
    met = [t for t in study.trials if t.memory.ooms]
    survived = all(t.state is TrialState.FINISHED for t in met)
    yield "a trial that met the end of its share survived it", survived, f"{len(met)} did"
    shared, together = fullest(finished)
    yield "trials shared the GPU", shared > 1, f"up to {shared} at once"
    total = torch.cuda.get_device_properties(0).total_memory
    yield (
        "together they never took more than it has",
        together <= total,
        f"{together / 2**30:.1f} GiB at most",
    )


def gib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.2f} GiB"


def fullest(trials: list[TrialRecord]) -> tuple[int, int]:
    """The most trials that ran at one time, and the most memory that was taken at one time."""
    most, bytes_ = 0, 0
    for trial in trials:
        beside = [t for t in trials if (t.started or 0) <= (trial.started or 0) < (t.ended or 0)]
        most = max(most, len(beside))
        bytes_ = max(bytes_, sum(t.memory.actual or 0 for t in beside))
    return most, bytes_


if __name__ == "__main__":
    sys.exit(main())
