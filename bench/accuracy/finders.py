"""Compares finders of the largest batch on a real GPU by found / true size, trials, OOM failures and seconds. Needs a GPU.

    python -m bench.accuracy.finders [FOLDER] [--jobs 8] [--only WORD ...] [--finders legroom accelerate] [--scale 1]

Each finder of each workload runs in its own process, with its memory limited by the per-process fraction. Legroom's
`find_batch` starts at 4 samples, Accelerate's `find_executable_batch_size` at a size two to four times too large, and
both modes of Lightning at 2. All finders run three steps per trial. The search for the true size then starts at the
largest size found. Several workloads share the GPU, so compare seconds only within a row. The program writes
FOLDER/finders.json. Finders that are not installed are skipped. `--scale` multiplies all memory limits.

Without a GPU, `--virtual 416MiB` runs the smallest workload on a virtual GPU to test this program.
"""

import argparse
import contextlib
import gc
import json
import logging
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.accuracy.cases.largest_batch_models import LARGEST_BATCH_MODELS
from bench.lib.command_line import command_line
from bench.lib.models.reference import MODELS
from bench.lib.optimizers import OPTIMIZERS
from bench.lib.table import print_table
from legroom.units import GiB, parse_size

STEPS = 3


@dataclass(frozen=True)
class Workload:
    """A training step of any batch size, with a memory limit."""

    model: str
    optimizer: str
    precision: str
    cap: float
    """The memory limit in GiB."""
    too_large: int
    """The starting size of Accelerate's finder."""
    measured: int | None = None
    """The true largest batch from an earlier measurement on an H200, one process per size."""

    @property
    def name(self) -> str:
        return f"{self.model}/{self.optimizer}/{self.precision} in {self.cap:g} GiB"


WORKLOADS = (
    Workload("resnet50", "sgdm", "fp32", 8, 256, 94),
    Workload("gpt2", "adamw", "amp_bf16", 16, 64, 20),
    Workload("bert_base", "adamw", "fp32", 8, 256, 85),
    Workload("unet", "adam", "fp32", 8, 128, 38),
    Workload("lstm", "adam", "amp_fp16", 4, 1024, 371),
    Workload("vit_b_16", "adamw", "amp_bf16", 6, 256),
    Workload("convnext_tiny", "adamw", "fp32", 5, 128),
    Workload("mobilenet_v3_large", "rmsprop", "fp32", 5, 256),
    Workload("distilbert", "adamw", "amp_bf16", 5, 512),
    Workload("transformer_encoder", "adam", "fp32", 4, 256),
    Workload("nano_gpt", "adamw", "amp_bf16", 6, 128),
    Workload("questions_from_texts", "adamw", "fp32", 4, 256),
    Workload("hotel_reviews", "adam", "fp32", 3, 4096),
    Workload("insurance", "adamw", "fp32", 1, 262144),
)
VIRTUAL = (Workload("mlp", "adam", "fp32", 1, 400),)


@dataclass
class Outcome:
    """The result of one finder."""

    found: int
    trials: int
    ooms: int
    seconds: float
    tried: list[int]
    runs: bool = True
    """True if the returned size runs."""


class Training:
    """A model and its optimizer on the device, and steps of any batch size."""

    def __init__(self, workload: Workload) -> None:
        torch.manual_seed(0)
        self.spec = (MODELS | LARGEST_BATCH_MODELS)[workload.model]()
        self.model = self.spec.model.to("cuda").train()
        self.optimizer = OPTIMIZERS[workload.optimizer](list(self.model.parameters()))
        self.precision = workload.precision
        self.scaler = torch.amp.GradScaler("cuda") if workload.precision == "amp_fp16" else None

    def make_batch(self, size: int) -> list[torch.Tensor]:
        return self.spec.batch(size, "cuda")

    def loss(self, inputs: tuple[torch.Tensor, ...] | list[torch.Tensor]) -> torch.Tensor:
        kind = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(self.precision)
        with torch.autocast("cuda", dtype=kind) if kind else contextlib.nullcontext():
            return self.spec.loss(self.model, *inputs)

    def step(self, *inputs: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(inputs)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def steps(self, size: int) -> None:
        for _ in range(STEPS):
            self.step(*self.make_batch(size))
        torch.cuda.synchronize()

    def forget(self) -> None:
        """Reset the memory to its state before the first step."""
        self.optimizer.zero_grad()
        self.optimizer.state.clear()
        gc.collect()
        torch.cuda.empty_cache()


def by_legroom(workload: Workload) -> Outcome:
    from legroom.train.sizes.find_batch import find_batch

    training = Training(workload)
    found = find_batch(training.step, training.make_batch, steps=STEPS)
    return Outcome(
        found.batch_size,
        len(found.trials),
        found.oom_count,
        found.seconds,
        [trial.batch_size for trial in found.trials],
    )


def by_accelerate(workload: Workload) -> Outcome:
    """Run Accelerate's finder. As in Accelerate's documentation, the model is created inside the decorated function."""
    from accelerate.utils import find_executable_batch_size

    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=workload.too_large)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        Training(workload).steps(batch_size)
        return batch_size

    began = time.perf_counter()
    found = train()
    return Outcome(found, len(tried), len(tried) - 1, time.perf_counter() - began, tried)


