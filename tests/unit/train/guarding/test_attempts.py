"""The number of attempts of a step. `bench/guard/attempts.py` counts the attempts for random failure patterns."""

import math

import torch
from bench.guard.attempts import FALLBACKS, Pattern, run
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.train.guarded import guarded
from torch import nn

from legroom import VirtualGPU
from legroom.units import MiB

messages = st.sampled_from([("full",), ("fragmented",), ("",), ("full", "fragmented", "")])
patterns = st.builds(
    Pattern, st.integers(1, 64), st.integers(0, 64), st.sampled_from([0.0, 0.3]), messages, st.integers(0, 99)
)


@settings(max_examples=25, deadline=None)
@given(pattern=patterns)
def test_the_attempts_of_a_step_are_bounded_for_any_failures(pattern: Pattern) -> None:
    attempts, _ = run(pattern)
    assert attempts <= math.log2(pattern.batch_size) + 3 + len(FALLBACKS)


def test_fragmented_memory_needs_few_attempts(caplog):
    with VirtualGPU("640MiB"):
        blocks = [torch.empty(size * MiB, dtype=torch.uint8, device="cuda") for size in (20,) * 30]
        blocks.clear()
        blocks = [torch.empty(size * MiB, dtype=torch.uint8, device="cuda") for size in (2, 18) * 30]
        del blocks[1::2]  # each segment of 20 MiB keeps 2 MiB in use
        model = nn.Linear(8, 8).cuda()
        guard = guarded(model, reduction="mean", cache_sizes=False)
        passes = []

        def loss_fn(x):
            passes.append(len(x))
            return model(x).repeat(1, 8192).mean()  # 256 KiB per sample: 128 MiB do not fit, 16 MiB fit

        guard.step(loss_fn, torch.randn(512, 8, device="cuda"))
        assert guard.last_step.split == (64,) * 8
        assert guard.last_step.attempts == 5  # 512, again with an empty cache, 256, 128, 64
    assert "memory is fragmented. Retrying with an empty cache and expandable segments." in caplog.text
