"""Fake tensors: the values that a program reads from them, and modules that move between devices."""

from collections.abc import Iterator

import pytest
import torch

from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.fake.known_values import MAX_TRACKED_BYTES
from legroom.observe.virtual.gpu import VirtualGPU


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with VirtualGPU("1GiB", fake_tensors=FakeTensors(), bounded=False):
        yield


def padded() -> torch.Tensor:
    return torch.tensor([[1, 1, 1], [1, 0, 0]])


def test_a_mask_of_ones_is_all_true() -> None:
    assert bool(torch.ones(2, 3, dtype=torch.long).cuda().all())


def test_a_mask_with_padding_is_not_all_true() -> None:
    assert not bool(padded().cuda().all())
    assert not bool(padded().to("cuda", torch.bool).all())


def test_a_cast_or_slice_of_a_padded_mask_is_not_all_true() -> None:
    mask = padded().cuda()
    assert not bool(mask.to(torch.bool).all())
    assert not bool(mask[:, :2].all())


def test_masks_computed_by_the_model_are_assumed_all_true() -> None:
    scores = torch.nn.Linear(4, 4).cuda()(torch.randn(4, device="cuda"))
    assert bool((scores > 0).all())


def test_values_of_large_tensors_are_not_tracked() -> None:
    zeros = torch.zeros(MAX_TRACKED_BYTES + 1, dtype=torch.bool)
    assert bool(zeros.cuda().all())


def test_a_trained_module_can_move_to_the_host_and_back() -> None:
    linear = torch.nn.Linear(64, 64)
    model = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(64)).cuda()
    weight = linear.weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 64).cuda()).sum().backward()
    optimizer.step()
    on_device = torch.cuda.memory_allocated()

    model.cpu()
    assert linear.weight is weight
    assert (weight.device.type, weight.grad.device.type) == ("cpu", "cpu")  # type: ignore[union-attr]
    assert torch.cuda.memory_allocated() <= on_device - 2 * weight.nbytes
    assert model(torch.ones(4, 64)).shape == (4, 64)

    model.to("cuda")
    assert (weight.is_cuda, weight.grad.is_cuda) == (True, True)  # type: ignore[union-attr]
    assert torch.cuda.memory_allocated() == on_device
