"""Known values of fake tensors: selections that use them, and when they become unknown."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.fake.known_values import MAX_TRACKED_BYTES, _communicates
from legroom.observe.virtual.gpu import VirtualGPU


@pytest.fixture(autouse=True)
def device() -> Iterator[VirtualGPU]:
    with VirtualGPU("1GiB", fake_tensors=FakeTensors(), bounded=False) as gpu:
        yield gpu


def labels() -> torch.Tensor:
    return torch.tensor([[3, -100, 5], [-100, -100, 7]])


def test_a_selection_by_a_mask_from_the_host_has_its_real_size() -> None:
    hidden = nn.Linear(4, 8).cuda()(torch.randn(2, 3, 4, device="cuda"))
    assert hidden[labels().cuda() != -100].shape == (3, 8)


def _combines_masks_and_slices() -> bool:
    try:
        return torch.ones(2, 3, 4)[torch.ones(2, 3, dtype=torch.bool), :2].shape == (6, 2)
    except IndexError:
        return False


@pytest.mark.skipif(
    not _combines_masks_and_slices(), reason="this torch rejects a mask of two dimensions with a slice"
)
def test_a_selection_by_a_mask_and_a_slice_has_its_real_size() -> None:
    hidden = nn.Linear(4, 8).cuda()(torch.randn(2, 3, 4, device="cuda"))
    assert hidden[labels().cuda() != -100, :2].shape == (3, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda table, index: nn.functional.embedding(index, table),
        lambda table, index: table.index_select(0, index),
        lambda table, index: table.index_add(0, index, table[:2]),
        lambda table, index: table.index_copy(0, index, table[:2]),
    ],
)
def test_indices_that_are_not_integers_are_rejected_as_on_a_gpu(call: Any) -> None:
    table = torch.empty(10, 4, device="cuda")
    call(table, torch.empty(2, dtype=torch.int64, device="cuda"))
    with pytest.raises((RuntimeError, IndexError), match=r"(?i)index|indices|scalar type"):
        call(table, torch.empty(2, device="cuda"))


def test_indices_and_counts_are_real() -> None:
    on_device = labels().cuda()
    assert on_device.nonzero().shape == (6, 2)
    assert (on_device > 0).nonzero().shape == (3, 2)
    assert torch.masked_select(on_device, on_device > 0).tolist() == [3, 5, 7]
    assert torch.bincount(on_device.clamp(min=0).flatten()).shape == (8,)
    assert torch.unique(on_device).tolist() == [-100, 3, 5, 7]


def test_reductions_and_copies_return_real_values() -> None:
    on_device = labels().cuda()
    assert int((on_device > 0).sum()) == 3
    assert on_device.max().item() == 7
    assert on_device.cpu().tolist() == labels().tolist()


def test_values_follow_views_and_in_place_operations() -> None:
    on_device = labels().cuda()
    on_device[0].fill_(1)
    on_device[:, 1] += 200
    assert on_device.tolist() == [[1, 201, 1], [-100, 100, 7]]


def test_buffers_keep_their_values() -> None:
    class WithBuffer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("positions", torch.tensor([2, 0, 1]))

    assert WithBuffer().cuda().get_buffer("positions").tolist() == [2, 0, 1]


def test_a_sparse_matrix_is_on_the_device_of_its_values() -> None:
    indices, values = torch.tensor([[0, 1], [1, 0]]).cuda(), torch.rand(2).cuda()
    matrix = torch.sparse_coo_tensor(indices, values, (2, 2), check_invariants=False)
    assert matrix.is_cuda
    assert torch.sparse.mm(matrix, torch.rand(2, 3, device="cuda")).is_cuda


def test_fill_sets_known_values() -> None:
    assert torch.empty((), dtype=torch.int64, device="cuda").fill_(8).item() == 8


def test_results_of_the_model_have_no_values() -> None:
    scores = nn.Linear(4, 2).cuda()(torch.randn(3, 4, device="cuda"))
    with pytest.raises(DynamicOutputShapeException):
        (scores > 0).nonzero()


def test_values_are_unknown_after_a_write_by_the_model(device: VirtualGPU) -> None:
    counts = torch.zeros(3, device="cuda")
    counts += nn.Linear(4, 3).cuda()(torch.randn(4, device="cuda")).detach()
    assert counts.tolist() == [1.0, 1.0, 1.0]
    assert device.fake_tensors is not None
    assert device.fake_tensors.values_substituted > 0


def test_running_statistics_have_no_values_after_a_batch() -> None:
    norm = nn.BatchNorm1d(3).cuda()
    assert norm.get_buffer("running_mean").tolist() == [0.0, 0.0, 0.0]
    norm(nn.Linear(2, 3).cuda()(torch.randn(5, 2, device="cuda")))
    with pytest.raises(DynamicOutputShapeException):
        norm.get_buffer("running_mean").nonzero()


def test_small_parameters_have_no_values() -> None:
    with pytest.raises(DynamicOutputShapeException):
        nn.Linear(2, 2).cuda().weight.detach().nonzero()


def test_large_tensors_have_no_values() -> None:
    large = torch.zeros(MAX_TRACKED_BYTES + 1, dtype=torch.bool).cuda()
    with pytest.raises(DynamicOutputShapeException):
        large.nonzero()


def test_random_numbers_on_the_device_do_not_advance_the_host_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    torch.rand(5, device="cuda")
    assert torch.equal(torch.rand(3), expected)


def test_host_copies_are_freed_with_their_tensors(device: VirtualGPU) -> None:
    fake_tensors = device.fake_tensors
    assert fake_tensors is not None
    before = len(fake_tensors._values._host_copies)
    tensor = labels().cuda()
    assert len(fake_tensors._values._host_copies) == before + 1
    del tensor
    assert len(fake_tensors._values._host_copies) == before


def test_collectives_are_not_computed_on_values() -> None:
    assert _communicates(torch.ops._c10d_functional.all_reduce.default)
    assert not _communicates(torch.ops.aten.add.Tensor)
