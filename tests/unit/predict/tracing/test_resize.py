"""Batches of any structure can be resized."""

from collections import namedtuple

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from legroom.predict.tracing.resize import batch_size_of, full_batch_size, resized, sample_shapes

Pair = namedtuple("Pair", "image label")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_samples_in_any_container_are_dropped_or_repeated(size: int) -> None:
    batch = {
        "x": torch.arange(8).reshape(4, 2),
        "pair": Pair(torch.zeros(4, 3), [torch.ones(4)]),
        "names": ["a", "b", "c", "d"],
        "scale": torch.tensor(2.0),
        "table": torch.zeros(7, 2),
    }
    changed = resized(batch, size)
    assert changed["x"].shape == (size, 2)
    assert type(changed["pair"]) is Pair
    assert changed["pair"].image.shape == (size, 3)
    assert changed["pair"].label[0].shape == (size,)
    assert len(changed["names"]) == size
    assert changed["scale"].shape == ()
    assert changed["table"].shape == (7, 2)
    assert changed["x"][0].tolist() == [0, 1]


def test_a_batch_of_the_right_size_is_not_copied() -> None:
    batch = [torch.zeros(4, 2)]
    assert resized(batch, 4) is batch


def test_the_batch_size_is_the_most_common_first_dimension() -> None:
    assert batch_size_of([torch.zeros(4, 2), torch.zeros(4), torch.zeros(9)]) == 4
    assert batch_size_of("no tensor") is None


def test_sample_shapes_depend_on_the_padding_and_not_on_the_batch_size() -> None:
    def batch(size: int, length: int) -> dict[str, torch.Tensor]:
        return {"ids": torch.zeros(size, length), "label": torch.zeros(size)}

    assert sample_shapes(batch(8, 30)) == sample_shapes(batch(3, 30))
    assert sample_shapes(batch(8, 30)) != sample_shapes(batch(8, 31))


def test_the_full_batch_size_is_the_one_of_the_loader_or_of_its_sampler() -> None:
    data = TensorDataset(torch.zeros(10, 2))
    sampler = BatchSampler(SequentialSampler(data), batch_size=3, drop_last=False)
    assert full_batch_size(DataLoader(data, 4)) == 4
    assert full_batch_size(DataLoader(data, batch_sampler=sampler)) == 3
    assert full_batch_size(DataLoader(data, batch_size=None)) is None
