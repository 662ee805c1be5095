"""The lines of the user's code that create optimizers and loaders are known after they were created."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from legroom.memory.event_base import Frame
from legroom.observe.creation_lines import (
    CreationLines,
    follow_constructors,
    lines_of_loader,
    optimizer_lines,
    unfollow_constructors,
)


@pytest.fixture(autouse=True)
def followed() -> Iterator[None]:
    follow_constructors()
    yield
    unfollow_constructors()


class Wrapped(torch.optim.SGD):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)


@pytest.mark.parametrize("kind", [torch.optim.Adam, Wrapped])
def test_the_line_that_creates_the_optimizer_is_known(kind: Any) -> None:
    optimizer = kind([nn.Parameter(torch.ones(3))])
    (line,) = optimizer_lines.of(optimizer)
    assert (line.file, line.function) == (__file__, "test_the_line_that_creates_the_optimizer_is_known")


def test_constructors_are_followed_until_the_last_recording_ends() -> None:
    recorded = torch.optim.Optimizer.__init__
    follow_constructors()
    unfollow_constructors()
    assert torch.optim.Optimizer.__init__ is recorded
    unfollow_constructors()
    assert torch.optim.Optimizer.__init__ is not recorded
    follow_constructors()


def test_an_optimizer_from_before_the_recording_has_no_line() -> None:
    unfollow_constructors()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    follow_constructors()
    assert optimizer_lines.of(optimizer) == []


def test_a_sampler_without_a_hash_has_lines() -> None:
    class Sampler(BatchSampler):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Sampler)

    loader = DataLoader(range(4), batch_sampler=Sampler(SequentialSampler(range(4)), 2, drop_last=False))  # type: ignore[arg-type]
    lines = lines_of_loader(iter(loader))
    assert lines[0].function == "test_a_sampler_without_a_hash_has_lines"


def test_equal_samplers_have_their_own_lines() -> None:
    lines = CreationLines(Equal, lambda frame: [Frame("a.py", frame.f_lineno if frame else 0, "")])
    lines.follow()
    first = Equal()
    second = Equal()
    lines.unfollow()
    assert lines.of(first) != lines.of(second)


class Equal:
    def __init__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_an_optimizer_that_a_constructor_creates_keeps_no_variable_of_it_alive() -> None:
    class Trainer:
        def __init__(self) -> None:
            data = torch.zeros(3)
            self.data = weakref.ref(data)
            self.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
            del data
            gc.disable()
            self.was_freed = self.data() is None
            gc.enable()

    assert Trainer().was_freed


def test_a_constructor_that_another_library_replaced_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = CreationLines(Equal, lambda _: [Frame("a.py", 1, "")])
    original = Equal.__init__
    lines.follow()
    recorded = Equal.__init__
    monkeypatch.setattr(Equal, "__init__", lambda self: recorded(self))
    replaced = Equal.__init__
    lines.unfollow()
    assert Equal.__init__ is replaced
    assert lines.of(Equal()) == []
    Equal.__init__ = original  # type: ignore[method-assign]
