"""Recurrent layers, hand-written cells, and linear models of series."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.blocks import Attention, Select, Transpose
from bench.lib.models.layers import Recurrent, sequential
from bench.lib.models.parts import (
    Spec,
    batch_of,
    classification_loss,
    integers,
    labelled,
    mlp,
    mse_loss,
    normal,
    token_loss,
    tokens,
    with_targets,
    zeros_or_ones,
)

CASES = CaseSet()
case = CASES.case


# torch's layers.


@case("adam", "amp_bf16", 44, clip=True)
def notes_of_nurses() -> Spec:
    """Return a three-layer bidirectional LSTM tagger over 190 tokens."""
    read = Recurrent(nn.LSTM, 150, 208, num_layers=3, bidirectional=True, dropout=0.25)
    model = sequential(nn.Embedding(21000, 150), nn.Dropout(0.2), read, nn.Linear(416, 23))
    return Spec(model, batch_of(integers(21000, 190), integers(23, 190)), token_loss)


@case("adam_fused", "amp_fp16", 72, clip=True)
def letters_of_programs() -> Spec:
    """Return a two-layer GRU character model with 97 symbols."""
    model = sequential(nn.Embedding(97, 128), Recurrent(nn.GRU, 128, 576, num_layers=2), nn.Linear(576, 97))
    return Spec(model, tokens(97, 241), lambda m, ids, _: token_loss(m, ids[:, :-1], ids[:, 1:]))


@case("nadam", "fp32", 26)
def narrow_between_frames() -> Spec:
    """Return a three-layer LSTM with projections and one label per speech frame."""
    model = sequential(Recurrent(nn.LSTM, 80, 640, num_layers=3, proj_size=160), nn.Linear(160, 46))
    return Spec(model, batch_of(normal(420, 80), integers(46, 420)), token_loss)


@case("rmsprop", "fp32", 110, clip=True)
def rectified_recurrence() -> Spec:
    """Return a two-layer ReLU RNN over 360 time steps."""
    read = Recurrent(nn.RNN, 12, 288, num_layers=2, nonlinearity="relu")
    return Spec(
        sequential(read, Select("last"), nn.Linear(288, 10)),
        labelled(360, 12, classes=10),
        classification_loss,
    )


@case("adam", "fp32", 520, evaluate=True)
def water_of_wells() -> Spec:
    """Return a two-layer LSTM over 120 days that predicts the next seven days."""
    read = Recurrent(nn.LSTM, 14, 112, num_layers=2, dropout=0.2)
    return Spec(
        sequential(read, Select("last"), mlp(112, 56, 7)), with_targets(120, 14, outputs=(7,)), mse_loss
    )


class _ListenAttendSpell(nn.Module):
    """A pyramidal LSTM encoder and an LSTM decoder with attention (Listen, Attend and Spell)."""

    def __init__(self, letters: int = 60, width: int = 192) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            Recurrent(nn.LSTM, inputs, width, bidirectional=True) for inputs in (80, 4 * width, 4 * width)
        )
        self.words, self.write = nn.Embedding(letters, 2 * width), Recurrent(nn.LSTM, 2 * width, 2 * width)
        self.look, self.head = Attention(2 * width, 4), nn.Linear(4 * width, letters)

    def forward(self, sound: Tensor, text: Tensor) -> Tensor:
        for level, read in enumerate(self.levels):
            sound = read(sound.unflatten(1, (-1, 2)).flatten(2) if level else sound)
        state = self.write(self.words(text))
        out: Tensor = self.head(torch.cat([state, self.look(state, sound)], 2))
        return out


@case("adadelta", "tf32", 28, clip=True)
def fewer_moments_on_each_level() -> Spec:
    return Spec(
        _ListenAttendSpell(),
        batch_of(normal(640, 80), integers(60, 71)),
        lambda m, sound, text: F.cross_entropy(m(sound, text[:, :-1]).transpose(1, 2), text[:, 1:]),
    )


class _LSTNet(nn.Module):
    """A model for 300 series with a convolution, a GRU, a skip-GRU over seasons, and a linear part (LSTNet)."""

    def __init__(self, series: int = 300, width: int = 100, season: int = 24) -> None:
        super().__init__()
        self.season, self.see = season, nn.Conv1d(series, width, 6, padding="same")
        self.near, self.far = Recurrent(nn.GRU, width, width), Recurrent(nn.GRU, width, 16)
        self.head, self.line = nn.Linear(width + 16 * season, series), nn.Linear(season, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = F.dropout(F.relu(self.see(x.transpose(1, 2))), 0.2, self.training).transpose(1, 2)
        seasons = seen.unflatten(1, (-1, self.season)).transpose(1, 2).flatten(0, 1)
        far = self.far(seasons)[:, -1].reshape(len(x), -1)
        alone = self.line(x[:, -self.season :].transpose(1, 2)).squeeze(2)
        out: Tensor = self.head(torch.cat([self.near(seen)[:, -1], far], 1)) + alone
        return out


@case("adam", "fp32", 140, clip=True)
def current_of_customers() -> Spec:
    return Spec(_LSTNet(), with_targets(168, 300, outputs=(300,)), lambda m, x, y: F.l1_loss(m(x), y))


# Hand-written cells.


class _LayerNormLSTM(nn.Module):
    """An LSTM cell with layer norms."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.own, self.of_input = nn.Linear(width, 4 * width, bias=False), nn.Linear(inputs, 4 * width)
        self.norms, self.last = nn.ModuleList(nn.LayerNorm(4 * width) for _ in range(2)), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out = state = x.new_zeros(len(x), self.own.in_features)
        outputs = []
        for now in self.norms[0](self.of_input(x)).unbind(1):
            keep, enter, leave, new = (now + self.norms[1](self.own(out))).chunk(4, 1)
            state = keep.sigmoid() * state + enter.sigmoid() * new.tanh()
            out = leave.sigmoid() * self.last(state).tanh()
            outputs.append(out)
        return torch.stack(outputs, 1)


