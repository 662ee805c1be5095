"""Batches of every form, cut along their rows and put together again."""

import dataclasses
from collections import OrderedDict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.train.guarding.batches.splitting import Batch, joined

Pair = namedtuple("Pair", "image label")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    weight: float


def batch(*arguments, **named):
    return Batch(arguments, named)


def test_tensors_are_cut_without_copying():
    x = torch.arange(12).reshape(6, 2)
    (piece,), _ = batch(x).piece(2, 5)
    assert piece.tolist() == x[2:5].tolist()
    assert piece.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_containers_keep_their_kind():
    x = torch.arange(4)
    value = {
        "tuple": (x, "same"),
        "named": Pair(x, x),
        "dataclass": Sample(x, 0.5),
        "ordered": OrderedDict(x=x),
        "list": [x, [x]],
    }
    (piece,), _ = batch(value).piece(1, 3)
    assert piece["tuple"][1] == "same"
    assert piece["tuple"][0].tolist() == [1, 2]
    assert isinstance(piece["named"], Pair)
    assert piece["named"].label.tolist() == [1, 2]
    assert isinstance(piece["dataclass"], Sample)
    assert piece["dataclass"].weight == 0.5
    assert piece["dataclass"].image.tolist() == [1, 2]
    assert isinstance(piece["ordered"], OrderedDict)
    assert piece["list"][1][0].tolist() == [1, 2]
    assert value["dataclass"].image.tolist() == [0, 1, 2, 3]


def test_a_batch_encoding_stays_one():
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding(
        {"input_ids": torch.arange(8).reshape(4, 2), "attention_mask": torch.ones(4, 2)}
    )
    _, named = batch(encoding=encoding).piece(3, 4)
    assert isinstance(named["encoding"], transformers.BatchEncoding)
    assert named["encoding"]["input_ids"].tolist() == [[6, 7]]
    assert encoding["input_ids"].shape == (4, 2)


def test_what_has_no_rows_passes_through():
    mask, names = torch.ones(7, 7), ["a", "b", "c"]
    (x, same, cut), named = batch(torch.zeros(3, 2), mask, names, temperature=0.1).piece(0, 2)
    assert x.shape == (2, 2)
    assert same is mask
    assert cut == ["a", "b"]
    assert named == {"temperature": 0.1}


def test_detection_batches_are_lists_of_samples():
    images = [torch.zeros(3, size, size) for size in (4, 5, 6)]
    targets = [{"boxes": torch.zeros(n, 4)} for n in (1, 2, 3)]
    cut = batch(images, targets)
    assert cut.rows == 3
    (left, right), _ = cut.piece(1, 3)
    assert [image.shape[-1] for image in left] == [5, 6]
    assert [len(target["boxes"]) for target in right] == [2, 3]


def test_an_argument_can_be_declared_whole():
    square = torch.ones(4, 4)
    (x, mask), _ = Batch((torch.zeros(4, 2), square), {}, whole=frozenset({1})).piece(0, 2)
    assert x.shape == (2, 2)
    assert mask is square


def test_rows_may_be_another_dimension():
    (piece,), _ = Batch((torch.zeros(5, 3, 2),), {}, batch_dim=1).piece(0, 2)
    assert piece.shape == (5, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((3, "text"), "nothing in the batch can be split"),
        ((), "nothing in the batch can be split"),
        ((torch.tensor(1.0),), "nothing in the batch can be split"),
        ((torch.zeros(0, 3),), "the batch is empty"),
        ((torch.zeros(3, 3).to_sparse(),), "nested or sparse"),
    ],
)
def test_a_batch_that_cannot_be_split_says_why(arguments, sentence):
    with pytest.raises(UsageError, match=sentence):
        batch(*arguments)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_pieces_joined_are_the_whole(sizes):
    x = torch.arange(sum(sizes) * 2).reshape(-1, 2)
    cut = batch(x)
    pieces, start = [], 0
    for size in sizes:
        (piece,), _ = cut.piece(start, start + size)
        pieces.append({"out": piece, "rows": piece.tolist()})
        start += size
    together = joined(pieces, sizes)
    assert torch.equal(together["out"], x)
    assert together["rows"] == x.tolist()


def test_single_numbers_become_the_mean_over_rows():
    assert joined([torch.tensor(1.0), torch.tensor(4.0)], [2, 1]).item() == pytest.approx(2.0)
    assert joined([(1.0, None), (4.0, None)], [2, 1]) == (pytest.approx(2.0), None)


def test_results_without_rows_are_refused_in_words():
    with pytest.raises(UsageError, match="cannot be put together"):
        joined([torch.zeros(7), torch.zeros(7)], [2, 1])
    with pytest.raises(UsageError, match="results of type object"):
        joined([object(), object()], [2, 1])
