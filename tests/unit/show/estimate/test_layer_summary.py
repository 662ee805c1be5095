"""`legroom.summary`: its rows, its table, and the suggested edit for each kind of layer."""

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


def test_rows_have_shapes_and_parameters() -> None:
    result = legroom.summary(Digits(), torch.zeros(4, 1, 8, 8))
    rows = {(row.name, row.kind): row for row in result.rows}
    assert rows["features.0", "Conv2d"].outputs == ((4, 8, 6, 6),)
    assert rows["features.0", "Conv2d"].parameters == 80
    assert rows["head", "Linear"].parameters == 2890
    assert rows["", "flatten"].outputs == ((4, 288),)
    assert result.parameters == sum(row.own_parameters for row in result.rows) == 2970
    assert result.mismatch is None


def test_saved_bytes_add_up_and_are_part_of_the_peak() -> None:
    result = legroom.summary(Digits(), torch.zeros(64, 1, 8, 8))
    assert result.saved == sum(row.saved for row in result.rows if not row.has_children) > 0
    assert result.saved < result.peak
    relu = next(row for row in result.rows if row.kind == "ReLU")
    assert relu.saved == 64 * 8 * 6 * 6 * 4  # the backward pass needs only its output
    assert relu.share == pytest.approx(relu.saved / result.peak)


def test_the_model_does_not_change() -> None:
    model = Digits()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    legroom.summary(model, torch.zeros(4, 1, 8, 8))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model._forward_hooks


def test_a_layer_used_twice_is_counted_once() -> None:
    layer = nn.Linear(4, 4)
    result = legroom.summary(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(2, 4))
    assert [row.parameters for row in result.rows if row.kind == "Linear"] == [20, 0]


@pytest.mark.slow
def test_parameters_of_layers_that_are_never_called_are_counted_in_their_parent() -> None:
    result = legroom.summary(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 3, 8))
    attention = next(row for row in result.rows if row.kind == "MultiheadAttention")
    assert attention.own_parameters == 3 * 8 * 8 + 3 * 8 + 8 * 8 + 8
    assert result.parameters == sum(row.own_parameters for row in result.rows)


def test_the_loss_outside_the_model_has_a_row() -> None:
    result = legroom.summary(nn.Linear(8, 100), (torch.zeros(16, 8), torch.zeros(16, dtype=torch.long)))
    assert result.rows[-1].kind == "loss"
    assert result.saved == sum(row.saved for row in result.rows if not row.has_children)


def test_frozen_parameters_are_counted() -> None:
    model = Digits()
    model.features.requires_grad_(False)
    result = legroom.summary(model, torch.zeros(4, 1, 8, 8))
    assert result.parameters - result.trainable == 80
    assert "(80 frozen)" in repr(result)


def test_a_size_can_be_given_instead_of_a_batch() -> None:
    as_torchinfo = legroom.summary(Digits(), input_size=(4, 1, 8, 8))
    as_torchsummary = legroom.summary(Digits(), (1, 8, 8))
    assert as_torchinfo.rows[0].outputs == ((4, 10),)
    assert as_torchsummary.rows[0].outputs == ((1, 10),)


@pytest.mark.slow
def test_a_large_model_needs_neither_time_nor_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(20)))
    assert legroom.summary(model, input_size=(4096, 16384)).parameter_bytes > 20 << 30


def test_the_table_fits_80_columns_and_a_notebook_gets_html() -> None:
    result = legroom.summary(Digits(), torch.zeros(4, 1, 8, 8))
    lines = repr(result).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["layer", "output", "parameters", "saved", "of", "peak"]
    assert "<table" in result._repr_html_()
    assert "Conv2d" in result._repr_html_()


