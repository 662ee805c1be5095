"""What an object keeps alive on a device, by all that it leads to."""

import gc
import weakref
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from legroom.observe.holders.retained_size import Reach


def measure(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Every tensor of four numbers or more counts as one on a device."""
    return (tensor.untyped_storage()._cdata, tensor.nbytes) if tensor.numel() >= 4 else None


def reached(value: Any) -> int:
    return sum(Reach(measure).of(value).values())


class Trainer:
    """Its attributes lie in the object itself until somebody asks for `__dict__`."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4, bias=False)


class Slotted:
    __slots__ = ("batch",)


def slotted() -> Slotted:
    holder = Slotted()
    holder.batch = torch.ones(4)
    return holder


def enclosing() -> Any:
    batch = torch.ones(4)
    return lambda: batch


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: [[torch.ones(4)], {"x": (torch.ones(4),)}], 32),
        (Trainer, 64),
        (lambda: SimpleNamespace(inner=Trainer()), 64),
        (slotted, 16),
        (enclosing, 16),
        (lambda: partial(print, torch.ones(4)), 16),
        (lambda: deque([nn.Linear(4, 4, bias=False)]), 64),
        (lambda: {torch.ones(4): 1}, 0),
        (lambda: [1, "two", None, 3.0, torch.float32, nn], 0),
    ],
)
def test_it_is_followed_through(make: Any, expected: int) -> None:
    assert reached(make()) == expected


def test_gradients_and_what_a_graph_saved_count() -> None:
    weight = torch.ones(4, requires_grad=True)
    (weight * 2).sum().backward()
    assert reached(weight) == 32
    assert reached((torch.ones(8, requires_grad=True) * torch.ones(8)).sum()) == 32


def test_a_cycle_ends_and_each_storage_counts_once() -> None:
    batch = torch.ones(4)
    cycle: list[Any] = [batch, batch.view(2, 2), [batch]]
    cycle.append(cycle)
    assert reached(cycle) == 16


def test_hundreds_of_thousands_of_plain_objects_do_not_hide_a_tensor() -> None:
    assert reached([[[number] for number in range(300_000)], torch.ones(4)]) == 16


def test_what_led_nowhere_is_not_followed_again() -> None:
    asked: list[torch.Tensor] = []
    reach = Reach(lambda tensor: asked.append(tensor))
    shared = [torch.ones(2)]
    assert reach.of([shared]) == reach.of((shared, 1)) == {}
    assert len(asked) == 1


def test_no_code_of_the_users_runs() -> None:
    class Loud(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("iterated")

        def __repr__(self) -> str:
            raise AssertionError("shown")

        @property
        def batch(self) -> Any:
            raise AssertionError("asked")

    assert reached(Loud([torch.ones(4)])) == 16


def test_nothing_is_kept() -> None:
    trainer = Trainer()
    reference = weakref.ref(trainer.model.weight)
    reached(trainer)
    del trainer
    gc.collect()
    assert reference() is None


def test_it_ends_without_a_collection_and_what_it_looked_at_with_it() -> None:
    gc.disable()
    try:
        kept = [torch.ones(4), nn.Linear(4, 4)]
        tensor = weakref.ref(kept[0])
        reach = Reach(measure)
        assert reach.of(kept)
        del reach, kept
        assert tensor() is None
    finally:
        gc.enable()
