"""Batches of any structure can be resized."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from legroom.predict.tracing.resize import (
    batch_size_of,
    full_batch_size,
    resized,
    sample_list_depth,
    sample_shapes,
)

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


def detection_batch(size: int) -> tuple[tuple[torch.Tensor, ...], tuple[dict[str, torch.Tensor], ...]]:
    images = tuple(torch.zeros(3, 8 + index, 8) for index in range(size))
    targets = tuple({"boxes": torch.zeros(1 + index % 2, 4)} for index in range(size))
    return images, targets


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_a_batch_of_lists_is_resized_by_samples(size: int) -> None:
    images, targets = detection_batch(4)
    depth = sample_list_depth((images, targets), 4)
    assert depth == 1
    assert batch_size_of((images, targets), depth) == 4
    changed = resized((images, targets), size, depth)
    assert [len(part) for part in changed] == [size, size]
    assert changed[0][0].shape == (3, 8, 8)
    assert sample_list_depth(list(zip(images, targets, strict=True)), 4) == 0
    assert len(resized(list(zip(images, targets, strict=True)), size, 0)) == size
    assert {len(value) for value in resized({"images": images, "targets": targets}, size, 1).values()} == {
        size
    }


def test_a_batch_of_tensors_is_not_a_batch_of_lists() -> None:
    views = [torch.zeros(4, 3), torch.zeros(4, 3)]
    assert sample_list_depth([views, torch.zeros(4)], 4) is None
    assert sample_list_depth([views, views], None) is None


def boxes(count: int) -> torch.Tensor:
    return torch.zeros(count, 4) if count else torch.tensor([])


@st.composite
def samples(draw: st.DrawFn) -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """One to five images that differ in size, each with its boxes."""
    channels, size = draw(st.sampled_from([1, 3, 4])), draw(st.integers(1, 5))
    counts = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    return [
        (
            torch.zeros(channels, 8 + index, 8),
            {"boxes": boxes(count), "image_id": torch.tensor([index])},
        )
        for index, count in enumerate(counts)
    ]


@given(samples(), st.integers(1, 9))
def test_lists_of_samples_are_found_whatever_the_first_dimensions_of_the_samples_are(
    batch: list[tuple[torch.Tensor, dict[str, torch.Tensor]]], size: int
) -> None:
    full = len(batch)
    images, targets = zip(*batch, strict=True)
    stacked = torch.zeros(full, 3, 8, 8)
    batches: list[Any] = [
        (images, targets),
        (list(images), list(targets)),
        {"image": images, "target": targets},
        (images, [target["boxes"] for target in targets], targets),
        (images, tuple(range(full))),
    ]
    if full > 1:  # the shapes of one image_id and of one stacked image_id are equal
        batches.append((stacked, targets))
    for each in batches:
        assert sample_list_depth(each, full) == 1
        changed = resized(each, size, 1)
        assert len(changed) == len(each)
        assert {len(part) for part in (changed.values() if isinstance(changed, dict) else changed)} == {size}
    for part in (images, targets):
        assert resized((part, part), size, 1)[0][0] is part[0]


@given(samples(), st.integers(1, 9))
def test_a_list_of_pairs_is_a_list_of_samples(
    batch: list[tuple[torch.Tensor, dict[str, torch.Tensor]]], size: int
) -> None:
    if any(image.shape[0] != len(batch) for image, _ in batch):
        assert sample_list_depth(batch, len(batch)) == 0
        assert len(resized(batch, size, 0)) == size


@pytest.mark.parametrize("full", range(1, 6))
@pytest.mark.parametrize("views", range(1, 6))
def test_a_list_of_stacked_tensors_is_not_a_list_of_samples(views: int, full: int) -> None:
    stacked = [torch.zeros(full, 3, 8 + index, 8) for index in range(views)]
    names = [f"{index}.png" for index in range(full)]
    for batch in (
        stacked,
        tuple(stacked),
        [stacked, stacked],
        [stacked, torch.zeros(full)],
        {"views": stacked, "name": names, "label": torch.zeros(full)},
        [{"x": view} for view in stacked],
        [torch.zeros(full, 3, 8, 8), {"label": torch.zeros(full)}],
        (torch.zeros(full, 3, 8, 8), torch.zeros(17, 6)),
        ({"image": torch.zeros(full, 3, 8, 8)}, {"boxes": torch.zeros(17, 6)}),
        (torch.zeros(full, 3, 8, 8), names, [full] * full),
    ):
        assert sample_list_depth(batch, full) is None
