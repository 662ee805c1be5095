"""Splitting batches of various types into micro-batches, and concatenating results."""

import dataclasses
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.train.guarding.batches.splitting import BatchArguments, concatenate_results

Pair = namedtuple("Pair", "image label")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    weight: float


def batch(*arguments, **named):
    return BatchArguments(arguments, named)


def test_tensors_are_sliced_without_copying():
    x = torch.arange(12).reshape(6, 2)
    (part,), _ = batch(x).slice(2, 5)
    assert part.tolist() == x[2:5].tolist()
    assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_containers_keep_their_type():
    x = torch.arange(4)
    value = {
        "tuple": (x, "same"),
        "named": Pair(x, x),
        "dataclass": Sample(x, 0.5),
        "ordered": OrderedDict(x=x),
        "list": [x, [x]],
    }
    (part,), _ = batch(value).slice(1, 3)
    assert part["tuple"][1] == "same"
    assert part["tuple"][0].tolist() == [1, 2]
    assert isinstance(part["named"], Pair)
    assert part["named"].label.tolist() == [1, 2]
    assert isinstance(part["dataclass"], Sample)
    assert part["dataclass"].weight == 0.5
    assert part["dataclass"].image.tolist() == [1, 2]
    assert isinstance(part["ordered"], OrderedDict)
    assert part["list"][1][0].tolist() == [1, 2]
    assert value["dataclass"].image.tolist() == [0, 1, 2, 3]


def test_a_batch_encoding_keeps_its_type():
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding(
        {"input_ids": torch.arange(8).reshape(4, 2), "attention_mask": torch.ones(4, 2)}
    )
    _, named = batch(encoding=encoding).slice(3, 4)
    assert isinstance(named["encoding"], transformers.BatchEncoding)
    assert named["encoding"]["input_ids"].tolist() == [[6, 7]]
    assert encoding["input_ids"].shape == (4, 2)


def test_arguments_of_another_size_are_passed_unsplit():
    mask, names = torch.ones(7, 7), ["a", "b", "c"]
    (x, same, sliced), named = batch(torch.zeros(3, 2), mask, names, temperature=0.1).slice(0, 2)
    assert x.shape == (2, 2)
    assert same is mask
    assert sliced == ["a", "b"]
    assert named == {"temperature": 0.1}


def test_detection_batches_are_lists_of_samples():
    images = [torch.zeros(3, size, size) for size in (4, 5, 6)]
    targets = [{"boxes": torch.zeros(n, 4)} for n in (1, 2, 3)]
    detection = batch(images, targets)
    assert detection.batch_size == 3
    (left, right), _ = detection.slice(1, 3)
    assert [image.shape[-1] for image in left] == [5, 6]
    assert [len(target["boxes"]) for target in right] == [2, 3]


def test_unsplit_arguments_are_passed_unchanged():
    square = torch.ones(4, 4)
    (x, mask), _ = BatchArguments((torch.zeros(4, 2), square), {}, unsplit=frozenset({1})).slice(0, 2)
    assert x.shape == (2, 2)
    assert mask is square


def test_batch_dim_selects_the_dimension():
    (part,), _ = BatchArguments((torch.zeros(5, 3, 2),), {}, batch_dim=1).slice(0, 2)
    assert part.shape == (5, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, "text"), "The batch cannot be split"),
        ((), "The batch cannot be split"),
        ((torch.tensor(1.0),), "The batch cannot be split"),
        ((torch.zeros(0, 3),), "The batch is empty"),
        ((torch.zeros(3, 3).to_sparse(),), "nested or sparse"),
    ],
)
def test_a_batch_that_cannot_be_split_is_rejected(arguments, message):
    with pytest.raises(UsageError, match=message):
        batch(*arguments)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_concatenated_micro_batches_equal_the_whole_batch(sizes):
    x = torch.arange(sum(sizes) * 2).reshape(-1, 2)
    whole = batch(x)
    results, start = [], 0
    for size in sizes:
        (part,), _ = whole.slice(start, start + size)
        results.append({"out": part, "samples": part.tolist()})
        start += size
    combined = concatenate_results(results, sizes)
    assert torch.equal(combined["out"], x)
    assert combined["samples"] == x.tolist()


def test_single_numbers_are_averaged_over_samples():
    assert concatenate_results([torch.tensor(1.0), torch.tensor(4.0)], [2, 1]).item() == pytest.approx(2.0)
    assert concatenate_results([(1.0, None), (4.0, None)], [2, 1]) == (pytest.approx(2.0), None)


def test_integers_are_counts_and_are_summed():
    assert concatenate_results([torch.tensor(5), torch.tensor(7)], [6, 7]).item() == 12
    assert concatenate_results([{"correct": 5}, {"correct": 7}], [6, 7]) == {"correct": 12}


def test_attributes_of_other_objects_are_concatenated():
    results = [SimpleNamespace(scores=torch.ones(size), loss=torch.tensor(1.0)) for size in (2, 1)]
    combined = concatenate_results(results, [2, 1])
    assert combined.scores.tolist() == [1, 1, 1]
    assert combined.loss == 1


def test_results_that_cannot_be_concatenated_are_rejected():
    with pytest.raises(UsageError, match="cannot be concatenated"):
        concatenate_results([torch.zeros(7), torch.zeros(7)], [2, 1])
    with pytest.raises(UsageError, match="Results of type object"):
        concatenate_results([object(), object()], [2, 1])
