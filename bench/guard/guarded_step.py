"""Measures the cost of a Guard on a real GPU: steps without failures, steps with a memory limit, spilling and
precision. Needs a GPU.

    python -m bench.guard.guarded_step [FOLDER] [--parts overhead cap prices] [--large]

There are two training steps: ResNet-50 (SGD with momentum, fp32) and GPT-2 small on 512 tokens (AdamW, bf16 autocast).

- overhead: The plain loop and Guard alternate on the same model, batch and optimizer. The result is the median over
  rounds, and the spread.
- cap: Memory is limited to the amount that a part of the batch needs. The Guard gets the whole batch and finds its
  split. It then alternates with hand-written even splits (plain accumulation), of which the fastest is the baseline.
  The cost of the first failure is given in steps.
- prices: The time and peak of the same batch with spilled activations and in other precisions.

`--large` uses batches whose micro-batches keep the GPU busy. With smaller batches, Python is the bottleneck, and the
speed of Python varies by 25% between rounds. The program writes FOLDER/guard.json. `--tiny 96MiB` runs small models on
a virtual GPU to test this program.
"""

import contextlib
import gc
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.models.parts import Spec
from bench.lib.models.reference import MODELS
from bench.lib.optimizers import OPTIMIZERS
from bench.lib.table import print_table
from legroom.train.sizes.micro_batch_size import micro_batch_sizes


@dataclass(frozen=True)
class Case:
    """A training step to guard."""

    model: str
    optimizer: str
    precision: str
    batch: int
    fits: int
    """The number of samples that fit within the memory limit."""


CASES = (Case("resnet50", "sgdm", "fp32", 128, 36), Case("gpt2", "adamw", "bf16", 32, 9))
LARGE = (Case("resnet50", "sgdm", "fp32", 512, 136), Case("gpt2", "adamw", "bf16", 96, 26))
TINY = (Case("tiny", "adamw", "fp32", 48, 13),)


@dataclass(frozen=True)
class Pace:
    """The duration and the number of measurements."""

    rounds: int = 6
    steps: int = 10
    to_settle: int = 24


class Training:
    """A model on the device with its batch and both kinds of step."""

    def __init__(self, case: Case, precision: str | None = None) -> None:
        torch.manual_seed(0)
        spec = tiny() if case.model == "tiny" else MODELS[case.model]()
        self.case = case
        self.model: nn.Module = spec.model.to("cuda").train()
        self.optimizer = OPTIMIZERS[case.optimizer](list(self.model.parameters()))
        self.batch = spec.batch(case.batch, "cuda")
        self.spec = spec
        self.precision = precision or case.precision

    def loss(self, *rows: Tensor) -> Tensor:
        return self.spec.loss(self.model, *rows)

    def plain(self, micro: int | None = None) -> Tensor:
        """Run a hand-written step that accumulates over micro-batches."""
        sizes = micro_batch_sizes(self.case.batch, micro or self.case.batch)
        total = torch.zeros((), device="cuda")
        parts = [tensor.split(sizes) for tensor in self.batch]
        for number, size in enumerate(sizes):
            with self.autocast():
                loss = self.loss(*(part[number] for part in parts)) * (size / self.case.batch)
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def autocast(self) -> Any:
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast("cuda", dtype=torch.bfloat16 if self.precision == "bf16" else torch.float16)

    def guard(self, **options: Any) -> Any:
        precision = None if self.precision == "fp32" else self.precision
        return legroom.Guard(
            self.model, self.optimizer, precision=precision, reduction="mean", coupling="ignore", **options
        )


def tiny() -> Spec:
    model = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 9)
    )

    def batch(count: int, device: str) -> list[Tensor]:
        x = torch.randn(count, 500, 64, device=device)
        return [x, torch.randint(0, 9, (count, 500), device=device)]

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return Spec(model, batch, loss)


