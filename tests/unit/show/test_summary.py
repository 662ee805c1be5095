"""`legroom.summary`: rows that add up, a table that fits 80 columns, and for each kind of layer the edit that fits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import legroom
from legroom.errors import UsageError


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())
        self.head = nn.Linear(8 * 6 * 6, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.features(images))
        return self.head(torch.flatten(x, 1))


def test_rows_have_shapes_parameters_and_what_is_kept() -> None:
    told = legroom.summary(Digits(), torch.zeros(4, 1, 8, 8))
    rows = {(row.name, row.kind): row for row in told.rows}
    assert rows["features.0", "Conv2d"].outputs == ((4, 8, 6, 6),)
    assert rows["features.0", "Conv2d"].parameters == 80
    assert rows["head", "Linear"].parameters == 2890
    assert rows["", "flatten"].outputs == ((4, 288),)
    assert told.parameters == sum(row.own_parameters for row in told.rows) == 2970
    assert told.mismatch is None


def test_what_rows_keep_adds_up_to_the_whole_and_is_part_of_the_peak() -> None:
    told = legroom.summary(Digits(), torch.zeros(64, 1, 8, 8))
    assert told.kept == sum(row.kept for row in told.rows if not row.has_children) > 0
    assert told.kept < told.peak
    relu = next(row for row in told.rows if row.kind == "ReLU")
    assert relu.kept == 64 * 8 * 6 * 6 * 4  # its output is what its backward needs
    assert relu.share == pytest.approx(relu.kept / told.peak)


def test_the_model_is_left_as_it_was() -> None:
    model = Digits()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    legroom.summary(model, torch.zeros(4, 1, 8, 8))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model._forward_hooks


def test_a_layer_used_twice_is_counted_once() -> None:
    layer = nn.Linear(4, 4)
    told = legroom.summary(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(2, 4))
    assert [row.parameters for row in told.rows if row.kind == "Linear"] == [20, 0]


def test_parameters_of_layers_that_are_never_called_count_for_the_layer_around_them() -> None:
    told = legroom.summary(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 3, 8))
    attention = next(row for row in told.rows if row.kind == "MultiheadAttention")
    assert attention.own_parameters == 3 * 8 * 8 + 3 * 8 + 8 * 8 + 8
    assert told.parameters == sum(row.own_parameters for row in told.rows)


def test_what_the_loss_keeps_outside_the_model_has_its_row() -> None:
    told = legroom.summary(nn.Linear(8, 100), (torch.zeros(16, 8), torch.zeros(16, dtype=torch.long)))
    assert told.rows[-1].kind == "loss"
    assert told.kept == sum(row.kept for row in told.rows if not row.has_children)


def test_frozen_parameters_are_told() -> None:
    model = Digits()
    model.features.requires_grad_(False)
    told = legroom.summary(model, torch.zeros(4, 1, 8, 8))
    assert told.parameters - told.trainable == 80
    assert "(80 frozen)" in repr(told)


def test_sizes_instead_of_a_batch() -> None:
    as_torchinfo = legroom.summary(Digits(), input_size=(4, 1, 8, 8))
    as_torchsummary = legroom.summary(Digits(), (1, 8, 8))
    assert as_torchinfo.rows[0].outputs == ((4, 10),)
    assert as_torchsummary.rows[0].outputs == ((1, 10),)


def test_a_large_model_needs_neither_time_nor_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(20)))
    assert legroom.summary(model, input_size=(4096, 16384)).parameter_bytes > 20 << 30


def test_the_table_fits_80_columns_and_a_notebook_gets_html() -> None:
    told = legroom.summary(Digits(), torch.zeros(4, 1, 8, 8))
    lines = repr(told).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["layer", "output", "parameters", "kept", "of", "peak"]
    assert "<table>" in told._repr_html_()
    assert "Conv2d" in told._repr_html_()


class Run(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.inner = nn.Identity()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *(self.inner(each) for each in inputs))


@pytest.mark.parametrize(
    ("layer", "given", "wants", "edit"),
    [
        (nn.Linear(12, 4), torch.zeros(8, 10), "a last dimension of 12", "in_features=10"),
        (nn.Linear(48, 4), torch.zeros(8, 3, 4, 4), "a last dimension of 48", "flatten before it: x.flatten(1)"),
        (nn.Conv2d(3, 8, 3), torch.zeros(2, 1, 8, 8), "3 channels, as (batch, channels, height, width)", "in_channels=1"),
        (nn.Conv2d(3, 8, 3), torch.zeros(2, 9, 9, 3), "3 channels, as (batch, channels, height, width)", "channels come last: x.permute(0, 3, 1, 2)"),
        (nn.Conv2d(3, 8, 5), torch.zeros(2, 3, 4, 4), "sides of at least (5, 5)", "larger images, fewer poolings before it, or padding"),
        (nn.Conv1d(16, 8, 3), torch.zeros(2, 4, 20), "16 channels, as (batch, channels, width)", "in_channels=4"),
        (nn.BatchNorm2d(64), torch.zeros(2, 32, 4, 4), "64 channels in dimension 1", "num_features=32"),
        (nn.BatchNorm1d(32), torch.zeros(2, 32, 4, 4), "2 or 3 dimensions", "nn.BatchNorm2d"),
        (nn.LayerNorm(64), torch.zeros(2, 32), "last dimensions (64,)", "normalized_shape=32"),
        (nn.GroupNorm(2, 8), torch.zeros(2, 6, 4), "8 channels in dimension 1", "num_channels=6"),
        (nn.Embedding(10, 4), torch.zeros(2, 3), "whole numbers from 0 to 9, not torch.float32", "x.long()"),
        (nn.LSTM(8, 4, batch_first=True), torch.zeros(2, 5, 6), "a last dimension of 8", "input_size=6"),
    ],
)  # fmt: skip
def test_a_layer_that_does_not_fit_is_named_with_the_edit(
    layer: nn.Module, given: torch.Tensor, wants: str, edit: str
) -> None:
    told = legroom.summary(nn.Sequential(nn.Identity(), layer), given)
    assert told.mismatch is not None
    assert (told.mismatch.layer, told.mismatch.wants, told.mismatch.edit) == ("1", wants, edit)
    assert repr(told).startswith(f"{type(layer).__name__} 1 cannot take what it is given")


@pytest.mark.parametrize(
    ("function", "shapes", "kind", "edit"),
    [
        (lambda m, a, b: a @ b, [(4, 8), (5, 8)], "matmul", "transpose the second: b.transpose(-2, -1)"),
        (lambda m, a, b: torch.cat([a, b]), [(4, 8), (4, 6)], "cat", "dim=1"),
        (lambda m, a, b: torch.cat([a, b], 1), [(1, 4, 24, 24), (1, 4, 25, 25)], "cat", "pad or crop dimension 2 to the same size"),
        (lambda m, a, b: a + b, [(2, 64), (2, 32)], "add", "make dimension -1 equal: 64 and 32"),
        (lambda m, a, b: a.view(-1, 400), [(4, 16, 53, 53), (1,)], "view", "x.flatten(1), which is (4, 44944), with in_features=44944 in the layer after it"),
    ],
)  # fmt: skip
def test_an_operation_that_does_not_fit_is_named_with_the_edit(
    function: Callable[..., Any], shapes: list[Any], kind: str, edit: str
) -> None:
    told = legroom.summary(Run(function), input_size=shapes)
    assert told.mismatch is not None
    assert (told.mismatch.kind, told.mismatch.edit) == (kind, edit)
    assert told.mismatch.file.endswith("test_summary.py")


def test_another_error_of_the_model_is_passed_on_in_its_words() -> None:
    def fails(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing")

    told = legroom.summary(Run(fails), torch.zeros(2))
    assert told.mismatch is not None
    assert (told.mismatch.error, told.mismatch.edit) == ("no such thing", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((Digits(),), "give a batch or a size"),
        ((lambda x: x, torch.zeros(2)), "give a model and a batch"),
        ((Digits(), (0, 8)), "a size is a tuple of whole numbers above zero"),
    ],
)
def test_bad_input_is_refused_with_what_to_write(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        legroom.summary(*arguments)
