"""Checks guarded steps on a real GPU. Memory runs out in every part of a step. The results must equal those of a run
with the same split and without failures.

    python -m tests.gpu.guard [FOLDER] [--virtual 4GiB]

Each check limits the memory of the process (`set_per_process_memory_fraction`), so the out-of-memory errors come from
the real allocator. Each check then compares the results bit for bit with plain gradient accumulation over the same
micro-batches. The comparison has no memory limit and uses deterministic algorithms. The program prints one line per
check and writes FOLDER/guard_checks.json. Without a GPU, the program does nothing. `--virtual` runs smaller checks on
a virtual GPU.
"""

import argparse
import contextlib
import gc
import itertools
import json
import logging
import os
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # required for deterministic matrix products, before CUDA is initialized

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import legroom

MIB = 1 << 20
Loss = Callable[[Tensor, Tensor], Tensor]
Check = Callable[["Bench"], str]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--virtual", metavar="SIZE", help="run on a virtual GPU of this size")
    parser.add_argument("--only", help="run only checks whose name contains this")
    options = parser.parse_args(argv)
    if options.virtual is None and not torch.cuda.is_available():
        print(
            "Skipped: this machine has no CUDA device. Use --virtual 4GiB to run the checks on a virtual one."
        )
        return 0
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    results: list[dict[str, Any]] = []
    with legroom.VirtualGPU(options.virtual) if options.virtual else contextlib.nullcontext():
        for name, check in CHECKS.items():
            if options.only is None or options.only in name:
                results.append(run_check(name, check, Bench(8 if options.virtual else 1)))
                print(_line(results[-1]), flush=True)
                if options.folder is not None:
                    options.folder.mkdir(parents=True, exist_ok=True)
                    (options.folder / "guard_checks.json").write_text(json.dumps(results, indent=1))
    passed = sum(result["passed"] for result in results)
    print(f"{passed} of {len(results)} passed")
    return 0 if passed == len(results) else 1


def run_check(name: str, check: Check, bench: "Bench") -> dict[str, Any]:
    start = time.perf_counter()
    result: dict[str, Any] = {"check": name, "passed": True}
    try:
        with bench.collecting_log():
            result["details"] = check(bench)
    except Exception as error:  # continue with the other checks
        result |= {
            "passed": False,
            "details": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc()[-1500:],
        }
    bench.remove_limit()
    return result | {"log": bench.log, "seconds": round(time.perf_counter() - start, 2)}


def _line(result: dict[str, Any]) -> str:
    return f"{'passed' if result['passed'] else 'FAILED'}  {result['check']:44} {result['details'][:160]}"


# ------------------------------------------------------------ helpers


@dataclass
class Bench:
    """Limits the memory of the GPU and collects the log of Guard. `scale_down` is the factor by which batches and
    widths are reduced."""

    scale_down: int = 1
    log: list[str] = field(default_factory=list)

    def limit(self, extra: float) -> None:
        """Allow only `extra` bytes in addition to the currently reserved bytes."""
        clean()
        total = torch.cuda.get_device_properties(0).total_memory
        allowed = torch.cuda.memory_reserved() + int(extra)
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))

    def remove_limit(self) -> None:
        clean()
        torch.cuda.set_per_process_memory_fraction(1.0)

    def phases(self) -> set[str]:
        """Return the passes in which memory ran out so far, according to the log."""
        return {
            phase
            for phase in ("forward", "backward")
            if any(f"memory in the {phase}" in line for line in self.log)
        }

    @contextlib.contextmanager
    def collecting_log(self) -> Iterator[None]:
        logger = logging.getLogger("legroom")
        handler = _Collector(self.log)
        logger.addHandler(handler)
        propagate, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate


