"""Programs that use `torch.compile` under recording."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from legroom.memory.events import Event
from legroom.observe.compiled import IN_EAGER_MODE
from legroom.observe.cuda.module_markers import ModuleMarkers
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.session import Session
from legroom.observe.training import TrainingClock

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _nothing_compiled_yet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_fullgraph_works_in_a_recorded_run_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []
    original = torch.compile
    with Session(events.append, gpus=None):

        @torch.compile(fullgraph=True, backend="eager")
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        assert double(torch.ones(3)).tolist() == [2, 2, 2]
        model = torch.compile(nn.Linear(2, 2), fullgraph=True, backend="eager")
        model(torch.ones(1, 2)).sum().backward()
        module = nn.Linear(2, 2)
        module.compile(fullgraph=True, backend="eager")
        module(torch.ones(1, 2))
        assert set(model.state_dict()) == {"_orig_mod.weight", "_orig_mod.bias"}
    assert [record.getMessage() for record in caplog.records].count(IN_EAGER_MODE) == 1
    assert torch.compile is original


class _Markers:
    def enter_module(self, activity: str, path: str) -> None: ...


def test_the_observers_of_a_gpu_run_leave_a_model_compiled_once() -> None:
    counter = CompileCounter()
    markers = ModuleMarkers(_Markers(), lambda *_: None, lambda: "other")  # type: ignore[arg-type]
    clock, detector = TrainingClock(), LeakDetector(lambda leak: None)
    for each in (markers, clock, detector):
        each.attach()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*global hooks on modules.*")
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            compiled = torch.compile(model, fullgraph=True, backend=counter)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(6):
                optimizer.zero_grad()
                compiled(torch.ones(2, 4)).sum().backward()
                optimizer.step()
    finally:
        for each in (detector, clock, markers):
            each.detach()
    assert (counter.frame_count, clock.step, detector.iteration) == (1, 6, 6)


def test_steps_of_a_compiled_optimizer_are_counted() -> None:
    clock, detector = TrainingClock(), LeakDetector(lambda leak: None)
    clock.attach()
    detector.attach()
    try:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())
        step = torch.compile(optimizer.step, backend="eager")
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Dynamo does not know how to trace")
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                step()
    finally:
        detector.detach()
        clock.detach()
    assert (clock.step, detector.iteration) == (4, 4)