def seconds_of(step: Callable[[], object], steps: int) -> float:
    """Return the seconds per step. The device is synchronized only before and after all steps."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def overhead(case: Case, pace: Pace) -> dict[str, Any]:
    training = Training(case)
    guard = training.guard()
    ways: dict[str, Callable[[], object]] = {
        "plain": training.plain,
        "guard": lambda: guard.step(training.loss, *training.batch),
    }
    for way in ways.values():
        seconds_of(way, 3)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(pace.rounds):
        for name in sorted(ways, reverse=bool(turn % 2)):
            times[name].append(seconds_of(ways[name], pace.steps))
    assert guard.last_step.split == (case.batch,), "a step of the overhead measurement was split"
    plain, guarded = (statistics.median(times[name]) for name in ("plain", "guard"))
    return {
        "plain_s": plain,
        "guard_s": guarded,
        "cost": guarded / plain - 1,
        "spread": {name: max(each) / min(each) - 1 for name, each in times.items()},
        "times": times,
    }


def with_limit(case: Case, pace: Pace) -> dict[str, Any]:
    total = torch.cuda.get_device_properties(0).total_memory
    cap = peak_of(case, case.fits)
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total))
    try:
        return {"cap": cap, **alternating(case, pace)}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def peak_of(case: Case, micro: int) -> int:
    """Return the number of bytes that PyTorch reserves for the case in micro-batches of `micro`."""
    training = Training(case)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        training.plain(micro)
    peak = torch.cuda.max_memory_reserved()
    del training
    clean()
    return int(peak)


def alternating(case: Case, pace: Pace) -> dict[str, Any]:
    """Measure a Guard that finds its own micro-batch size, and hand-written splits. The measurements alternate,
    because the host's speed varies by more than 10%."""
    training = Training(case)
    guard = training.guard(cache_sizes=False)
    few = [tensor[: max(1, case.fits // 3)] for tensor in training.batch]
    for _ in range(3):  # loads libraries and creates optimizer state
        guard.step(training.loss, *few)

    def guarded() -> None:
        guard.step(training.loss, *training.batch)

    settling, attempts, splits = [], [], []
    for _ in range(pace.to_settle):
        settling.append(seconds_of(guarded, 1))
        attempts.append(guard.last_step.attempts)
        splits.append(max(guard.last_step.split))
    ways: dict[str, Callable[[], object]] = {"guard": guarded}
    for micro in splits_near(case.batch, len(guard.last_step.split)):
        if fits(training, micro):
            ways[str(micro)] = partial(training.plain, micro)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        seconds_of(way, 2)
    for turn in range(2 * pace.rounds):
        for name in sorted(ways, reverse=bool(turn % 2)):
            times[name].append(seconds_of(ways[name], max(1, pace.steps // 3)))
    speeds = {name: case.batch / statistics.median(each) for name, each in times.items()}
    by_hand = {micro: speed for micro, speed in speeds.items() if micro != "guard"}
    fastest = max(by_hand, key=lambda micro: by_hand[micro])
    first = next((i for i, count in enumerate(attempts) if count > 1), None)
    return {
        "by_hand": by_hand,
        "best_micro": int(fastest),
        "best_rows_per_s": by_hand[fastest],
        "rows_per_s": speeds["guard"],
        "of_best": speeds["guard"] / by_hand[fastest],
        "micro": max(guard.last_step.split),
        "failures": sum(count - 1 for count in attempts),
        "steps_with_failures": sum(count > 1 for count in attempts),
        "first_failure_costs_steps": None
        if first is None
        else settling[first] / statistics.median(times["guard"]) - 1,
        "splits": splits,
        "spread": {name: max(each) / min(each) - 1 for name, each in times.items()},
        "times": times,
        "reasons": [choice.reason for choice in guard.sizer.choices],
    }


def splits_near(batch: int, chunks: int) -> list[int]:
    """Return the micro-batch sizes of even splits into about `chunks` parts, largest first."""
    numbers = (chunks - 1, chunks, chunks + 1, chunks + 2)
    return sorted({-(-batch // number) for number in numbers if number > 0}, reverse=True)


def fits(training: Training, micro: int) -> bool:
    """Return True if a hand-written step in micro-batches of `micro` runs within the limit."""
    try:
        training.plain(micro)
        return True
    except torch.OutOfMemoryError:
        pass
    training.optimizer.zero_grad()
    clean()
    return False


def prices(case: Case, pace: Pace) -> dict[str, Any]:
    """Measure the time and peak of the same batch unchanged, with spilling, and in each precision."""
    measured: dict[str, Any] = {}
    rows = min(case.batch, 64)

    def measure(name: str, training: Training, around: Callable[[], Any]) -> None:
        def step() -> None:
            with around(), training.autocast():
                loss = training.loss(*(tensor[:rows] for tensor in training.batch))
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()

        seconds_of(step, 3)
        torch.cuda.reset_peak_memory_stats()
        seconds = statistics.median(seconds_of(step, max(1, pace.steps // 2)) for _ in range(3))
        measured[name] = {"s": seconds, "peak": torch.cuda.max_memory_allocated()}
        clean()

    for precision in ("fp32", "bf16", "fp16"):
        measure(precision, Training(case, precision), contextlib.nullcontext)
        clean()
    measure(f"{case.precision} spilled", Training(case), legroom.Spill)
    return measured


def clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()


PARTS: dict[str, Callable[[Case, Pace], dict[str, Any]]] = {
    "overhead": overhead,
    "cap": with_limit,
    "prices": prices,
}


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--tiny", help="the size of a virtual GPU")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.getLogger("legroom").setLevel(logging.ERROR)
    results: dict[str, dict[str, Any]] = {}
    cases, pace = (TINY, Pace(2, 2, 20)) if options.tiny else (LARGE if options.large else CASES, Pace())
    with legroom.VirtualGPU(options.tiny) if options.tiny else contextlib.nullcontext():
        for case in cases:
            measured = results[f"{case.model}, batch {case.batch}, {case.precision}"] = {}
            for part in options.parts:
                began = time.perf_counter()
                try:
                    measured[part] = PARTS[part](case, pace)
                except Exception as error:  # the other measurements are still useful
                    measured[part] = {"trouble": f"{type(error).__name__}: {str(error)[:400]}"}
                measured[part]["measured_in_s"] = time.perf_counter() - began
                clean()
                _save(options.folder, results)
    show(results)


def show(results: dict[str, dict[str, Any]]) -> None:
    for name, measured in results.items():
        for part, figures in measured.items():
            if "trouble" in figures:
                print(f"{name}, {part}: {figures['trouble']}")
    print_table(
        "Without trouble",
        ["step", "plain", "guard", "cost", "spread of rounds (plain, guard)"],
        [
            [name, f"{o['plain_s'] * 1000:.1f} ms", f"{o['guard_s'] * 1000:.1f} ms", f"{o['cost']:+.2%}",
             f"{o['spread']['plain']:.1%}, {o['spread']['guard']:.1%}"]
            for name, measured in results.items() if "plain_s" in (o := measured.get("overhead", {}))
        ],
    )  # fmt: skip
    print_table(
        "With a memory limit",
        ["step", "cap", "by hand: micro-batch, samples/s", "guard: micro-batch, samples/s", "of best", "failures", "first failure costs", "spread of rounds (by hand, guard)"],
        [
            [name, f"{c['cap'] / 2**30:.2f} GiB", f"{c['best_micro']}, {c['best_rows_per_s']:.1f}",
             f"{c['micro']}, {c['rows_per_s']:.1f}", f"{c['of_best']:.1%}", f"{c['failures']}",
             "" if c["first_failure_costs_steps"] is None else f"{c['first_failure_costs_steps']:.1f} steps",
             f"{c['spread'][str(c['best_micro'])]:.0%}, {c['spread']['guard']:.0%}"]
            for name, measured in results.items() if "of_best" in (c := measured.get("cap", {}))
        ],
    )  # fmt: skip
    print_table(
        "Prices",
        ["step", "how", "time", "relative to plain", "peak allocated"],
        [
            [name, how, f"{each['s'] * 1000:.1f} ms", f"{each['s'] / next(iter(p.values()))['s']:.2f}×", f"{each['peak'] / 2**30:.2f} GiB"]
            for name, measured in results.items() if "trouble" not in (p := measured.get("prices", {}))
            for how, each in p.items() if isinstance(each, dict)
        ],
    )  # fmt: skip
    for name, measured in results.items():
        for reason in measured.get("cap", {}).get("reasons", []):
            print(f"{name}: {reason}")


def _save(folder: Path | None, results: dict[str, Any]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "guard.json").write_text(json.dumps(results, indent=1, default=str))


if __name__ == "__main__":
    main()
