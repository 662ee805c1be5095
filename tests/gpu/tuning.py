"""Studies on a real GPU: trials share it, none is lost to memory, what can never fit is not started, and other programs keep what they hold.

    python -m tests.gpu.tuning [FOLDER] [--engine ray [--address auto]]

The first grid has trials that are small (several share the GPU), one batch that needs more than the GPU has (it is split), and widths
whose parameters alone are too large (rejected before they start). The second runs beside a program that holds 60 GiB, and to the third one
comes after its first trial. On a cluster (`--address`) only the first: there Ray says what is free. Prints the trials and a line per check; FOLDER gets `tuning.json`. Where there is no GPU it says so and does nothing.
"""

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

import legroom
from legroom.gpus.machine import visible_gpus
from legroom.gpus.usage import gpus_in_use
from legroom.tuning.job import TuneJob
from legroom.tuning.study import Study
from legroom.tuning.trial.records import TrialRecord, TrialState

SPACE = {"width": [1024, 4096, 8192, 131072], "batch_size": [4096, 65536, 3 << 19]}
LARGE = {"width": 4096, "batch_size": 3 << 19}
"""About 97 GiB whole: it fits the GPU, but not beside the other program."""
HELD = 60
"""GiB of the other program."""
HOLDER = f"""
import pathlib, sys, time, torch
folder = pathlib.Path(sys.argv[1])
used_by_others = torch.ones({HELD} << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
(folder / "holding").touch()
while not (folder / "enough").exists():
    time.sleep(0.05)
assert int(used_by_others[::4096].min()) == 1
(folder / "lived").touch()
"""
"""Another program: nobody's child, so that it cannot be taken for a trial."""


def train(config: dict[str, Any], trial: Any) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # a third of the time, the same memory
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
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--address", help="of a Ray cluster")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("Skipped: there is no CUDA device here.")
        return 0
    with Holder() as holder:
        holder.come()
        by_nvml, believed = visible_gpus()[0].used, gpus_in_use()[0].used
        print(f"{HELD} GiB are used_by_others: NVML says {by_nvml} bytes, believed are {believed}")
    failed, studies = 0, {}
    where = Where(engine=options.engine, address=options.address)
    for name, judged in (("alone", alone),) if where["address"] else STUDIES:
        began = time.perf_counter()
        study, found = judged(where)
        print(f"\n{name}, {time.perf_counter() - began:.0f} s")
        for trial in study.trials:
            print(line(trial))
        for check, is_right, told in found:
            failed += not is_right
            print(f"{'right' if is_right else 'WRONG'}  {check}: {told}")
        studies[name] = [record.as_dict() for record in study.trials]
    if options.folder:
        (options.folder / "tuning.json").write_text(json.dumps(studies, indent=1))
    return 1 if failed else 0


Checks = list[tuple[str, bool, str]]


class Where(TypedDict):
    """What trials run on."""

    engine: str
    address: str | None


def alone(where: Where) -> tuple[Study, Checks]:
    """The whole grid, with the GPU to ourselves."""
    study = search(where, SPACE, parallel=4)
    return study, list(checks(study))


def beside(where: Where) -> tuple[Study, Checks]:
    """Another program holds its memory from the beginning."""
    notes = Notes()
    with Holder() as holder:
        holder.come()
        space = {"width": [1024, 4096], "batch_size": [65536, 3 << 19]}
        study = search(where, space, parallel=4, callbacks=[notes])
    return study, [*checks_beside(study, notes), holder.check]


def joined(where: Where) -> tuple[Study, Checks]:
    """Another program comes when the first trial has ended: the second was admitted before, and has no room now."""
    with Holder() as holder:
        notes = Notes(lambda record: holder.come() if record.state is TrialState.FINISHED else None)
        space = {"width": [4096], "batch_size": [65536, 3 << 19]}
        study = search(where, space, parallel=1, callbacks=[notes])
    return study, [*checks_beside(study, notes), holder.check]


STUDIES = (("alone", alone), ("beside", beside), ("joined", joined))


def search(where: Where, space: dict[str, Any], **options: Any) -> Study:
    with tempfile.TemporaryDirectory() as storage:
        return legroom.tune(train, space, search="grid", storage=Path(storage) / "study", **where, **options)


class Holder(contextlib.AbstractContextManager["Holder"]):
    """Another program that has memory of the GPU, from `come` to the end of the block."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._has_come = False
        self.check = ("the other program lived on", False, "it never came")

    def come(self) -> None:
        if not self._has_come:
            self._has_come = True
            line = shlex.join([sys.executable, "-c", HOLDER, self._folder.name])
            subprocess.run(["setsid", "sh", "-c", f"{line} &"], check=True)
            self._awaited("holding")

    def __exit__(self, *_: object) -> None:
        if self._has_come:
            (Path(self._folder.name) / "enough").touch()
            self.check = ("the other program lived on", self._awaited("lived"), "its memory is as it was")
        self._folder.cleanup()

    def _awaited(self, name: str) -> bool:
        deadline = time.monotonic() + 60
        while not (Path(self._folder.name) / name).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return (Path(self._folder.name) / name).exists()


class Notes:
    """A callback that keeps what was said."""

    def __init__(self, changed: Any = lambda record: None) -> None:
        self.sentences: list[str] = []
        self.on_trial_update = changed

    def on_message(self, message: str) -> None:
        print("message:", message)
        self.sentences.append(message)

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None: ...
    def on_study_end(self) -> None: ...


def line(trial: TrialRecord) -> str:
    memory = trial.memory
    return (
        f"{trial.number:2} {trial.state:12} {trial.config} micro {memory.micro_batch} "
        f"foretold {gib(memory.predicted)} at most {gib(memory.safe)} seen {gib(memory.actual)} "
        f"ooms {memory.ooms} {trial.started or 0:.1f} to {trial.ended or 0:.1f} s {trial.reason}"
    )


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
    yield "no trial met the end of its share", not met, f"{len(met)} did"
    shared, together = fullest(finished)
    yield "trials shared the GPU", shared > 1, f"up to {shared} at once"
    total = torch.cuda.get_device_properties(0).total_memory
    yield (
        "together they never took more than it has",
        together <= total,
        f"{together / 2**30:.1f} GiB at most",
    )


def checks_beside(study: Study, notes: Notes) -> Iterator[tuple[str, bool, str]]:
    lost = [t for t in study.trials if t.state is not TrialState.FINISHED]
    yield "every trial finished", not lost, f"{len(study.trials) - len(lost)} of {len(study.trials)}"
    met = [t for t in study.trials if t.memory.ooms]
    yield "no trial met the end of its share", not met, f"{len(met)} did"
    large = next(t for t in study.trials if t.config == LARGE)
    yield (
        "what fits the whole GPU was split, for the other program's sake",
        large.memory.micro_batch is not None and large.memory.used_by_others >= HELD << 30,
        f"by {large.memory.micro_batch}, which holds {gib(large.memory.used_by_others)}",
    )
    told = [sentence for sentence in notes.sentences if "other programs hold" in sentence]
    yield "it was said", bool(told), told[0] if told else "no"
    left = torch.cuda.get_device_properties(0).total_memory - (HELD << 30)
    _, together = fullest([t for t in study.trials if t.memory.used_by_others])
    yield "beside it no more was taken than it leaves", together <= left, gib(together)


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
