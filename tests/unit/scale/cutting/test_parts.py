"""A forward pass in parts gives what the whole one gives, wherever it is cut; and where it cannot be, it is said why."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from legroom.scale.cutting.cut_points import cut_at
from legroom.scale.cutting.forward_graph import CannotCut, input_tensors, record
from legroom.scale.cutting.stages import Player, Sheet

HOST = torch.device("cpu")


class Branching(nn.Module):
    """A shortcut, an operation in place, a mask made from nothing, a second input, and a weight that is used twice."""

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
            raise ValueError("one token is too few")
        x = self.embed(ids)
        x = x + self.inner(x) * mask[:, None]
        x += self.shift
        x = x * self.scale + bias.float()[:, None, None]
        return {"logits": self.head(F.layer_norm(x, (6,))), "hidden": x}


def branching() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    return Branching(), (torch.randint(0, 11, (2, 5)),), {"bias": torch.arange(2)}


def in_parts(model: nn.Module, boundaries: Sequence[int], arguments: Any, named: Any) -> Any:
    score = record(model, arguments, named)
    received: tuple[torch.Tensor, ...] = ()
    for part in Sheet(score).parts(boundaries):
        player = Player(score, part, model, HOST)
        received = player.play(received, input_tensors(arguments, named))
    return player.result(received)


def gradients(model: nn.Module, result: Any) -> list[torch.Tensor]:
    model.zero_grad()
    torch.stack([each.square().mean() for each in pytree.tree_leaves(result)]).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]


def test_any_cut_gives_the_same_results_and_gradients() -> None:
    model, arguments, named = branching()
    whole = model(*arguments, **named)
    true_gradients = gradients(model, whole)
    sheet = Sheet(record(model, arguments, named))
    places = [position for position in range(1, sheet.score.length) if sheet.can_cut(position)]
    assert len(places) > 5
    for first, second in zip(places, places[2:], strict=False):
        result = in_parts(model, (0, first, second, sheet.score.length), arguments, named)
        assert torch.equal(result["logits"], whole["logits"])
        for ours, true in zip(gradients(model, result), true_gradients, strict=True):
            torch.testing.assert_close(ours, true)


def test_no_cut_lies_before_a_change_in_place() -> None:
    model, arguments, named = branching()
    sheet = Sheet(record(model, arguments, named))
    for position, entry in enumerate(sheet.single):
        if entry.changes and set(entry.changes) & set(sheet.crossing[position]):
            assert not sheet.can_cut(position)
            break
    else:
        pytest.fail("nothing is changed in place")


def test_what_comes_from_the_batch_alone_is_not_handed_on() -> None:
    model, arguments, named = branching()
    sheet = Sheet(record(model, arguments, named))
    for part in sheet.parts((0, sheet.score.length // 2, sheet.score.length)):
        assert all(sheet.score.likes[slot].dtype.is_floating_point for slot in part.receives)


def test_a_module_that_lies_in_a_part_whole_is_called_itself() -> None:
    model, arguments, named = branching()
    score = record(model, arguments, named)
    (part,) = Sheet(score).parts((0, score.length))
    assert "inner" in [entry.call for entry in part.entries]
    assert "inner.0" not in [entry.call for entry in part.entries]


def test_parts_know_the_weights_they_need() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    score = record(model, (torch.zeros(1, 3),), {})
    first, second = Sheet(score).parts((0, 2, 3))
    assert first.tensors(model) == {"0.weight", "0.bias"}
    assert second.tensors(model) == {"2.weight", "2.bias"}


def test_recording_changes_nothing_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    call = nn.Module.__call__
    record(model, (torch.randn(4, 3),), {})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert nn.Module.__call__ is call


def test_a_cut_holds_for_other_sizes_and_for_evaluation() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    cut = cut_at(record(model, (torch.zeros(2, 4),), {}), (0, 3, 5))
    model.eval()
    x = torch.randn(7, 4)
    score = record(model, (x,), {})
    assert cut.on(score) == (0, 3, 5)
    assert torch.equal(in_parts(model, cut.on(score), (x,), {}), model(x))


def test_a_cut_is_found_again_where_evaluation_does_less_between_layers() -> None:
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
    cut = cut_at(record(model, (torch.zeros(2, 4),), {}), (0, 2, 4))
    score = record(model.eval(), (torch.zeros(2, 4),), {})
    assert cut.on(score) == (0, 1, 2)


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result * 2 if result.sum() > 0 else result


def test_a_model_that_looks_at_values_cannot_be_cut_and_is_told_where_and_what_else_there_is() -> None:
    model = nn.Sequential(nn.Linear(3, 3), LooksAtValues())
    with pytest.raises(CannotCut) as caught:
        record(model, (torch.zeros(2, 3),), {})
    sentence = str(caught.value)
    assert "in the forward of 1, what is done next depends on the values in the batch" in sentence
    assert "strategy='split'" in sentence
    assert "'fsdp'" in sentence


def test_a_tensor_from_elsewhere_is_named_as_the_reason() -> None:
    elsewhere = torch.ones(3)

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + elsewhere

    model = Model()
    model.layer = nn.Linear(3, 3)
    with pytest.raises(CannotCut, match="neither an input nor a parameter or buffer"):
        record(model, (torch.zeros(2, 3),), {})


def test_a_cache_that_layers_fill_is_named_as_the_reason() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=20))
    with pytest.raises(CannotCut, match="DynamicCache.*use_cache = False"):
        record(model, (torch.zeros(1, 4, dtype=torch.long),), {})


def test_a_model_of_transformers_can_be_cut() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=20, use_cache=False)
    model = GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 20, (2, 4))
    score = record(model, (), {"input_ids": ids, "labels": ids})
    result = in_parts(model, (0, score.length // 2, score.length), (), {"input_ids": ids, "labels": ids})
    whole = model(input_ids=ids, labels=ids)
    assert torch.equal(result.logits, whole.logits)
    assert torch.equal(result.loss, whole.loss)


def test_what_is_handed_on_can_be_sent_as_it_is() -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.second(self.first(x).transpose(1, 2))
            return result

    model, x = Turning(), torch.randn(2, 3, 4)
    score = record(model, (x,), {})
    first, _ = Sheet(score).parts((0, 2, 3))
    (sent,) = Player(score, first, model, HOST).play((), [x])
    assert sent.is_contiguous()
    assert torch.equal(in_parts(model, (0, 2, 3), (x,), {}), model(x))
