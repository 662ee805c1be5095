"""Checks studies on a real GPU. Trials share the GPU, no trial runs out of memory, and other programs are not affected.

    python -m tests.gpu.tuning [FOLDER] [--engine ray [--address auto]]

The first study has small trials that share the GPU, a batch that must be split to fit, and widths that are rejected
because their parameters alone are too large. The second study runs while another program uses 60 GiB. In the third
study, the other program starts after the first trial. On a cluster (`--address`), only the first study runs, because
Ray reports the free memory of a cluster. The program prints the trials and one line per check, and writes
FOLDER/tuning.json. Without a GPU, the program does nothing.
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
"""A configuration that needs about 97 GiB unsplit. It fits on the GPU, but not together with the other program."""
OTHER_PROGRAM_GIB = 60
"""The memory that the other program uses, in GiB."""
OTHER_PROGRAM_SOURCE = f"""
import pathlib, sys, time, torch
folder = pathlib.Path(sys.argv[1])
tensor = torch.ones({OTHER_PROGRAM_GIB} << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
(folder / "holding").touch()
while not (folder / "enough").exists():
    time.sleep(0.05)
assert int(tensor[::4096].min()) == 1
(folder / "lived").touch()
"""
"""The source of the other program. It does not run as a child of this process, so it is not treated as a trial."""


def train(config: dict[str, Any], trial: Any) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # a third of the run time with the same memory
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
        print("Skipped: no CUDA device.")
        return 0
    with OtherProgram() as holder:
        holder.start()
        by_nvml, by_legroom = visible_gpus()[0].used, gpus_in_use()[0].used
        print(
            f"Another program uses {OTHER_PROGRAM_GIB} GiB: NVML reports {by_nvml} bytes, Legroom {by_legroom}"
        )
    failed, studies = 0, {}
    where = Where(engine=options.engine, address=options.address)
    for name, judged in (("alone", alone),) if where["address"] else STUDIES:
        began = time.perf_counter()
        study, found = judged(where)
        print(f"\n{name}, {time.perf_counter() - began:.0f} s")
        for trial in study.trials:
            print(line(trial))
        for check, is_right, detail in found:
            failed += not is_right
            print(f"{'ok' if is_right else 'FAILED'}  {check}: {detail}")
        studies[name] = [record.as_dict() for record in study.trials]
    if options.folder:
        (options.folder / "tuning.json").write_text(json.dumps(studies, indent=1))
    return 1 if failed else 0


Checks = list[tuple[str, bool, str]]


class Where(TypedDict):
    """The engine and the cluster on which trials run."""

    engine: str
    address: str | None


def alone(where: Where) -> tuple[Study, Checks]:
    """Run the whole grid without another program on the GPU."""
    study = search(where, SPACE, parallel=4)
    return study, list(checks(study))


def next_to_program(where: Where) -> tuple[Study, Checks]:
    """Run a study while another program uses memory from the start."""
    notes = RecordingCallback()
    with OtherProgram() as holder:
        holder.start()
        space = {"width": [1024, 4096], "batch_size": [65536, 3 << 19]}
        study = search(where, space, parallel=4, callbacks=[notes])
    return study, [*checks_with_program(study, notes), holder.check]


def program_starts_later(where: Where) -> tuple[Study, Checks]:
    """Run a study in which another program starts after the first trial. The second trial has already been admitted
    but no longer fits."""
    with OtherProgram() as holder:
        notes = RecordingCallback(
            lambda record: holder.start() if record.state is TrialState.FINISHED else None
        )
        space = {"width": [4096], "batch_size": [65536, 3 << 19]}
        study = search(where, space, parallel=1, callbacks=[notes])
    return study, [*checks_with_program(study, notes), holder.check]


STUDIES = (
    ("alone", alone),
    ("next to a program", next_to_program),
    ("program starts later", program_starts_later),
)


def search(where: Where, space: dict[str, Any], **options: Any) -> Study:
    with tempfile.TemporaryDirectory() as storage:
        return legroom.tune(train, space, search="grid", storage=Path(storage) / "study", **where, **options)


class OtherProgram(contextlib.AbstractContextManager["OtherProgram"]):
    """Another program that uses GPU memory from `start()` to the end of the `with` block."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._has_started = False
        self.check = ("the other program was not affected", False, "it never started")

    def start(self) -> None:
        if not self._has_started:
            self._has_started = True
            line = shlex.join([sys.executable, "-c", OTHER_PROGRAM_SOURCE, self._folder.name])
            subprocess.run(["setsid", "sh", "-c", f"{line} &"], check=True)
            self._wait_for("holding")

    def __exit__(self, *_: object) -> None:
        if self._has_started:
            (Path(self._folder.name) / "enough").touch()
            self.check = (
                "the other program was not affected",
                self._wait_for("lived"),
                "its memory is unchanged",
            )
        self._folder.cleanup()

    def _wait_for(self, name: str) -> bool:
        deadline = time.monotonic() + 60
        while not (Path(self._folder.name) / name).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return (Path(self._folder.name) / name).exists()


class RecordingCallback:
    """A callback that records messages."""

    def __init__(self, changed: Any = lambda record: None) -> None:
        self.messages: list[str] = []
        self.on_trial_update = changed

    def on_message(self, message: str) -> None:
        print("message:", message)
        self.messages.append(message)

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None: ...
    def on_study_end(self) -> None: ...


def line(trial: TrialRecord) -> str:
    memory = trial.memory
    return (
        f"{trial.number:2} {trial.state:12} {trial.config} micro {memory.micro_batch} "
        f"predicted {gib(memory.predicted)} bound {gib(memory.safe)} measured {gib(memory.actual)} "
        f"ooms {memory.ooms} {trial.started or 0:.1f} to {trial.ended or 0:.1f} s {trial.reason}"
    )


def checks(study: Study) -> Iterator[tuple[str, bool, str]]:
    by_state = {state: [t for t in study.trials if t.state is state] for state in TrialState}
    finished, never = by_state[TrialState.FINISHED], by_state[TrialState.NEVER_FITS]
    yield "every trial that can fit finished", len(finished) == 9, f"{len(finished)} of 9"
    yield (
        "configurations that can never fit were not started",
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
    yield "no trial used more than its bound", not over, f"{len(over)} did"
    failed = [t for t in study.trials if t.memory.ooms]
    yield "no trial ran out of memory", not failed, f"{len(failed)} did"
    shared, together = fullest(finished)
    yield "trials shared the GPU", shared > 1, f"up to {shared} at once"
    total = torch.cuda.get_device_properties(0).total_memory
    yield (
        "together they never used more than the GPU has",
        together <= total,
        f"{together / 2**30:.1f} GiB at most",
    )


def checks_with_program(study: Study, notes: RecordingCallback) -> Iterator[tuple[str, bool, str]]:
    lost = [t for t in study.trials if t.state is not TrialState.FINISHED]
    yield "every trial finished", not lost, f"{len(study.trials) - len(lost)} of {len(study.trials)}"
    failed = [t for t in study.trials if t.memory.ooms]
    yield "no trial ran out of memory", not failed, f"{len(failed)} did"
    large = next(t for t in study.trials if t.config == LARGE)
    yield (
        "a batch that fits the whole GPU was split because of the other program",
        large.memory.micro_batch is not None and large.memory.used_by_others >= OTHER_PROGRAM_GIB << 30,
        f"by {large.memory.micro_batch}, which uses {gib(large.memory.used_by_others)}",
    )
    messages = [message for message in notes.messages if "Other programs use" in message]
    yield "a message was printed", bool(messages), messages[0] if messages else "none"
    left = torch.cuda.get_device_properties(0).total_memory - (OTHER_PROGRAM_GIB << 30)
    _, together = fullest([t for t in study.trials if t.memory.used_by_others])
    yield "trials used no more than the program leaves", together <= left, gib(together)


def gib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.2f} GiB"


def fullest(trials: list[TrialRecord]) -> tuple[int, int]:
    """Return the maximum number of parallel trials, and their maximum total memory."""
    most, bytes_ = 0, 0
    for trial in trials:
        parallel = [t for t in trials if (t.started or 0) <= (trial.started or 0) < (t.ended or 0)]
        most = max(most, len(parallel))
        bytes_ = max(bytes_, sum(t.memory.actual or 0 for t in parallel))
    return most, bytes_


if __name__ == "__main__":
    sys.exit(main())