def by_lightning(workload: Workload, mode: str) -> Outcome:
    import lightning.pytorch as pl
    from lightning.pytorch.tuner.tuning import Tuner
    from torch.utils.data import DataLoader, IterableDataset

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    training = Training(workload)
    tried: list[int] = []
    ooms = 0

    class Batches(IterableDataset[Any]):
        def __init__(self, size: int) -> None:
            self.size = size

        def __iter__(self) -> Any:
            for _ in range(STEPS):
                yield training.make_batch(self.size)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = training.model
            self.batch_size = 2
            self.automatic_optimization = False

        def training_step(self, batch: list[torch.Tensor], index: int) -> None:
            nonlocal ooms
            if not tried or tried[-1] != self.batch_size:
                tried.append(self.batch_size)
            try:
                training.step(*batch)
            except torch.OutOfMemoryError:
                ooms += 1
                raise

        def configure_optimizers(self) -> Any:
            return training.optimizer

        def train_dataloader(self) -> Any:
            return DataLoader(Batches(self.batch_size), batch_size=None)

    trainer = pl.Trainer(
        accelerator="cpu" if _is_virtual() else "gpu",  # tensors of a virtual GPU are CPU tensors
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=1,
        default_root_dir=tempfile.mkdtemp(),
    )
    began = time.perf_counter()
    found = Tuner(trainer).scale_batch_size(
        Module(), mode=mode, steps_per_trial=STEPS, init_val=2, max_trials=25
    )
    return Outcome(int(found or 0), len(tried), ooms, time.perf_counter() - began, tried)


FINDERS: dict[str, Callable[[Workload], Outcome]] = {
    "legroom": by_legroom,
    "accelerate": by_accelerate,
    "lightning power": lambda workload: by_lightning(workload, "power"),
    "lightning binsearch": lambda workload: by_lightning(workload, "binsearch"),
}


