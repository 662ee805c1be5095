"""Batches of another size, whatever form the loader gave them."""

from collections import namedtuple

import pytest
import torch

from legroom.predict.tracing.resize import batch_size_of, resized, row_shapes

Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_tensors_in_any_container_are_cut_or_repeated(size: int) -> None:
    batch = {
        "x": torch.arange(8).reshape(4, 2),
        "pair": Pair(torch.zeros(4, 3), [torch.ones(4)]),
        "names": ["a", "b", "c", "d"],
        "scale": torch.tensor(2.0),
        "table": torch.zeros(7, 2),
    }
    made = resized(batch, size)
    assert made["x"].shape == (size, 2)
    assert type(made["pair"]) is Pair
    assert made["pair"].image.shape == (size, 3)
    assert made["pair"].label[0].shape == (size,)
    assert len(made["names"]) == size
    assert made["scale"].shape == ()
    assert made["table"].shape == (7, 2)
    assert made["x"][0].tolist() == [0, 1]


def test_a_batch_of_the_right_size_is_itself() -> None:
    batch = [torch.zeros(4, 2)]
    assert resized(batch, 4) is batch


def test_the_batch_size_is_what_most_tensors_agree_on() -> None:
    assert batch_size_of([torch.zeros(4, 2), torch.zeros(4), torch.zeros(9)]) == 4
    assert batch_size_of("no tensor") is None


def test_rows_are_alike_whatever_their_number_and_differ_when_padded_to_another_length() -> None:
    def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
        return {"ids": torch.zeros(rows, length), "label": torch.zeros(rows)}

    assert row_shapes(batch(8, 30)) == row_shapes(batch(3, 30))
    assert row_shapes(batch(8, 30)) != row_shapes(batch(8, 31))
