"""Recurrent networks: texts, notes, prices, strokes. Cases stand above the model they train."""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Recurrent, joined, normed
from bench.model_parts import (
    Spec,
    classified,
    kinds,
    labelled,
    made,
    numbers,
    padded_texts,
    squared,
    to_numbers,
    tokens,
)

FOURTH_SERIES = CaseSet()
case = FOURTH_SERIES.case


class _Ends(nn.Module):
    """Words, a layer in both directions, and what it knew at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50000, 300, padding_idx=0)
        self.words.weight.requires_grad_(False)
        self.read = nn.LSTM(300, 320, 2, batch_first=True, bidirectional=True, dropout=0.3)
        self.head = nn.Sequential(nn.Linear(640, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 14))

    def forward(self, ids: Tensor) -> Tensor:
        _, (state, _) = self.read(F.dropout(self.words(ids), 0.2, self.training))
        out: Tensor = self.head(torch.cat([state[-2], state[-1]], 1))
        return out


@case("adam", "fp32", 96, evaluate=True)
def encyclopaedic_kinds() -> Spec:
    """The words were learnt before and stay."""
    return Spec(_Ends(), padded_texts(50000, 160, 14), classified)


@case("adamw", "amp_fp16", 64, clip=True)
def melodies() -> Spec:
    """Notes one after another through three layers of LSTM."""
    model = nn.Sequential(
        nn.Embedding(358, 256), Recurrent(nn.LSTM, 256, 512, num_layers=3, dropout=0.3), nn.Linear(512, 358)
    )
    return Spec(
        model,
        tokens(358, 129),
        lambda m, ids, _: F.cross_entropy(m(ids[:, :-1]).transpose(1, 2).float(), ids[:, 1:]),
    )


class _Tagger(nn.Module):
    """Letters make a word, words make a sentence, every word gets a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.words = nn.Embedding(100, 30, padding_idx=0), nn.Embedding(22000, 100)
        self.spell = nn.LSTM(30, 50, batch_first=True, bidirectional=True)
        self.read, self.head = Recurrent(nn.LSTM, 200, 256, bidirectional=True), nn.Linear(512, 17)

    def forward(self, words: Tensor, letters: Tensor) -> Tensor:
        n, length, _ = letters.shape
        _, (state, _) = self.spell(self.letters(letters.flatten(0, 1)))
        spelled = state.transpose(0, 1).reshape(n, length, 100)
        y = self.read(F.dropout(torch.cat([self.words(words), spelled], 2), 0.5, self.training))
        out: Tensor = self.head(y).transpose(1, 2)
        return out


@case("sgdm", "fp32", 32, clip=True)
def letters_within_words() -> Spec:
    return Spec(
        _Tagger(),
        made(kinds(22000, 48), kinds(100, 48, 16), kinds(17, 48)),
        lambda m, words, letters, y: F.cross_entropy(m(words, letters), y),
    )


class _Captions(nn.Module):
    """A picture's places are looked at anew for every word (show, attend and tell)."""

    def __init__(self, words: int = 8500) -> None:
        super().__init__()
        self.see = joined(
            normed(3, 64, 5, 2), normed(64, 128, 3, 2), normed(128, 256, 3, 2), normed(256, 512, 3, 2)
        )
        self.words, self.cell = nn.Embedding(words, 256), nn.LSTMCell(256 + 512, 512)
        self.of_place, self.of_state, self.weigh = nn.Linear(512, 256), nn.Linear(512, 256), nn.Linear(256, 1)
        self.begin, self.head = nn.Linear(512, 1024), nn.Linear(512, words)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        places = self.see(x).flatten(2).transpose(1, 2)
        known = self.of_place(places)
        state, kept = self.begin(places.mean(1)).chunk(2, 1)
        told = []
        for word in self.words(ids[:, :-1]).unbind(1):
            weight = self.weigh(torch.tanh(known + self.of_state(state).unsqueeze(1))).softmax(1)
            state, kept = self.cell(torch.cat([word, (weight * places).sum(1)], 1), (state, kept))
            told.append(self.head(F.dropout(state, 0.5, self.training)))
        return torch.stack(told, 2)


@case("adam", "fp32", 32, clip=True)
def shown_and_told() -> Spec:
    return Spec(
        _Captions(),
        made(numbers(3, 192, 192), kinds(8500, 22)),
        lambda m, x, ids: F.cross_entropy(m(x, ids), ids[:, 1:]),
    )


class _Deep(nn.Module):
    """Past and future of many shops: an LSTM tells a mean and a spread for every day (DeepAR)."""

    def __init__(self) -> None:
        super().__init__()
        self.shops, self.read = nn.Embedding(3000, 20), Recurrent(nn.LSTM, 25, 128, num_layers=3, dropout=0.1)
        self.mean, self.spread = nn.Linear(128, 1), nn.Linear(128, 1)

    def forward(self, shop: Tensor, past: Tensor, y: Tensor) -> Tensor:
        x = torch.cat([past, self.shops(shop).unsqueeze(1).expand(-1, past.size(1), -1)], 2)
        state = self.read(x)
        return F.gaussian_nll_loss(self.mean(state), y, F.softplus(self.spread(state)) + 1e-4)


