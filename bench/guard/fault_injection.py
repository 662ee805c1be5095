"""Makes each allocation of a guarded step fail once, and checks that training continues as without a failure.

    python -m bench.guard.fault_injection [--quick]

The program runs three steps on a virtual GPU for each model, each phase (first forward pass, other passes, optimizer)
and each allocation k in that phase. The k-th allocation of the second step fails. Parameters, optimizer state, buffers,
loss scale and random generators must then equal those of a run with the same split and without failures, bit for bit.
Allocations in the first optimizer step also fail, because that step creates the state. The program prints the number of
failed allocations and the number of equal runs.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.train.guarding.optimizer_step import OptimizerStep
from legroom.train.sizes.micro_batch_size import MicroBatchSizer, micro_batch_sizes

ROWS = 6
PHASES = ("forward", "backward and later micro-batches", "optimizer", "first optimizer step")


class Classifier(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(x).float(), y)


class Translator(nn.Module):
    """A transformer with dropout whose loss is a mean over the unmasked tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.layer(self.embed(ids)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-100)


@dataclass(frozen=True)
class Case:
    """One training setup."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    options: dict[str, Any]
    scaled: bool = False
    copied: bool = True
    """True if the parameters are small enough to be copied before each optimizer step."""


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(ROWS, 3, 6, 6, device="cuda"), torch.randint(0, 4, (ROWS,), device="cuda")


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(ROWS, 5, device="cuda"), torch.randint(0, 4, (ROWS,), device="cuda")


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 11, (ROWS, 7), device="cuda")
    labels = torch.where(torch.rand(ROWS, 7, device="cuda") < 0.3, -100, ids)
    return ids, labels


def mlp() -> nn.Module:
    return Classifier(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))


def cnn() -> nn.Module:
    return Classifier(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.01)


def token_count(_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (labels != -100).sum()


CASES = (
    Case("MLP, Adam", mlp, rows, adam, {}),
    Case("MLP, Adam, not copied", mlp, rows, adam, {}, copied=False),
    Case("CNN with BatchNorm, SGD", cnn, images, sgd, {"coupling": "ignore"}),
    Case(
        "CNN with synchronized BatchNorm, AdamW",
        cnn,
        images,
        torch.optim.AdamW,
        {"coupling": "sync"},
        copied=False,
    ),
    Case(
        "transformer with dropout, Adam, by tokens",
        Translator,
        tokens,
        adam,
        {"weight": token_count},
        copied=False,
    ),
    Case(
        "AMP with GradScaler, clipped, Adam",
        cnn,
        images,
        adam,
        {"coupling": "ignore", "clip_norm": 0.5},
        scaled=True,
    ),
    Case("AMP with GradScaler, SGD, not copied", mlp, rows, sgd, {}, scaled=True, copied=False),
)


class PlannedSizes(MicroBatchSizer):
    """Sets the micro-batch size in advance, and halves it after a failure. With a size of at least the batch size, the
    batch is not split at first."""

    def __init__(self, micro: int) -> None:
        super().__init__(max_size=micro)
        self._now = micro

    def micro_batch(self, batch_size: int) -> int:
        return min(batch_size, self._now)

    def may_retry(self, micro: int, failure: Any) -> bool:
        return False

    def failed(self, batch_size: int, micro: int, failure: Any = None, **_figures: Any) -> int:
        return max(1, micro // 2)


@dataclass
class Run:
    """The state after three steps, and the split of the second step."""

    state: list[Any]
    split: tuple[int, ...]
    marks: dict[str, range]
    """The allocation numbers of each phase in the failing step."""
    happened: bool


def run(
    case: Case, micro: int, *, fail: int | None = None, failed_step: int = 1, forced: tuple[int, ...] = ()
) -> Run:
    """Run three steps in micro-batches of `micro`. `fail` is the allocation of `failed_step` that fails."""
    torch.manual_seed(0)
    with legroom.VirtualGPU("1GiB") as gpu:
        model = case.model().cuda()
        optimizer = case.optimizer(model.parameters())
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2) if case.scaled else None
        guard = legroom.Guard(
            model,
            optimizer,
            scaler=scaler,
            reduction="mean",
            sizer=PlannedSizes(micro),
            on_finding=lambda finding: None,
            **case.options,
        )
        if not case.copied:
            guard._optimizer_step = OptimizerStep(optimizer, guard.device, max_copy_bytes=0)
        split: tuple[int, ...] = ()
        marks: dict[str, range] = {}
        faults = None
        for step in range(3):
            batch = case.batch()
            if step == failed_step and fail is not None:
                faults = gpu.fail_allocation(fail)
            if step == failed_step and forced:
                guard._split = lambda _size, _micro: list(forced)  # type: ignore[method-assign]
            with _PhaseRecorder(gpu, model, guard, marks if step == failed_step else {}):
                guard.step(_with_autocast(model) if case.scaled else model, *batch)
            if step == failed_step:
                split = guard.last_step.split if guard.last_step is not None else ()
            if forced:
                vars(guard).pop("_split", None)
        happened = faults is not None and faults.happened
        state: list[Any] = [tensor.cpu() for tensor in model.state_dict().values()]
        state += [
            value.cpu() if isinstance(value, torch.Tensor) else value
            for value in _values(optimizer.state_dict())
        ]
        state += [torch.get_rng_state(), scaler.state_dict() if scaler is not None else None]
        return Run(state, split, marks, happened)


def _with_autocast(model: nn.Module) -> Callable[..., Any]:
    def loss(*batch: torch.Tensor) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(*batch)

    return loss


class _PhaseRecorder:
    """Records the allocations of a step by phase."""

    def __init__(self, gpu: Any, model: nn.Module, guard: Any, marks: dict[str, range]) -> None:
        self._gpu, self._guard, self._marks = gpu, guard, marks
        self._handle = model.register_forward_hook(self._forward_ended)

    def __enter__(self) -> None:
        self._begin = self._gpu.allocations
        self._forward = None
        self._optimizer_step = self._guard.optimizer_step

        def optimizer_step() -> None:
            self._passes_ended = self._gpu.allocations
            self._optimizer_step()

        self._guard.optimizer_step = optimizer_step

    def _forward_ended(self, *_arguments: Any) -> None:
        if self._forward is None:
            self._forward = self._gpu.allocations

    def __exit__(self, *_error: object) -> None:
        self._handle.remove()
        del self._guard.optimizer_step
        now = self._gpu.allocations - self._begin
        forward = (self._forward or self._begin) - self._begin
        passes = self._passes_ended - self._begin
        self._marks["forward"] = range(1, forward + 1)
        self._marks["backward and later micro-batches"] = range(forward + 1, passes + 1)
        self._marks["optimizer"] = range(passes + 1, now + 1)


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)
    else:
        yield value


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other, strict=True)
    )


def inject(case: Case, phase: str, every: int = 1, micro: int = 3) -> tuple[int, int, list[str]]:
    """Return the number of failed allocations, the number of equal runs, and the phases without a failure."""
    step = 0 if phase == "first optimizer step" else 1
    plain = run(case, micro, failed_step=step)
    references = {plain.split: plain}
    numbers = plain.marks["optimizer" if step == 0 else phase]
    tried = right = 0
    wrong = []
    for number in numbers[::every]:
        result = run(case, micro, fail=number, failed_step=step)
        if not result.happened:
            wrong.append(f"{case.name}, {phase}, allocation {number} did not fail")
            continue
        if result.split not in references:
            references[result.split] = run(case, micro, failed_step=step, forced=result.split)
        tried += 1
        if equal(result.state, references[result.split].state):
            right += 1
        else:
            wrong.append(f"{case.name}, {phase}, allocation {number}: split {result.split}")
    return tried, right, wrong


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="only every seventh allocation")
    every = 7 if parser.parse_args().quick else 1
    gc.freeze()  # exclude imported modules from garbage collection after each failure
    logging.disable(logging.WARNING)
    started = time.perf_counter()
    lines, wrong = [], []
    for case in CASES:
        for phase in PHASES:
            tried, right, faults = inject(case, phase, every)
            wrong += faults
            lines.append((case.name, phase, str(tried), str(right)))
            print(f"{case.name}: {phase}: {right} of {tried} equal", flush=True)
    print_table(
        f"Every allocation failed once, {micro_batch_sizes(ROWS, 3)} samples per step ({time.perf_counter() - started:.0f} s)",
        ("training", "phase that failed", "allocations failed", "equal bit for bit"),
        lines,
    )
    for line in wrong:
        print(f"NOT EQUAL: {line}")


if __name__ == "__main__":
    main()