class Run(nn.Module):
    """A model whose forward pass is `function`."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.inner = nn.Identity()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *(self.inner(each) for each in inputs))


@pytest.mark.parametrize(
    ("layer", "given", "expects", "edit"),
    [
        (nn.Linear(12, 4), torch.zeros(8, 10), "a last dimension of 12", "in_features=10"),
        (nn.Linear(48, 4), torch.zeros(8, 3, 4, 4), "a last dimension of 48", "flatten the input: x.flatten(1)"),
        (nn.Conv2d(1, 8, 3), torch.zeros(2, 3, 8, 8), "1 channel, (batch, channels, height, width)", "in_channels=3"),
        (nn.Conv2d(3, 8, 3), torch.zeros(2, 1, 8, 8), "3 channels, (batch, channels, height, width)", "in_channels=1"),
        (nn.Conv2d(3, 8, 3), torch.zeros(2, 9, 9, 3), "3 channels, (batch, channels, height, width)", "move the channels to dimension 1: x.permute(0, 3, 1, 2)"),
        (nn.Conv2d(3, 8, 5), torch.zeros(2, 3, 4, 4), "a spatial size of at least (5, 5)", "use larger inputs, fewer pooling layers, or padding"),
        (nn.Conv1d(16, 8, 3), torch.zeros(2, 4, 20), "16 channels, (batch, channels, width)", "in_channels=4"),
        (nn.BatchNorm2d(64), torch.zeros(2, 32, 4, 4), "64 channels in dimension 1", "num_features=32"),
        (nn.BatchNorm1d(32), torch.zeros(2, 32, 4, 4), "2 or 3 dimensions", "nn.BatchNorm2d"),
        (nn.LayerNorm(64), torch.zeros(2, 32), "last dimensions (64,)", "normalized_shape=32"),
        (nn.GroupNorm(2, 8), torch.zeros(2, 6, 4), "8 channels in dimension 1", "num_channels=6"),
        (nn.Embedding(10, 4), torch.zeros(2, 3), "integer indices from 0 to 9, not torch.float32", "x.long()"),
        (nn.LSTM(8, 4, batch_first=True), torch.zeros(2, 5, 6), "a last dimension of 8", "input_size=6"),
    ],
)  # fmt: skip
def test_a_layer_with_the_wrong_input_is_named_with_the_edit(
    layer: nn.Module, given: torch.Tensor, expects: str, edit: str
) -> None:
    result = legroom.summary(nn.Sequential(nn.Identity(), layer), given)
    assert result.mismatch is not None
    assert (result.mismatch.layer, result.mismatch.expects, result.mismatch.edit) == ("1", expects, edit)
    assert repr(result).startswith(f"Shape mismatch in {type(layer).__name__} 1: expected ")


@pytest.mark.parametrize(
    ("function", "shapes", "kind", "edit"),
    [
        (lambda m, a, b: a @ b, [(4, 8), (5, 8)], "matmul", "transpose the second matrix: b.transpose(-2, -1)"),
        (lambda m, a, b: torch.cat([a, b]), [(4, 8), (4, 6)], "cat", "dim=1"),
        (lambda m, a, b: torch.cat([a, b], 1), [(1, 4, 24, 24), (1, 4, 25, 25)], "cat", "pad or crop dimension 2 to the same size"),
        (lambda m, a, b: a + b, [(2, 64), (2, 32)], "add", "make dimension -1 equal: 64 and 32"),
        (lambda m, a, b: a.view(-1, 400), [(4, 16, 53, 53), (1,)], "view", "x.flatten(1), which has shape (4, 44944); set in_features=44944 in the next layer"),
    ],
)  # fmt: skip
def test_an_operation_with_the_wrong_input_is_named_with_the_edit(
    function: Callable[..., Any], shapes: list[Any], kind: str, edit: str
) -> None:
    result = legroom.summary(Run(function), input_size=shapes)
    assert result.mismatch is not None
    assert (result.mismatch.kind, result.mismatch.edit) == (kind, edit)
    assert result.mismatch.file.endswith("test_layer_summary.py")


def test_another_error_of_the_model_is_shown_unchanged() -> None:
    def fails(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing")

    result = legroom.summary(Run(fails), torch.zeros(2))
    assert result.mismatch is not None
    assert (result.mismatch.error, result.mismatch.edit) == ("no such thing", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Digits(),), "Pass a batch or a size"),
        ((lambda x: x, torch.zeros(2)), "The first argument must be a model, not function"),
        ((Digits(), (0, 8)), "A size must be a tuple of positive integers"),
    ],
)
def test_invalid_input_is_rejected_with_the_remedy(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        legroom.summary(*arguments)


def test_names_of_layers_are_escaped_in_html() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("<b>\x1b[31mlayer", nn.Linear(8, 8))
            self.last = nn.Linear(9, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, last = self.children()
            return last(first(x))

    html = legroom.summary(Model(), torch.randn(2, 8))._repr_html_()
    assert "Shape mismatch in Linear last" in html
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "\x1b" not in html