def truth(workload: Workload, outcomes: dict[str, Outcome]) -> tuple[int, dict[str, bool]]:
    """Return the largest size that runs, and mark the found sizes that run. The search starts from the found sizes."""
    training = Training(workload)

    def runs(size: int) -> bool:
        training.forget()
        failed = False
        try:
            training.steps(size)
        except torch.OutOfMemoryError:
            failed = True
        return not failed

    found = {name: outcome.found > 0 and runs(outcome.found) for name, outcome in outcomes.items()}
    low = max((outcomes[name].found for name, does in found.items() if does), default=1)
    stride, high = max(1, low // 100), None
    while high is None:
        if runs(low + stride):
            low, stride = low + stride, stride * 2
        else:
            high = low + stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low, found


def measure(workload: Workload, cap: int, finders: list[str]) -> dict[str, Any]:
    """Run each finder in a fork of this process. This process has not used the GPU, so a fork inherits no GPU memory."""
    outcomes: dict[str, Outcome] = {}
    trouble: dict[str, str] = {}
    for name in finders:
        finder = FINDERS[name]
        outcome = _in_fork(partial(_under_limit, workload, cap, partial(finder, workload)))
        if isinstance(outcome, str):
            trouble[name] = outcome
        else:
            outcomes[name] = outcome
    outcome = _in_fork(partial(_under_limit, workload, cap, partial(truth, workload, outcomes)))
    if isinstance(outcome, str):
        raise RuntimeError(f"{outcome}; {trouble}")
    true, runs = outcome
    for name, outcome in outcomes.items():
        outcome.runs = runs[name]
    return {
        "workload": asdict(workload),
        "true": true,
        "finders": {name: asdict(outcome) for name, outcome in outcomes.items()},
        "trouble": trouble,
    }


def _under_limit(workload: Workload, cap: int, function: Callable[[], Any]) -> Any:
    """Load libraries, set the memory limit, and return the result of `function`, or its error as text."""
    warnings.simplefilter("ignore")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(cap / total)
    Training(workload).steps(2)
    gc.collect()
    torch.cuda.empty_cache()
    try:
        return function()
    except ImportError as error:
        return f"skipped: {error}"
    except Exception as error:  # another finder's failure is a result too
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def _in_fork(function: Callable[[], Any]) -> Any:
    if _is_virtual():
        return function()
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe(duplex=False)

    def run() -> None:
        theirs.send(function())
        theirs.close()

    child = forks.Process(target=run)
    child.start()
    theirs.close()
    try:
        outcome = ours.recv()
    except EOFError:
        outcome = "the process died"
    child.join()
    return outcome


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--finders", nargs="*", default=list(FINDERS), choices=list(FINDERS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--virtual")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    workloads: tuple[Workload, ...] = WORKLOADS
    if options.scale != 1:
        workloads = tuple(replace(w, cap=w.cap * options.scale, measured=None) for w in WORKLOADS)
    if options.one:
        workload = next(w for w in workloads if w.name == options.one)
        print(json.dumps(measure(workload, int(workload.cap * GiB), options.finders)))
        return
    results: list[dict[str, Any]] = []
    if options.virtual:
        from legroom import VirtualGPU

        for workload in VIRTUAL:
            with VirtualGPU(options.virtual):
                results.append(measure(workload, parse_size(options.virtual), options.finders))
    else:
        chosen = [w for w in workloads if not options.only or any(word in w.name for word in options.only)]
        with ThreadPoolExecutor(options.jobs) as pool:
            for result in pool.map(partial(_in_a_process, options.finders, options.scale), chosen):
                results.append(result)
                _save(options.folder, results)
    _save(options.folder, results)
    show(results)


def _in_a_process(finders: list[str], scale: float, workload: Workload) -> dict[str, Any]:
    options = ["--one", workload.name, "--scale", str(scale), "--finders", *finders]
    command = [sys.executable, "-m", "bench.accuracy.finders", *options]
    # Checking for a GPU must not initialize CUDA before the forks.
    environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {
            "workload": asdict(workload),
            "true": 0,
            "finders": {},
            "trouble": {"all": done.stderr[-1500:]},
        }
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def show(results: list[dict[str, Any]]) -> None:
    rows, totals = [], {name: [] for name in FINDERS}  # type: ignore[var-annotated]
    for result in results:
        workload = Workload(**result["workload"])
        for name, why in result["trouble"].items():
            print(f"{workload.name}, {name}: {why}")
        for name, outcome in result["finders"].items():
            ratio = outcome["found"] / result["true"]
            totals[name].append((ratio, outcome))
            rows.append(
                [
                    workload.name, str(result["true"]), str(workload.measured or ""), name, str(outcome["found"]),
                    f"{ratio:.3f}" + ("" if outcome["runs"] else " does not run"), str(outcome["trials"]),
                    str(outcome["ooms"]), f"{outcome['seconds']:.1f}", " ".join(map(str, outcome["tried"])),
                ]
            )  # fmt: skip
    print_table(
        "Largest batch, each workload",
        ["workload", "true", "before", "finder", "found", "found / true", "trials", "OOMs", "s", "tried"],
        rows,
    )
    print_table(
        f"All {len(results)} workloads",
        ["finder", "found / true, mean", "worst", "trials, mean", "most", "OOMs, mean", "most", "s, median"],
        [
            [
                name, f"{statistics.mean(r for r, _ in outcome):.3f}", f"{min(r for r, _ in outcome):.3f}",
                f"{statistics.mean(o['trials'] for _, o in outcome):.1f}", str(max(o["trials"] for _, o in outcome)),
                f"{statistics.mean(o['ooms'] for _, o in outcome):.1f}", str(max(o["ooms"] for _, o in outcome)),
                f"{statistics.median(o['seconds'] for _, o in outcome):.1f}",
            ]
            for name, outcome in totals.items() if outcome
        ],
    )  # fmt: skip


def _save(folder: Path | None, results: list[dict[str, Any]]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "finders.json").write_text(json.dumps(results, indent=1))


def _is_virtual() -> bool:
    from legroom.observe.virtual.gpu import VirtualGPU

    return VirtualGPU._active is not None


if __name__ == "__main__":
    main()
