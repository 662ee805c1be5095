"""Tensors saved by a graph are read without side effects, even in torch versions that only expose them by
unpacking."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from legroom.observe.holders import autograd_graph


@pytest.fixture
def older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a torch version without `SavedTensor.data`."""
    monkeypatch.setattr(autograd_graph, "can_read_saved", lambda: False)
    monkeypatch.setattr(autograd_graph, "_data_of", lambda saved: None)


def saved(result: torch.Tensor) -> set[int]:
    nodes = autograd_graph.nodes([result.grad_fn])
    return {tensor.data_ptr() for node in nodes for tensor in autograd_graph.saved_by(node)}


@pytest.mark.usefixtures("older_torch")
def test_unpacked_tensors_are_read_by_unpacking() -> None:
    weight = torch.ones(4, requires_grad=True)
    with autograd_graph.unpack_until_packed():
        result = (weight * weight).sum()
        assert saved(result) == {weight.data_ptr()}
    assert saved(result) == set()


@pytest.mark.usefixtures("older_torch")
def test_a_pack_hook_stops_the_unpacking() -> None:
    weight = torch.ones(4, requires_grad=True)
    calls = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp()

    with autograd_graph.unpack_until_packed():
        result = checkpoint(block, weight, use_reentrant=False).sum()
        assert saved(result) == set()
    assert len(calls) == 1


class SaveInputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return torch.empty(0)


@pytest.mark.skipif(not autograd_graph.can_read_saved(), reason="requires SavedTensor.data")
def test_inputs_of_a_checkpointed_block_are_found_with_torch_before_2_13() -> None:
    frame = torch.utils.checkpoint._CheckpointFrame.__new__(torch.utils.checkpoint._CheckpointFrame)
    x = torch.ones(4, requires_grad=True) * 2
    frame.input_saver = SaveInputs.apply(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda packed: frame):
        result = torch.ones(4, requires_grad=True).exp()
    (found,) = autograd_graph.checkpoint_tensors(result.grad_fn)
    assert found.data_ptr() == x.data_ptr()


@pytest.mark.usefixtures("older_torch")
def test_saved_tensors_hooks_are_restored() -> None:
    before = torch.autograd.graph.saved_tensors_hooks.__enter__
    with autograd_graph.unpack_until_packed():
        assert torch.autograd.graph.saved_tensors_hooks.__enter__ is not before
    assert torch.autograd.graph.saved_tensors_hooks.__enter__ is before


@pytest.mark.usefixtures("older_torch")
def test_a_freed_graph_yields_nothing() -> None:
    weight = torch.ones(4, requires_grad=True)
    with autograd_graph.unpack_until_packed():
        result = weight.exp().sum()
        result.backward()
        assert saved(result) == set()
