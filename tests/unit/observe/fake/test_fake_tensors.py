"""What tensors without data answer when their values are asked for."""

from collections.abc import Iterator

import pytest
import torch

from legroom.observe.fake.fake_tensors import StandIns
from legroom.observe.fake.known_values import LARGEST
from legroom.observe.virtual.gpu import VirtualGPU


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with VirtualGPU("1GiB", stand_ins=StandIns(), bounded=False):
        yield


def padded() -> torch.Tensor:
    return torch.tensor([[1, 1, 1], [1, 0, 0]])


def test_a_mask_of_ones_is_all_true() -> None:
    assert bool(torch.ones(2, 3, dtype=torch.long).cuda().all())


def test_a_mask_with_padding_is_not_all_true() -> None:
    assert not bool(padded().cuda().all())
    assert not bool(padded().to("cuda", torch.bool).all())


def test_nor_is_what_is_made_of_it() -> None:
    mask = padded().cuda()
    assert not bool(mask.to(torch.bool).all())
    assert not bool(mask[:, :2].all())


def test_masks_that_the_model_made_are_taken_for_all_true() -> None:
    scores = torch.nn.Linear(4, 4).cuda()(torch.randn(4, device="cuda"))
    assert bool((scores > 0).all())


def test_large_tensors_are_not_looked_through() -> None:
    zeros = torch.zeros(LARGEST + 1, dtype=torch.bool)
    assert bool(zeros.cuda().all())
