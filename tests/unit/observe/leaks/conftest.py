"""What these tests share."""

import weakref

import pytest
import torch

from legroom.observe import training


@pytest.fixture
def no_earlier_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers that other tests of this process left alive are not seen."""
    look = training.optimizers_alive
    before = [weakref.ref(optimizer) for optimizer in look()]

    def later() -> list[torch.optim.Optimizer]:
        return [each for each in look() if all(known() is not each for known in before)]

    monkeypatch.setattr(training, "optimizers_alive", later)