class _Collector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@dataclass
class Training:
    """A model with its optimizer and batch. All instances start with equal values."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def state(self, loss: Tensor) -> list[Tensor]:
        """Return host copies of all tensors that must be equal."""
        values = [loss, *self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            values += [value for value in state.values() if isinstance(value, Tensor)]
        return [
            value.detach().cpu().clone()
            for value in (*values, torch.cuda.get_rng_state(), torch.get_rng_state())
        ]

    def by_hand(self, sizes: tuple[int, ...], steps: int = 1, scaler: Any = None) -> list[Tensor]:
        """Train with plain gradient accumulation over these micro-batches."""
        total = torch.zeros(())
        for _ in range(steps):
            parts = []
            for x, y in zip(self.x.split(sizes), self.y.split(sizes), strict=True):
                with torch.autocast("cuda", dtype=torch.float16, enabled=scaler is not None):
                    loss = self.loss(x, y)
                part = loss * (len(x) / len(self.x)) if len(sizes) > 1 else loss
                (part if scaler is None else scaler.scale(part)).backward()
                parts.append(part.detach())
            if scaler is None:
                self.optimizer.step()
            else:
                scaler.step(self.optimizer)
                scaler.update()
            self.optimizer.zero_grad()
            total = parts[0]
            for part in parts[1:]:
                total = total + part
        return self.state(total)


def mlp(bench: Bench, *, layers: int = 8, width: int | None = None, batch_size: int = 16384, adam: bool = True, in_place: bool = False) -> Training:  # fmt: skip
    """Build an MLP with large activations, small weights and dropout."""
    torch.manual_seed(0)
    batch_size //= bench.scale_down
    width = width or (256 if bench.scale_down > 1 else 1024)
    blocks: list[nn.Module] = []
    for _ in range(layers):
        blocks += [nn.Linear(width, width), nn.ReLU(in_place)]
        if not in_place:
            blocks.append(nn.Dropout(0.1))
    model = nn.Sequential(*blocks, nn.Linear(width, 10)).to("cuda")
    optimizer = (torch.optim.Adam if adam else torch.optim.SGD)(model.parameters(), lr=1e-3, foreach=True)
    x = torch.randn(batch_size, width, device="cuda")
    return Training(model, optimizer, x, torch.randint(0, 10, (batch_size,), device="cuda"))


def cnn(bench: Bench) -> Training:
    torch.manual_seed(0)
    channels = [3, 32, 64, 64, 64]
    blocks: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    batch_size = 64 // bench.scale_down
    x = torch.randn(batch_size, 3, 96, 96, device="cuda")
    return Training(model, optimizer, x, torch.randint(0, 10, (batch_size,), device="cuda"))


def step_bytes(make: Callable[[], Training], scaler: Callable[[], Any] | None = None) -> int:
    """Return the number of bytes that a whole step needs in addition to the memory reserved before it."""
    training = make()
    clean()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    training.by_hand((len(training.x),), scaler=scaler() if scaler else None)
    return int(torch.cuda.max_memory_reserved()) - before


def forward_bytes(make: Callable[[], Training]) -> int:
    """Return the number of bytes that the forward pass needs."""
    training = make()
    clean()
    before = torch.cuda.memory_reserved()
    loss = training.loss(training.x, training.y)
    used = int(torch.cuda.memory_reserved()) - before
    del loss
    return used


def clean() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def differing(ours: list[Tensor], plain: list[Tensor]) -> int:
    if len(ours) != len(plain):
        return abs(len(ours) - len(plain))
    return sum(not torch.equal(one, other) for one, other in zip(ours, plain, strict=True))


def require(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def recovered(
    bench: Bench,
    make: Callable[[], Training],
    fractions: tuple[float, ...],
    scaler: Callable[[], Any] | None = None,
    **options: Any,
) -> str:
    """Check that a step with each fraction of the required memory equals plain accumulation with the same split."""
    whole = step_bytes(make, scaler)
    clean()
    splits = []
    undisturbed = 0
    for fraction in fractions:
        training = make()
        ours = scaler() if scaler else None
        guard = legroom.Guard(
            training.model,
            training.optimizer,
            cache_sizes=False,
            scaler=ours,
            on_finding=lambda finding: None,
            **options,
        )

        def loss(x: Tensor, y: Tensor, training: Training = training) -> Tensor:
            with torch.autocast("cuda", dtype=torch.float16, enabled=scaler is not None):
                return training.loss(x, y)

        bench.limit(whole * fraction)
        value = guard.step(loss, training.x, training.y)
        assert guard.last_step is not None
        undisturbed += guard.last_step.attempts == 1  # rounding may leave enough memory
        split = guard.last_step.split
        require(not guard.last_step.fallbacks, f"split {split[:3]}, fallbacks {guard.last_step.fallbacks}")
        state = training.state(value)
        del training, guard, value, loss
        bench.remove_limit()
        theirs = scaler() if scaler else None
        plain = make().by_hand(split, scaler=theirs)
        count = differing(state, plain)
        require(
            not count,
            f"{count} of {len(plain)} tensors differ with {fraction:.0%} of the memory, split {split[:3]}…",
        )
        if ours is not None and theirs is not None:
            require(ours.state_dict() == theirs.state_dict(), "the state of the GradScaler differs")
        splits.append(f"{fraction:.0%}: {len(split)}×{split[0]}")
    require(
        undisturbed <= len(fractions) // 3, f"nothing failed under {undisturbed} of {len(fractions)} limits"
    )
    return f"bit-for-bit equal; micro-batches at each limit: {', '.join(splits)}; failed in {' and '.join(sorted(bench.phases()))}"


# ------------------------------------------------------------ checks


def forward_pass(bench: Bench) -> str:
    details = recovered(bench, lambda: mlp(bench), (0.3, 0.45, 0.6, 0.75), reduction="mean")
    require("forward" in bench.phases(), f"failures occurred only in {bench.phases()}")
    return details


def backward_pass(bench: Bench) -> str:
    """Check a failure in the backward pass. Memory is just enough for the forward pass, so none remains for the
    gradients."""

    def make() -> Training:
        return mlp(bench, batch_size=16384 * bench.scale_down, in_place=True, adam=False)

    fraction = forward_bytes(make) / step_bytes(make)
    details = recovered(bench, make, (fraction, (3 * fraction + 1) / 4), reduction="mean")
    require("backward" in bench.phases(), f"failures occurred only in {bench.phases()}")
    return details


def batch_normalization(bench: Bench) -> str:
    return recovered(bench, lambda: cnn(bench), (0.35, 0.6, 0.9), reduction="mean", coupling="ignore")


def loss_scaling(bench: Bench) -> str:
    return recovered(
        bench, lambda: mlp(bench), (0.5, 0.8), lambda: torch.amp.GradScaler("cuda"), reduction="mean"
    )


def optimizer_temporaries(bench: Bench) -> str:
    """Check steps in which the temporary tensors of multi-tensor Adam never fit."""
    return _optimizer(bench, beyond_gradients=2.4, steps=3)


def optimizer_state(bench: Bench) -> str:
    """Check a step in which optimizer state and gradients do not fit together."""
    return _optimizer(bench, beyond_gradients=1.5, steps=1)


def small_optimizer(bench: Bench) -> str:
    """Check an optimizer whose parameters and state are small enough to copy before each step and restore after a
    failure."""
    return _optimizer(bench, beyond_gradients=3.5, steps=2, width=512, layers=9)


def _optimizer(
    bench: Bench, *, beyond_gradients: float, steps: int, width: int = 2048, layers: int = 8
) -> str:
    def make() -> Training:
        return mlp(bench, layers=layers, width=width // (2 if bench.scale_down > 1 else 1), batch_size=32)

    plain = make().by_hand((32 // bench.scale_down,), steps=steps)
    clean()
    training = make()
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False)
    with torch.no_grad():  # allocates library workspaces
        training.loss(training.x, training.y)
    training.loss(training.x, training.y).backward()
    training.optimizer.zero_grad()
    torch.manual_seed(0)
    make()  # restores the random state after the creation of the training
    weights = sum(parameter.nbytes for parameter in training.model.parameters())
    bench.limit(weights * (1 + beyond_gradients))
    value = torch.zeros(())
    for _ in range(steps):
        value = guard.step(training.loss, training.x, training.y)
    retries = guard._optimizer_step.retries
    bench.remove_limit()
    count = differing(training.state(value), plain)
    require(retries, "the optimizer did not run out of memory")
    require(not count, f"{count} of {len(plain)} tensors differ after {retries} failures in the optimizer")
    return f"bit-for-bit equal after {steps} step(s), {retries} retries, weights {weights / MIB:.0f} MiB"


def memory_is_freed(bench: Bench) -> str:
    """Check that all tensors of the first attempt are freed before the second attempt."""
    whole = step_bytes(lambda: mlp(bench, adam=False))
    training = mlp(bench, adam=False)
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False, reduction="mean")
    outputs: list[weakref.ref[Tensor]] = []
    seen: list[tuple[int, int]] = []

    def record(module: nn.Module, inputs: Any, output: Tensor) -> None:
        outputs.append(weakref.ref(output))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append((sum(output() is not None for output in outputs), torch.cuda.memory_allocated()))
        return training.loss(x, y)

    for module in training.model.children():
        module.register_forward_hook(record)
    bench.limit(whole * 0.4)
    before = torch.cuda.memory_allocated()
    guard.step(loss, training.x, training.y)
    after = torch.cuda.memory_allocated()
    assert guard.last_step is not None
    require(guard.last_step.attempts > 1, "nothing failed")
    require(seen[1][0] == 0, f"{seen[1][0]} tensors of the failed attempt were alive")
    slack = 12 * MIB  # library workspaces, allocated at first use
    require(
        seen[1][1] <= before + slack, f"{(seen[1][1] - before) / MIB:.1f} MiB were left by the failed attempt"
    )
    require(after <= before + slack, f"{(after - before) / MIB:.1f} MiB were left by the step")
    return f"{len(outputs)} tensors, none alive at the second attempt; {(seen[1][1] - before) / MIB:.1f} MiB left"


def evaluation(bench: Bench) -> str:
    training = mlp(bench, batch_size=16384 * bench.scale_down, adam=False)
    training.model.eval()
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False)
    with torch.no_grad():
        whole = training.model(training.x).cpu()
    bench.limit(training.x.nbytes // 2)
    result = guard.evaluate(training.model, training.x).cpu()
    require(any("Evaluating" in line for line in bench.log), "nothing failed")
    difference = float((result - whole).abs().max())
    require(difference < 1e-5, f"results differ by {difference}")
    return f"in micro-batches, largest difference {difference:.1e}"


def evaluation_on_cpu(bench: Bench) -> str:
    torch.manual_seed(0)
    model = nn.Linear(16, 16).to("cuda")
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), cache_sizes=False)
    x = torch.randn(3, (1 << 20) // bench.scale_down, 16, device="cuda")
    with torch.no_grad():
        whole = model(x).cpu()
    bench.limit(8 * MIB if bench.scale_down > 1 else 24 * MIB)
    result = guard.evaluate(model, x)
    require(any("on the CPU" in line for line in bench.log), "the CPU was not used")
    require(all(parameter.is_cuda for parameter in model.parameters()), "the model is not on the GPU")
    difference = float((result.cpu() - whole).abs().max())
    require(difference < 1e-5, f"results differ by {difference}")
    return f"largest difference {difference:.1e}, the model is back on the GPU"


def spilled(bench: Bench) -> str:
    """Check a single sample that does not fit, so that its activations are moved to host memory. The gradients must
    not change."""

    def make() -> Training:
        training = mlp(bench, layers=8, width=256, batch_size=bench.scale_down, adam=False)
        training.x = torch.randn(1, 65536 // bench.scale_down, training.x.shape[1], device="cuda")
        training.y = torch.randint(0, 10, (1, 65536 // bench.scale_down), device="cuda")
        return training

    def loss_of(training: Training) -> Loss:
        return lambda x, y: F.cross_entropy(training.model(x).flatten(0, 1), y.flatten())

    training = make()
    clean()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    loss = loss_of(training)(training.x, training.y)
    loss.backward()
    whole = torch.cuda.max_memory_reserved() - before
    training.optimizer.step()
    training.optimizer.zero_grad()
    plain = training.state(loss)
    del training, loss
    training = make()
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False)
    bench.limit(whole * 0.6)
    value = guard.step(loss_of(training), training.x, training.y)
    assert guard.last_step is not None
    require("spill" in guard.last_step.fallbacks, f"active fallbacks: {guard.last_step.fallbacks}")
    count = differing(training.state(value), plain)
    require(not count, f"{count} of {len(plain)} tensors differ")
    return f"fallbacks {guard.last_step.fallbacks}, bit-for-bit equal, a step of {whole / MIB:.0f} MiB in {whole * 0.6 / MIB:.0f}"


def does_not_fit(bench: Bench) -> str:
    """Check that the error lists the memory in use and that the state is restored if no fallback is enough."""
    training = mlp(bench, adam=False)
    large = training.x.unsqueeze(0).clone()
    plain = training.state(torch.zeros(()))
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False)
    bench.limit(large.nbytes // 2)
    message = ""
    try:
        guard.step(lambda x: training.model(x).mean(), large)
    except torch.OutOfMemoryError as error:
        message = str(error)
    require("does not fit on cuda" in message and "parameters" in message, f"message: {message[:120]!r}")
    require(all(parameter.grad is None for parameter in training.model.parameters()), "gradients remain")
    count = differing(training.state(torch.zeros(())), plain)
    require(not count, f"{count} tensors changed")
    return message


CHECKS: dict[str, Check] = {
    "forward pass, with dropout and Adam": forward_pass,
    "backward pass": backward_pass,
    "passes, with batch normalization": batch_normalization,
    "passes, with GradScaler": loss_scaling,
    "optimizer: temporaries do not fit": optimizer_temporaries,
    "optimizer: state does not fit": optimizer_state,
    "optimizer: small, restored": small_optimizer,
    "memory of the failed attempt": memory_is_freed,
    "evaluate, in micro-batches": evaluation,
    "evaluate, on the CPU": evaluation_on_cpu,
    "fallback: spill": spilled,
    "fallbacks: none is enough": does_not_fit,
}


if __name__ == "__main__":
    raise SystemExit(main())
