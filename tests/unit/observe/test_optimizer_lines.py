"""The line of the user's code that creates an optimizer is known after it was created."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from legroom.observe.optimizer_lines import follow_optimizers, line_of, unfollow_optimizers


@pytest.fixture(autouse=True)
def followed() -> Iterator[None]:
    follow_optimizers()
    yield
    unfollow_optimizers()


class Wrapped(torch.optim.SGD):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)


@pytest.mark.parametrize("kind", [torch.optim.Adam, Wrapped])
def test_the_line_that_creates_the_optimizer_is_known(kind: Any) -> None:
    optimizer = kind([nn.Parameter(torch.ones(3))])
    line = line_of(optimizer)
    assert line is not None
    assert (line.file, line.function) == (__file__, "test_the_line_that_creates_the_optimizer_is_known")


def test_constructors_are_followed_until_the_last_recording_ends() -> None:
    recorded = torch.optim.Optimizer.__init__
    follow_optimizers()
    unfollow_optimizers()
    assert torch.optim.Optimizer.__init__ is recorded
    unfollow_optimizers()
    assert torch.optim.Optimizer.__init__ is not recorded
    follow_optimizers()


def test_an_optimizer_from_before_the_recording_has_no_line() -> None:
    unfollow_optimizers()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    follow_optimizers()
    assert line_of(optimizer) is None
