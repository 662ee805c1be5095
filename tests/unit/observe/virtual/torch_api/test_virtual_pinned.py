"""Pinned host memory, and data loaders that pin."""

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from virtual_host import virtual_gpus

from legroom.observe.virtual.torch_api.tensors.pinned import count_as_pinned
from legroom.units import GiB


@pytest.fixture
def host() -> Iterator[Any]:
    with virtual_gpus(GiB) as host:
        yield host


def test_a_pinned_copy_is_pinned_and_the_original_is_not(host: Any) -> None:
    plain = torch.arange(6.0).view(2, 3)
    pinned = plain.pin_memory()
    assert pinned.is_pinned()
    assert not plain.is_pinned()
    assert torch.equal(pinned, plain)


def test_a_view_of_pinned_memory_is_pinned(host: Any) -> None:
    assert torch.zeros(4).pin_memory()[1:].is_pinned()


def test_a_pinned_tensor_is_not_copied_again(host: Any) -> None:
    pinned = torch.zeros(3).pin_memory("cuda")
    assert pinned.pin_memory() is pinned


def test_a_tensor_on_the_gpu_cannot_be_pinned(host: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor' only dense CPU tensors can be pinned"
    ):
        host.put(torch.zeros(3)).pin_memory()


def test_storages_can_be_pinned(host: Any) -> None:
    assert torch.zeros(3).untyped_storage().pin_memory().is_pinned()


def test_a_tensor_created_with_pin_memory_is_pinned(host: Any) -> None:
    made = torch.zeros(3)
    count_as_pinned(made)
    assert made.is_pinned()


def test_memory_that_reuses_the_address_of_freed_pinned_memory_is_not_pinned(host: Any) -> None:
    for _ in range(50):
        torch.zeros(100).pin_memory()
        gc.collect()
        assert not torch.zeros(100).is_pinned()


def numbers() -> TensorDataset:
    return TensorDataset(torch.arange(8.0), torch.arange(8))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_pins_its_batches(host: Any, workers: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(DataLoader(numbers(), batch_size=4, pin_memory=True, num_workers=workers))
    assert all(tensor.is_pinned() for batch in batches for tensor in batch)
    assert torch.equal(torch.cat([values for values, _ in batches]), torch.arange(8.0))


def test_without_a_virtual_gpu_nothing_is_pinned() -> None:
    with virtual_gpus(GiB):
        pinned = torch.zeros(3).pin_memory()
    assert not pinned.is_pinned()
