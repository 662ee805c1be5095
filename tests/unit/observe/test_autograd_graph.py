"""What a graph keeps is read without changing anything, also where torch tells nothing without unpacking."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from legroom.observe.holders import autograd_graph


@pytest.fixture
def older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before `SavedTensor.data`."""
    monkeypatch.setattr(autograd_graph, "can_read_saved", lambda: False)
    monkeypatch.setattr(autograd_graph, "_stored", lambda saved: None)


def saved(result: torch.Tensor) -> set[int]:
    return {tensor.data_ptr() for tensor in autograd_graph.saved_tensors([result.grad_fn])}


@pytest.mark.usefixtures("older_torch")
def test_what_was_not_packed_is_unpacked() -> None:
    weight = torch.ones(4, requires_grad=True)
    with autograd_graph.unpacking_what_was_not_packed():
        result = (weight * weight).sum()
        assert saved(result) == {weight.data_ptr()}
    assert saved(result) == set()


@pytest.mark.usefixtures("older_torch")
def test_once_something_is_packed_nothing_is_unpacked() -> None:
    weight = torch.ones(4, requires_grad=True)
    calls = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp()

    with autograd_graph.unpacking_what_was_not_packed():
        result = checkpoint(block, weight, use_reentrant=False).sum()
        assert saved(result) == set()
    assert len(calls) == 1


class SaveInputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return torch.empty(0)


@pytest.mark.skipif(not autograd_graph.can_read_saved(), reason="this torch does not tell what is saved")
def test_the_inputs_of_a_block_are_found_where_torch_before_2_13_keeps_them() -> None:
    frame = torch.utils.checkpoint._CheckpointFrame.__new__(torch.utils.checkpoint._CheckpointFrame)
    x = torch.ones(4, requires_grad=True) * 2
    frame.input_saver = SaveInputs.apply(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda packed: frame):
        result = torch.ones(4, requires_grad=True).exp()
    (kept,) = autograd_graph.kept_to_recompute(result.grad_fn)
    assert kept.data_ptr() == x.data_ptr()


@pytest.mark.usefixtures("older_torch")
def test_hooks_are_torchs_own_again_afterwards() -> None:
    before = torch.autograd.graph.saved_tensors_hooks.__enter__
    with autograd_graph.unpacking_what_was_not_packed():
        assert torch.autograd.graph.saved_tensors_hooks.__enter__ is not before
    assert torch.autograd.graph.saved_tensors_hooks.__enter__ is before


@pytest.mark.usefixtures("older_torch")
def test_a_freed_graph_gives_nothing() -> None:
    weight = torch.ones(4, requires_grad=True)
    with autograd_graph.unpacking_what_was_not_packed():
        result = weight.exp().sum()
        result.backward()
        assert saved(result) == set()
