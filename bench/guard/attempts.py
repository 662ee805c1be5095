"""Counts the attempts of guarded steps whose out-of-memory errors follow random patterns.

    python -m bench.guard.attempts [--patterns 10000]

A pattern consists of the batch size, the largest micro-batch that fits, further random failures, and the sizes in the
error messages, which show full, fragmented or unknown memory. The phase of each failure is also random. The program
compares the number of attempts with the bound of log2(batch size) + 3, plus one for each fallback.
"""

import gc
import logging
import math
import random
from dataclasses import dataclass

import torch
from torch import nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table

FALLBACKS = ("spill", "checkpoint")


@dataclass(frozen=True)
class Pattern:
    """The failures of one step."""

    batch_size: int
    largest: int
    """The largest micro-batch that fits. With 0, no micro-batch fits."""
    chance: float
    """The probability that a micro-batch fails although it fits."""
    messages: tuple[str, ...]
    """The kinds of messages, one of which is chosen for each failure."""
    seed: int

    @classmethod
    def random(cls, seed: int) -> "Pattern":
        chooser = random.Random(seed)
        batch_size = int(2 ** chooser.uniform(0, 11))
        return cls(
            batch_size,
            largest=int(2 ** chooser.uniform(-1, math.log2(batch_size) + 1)),
            chance=chooser.choice((0.0, 0.0, 0.1, 0.5)),
            messages=chooser.choice((("full",), ("fragmented",), ("",), ("full", "fragmented", ""))),
            seed=seed,
        )

    @property
    def bound(self) -> float:
        """The maximum number of attempts, without fallbacks."""
        return math.log2(self.batch_size) + 3


def run(pattern: Pattern) -> tuple[int, bool]:
    """Return the number of attempts, and whether the step succeeded."""
    chooser = random.Random(pattern.seed)
    model = nn.Linear(1, 1)
    attempts = 1

    def fail(samples: int) -> None:
        nonlocal attempts
        attempts += 1
        raise torch.OutOfMemoryError(_message(chooser.choice(pattern.messages), samples))

    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        fails = len(x) > pattern.largest or chooser.random() < pattern.chance
        if fails and chooser.random() < 0.5:
            fail(len(x))
        loss = model(x).mean()
        if fails:
            loss.register_hook(lambda _gradient: fail(len(x)))
        return loss

    guard = legroom.Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), reduction="mean", fallbacks=FALLBACKS
    )
    guard._is_coupling_checked = True  # the check is not an attempt
    try:
        guard.step(loss_fn, torch.zeros(pattern.batch_size, 1))
    except torch.OutOfMemoryError:
        return attempts - 1, False
    assert guard.last_step is not None
    assert guard.last_step.attempts == attempts
    return attempts, True


def _message(kind: str, samples: int) -> str:
    """Return the error of a GPU with 8 GiB on which each sample needs 64 MiB."""
    unused = 0.1 if kind == "full" else samples / 16 + 1
    sizes = (
        f"GPU 0 has a total capacity of 8.00 GiB of which 0.00 GiB is free. Of the allocated memory {max(8 - unused, 0):.2f} "
        f"GiB is allocated by PyTorch, and {min(unused, 8):.2f} GiB is reserved by PyTorch but unallocated."
    )
    return f"CUDA out of memory. Tried to allocate {samples / 16:.2f} GiB. " + (sizes if kind else "")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--patterns", type=int, default=10_000)
    patterns = [Pattern.random(seed) for seed in range(parser.parse_args().patterns)]
    logging.disable(logging.WARNING)
    run(patterns[0])
    gc.freeze()  # exclude imported modules from garbage collection after each failure
    results = [(pattern, *run(pattern)) for pattern in patterns]
    rows = []
    for name, succeeds in (("the step succeeds", True), ("a single sample does not fit", False)):
        chosen = [(pattern, attempts) for pattern, attempts, success in results if success is succeeds]
        counts = sorted(attempts for _, attempts in chosen)
        above = sum(attempts > pattern.bound + len(FALLBACKS) for pattern, attempts in chosen)
        rows.append((name, *map(str, (len(chosen), counts[len(counts) // 2], counts[len(counts) * 99 // 100], counts[-1], above))))  # fmt: skip
    print_table(
        f"Attempts of one step, {len(patterns)} random failure patterns, batches of 1 to 2,047 samples",
        ("outcome", "patterns", "median", "99th percentile", "most", "above the bound"),
        rows,
    )


if __name__ == "__main__":
    main()
