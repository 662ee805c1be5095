"""The device memory that an object retains through everything it references."""

import gc
import weakref
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from legroom.observe.holders import autograd_graph
from legroom.observe.holders.retained_size import RetainedStorages


def measure(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the storage and the size of a tensor. Only tensors with at least four elements count as device
    tensors."""
    return (tensor.untyped_storage()._cdata, tensor.nbytes) if tensor.numel() >= 4 else None


def retained_bytes(value: Any) -> int:
    return sum(RetainedStorages(measure).by(value).values())


class Trainer:
    """An object whose attributes CPython stores inline until `__dict__` is read."""

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
def test_references_are_followed(make: Any, expected: int) -> None:
    assert retained_bytes(make()) == expected


def test_gradients_and_saved_tensors_count() -> None:
    weight = torch.ones(4, requires_grad=True)
    (weight * 2).sum().backward()
    assert retained_bytes(weight) == 32
    with autograd_graph.unpack_until_packed():
        assert retained_bytes((torch.ones(8, requires_grad=True) * torch.ones(8)).sum()) == 32


def test_reference_cycles_end_and_each_storage_counts_once() -> None:
    batch = torch.ones(4)
    cycle: list[Any] = [batch, batch.view(2, 2), [batch]]
    cycle.append(cycle)
    assert retained_bytes(cycle) == 16


def test_a_tensor_is_found_among_hundreds_of_thousands_of_plain_objects() -> None:
    assert retained_bytes([[[number] for number in range(300_000)], torch.ones(4)]) == 16


def test_objects_without_device_memory_are_searched_once() -> None:
    measured: list[torch.Tensor] = []
    retained = RetainedStorages(lambda tensor: measured.append(tensor))
    shared = [torch.ones(2)]
    assert retained.by([shared]) == retained.by((shared, 1)) == {}
    assert len(measured) == 1


def test_no_code_of_user_classes_runs() -> None:
    class Raises(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("iterated")

        def __repr__(self) -> str:
            raise AssertionError("repr")

        @property
        def batch(self) -> Any:
            raise AssertionError("property")

    assert retained_bytes(Raises([torch.ones(4)])) == 16


def test_the_search_keeps_no_references() -> None:
    trainer = Trainer()
    reference = weakref.ref(trainer.model.weight)
    retained_bytes(trainer)
    del trainer
    gc.collect()
    assert reference() is None


def test_the_search_is_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        values = [torch.ones(4), nn.Linear(4, 4)]
        tensor = weakref.ref(values[0])
        retained = RetainedStorages(measure)
        assert retained.by(values)
        del retained, values
        assert tensor() is None
    finally:
        gc.enable()


def test_objects_of_a_test_runner_are_not_searched(request: pytest.FixtureRequest) -> None:
    request.node.kept = torch.ones(4)
    assert not RetainedStorages(measure).by(request)
    assert RetainedStorages(measure).by(request.node.kept)


def test_a_result_is_used_again_in_the_search_from_an_object_that_contains_the_value() -> None:
    inner = [torch.ones(4)]
    retained = RetainedStorages(measure)
    first = retained.by(inner)
    inner.append(torch.ones(8))  # not found, because `inner` is not searched again
    assert retained.by({"inner": inner, "other": torch.ones(16)}).keys() > first.keys()
    assert len(retained.by([inner, 3])) == 1
