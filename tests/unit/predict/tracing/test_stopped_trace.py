"""Traces that end before all steps are complete."""

import time
from pathlib import Path
from typing import Any

import pytest

from legroom.gpus.catalog import find_gpu
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event, Free, Step
from legroom.observe.script import Script
from legroom.predict.estimate import estimate_from_trace
from legroom.predict.tracing.script import CannotTrace, OutOfTime, TracedScript
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.worker_process import start_tracing
from legroom.units import MiB

GPU = find_gpu("1GiB")

GENERATES = """
import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(model.parameters())
while True:
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        x = torch.randn(1, 512, device="cuda")
        while True:
            x = model(x)
"""
FAILS = """
import torch
x = torch.ones(8, device="cuda")
raise ValueError("my own mistake")
"""


def alloc(id: int, size: int, category: Category = Category.ACTIVATION) -> Alloc:
    return Alloc(0.0, id, size, size, 0, 0, category, Phase.FORWARD, 0, "", None, "op")


def traced(tmp_path: Path, source: str, seconds: float | None = None, timeout: float = 60) -> TracedScript:
    script = tmp_path / "train.py"
    script.write_text(source)
    return TracedScript(start_tracing(Script(str(script)), GPU, seconds=seconds), GPU, timeout=timeout)


def test_a_second_step_has_the_optimizer_state_of_the_first_from_its_start() -> None:
    events: list[Event] = [
        alloc(1, 100 * MiB),
        Free(0.0, 1),
        alloc(2, 200 * MiB),
        Step(0.0, 0, 0.0, 0, 0, 0, 0, 0),
    ]
    trace = Trace(gpu=GPU, mode="fake", events=events, steps=1, trains=True)
    assert estimate_from_trace(trace).peak_requested == 200 * MiB
    trace.first_batch = 0
    assert estimate_from_trace(trace).peak_requested == 300 * MiB


def test_a_trace_without_a_complete_step_is_never_certain_to_fit() -> None:
    trace = Trace(gpu=GPU, mode="fake", events=[alloc(1, 100 * MiB)], is_partial=True)
    assert estimate_from_trace(trace).verdict == "uncertain"
    trace.events.append(alloc(2, 2048 * MiB))
    assert estimate_from_trace(trace).verdict == "does-not-fit"


@pytest.mark.slow
def test_a_step_that_ends_with_a_long_generation_has_a_verdict(tmp_path: Path) -> None:
    started = time.monotonic()
    with traced(tmp_path, GENERATES, seconds=4) as script:
        trace = script.trace()
    assert time.monotonic() - started < 40
    assert (trace.steps, trace.trains, trace.is_partial) == (1, True, False)
    assert "Step 2 did not finish within 4 seconds (stopped at train.py:12)" in trace.notes[0]


@pytest.mark.slow
def test_an_error_that_a_trace_may_have_caused_is_not_an_error_of_the_script(tmp_path: Path) -> None:
    with traced(tmp_path, FAILS) as script, pytest.raises(CannotTrace) as raised:
        script.trace()
    assert raised.value.needs_data
    assert str(raised.value) == "The script could not be traced (train.py:4, ValueError: my own mistake)"


def test_waits_are_reported_with_the_line_and_end_with_it() -> None:
    class Busy:
        output = ""

        def receive(self, timeout: float) -> None:
            time.sleep(min(timeout, 0.05))

        def running_line(self, pid: int | None = None) -> str:
            return "prepare.py:3"

    waits: list[tuple[float, str]] = []
    busy: Any = Busy()
    with pytest.raises(
        OutOfTime, match=r"did not reach its first batch within 0 seconds. The script was at prepare.py:3"
    ):
        TracedScript(busy, GPU, timeout=0.12, on_wait=lambda *wait: waits.append(wait))
    assert waits
    assert all(line == "prepare.py:3" for _, line in waits)


TWO_OPTIMIZERS = """
import torch
models = [torch.nn.Linear(1024, 1024).cuda() for _ in range(2)]
optimizers = [torch.optim.Adam(model.parameters()) for model in models]
for step in range(20):
    for model, optimizer, every in zip(models, optimizers, (1, {every})):
        if step % every == every - 1:
            optimizer.zero_grad()
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("every", "steps"), [(1, 3), (5, 7)])
def test_the_last_traced_step_has_no_first_step_of_an_optimizer(
    tmp_path: Path, every: int, steps: int
) -> None:
    with traced(tmp_path, TWO_OPTIMIZERS.format(every=every)) as script:
        trace = script.trace()
    result = estimate_from_trace(trace)
    assert trace.steps == steps
    assert result.by_category["optimizer state"] >= 4 * (1024 * 1024 * 4)
    assert result.peak_requested == sum(result.by_category.values())


@pytest.mark.slow
def test_two_steps_count_the_state_of_a_second_optimizer_once(tmp_path: Path) -> None:
    with traced(tmp_path, TWO_OPTIMIZERS.format(every=1).replace("range(20)", "range(2)")) as script:
        trace = script.trace()
    result = estimate_from_trace(trace)
    assert trace.steps == 2
    assert result.peak_requested == sum(result.by_category.values())


ONE_AFTER_THE_OTHER = """
import torch
layers = [torch.nn.Linear(256, 256).cuda() for _ in range(3)]
optimizers = [torch.optim.Adam(layer.parameters()) for layer in layers]
for layer, optimizer in zip(layers, optimizers):
    for _ in range(2):
        layer(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
after = torch.zeros(64 * 2**20, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.slow
def test_layers_trained_one_after_the_other_and_the_end_of_the_script_are_included(tmp_path: Path) -> None:
    with traced(tmp_path, ONE_AFTER_THE_OTHER) as script:
        trace = script.trace()
    result = estimate_from_trace(trace)
    assert trace.steps == 4, "two steps of the first layer, the second step of each other layer"
    assert 64 * MiB < result.peak_requested < 70 * MiB + result.by_category["workspace"]
