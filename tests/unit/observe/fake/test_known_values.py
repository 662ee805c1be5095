"""Values that a trace knows: what selections by them select, and when they are not known any more."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from legroom.observe.fake.fake_tensors import StandIns
from legroom.observe.fake.known_values import LARGEST
from legroom.observe.virtual.gpu import VirtualGPU


@pytest.fixture(autouse=True)
def device() -> Iterator[VirtualGPU]:
    with VirtualGPU("1GiB", stand_ins=StandIns(), bounded=False) as gpu:
        yield gpu


def labels() -> torch.Tensor:
    return torch.tensor([[3, -100, 5], [-100, -100, 7]])


def test_what_a_mask_from_the_host_selects_has_its_true_size() -> None:
    hidden = nn.Linear(4, 8).cuda()(torch.randn(2, 3, 4, device="cuda"))
    assert hidden[labels().cuda() != -100].shape == (3, 8)
    assert hidden[labels().cuda() != -100, :2].shape == (3, 2)


def test_places_and_counts_are_the_true_ones() -> None:
    on_device = labels().cuda()
    assert on_device.nonzero().shape == (6, 2)
    assert (on_device > 0).nonzero().shape == (3, 2)
    assert torch.masked_select(on_device, on_device > 0).tolist() == [3, 5, 7]
    assert torch.bincount(on_device.clamp(min=0).flatten()).shape == (8,)
    assert torch.unique(on_device).tolist() == [-100, 3, 5, 7]


def test_questions_have_true_answers() -> None:
    on_device = labels().cuda()
    assert int((on_device > 0).sum()) == 3
    assert on_device.max().item() == 7
    assert on_device.cpu().tolist() == labels().tolist()


def test_values_follow_views_and_changes_in_place() -> None:
    on_device = labels().cuda()
    on_device[0].fill_(1)
    on_device[:, 1] += 200
    assert on_device.tolist() == [[1, 201, 1], [-100, 100, 7]]


def test_buffers_keep_their_values() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.tensor([2, 0, 1]))

    assert Held().cuda().get_buffer("places").tolist() == [2, 0, 1]


def test_a_sparse_matrix_lies_where_its_values_do() -> None:
    places, values = torch.tensor([[0, 1], [1, 0]]).cuda(), torch.rand(2).cuda()
    near = torch.sparse_coo_tensor(places, values, (2, 2), check_invariants=False)
    assert near.is_cuda
    assert torch.sparse.mm(near, torch.rand(2, 3, device="cuda")).is_cuda


def test_what_is_filled_is_known() -> None:
    assert torch.empty((), dtype=torch.int64, device="cuda").fill_(8).item() == 8


def test_what_the_model_makes_has_no_values() -> None:
    scores = nn.Linear(4, 2).cuda()(torch.randn(3, 4, device="cuda"))
    with pytest.raises(DynamicOutputShapeException):
        (scores > 0).nonzero()


def test_what_the_model_wrote_over_has_none_any_more(device: VirtualGPU) -> None:
    counts = torch.zeros(3, device="cuda")
    counts += nn.Linear(4, 3).cuda()(torch.randn(4, device="cuda")).detach()
    assert counts.tolist() == [1.0, 1.0, 1.0]
    assert device.stand_ins is not None
    assert device.stand_ins.made_up > 0


def test_running_statistics_have_none_after_a_batch() -> None:
    norm = nn.BatchNorm1d(3).cuda()
    assert norm.get_buffer("running_mean").tolist() == [0.0, 0.0, 0.0]
    norm(nn.Linear(2, 3).cuda()(torch.randn(5, 2, device="cuda")))
    with pytest.raises(DynamicOutputShapeException):
        norm.get_buffer("running_mean").nonzero()


def test_parameters_have_none_even_if_small() -> None:
    with pytest.raises(DynamicOutputShapeException):
        nn.Linear(2, 2).cuda().weight.detach().nonzero()


def test_large_tensors_are_not_followed() -> None:
    large = torch.zeros(LARGEST + 1, dtype=torch.bool).cuda()
    with pytest.raises(DynamicOutputShapeException):
        large.nonzero()


def test_noise_on_the_device_leaves_the_hosts_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    torch.rand(5, device="cuda")
    assert torch.equal(torch.rand(3), expected)


def test_twins_die_with_their_tensors(device: VirtualGPU) -> None:
    stand_ins = device.stand_ins
    assert stand_ins is not None
    before = len(stand_ins._values._twins)
    kept = labels().cuda()
    assert len(stand_ins._values._twins) == before + 1
    del kept
    assert len(stand_ins._values._twins) == before
