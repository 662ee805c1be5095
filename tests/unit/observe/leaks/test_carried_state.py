"""State that is computed from its previous value, together with its graph: the line of the update is reported."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.detected_leak import DetectedLeak

pytestmark = pytest.mark.slow


def _line(function: Callable[..., Any], text: str) -> int:
    """Return the number of the line of `function` that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    return next(first + number for number, line in enumerate(lines) if text in line)


class _WithMean(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))


class _RunningMean(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x


class _InPlaceMean(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x


class _MeanInDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stats = {"mean": torch.zeros(2)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stats["mean"] = torch.lerp(self.stats["mean"], x.mean(0), 0.1)
        return x


class _DetachedMean(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return x


class _LastMean(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = x.mean(0)
        return x


def _leaks_of_layers(layer: type[nn.Module]) -> list[DetectedLeak]:
    net = nn.Module()
    net.layers = nn.ModuleList([layer() for _ in range(6)])

    def run(step: int, loss: Any, output: Any) -> None:
        for each in net.layers:
            output = each(output)

    return leaks_of(run, iterations=36)


@pytest.mark.parametrize(
    ("layer", "name", "update"),
    [
        (_RunningMean, ".mean", "self.mean = 0.9"),
        (_InPlaceMean, ".mean", "self.mean.mul_"),
        (_MeanInDict, '.stats["mean"]', 'self.stats["mean"] ='),
    ],
)
def test_running_statistics_in_a_list_of_layers_are_reported_once_at_the_update(
    layer: type[nn.Module], name: str, update: str
) -> None:
    (leak,) = _leaks_of_layers(layer)
    assert leak.name.startswith("net.layers.")
    assert leak.name.endswith(name)
    assert (leak.kind, leak.line) == ("graph", _line(layer.forward, update))


@pytest.mark.parametrize("layer", [_DetachedMean, _LastMean])
def test_statistics_without_earlier_graphs_are_not_a_leak(layer: type[nn.Module]) -> None:
    assert _leaks_of_layers(layer) == []
