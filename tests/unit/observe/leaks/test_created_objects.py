import gc
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from legroom.observe.leaks.created_objects import KEEP_SECONDS, CreatedObjects
from legroom.observe.leaks.live_objects import LiveObjects, find_live_objects


@pytest.fixture
def created() -> Iterator[CreatedObjects]:
    objects = CreatedObjects()
    objects.start()
    yield objects
    objects.stop()
    gc.callbacks.remove(objects._collects)


def _ids(*found: LiveObjects) -> set[int]:
    return {id(each) for live in found for group in live for each in group}


@pytest.mark.parametrize("seed", range(8))
def test_all_objects_are_found_although_the_collector_moves_them(created: CreatedObjects, seed: int) -> None:
    choose = random.Random(seed)
    before = _ids(find_live_objects())
    kept: list[Any] = []
    actions = [
        lambda: kept.append(torch.ones(2)),
        lambda: kept.append(nn.Linear(2, 2)),
        lambda: kept.append([nn.Linear(2, 2)(torch.ones(1, 2)).sum()]),
        lambda: kept.append({"view": torch.ones(4)[:2]}),
        lambda: kept.append([[] for _ in range(choose.randrange(3000))]),
        lambda: kept and kept.pop(choose.randrange(len(kept))),
        lambda: gc.collect(choose.randrange(3)),
        lambda: created.find(),
    ]
    for _ in range(200):
        choose.choice(actions)()
    assert _ids(created.find()[0]) == _ids(find_live_objects()) - before
    assert not _ids(created.find()[1])


def test_a_tensor_that_only_c_code_keeps_is_found_after_a_collection(created: CreatedObjects) -> None:
    squared = torch.ones(2, requires_grad=True).square()
    result = squared.square()  # its graph saves `squared`
    number = id(squared)
    del squared
    gc.collect()
    assert result.grad_fn is not None
    assert (number in _ids(created.find()[0])) == (number in _ids(find_live_objects()))


def test_earlier_objects_are_found_only_when_they_are_read() -> None:
    old, young = [torch.ones(2)], []
    gc.collect()
    young.append(torch.ones(2))
    objects = CreatedObjects()
    objects.start()
    try:
        new = torch.ones(2)
        gc.collect()
        assert _ids(objects.find()[0]) & {id(old[0]), id(young[0]), id(new)} == {id(new)}
        objects.read_earlier_objects()
        found, earlier = objects.find()
        assert id(new) in _ids(found)
        assert {id(old[0]), id(young[0])} <= _ids(earlier)
        assert _ids(found, earlier) == _ids(find_live_objects())
    finally:
        objects.stop()
    gc.callbacks.remove(objects._collects)


def test_no_object_is_kept_alive(created: CreatedObjects) -> None:
    gc.disable()
    try:
        tensors = [torch.ones(2) for _ in range(3)]
        references = [weakref.ref(each) for each in tensors]
        gc.collect()
        created.find()
        created.read_earlier_objects()
        tensors.clear()
        assert not any(each() is not None for each in references)
    finally:
        gc.enable()


def test_references_to_freed_objects_are_dropped(created: CreatedObjects) -> None:
    for _ in range(40):
        tensors = [torch.ones(1) for _ in range(100)]
        gc.collect()
        del tensors
    assert len(created._references) <= 2048


def test_no_references_are_kept_after_the_last_loop(created: CreatedObjects) -> None:
    kept = torch.ones(2)
    created.stop()
    gc.collect()
    assert any(each() is kept for each in created._references)
    created._stopped -= 2 * KEEP_SECONDS
    gc.collect()
    assert created._references == []
    created.start()
