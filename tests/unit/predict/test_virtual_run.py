"""The prediction of whether a traced script fits on a virtual GPU."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from legroom.gpus.catalog import find_gpu
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.fit import replay
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import trace_steps
from legroom.predict.virtual_run import fits_virtual_gpu
from legroom.units import MiB


def make_step(dropout: float) -> Callable[[], object]:
    parts = [part for _ in range(8) for part in (nn.Linear(1024, 1024), nn.Dropout(dropout))]
    model = nn.Sequential(*parts).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    batch = torch.ones(2048, 1024).cuda()

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def with_memory(trace: Trace, capacity: int) -> Trace:
    trace.gpu = replace(trace.gpu, total=capacity)
    return trace


def test_a_virtual_gpu_needs_more_memory_for_dropout() -> None:
    trace = trace_steps(lambda: make_step(0.1), find_gpu("1GiB"))
    with VirtualGPU("1GiB"):
        step = make_step(0.1)
        step()
        step()
        needed = torch.cuda.max_memory_reserved()
    fitting = replay(trace).reserved
    assert needed > fitting + 30 * MiB
    assert not fits_virtual_gpu(with_memory(trace, fitting + 2 * MiB))
    assert not fits_virtual_gpu(with_memory(trace, needed - 22 * MiB))
    assert fits_virtual_gpu(with_memory(trace, needed + 22 * MiB))


@pytest.mark.slow
def test_a_script_without_dropout_fits_on_a_virtual_gpu() -> None:
    trace = trace_steps(lambda: make_step(0.0), find_gpu("1GiB"))
    assert fits_virtual_gpu(with_memory(trace, replay(trace).reserved))