@case("nadamw", "fp32", 256)
def days_of_shops() -> Spec:
    return Spec(
        _Deep(),
        made(kinds(3000), numbers(180, 5), numbers(180, 1)),
        lambda m, shop, past, y: m(shop, past, y),
    )


class _Odd(nn.Module):
    """A series into one state and out again, backwards; what comes out badly is odd."""

    def __init__(self, channels: int = 38, width: int = 256) -> None:
        super().__init__()
        self.read, self.write = (
            nn.GRU(channels, width, batch_first=True),
            nn.GRU(width, width, batch_first=True),
        )
        self.head = nn.Linear(width, channels)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.read(x)
        told, _ = self.write(state[0].unsqueeze(1).expand(-1, x.size(1), -1).contiguous(), state)
        out: Tensor = self.head(told).flip(1)
        return out


@case("rmsprop", "fp32", 128)
def odd_servers() -> Spec:
    return Spec(_Odd(), made(numbers(100, 38)), lambda m, x: F.mse_loss(m(x), x))


@case("adam", "fp32", 64)
def looked_at_after_reading() -> Spec:
    """A GRU in both directions over frames of speech, then torch's own attention, six feelings."""

    class Feelings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read = Recurrent(nn.GRU, 80, 200, num_layers=2, bidirectional=True, dropout=0.2)
            self.look, self.norm = nn.MultiheadAttention(400, 4, 0.1, batch_first=True), nn.LayerNorm(400)
            self.head = nn.Linear(400, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = self.read(x)
            out: Tensor = self.head(self.norm(y + self.look(y, y, y, need_weights=False)[0]).mean(1))
            return out

    return Spec(Feelings(), labelled(300, 80, classes=6), classified)


class _Strokes(nn.Module):
    """Strokes of a pen: twenty bells tell where it goes next."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = Recurrent(nn.LSTM, 3, 400, num_layers=2), nn.Linear(400, 20 * 6 + 1)

    def forward(self, x: Tensor) -> Tensor:
        told = self.head(self.read(x[:, :-1]))
        weight, bells, end = (
            told[..., :20].log_softmax(2),
            told[..., 20:120].unflatten(2, (5, 20)),
            told[..., 120],
        )
        far = x[:, 1:, :2].unsqueeze(3) - bells[..., :2, :]
        size, lean = bells[..., 2:4, :].clamp(max=8), torch.tanh(bells[..., 4, :]) * 0.95
        near = far * (-size).exp()
        apart = near.pow(2).sum(2) - 2 * lean * near.prod(2)
        log_bell = -apart / (2 * (1 - lean**2)) - size.sum(2) - 0.5 * torch.log(1 - lean**2)
        return -(weight + log_bell).logsumexp(2).mean() + F.binary_cross_entropy_with_logits(
            end, x[:, 1:, 2].clamp(0, 1)
        )


@case("rmsprop_centered", "fp32", 64, clip=True)
def strokes_of_a_pen() -> Spec:
    return Spec(_Strokes(), made(numbers(300, 3)), lambda m, x: m(x))


def _in_pieces(length: int, words: int) -> Callable[[int, str], list[Tensor]]:
    """Texts cut where an epoch's pieces end: the last piece is shorter."""
    lengths = itertools.cycle((length, length, length // 2))

    def batch(count: int, device: str) -> list[Tensor]:
        ids = torch.randint(0, words, (count, next(lengths) + 1))
        return [ids[:, :-1].to(device), ids[:, 1:].to(device)]

    return batch


@case("asgd", "fp32", 40, clip=True)
def tied_words() -> Spec:
    """A language model of recurrent layers whose head is its words."""

    class Tied(nn.Module):
        def __init__(self, words: int = 10000, width: int = 400) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
            self.head.weight = self.words.weight
            self.read = nn.ModuleList(Recurrent(nn.LSTM, a, b) for a, b in ((width, 1150), (1150, width)))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            for layer in self.read:
                x = F.dropout(layer(x), 0.3, self.training)
            out: Tensor = self.head(x).transpose(1, 2)
            return out

    return Spec(Tied(), _in_pieces(70, 10000), classified)


@case("adam", "fp32", 200)
def wind_tomorrow() -> Spec:
    """Convolutions first, then a GRU, then a line over a day."""

    class Wind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Sequential(
                nn.Conv1d(12, 96, 7, padding=3), nn.ReLU(), nn.Conv1d(96, 96, 5, 2, 2), nn.ReLU()
            )
            self.read, self.head = Recurrent(nn.GRU, 96, 192), nn.Linear(192, 24)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.read(self.look(x).transpose(1, 2))[:, -1])
            return out

    return Spec(Wind(), to_numbers(12, 336, outputs=(24,)), squared)