@case("adam", "amp_fp16", 80)
def norms_within_cells() -> Spec:
    model = sequential(nn.Embedding(6000, 160), _LayerNormLSTM(160, 320), nn.Linear(320, 6000))
    return Spec(model, batch_of(integers(6000, 56), integers(6000, 56)), token_loss)


class _SRU(nn.Module):
    """A simple recurrent unit with matrix products for all steps at once and then an elementwise recurrence (SRU)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.line = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        new, keep, leave = self.line(x).chunk(3, 2)
        keep, leave = keep.sigmoid(), leave.sigmoid()
        state, states = torch.zeros_like(x[:, 0]), []
        for moment in range(x.size(1)):
            state = keep[:, moment] * state + (1 - keep[:, moment]) * new[:, moment]
            states.append(state)
        return leave * torch.stack(states, 1).tanh() + (1 - leave) * x


@case("adamw", "amp_bf16", 48)
def steps_without_products() -> Spec:
    model = sequential(
        nn.Embedding(9000, 448), *(_SRU(448) for _ in range(3)), Select("mean"), nn.Linear(448, 30)
    )
    return Spec(model, batch_of(integers(9000, 110), integers(30)), classification_loss)


class _ConvGRU(nn.Module):
    """A convolutional GRU over eight maps that predicts four more from its own outputs."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.gates, self.new = (nn.Conv2d(2 * width, times * width, 5, padding=2) for times in (2, 1))

    def forward(self, maps: Tensor, ahead: int = 4) -> Tensor:
        state, outputs = torch.zeros_like(self.enter(maps[:, 0])), []
        for moment in range(maps.size(1) + ahead - 1):
            now = self.enter(maps[:, moment] if moment < maps.size(1) else outputs[-1])
            keep, forget = self.gates(torch.cat([now, state], 1)).sigmoid().chunk(2, 1)
            new = self.new(torch.cat([now, forget * state], 1)).tanh()
            state = keep * state + (1 - keep) * new
            outputs.append(self.leave(state))
        return torch.stack(outputs[-ahead:], 1)


@case("adamw", "amp_bf16", 10, accumulate=2)
def clouds_that_move() -> Spec:
    return Spec(_ConvGRU(), with_targets(8, 1, 72, 72, outputs=(4, 1, 72, 72)), mse_loss)


class _GRUD(nn.Module):
    """A GRU cell with decay for missing values (GRU-D)."""

    def __init__(self, columns: int = 76, width: int = 256) -> None:
        super().__init__()
        self.fade, self.forget = nn.Linear(columns, columns), nn.Linear(columns, width)
        self.cell, self.head = nn.GRUCell(2 * columns, width), nn.Linear(width, 1)

    def forward(self, x: Tensor, seen: Tensor, since: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.cell.hidden_size)
        for now, there, ago in zip(x.unbind(1), seen.unbind(1), since.unbind(1), strict=True):
            value = there * now + (1 - there) * torch.exp(-F.relu(self.fade(ago))) * now
            state = state * torch.exp(-F.relu(self.forget(ago)))
            state = self.cell(torch.cat([value, there], 1), state)
        out: Tensor = self.head(state).squeeze(1)
        return out


@case("adam", "fp32", 256)
def days_in_intensive_care() -> Spec:
    return Spec(
        _GRUD(),
        batch_of(normal(48, 76), zeros_or_ones(48, 76), normal(48, 76), zeros_or_ones()),
        lambda m, x, seen, since, y: F.binary_cross_entropy_with_logits(m(x, seen, since), y),
    )


# Linear models of series.


class _DLinear(nn.Module):
    """A linear layer over the moving average and another linear layer over the remainder (DLinear)."""

    def __init__(self, past: int, ahead: int) -> None:
        super().__init__()
        self.mean = nn.AvgPool1d(25, 1, 12, count_include_pad=False)
        self.slow, self.fast = nn.Linear(past, ahead), nn.Linear(past, ahead)

    def forward(self, x: Tensor) -> Tensor:
        slow = self.mean(x)
        out: Tensor = self.slow(slow) + self.fast(x - slow)
        return out


@case("sgd", "fp32", 64, evaluate=True)
def trends_of_traffic() -> Spec:
    """Build a model that predicts 300 hours for 800 sensors."""
    model = sequential(Transpose(), _DLinear(336, 300), Transpose())
    return Spec(model, with_targets(336, 800, outputs=(300, 800)), mse_loss)
