"""A forward pass in stages equals that of the whole model for any cut. Models that cannot be split are rejected with
the reason."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from legroom.scale.cutting.forward_graph import CannotSplitModel, input_tensors, record_forward
from legroom.scale.cutting.planning import cut_at
from legroom.scale.cutting.stages import GraphPartitioner, StageRunner

CPU = torch.device("cpu")


class Branching(nn.Module):
    """A model with a skip connection, an in-place operation, a mask, a second input and a shared weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6))
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("shift", torch.full((6,), 0.5))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, *, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = torch.arange(ids.shape[1], device=ids.device) > 0
        if not bool(mask.any()):
            raise ValueError("at least two tokens are required")
        x = self.embed(ids)
        x = x + self.inner(x) * mask[:, None]
        x += self.shift
        x = x * self.scale + bias.float()[:, None, None]
        return {"logits": self.head(F.layer_norm(x, (6,))), "hidden": x}


def branching() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    return Branching(), (torch.randint(0, 11, (2, 5)),), {"bias": torch.arange(2)}


def in_stages(model: nn.Module, boundaries: Sequence[int], arguments: Any, named: Any) -> Any:
    graph = record_forward(model, arguments, named)
    received: tuple[torch.Tensor, ...] = ()
    for program in GraphPartitioner(graph).programs(boundaries):
        runner = StageRunner(graph, program, model, CPU)
        received = runner.run(received, input_tensors(arguments, named))
    return runner.result(received)


def gradients(model: nn.Module, result: Any) -> list[torch.Tensor]:
    model.zero_grad()
    torch.stack([each.square().mean() for each in pytree.tree_leaves(result)]).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]


def test_any_cut_has_the_same_results_and_gradients() -> None:
    model, arguments, named = branching()
    whole = model(*arguments, **named)
    expected_gradients = gradients(model, whole)
    partitioner = GraphPartitioner(record_forward(model, arguments, named))
    positions = [position for position in range(1, partitioner.graph.length) if partitioner.can_cut(position)]
    assert len(positions) > 5
    for first, second in zip(positions, positions[2:], strict=False):
        result = in_stages(model, (0, first, second, partitioner.graph.length), arguments, named)
        assert torch.equal(result["logits"], whole["logits"])
        for ours, expected in zip(gradients(model, result), expected_gradients, strict=True):
            torch.testing.assert_close(ours, expected)


def test_no_cut_is_before_an_in_place_modification() -> None:
    model, arguments, named = branching()
    partitioner = GraphPartitioner(record_forward(model, arguments, named))
    for position, node in enumerate(partitioner.leaves):
        if node.modified_slots and set(node.modified_slots) & set(partitioner.crossing[position]):
            assert not partitioner.can_cut(position)
            break
    else:
        pytest.fail("nothing is modified in place")


def test_tensors_that_depend_only_on_the_batch_are_not_sent() -> None:
    model, arguments, named = branching()
    partitioner = GraphPartitioner(record_forward(model, arguments, named))
    for program in partitioner.programs((0, partitioner.graph.length // 2, partitioner.graph.length)):
        assert all(partitioner.graph.slots[slot].dtype.is_floating_point for slot in program.receives)


def test_a_module_that_is_completely_in_a_stage_is_called_itself() -> None:
    model, arguments, named = branching()
    graph = record_forward(model, arguments, named)
    (program,) = GraphPartitioner(graph).programs((0, graph.length))
    assert "inner" in [node.call for node in program.nodes]
    assert "inner.0" not in [node.call for node in program.nodes]


def test_programs_list_the_weights_that_they_need() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    graph = record_forward(model, (torch.zeros(1, 3),), {})
    first, second = GraphPartitioner(graph).programs((0, 2, 3))
    assert first.tensors(model) == {"0.weight", "0.bias"}
    assert second.tensors(model) == {"2.weight", "2.bias"}


def test_recording_does_not_change_the_model() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    call = nn.Module.__call__
    record_forward(model, (torch.randn(4, 3),), {})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert nn.Module.__call__ is call


def test_a_cut_applies_to_other_batch_sizes_and_to_evaluation() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    cut = cut_at(record_forward(model, (torch.zeros(2, 4),), {}), (0, 3, 5))
    model.eval()
    x = torch.randn(7, 4)
    graph = record_forward(model, (x,), {})
    assert cut.on(graph) == (0, 3, 5)
    assert torch.equal(in_stages(model, cut.on(graph), (x,), {}), model(x))


def test_a_cut_applies_if_evaluation_has_fewer_operations_between_layers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            if self.training:
                x = x.mul(2.0).add(1.0)
            result: torch.Tensor = self.second(x)
            return result

    model = Model()
    cut = cut_at(record_forward(model, (torch.zeros(2, 4),), {}), (0, 2, 4))
    graph = record_forward(model.eval(), (torch.zeros(2, 4),), {})
    assert cut.on(graph) == (0, 1, 2)


class ReadsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result * 2 if result.sum() > 0 else result


def test_a_model_that_reads_values_is_rejected_with_location_and_alternatives() -> None:
    model = nn.Sequential(nn.Linear(3, 3), ReadsValues())
    with pytest.raises(CannotSplitModel) as caught:
        record_forward(model, (torch.zeros(2, 3),), {})
    message = str(caught.value)
    assert "in the forward of 1, the control flow depends on values of the batch" in message
    assert "strategy='split'" in message
    assert "'fsdp'" in message


def test_a_tensor_outside_the_model_is_rejected() -> None:
    external = torch.ones(3)

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + external

    model = Model()
    model.layer = nn.Linear(3, 3)
    with pytest.raises(CannotSplitModel, match="not an input, a parameter or a buffer"):
        record_forward(model, (torch.zeros(2, 3),), {})


@pytest.mark.slow
def test_a_cache_is_rejected_with_advice() -> None:
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=20))
    with pytest.raises(CannotSplitModel, match="DynamicCache.*use_cache = False"):
        record_forward(model, (torch.zeros(1, 4, dtype=torch.long),), {})


@pytest.mark.slow
def test_a_transformers_model_can_be_split() -> None:
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=20, use_cache=False)
    model = GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 20, (2, 4))
    graph = record_forward(model, (), {"input_ids": ids, "labels": ids})
    result = in_stages(model, (0, graph.length // 2, graph.length), (), {"input_ids": ids, "labels": ids})
    whole = model(input_ids=ids, labels=ids)
    assert torch.equal(result.logits, whole.logits)
    assert torch.equal(result.loss, whole.loss)


def test_sent_tensors_are_contiguous() -> None:
    class Transposing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.second(self.first(x).transpose(1, 2))
            return result

    model, x = Transposing(), torch.randn(2, 3, 4)
    graph = record_forward(model, (x,), {})
    first, _ = GraphPartitioner(graph).programs((0, 2, 3))
    (sent,) = StageRunner(graph, first, model, CPU).run((), [x])
    assert sent.is_contiguous()
    assert torch.equal(in_stages(model, (0, 2, 3), (x,), {}), model(x))
