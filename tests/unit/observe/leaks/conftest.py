"""Fixtures of the leak detector tests."""

import gc
import weakref

import pytest
import torch

from legroom.observe import training
from legroom.observe.leaks import detector
from legroom.observe.leaks.search import suspects


@pytest.fixture(autouse=True)
def small_heap() -> None:
    """Exclude objects that exist before the test from scans, so that scans are fast."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits of the detector, so that its results do not depend on the speed of the machine."""
    monkeypatch.setattr(detector, "MAX_SCAN_FRACTION", 60.0)
    monkeypatch.setattr(detector, "MAX_STEADY_SECONDS", 60.0)
    monkeypatch.setattr(suspects, "MAX_SEARCH_SECONDS", 60.0)
    monkeypatch.setattr(suspects, "MAX_FRUITLESS_SECONDS", 60.0)


@pytest.fixture
def no_earlier_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide optimizers that other tests in this process left alive."""
    find = training.live_optimizers
    before = [weakref.ref(optimizer) for optimizer in find()]

    def later() -> list[torch.optim.Optimizer]:
        return [each for each in find() if all(known() is not each for known in before)]

    monkeypatch.setattr(training, "live_optimizers", later)
