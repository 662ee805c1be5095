"""Running out of memory while an object is created raises the same error as on a real GPU."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from legroom.observe.holders import retained_size
from legroom.observe.virtual.gpu import VirtualGPU


class TensorFirst(nn.Module):
    def __init__(self) -> None:
        object.__setattr__(self, "table", torch.zeros(30, 1 << 18, device="cuda"))
        super().__init__()


class StateFirst(torch.optim.SGD):
    def __init__(self, parameters: Any) -> None:
        self.buffer = torch.zeros(30, 1 << 18, device="cuda")
        super().__init__(parameters, lr=0.1)


def _large() -> nn.Module:
    return nn.Linear(2048, 2048, device="cuda")  # 16 MiB


@pytest.mark.parametrize(
    "create",
    [
        lambda: copy.deepcopy(nn.Sequential(_large(), nn.ReLU())),
        lambda: (lambda model: pickle.loads(pickle.dumps(model)))(_large()),
        TensorFirst,
        lambda: StateFirst([nn.Parameter(torch.ones(2, device="cuda"))]),
    ],
)
def test_an_object_that_is_being_created_does_not_replace_the_error(create: Any) -> None:
    with VirtualGPU("24MiB"), pytest.raises(torch.OutOfMemoryError):
        create()


def test_an_error_of_the_search_does_not_replace_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("half built")

    monkeypatch.setattr(retained_size.RetainedStorages, "by", fail)
    with VirtualGPU("24MiB"), pytest.raises(torch.OutOfMemoryError):
        torch.zeros(30, 1 << 20, device="cuda")
