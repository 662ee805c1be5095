"""A guarded step on a real GPU that is really full: memory runs out in every part of it, and the numbers are those of a run at
that split in which nothing happened.

    python -m tests.gpu.guard [FOLDER] [--virtual 4GiB]

Each check caps the process (`set_per_process_memory_fraction`), so that PyTorch's own out-of-memory errors come from the
real allocator, then compares bit for bit with plain accumulation in the same pieces without a cap (deterministic
algorithms). Prints a line per check; FOLDER gets `guard_checks.json`. Where there is no GPU it says so and does
nothing; `--virtual` runs the same on a virtual one, smaller.
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
)  # deterministic products need it before CUDA starts

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
    parser.add_argument("--virtual", metavar="SIZE", help="on a virtual GPU of this size")
    parser.add_argument("--only", help="checks whose name holds this")
    options = parser.parse_args(argv)
    if options.virtual is None and not torch.cuda.is_available():
        print("Skipped: there is no CUDA device here. --virtual 4GiB runs the checks on a virtual one.")
        return 0
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    results: list[dict[str, Any]] = []
    with legroom.VirtualGPU(options.virtual) if options.virtual else contextlib.nullcontext():
        for name, check in CHECKS.items():
            if options.only is None or options.only in name:
                results.append(outcome(name, check, Bench(8 if options.virtual else 1)))
                print(_line(results[-1]), flush=True)
                if options.folder is not None:
                    options.folder.mkdir(parents=True, exist_ok=True)
                    (options.folder / "guard_checks.json").write_text(json.dumps(results, indent=1))
    right = sum(result["right"] for result in results)
    print(f"{right} of {len(results)} right")
    return 0 if right == len(results) else 1


def outcome(name: str, check: Check, bench: "Bench") -> dict[str, Any]:
    began = time.perf_counter()
    result: dict[str, Any] = {"check": name, "right": True}
    try:
        with bench.listening():
            result["said"] = check(bench)
    except Exception as error:  # the other checks are worth having
        result |= {
            "right": False,
            "said": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc()[-1500:],
        }
    bench.uncap()
    return result | {"log": bench.log, "seconds": round(time.perf_counter() - began, 2)}


def _line(result: dict[str, Any]) -> str:
    return f"{'right' if result['right'] else 'WRONG'}  {result['check']:44} {result['said'][:160]}"


# ------------------------------------------------------------ what the checks stand on


@dataclass
class Bench:
    """A capped GPU, and what Guard said meanwhile. `smaller`: by how much rows and widths shrink."""

    smaller: int = 1
    log: list[str] = field(default_factory=list)

    def cap(self, more: float) -> None:
        """Nothing beyond what is allocated now and `more` bytes."""
        clean()
        total = torch.cuda.get_device_properties(0).total_memory
        allowed = torch.cuda.memory_reserved() + int(more)
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))

    def uncap(self) -> None:
        clean()
        torch.cuda.set_per_process_memory_fraction(1.0)

    def phases(self) -> set[str]:
        """The passes in which memory ran out so far, by what was logged."""
        return {
            phase
            for phase in ("forward", "backward")
            if any(f"memory in the {phase}" in line for line in self.log)
        }

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        logger = logging.getLogger("legroom")
        handler = _Collector(self.log)
        logger.addHandler(handler)
        propagates, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagates


class _Collector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@dataclass
class Training:
    """A model with its optimizer and batch, always the same ones for the same seed."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def state(self, loss: Tensor) -> list[Tensor]:
        """Everything that must come out the same, in host memory."""
        values = [loss, *self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            values += [value for value in state.values() if isinstance(value, Tensor)]
        return [
            value.detach().cpu().clone()
            for value in (*values, torch.cuda.get_rng_state(), torch.get_rng_state())
        ]

    def by_hand(self, sizes: tuple[int, ...], steps: int = 1, scaler: Any = None) -> list[Tensor]:
        """Plain accumulation in these pieces."""
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


def perceptron(bench: Bench, *, layers: int = 8, width: int | None = None, rows: int = 16384, adam: bool = True, in_place: bool = False) -> Training:  # fmt: skip
    """Activations are large, weights small. Dropout draws from the GPU's generator."""
    torch.manual_seed(0)
    rows //= bench.smaller
    width = width or (256 if bench.smaller > 1 else 1024)
    blocks: list[nn.Module] = []
    for _ in range(layers):
        blocks += [nn.Linear(width, width), nn.ReLU(in_place)]
        if not in_place:
            blocks.append(nn.Dropout(0.1))
    model = nn.Sequential(*blocks, nn.Linear(width, 10)).to("cuda")
    optimizer = (torch.optim.Adam if adam else torch.optim.SGD)(model.parameters(), lr=1e-3, foreach=True)
    x = torch.randn(rows, width, device="cuda")
    return Training(model, optimizer, x, torch.randint(0, 10, (rows,), device="cuda"))


def pictures(bench: Bench) -> Training:
    torch.manual_seed(0)
    channels = [3, 32, 64, 64, 64]
    blocks: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    rows = 64 // bench.smaller
    x = torch.randn(rows, 3, 96, 96, device="cuda")
    return Training(model, optimizer, x, torch.randint(0, 10, (rows,), device="cuda"))


def need_of(make: Callable[[], Training], scaler: Callable[[], Any] | None = None) -> int:
    """Bytes that a whole step takes beyond what is there before it."""
    training = make()
    clean()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    training.by_hand((len(training.x),), scaler=scaler() if scaler else None)
    return int(torch.cuda.max_memory_reserved()) - before


def forward_need_of(make: Callable[[], Training]) -> int:
    """Bytes that the forward pass alone takes."""
    training = make()
    clean()
    before = torch.cuda.memory_reserved()
    loss = training.loss(training.x, training.y)
    taken = int(torch.cuda.memory_reserved()) - before
    del loss
    return taken


def clean() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def differing(ours: list[Tensor], plain: list[Tensor]) -> int:
    if len(ours) != len(plain):
        return abs(len(ours) - len(plain))
    return sum(not torch.equal(one, other) for one, other in zip(ours, plain, strict=True))


def demand(condition: object, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


def recovered(
    bench: Bench,
    make: Callable[[], Training],
    shares: tuple[float, ...],
    scaler: Callable[[], Any] | None = None,
    **options: Any,
) -> str:
    """Under each cap, a share of what the whole step needs, two steps come out as by hand at the split that was found."""
    whole = need_of(make, scaler)
    clean()
    splits = []
    unharmed = 0
    for share in shares:
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

        bench.cap(whole * share)
        value = guard.step(loss, training.x, training.y)
        assert guard.last_step is not None
        unharmed += guard.last_step.attempts == 1  # what the allocator rounds up may leave room enough
        split = guard.last_step.split
        demand(not guard.last_step.fallbacks, f"split {split[:3]}, fallbacks {guard.last_step.fallbacks}")
        found = training.state(value)
        del training, guard, value, loss
        bench.uncap()
        theirs = scaler() if scaler else None
        plain = make().by_hand(split, scaler=theirs)
        count = differing(found, plain)
        demand(
            not count, f"{count} of {len(plain)} tensors differ at a share of {share:.0%}, split {split[:3]}…"
        )
        if ours is not None and theirs is not None:
            demand(ours.state_dict() == theirs.state_dict(), "the scaler's state differs")
        splits.append(f"{share:.0%}: {len(split)}×{split[0]}")
    demand(unharmed <= len(shares) // 3, f"nothing failed under {unharmed} of {len(shares)} caps")
    return f"same bits; pieces at each cap: {', '.join(splits)}; failed in {' and '.join(sorted(bench.phases()))}"


# ------------------------------------------------------------ the checks


def forward_pass(bench: Bench) -> str:
    said = recovered(bench, lambda: perceptron(bench), (0.3, 0.45, 0.6, 0.75), reduction="mean")
    demand("forward" in bench.phases(), f"only met failures in {bench.phases()}")
    return said


def backward_pass(bench: Bench) -> str:
    """The forward pass has just room enough; it leaves nothing in the cache that the gradients could use."""

    def make() -> Training:
        return perceptron(bench, rows=16384 * bench.smaller, in_place=True, adam=False)

    share = forward_need_of(make) / need_of(make)
    said = recovered(bench, make, (share, (3 * share + 1) / 4), reduction="mean")
    demand("backward" in bench.phases(), f"only met failures in {bench.phases()}")
    return said


def batch_normalisation(bench: Bench) -> str:
    return recovered(bench, lambda: pictures(bench), (0.35, 0.6, 0.9), reduction="mean", coupling="ignore")


def loss_scaling(bench: Bench) -> str:
    return recovered(
        bench, lambda: perceptron(bench), (0.5, 0.8), lambda: torch.amp.GradScaler("cuda"), reduction="mean"
    )


def optimizer_temporaries(bench: Bench) -> str:
    """Adam's multi-tensor temporaries have no room, from the step that makes its state on."""
    return _optimizer(bench, beyond_gradients=2.4, steps=3)


def optimizer_state_is_born(bench: Bench) -> str:
    """Not even the state has room while the gradients are there."""
    return _optimizer(bench, beyond_gradients=1.5, steps=1)


def small_optimizer(bench: Bench) -> str:
    """Small enough to be copied before each step: taken back and done again."""
    return _optimizer(bench, beyond_gradients=3.5, steps=2, width=512, layers=9)


def _optimizer(
    bench: Bench, *, beyond_gradients: float, steps: int, width: int = 2048, layers: int = 8
) -> str:
    def make() -> Training:
        return perceptron(bench, layers=layers, width=width // (2 if bench.smaller > 1 else 1), rows=32)

    plain = make().by_hand((32 // bench.smaller,), steps=steps)
    clean()
    training = make()
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False)
    with torch.no_grad():  # workspaces of the libraries are made
        training.loss(training.x, training.y)
    training.loss(training.x, training.y).backward()
    training.optimizer.zero_grad()
    torch.manual_seed(0)
    twin = make()  # puts the generators where they were after the training was made
    del twin
    weights = sum(parameter.nbytes for parameter in training.model.parameters())
    bench.cap(weights * (1 + beyond_gradients))
    value = torch.zeros(())
    for _ in range(steps):
        value = guard.step(training.loss, training.x, training.y)
    retries = guard._updating.retries
    bench.uncap()
    count = differing(training.state(value), plain)
    demand(retries, "the optimizer did not run out of memory")
    demand(not count, f"{count} of {len(plain)} tensors differ after {retries} failures in the optimizer")
    return (
        f"same bits after {steps} step(s), {retries} functions called again, weights {weights / MIB:.0f} MiB"
    )


def memory_is_returned(bench: Bench) -> str:
    """When the second attempt begins, the first one's tensors are dead and the device holds what it held before."""
    whole = need_of(lambda: perceptron(bench, adam=False))
    training = perceptron(bench, adam=False)
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False, reduction="mean")
    alive: list[weakref.ref[Tensor]] = []
    seen: list[tuple[int, int]] = []

    def remember(module: nn.Module, inputs: Any, output: Tensor) -> None:
        alive.append(weakref.ref(output))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append((sum(made() is not None for made in alive), torch.cuda.memory_allocated()))
        return training.loss(x, y)

    for module in training.model.children():
        module.register_forward_hook(remember)
    bench.cap(whole * 0.4)
    before = torch.cuda.memory_allocated()
    guard.step(loss, training.x, training.y)
    after = torch.cuda.memory_allocated()
    assert guard.last_step is not None
    demand(guard.last_step.attempts > 1, "nothing failed")
    demand(seen[1][0] == 0, f"{seen[1][0]} tensors of the failed attempt were alive")
    slack = 12 * MIB  # libraries' workspaces, made at the first use
    demand(
        seen[1][1] <= before + slack, f"{(seen[1][1] - before) / MIB:.1f} MiB were left by the failed attempt"
    )
    demand(after <= before + slack, f"{(after - before) / MIB:.1f} MiB were left by the step")
    return f"{len(alive)} tensors watched, none alive at the second attempt; {(seen[1][1] - before) / MIB:.1f} MiB left"


def evaluation(bench: Bench) -> str:
    training = perceptron(bench, rows=16384 * bench.smaller, adam=False)
    training.model.eval()
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False)
    with torch.no_grad():
        whole = training.model(training.x).cpu()
    bench.cap(training.x.nbytes // 2)
    pieces = guard.evaluate(training.model, training.x).cpu()
    demand(any("evaluated" in line for line in bench.log), "nothing failed")
    close = float((pieces - whole).abs().max())
    demand(close < 1e-5, f"results differ by {close}")
    return f"in pieces, largest difference {close:.1e}"


def evaluation_on_the_host(bench: Bench) -> str:
    torch.manual_seed(0)
    model = nn.Linear(16, 16).to("cuda")
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), cache_sizes=False)
    x = torch.randn(3, (1 << 20) // bench.smaller, 16, device="cuda")
    with torch.no_grad():
        whole = model(x).cpu()
    bench.cap(8 * MIB if bench.smaller > 1 else 24 * MIB)
    result = guard.evaluate(model, x)
    demand(any("on the host" in line for line in bench.log), "the host was not asked")
    demand(all(parameter.is_cuda for parameter in model.parameters()), "the model did not come back")
    close = float((result.cpu() - whole).abs().max())
    demand(close < 1e-5, f"results differ by {close}")
    return f"largest difference {close:.1e}, the model is back on the device"


def spilled(bench: Bench) -> str:
    """One row is too large: its activations wait in host memory, with the same gradients."""

    def make() -> Training:
        training = perceptron(bench, layers=8, width=256, rows=bench.smaller, adam=False)
        training.x = torch.randn(1, 65536 // bench.smaller, training.x.shape[1], device="cuda")
        training.y = torch.randint(0, 10, (1, 65536 // bench.smaller), device="cuda")
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
    bench.cap(whole * 0.6)
    value = guard.step(loss_of(training), training.x, training.y)
    assert guard.last_step is not None
    demand("spill" in guard.last_step.fallbacks, f"fallbacks in use: {guard.last_step.fallbacks}")
    count = differing(training.state(value), plain)
    demand(not count, f"{count} of {len(plain)} tensors differ")
    return f"fallbacks {guard.last_step.fallbacks}, same bits, a step of {whole / MIB:.0f} MiB in {whole * 0.6 / MIB:.0f}"


def does_not_fit(bench: Bench) -> str:
    """At the end of the ladder: one sentence that says what holds the memory, and everything as before."""
    training = perceptron(bench, adam=False)
    huge = training.x.unsqueeze(0).clone()
    plain = training.state(torch.zeros(()))
    guard = legroom.Guard(training.model, training.optimizer, cache_sizes=False)
    bench.cap(huge.nbytes // 2)
    said = ""
    try:
        guard.step(lambda x: training.model(x).mean(), huge)
    except torch.OutOfMemoryError as error:
        said = str(error)
    demand("does not fit on cuda" in said and "parameters" in said, f"it said: {said[:120]!r}")
    demand(all(parameter.grad is None for parameter in training.model.parameters()), "gradients were left")
    count = differing(training.state(torch.zeros(())), plain)
    demand(not count, f"{count} tensors changed")
    return said


CHECKS: dict[str, Check] = {
    "forward pass, with dropout and Adam": forward_pass,
    "backward pass": backward_pass,
    "passes, with batch normalisation": batch_normalisation,
    "passes, with GradScaler": loss_scaling,
    "optimizer: no room for temporaries": optimizer_temporaries,
    "optimizer: no room for its state": optimizer_state_is_born,
    "optimizer: small, taken back": small_optimizer,
    "the failed attempt's memory": memory_is_returned,
    "evaluate, in pieces": evaluation,
    "evaluate, on the host": evaluation_on_the_host,
    "ladder: spill": spilled,
    "ladder: the end": does_not_fit,
}


if __name__ == "__main__":
    raise SystemExit(main())
