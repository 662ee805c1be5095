"""Recurrent networks: words, strokes, frames, prices. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import model_parts as parts
from bench.block_parts import Taken, Turned, in_time
from bench.case import CaseSet
from bench.layer_parts import Recurrent, joined, normed
from bench.model_parts import Spec, classified, kinds, labelled, made, perceptron, squared, to_numbers, tokens

FIFTH_SERIES = CaseSet()
case = FIFTH_SERIES.case


@case("adam", "fp32", 64, evaluate=True)
def hotel_reviews() -> Spec:
    """Two layers of GRU in both directions over 220 words, the mean of all."""
    read = Recurrent(nn.GRU, 200, 192, num_layers=2, bidirectional=True, dropout=0.3)
    model = joined(nn.Embedding(30000, 200, padding_idx=0), read, Taken("mean"), perceptron(384, 96, 5))
    return Spec(model, parts.padded_texts(30000, 220, 5), classified)


@case("sgd", "fp32", 64, clip=True)
def next_word_on_a_phone() -> Spec:
    """One wide LSTM between 12,000 words and 12,000 words."""
    model = joined(
        nn.Embedding(12000, 256), Recurrent(nn.LSTM, 256, 640), nn.Dropout(0.3), nn.Linear(640, 12000)
    )
    return Spec(
        model,
        tokens(12000, 51),
        lambda m, ids, _: F.cross_entropy(m(ids[:, :-1]).transpose(1, 2), ids[:, 1:]),
    )


@case("adam", "amp_bf16", 48, clip=True)
def names_of_proteins() -> Spec:
    """Amino acids by kernels of seven, then two layers of LSTM, one of eight folds for each."""
    layers = [nn.Embedding(26, 64), Turned(), *in_time(64, 128, 7), *in_time(128, 128, 7), Turned()]
    read = Recurrent(nn.LSTM, 128, 256, num_layers=2, bidirectional=True)
    return Spec(
        joined(*layers, read, nn.Linear(512, 8), Turned()), made(kinds(26, 400), kinds(8, 400)), classified
    )


class _Lines(nn.Module):
    """A line of print: kernels down to one row, an LSTM along it, a letter for each column (CRNN)."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.see = joined(
            normed(1, 64), nn.MaxPool2d(2), normed(64, 128), nn.MaxPool2d(2), normed(128, 256), nn.MaxPool2d((2, 1)), normed(256, 512), nn.MaxPool2d((4, 1))
        )  # fmt: skip
        self.read = Recurrent(nn.LSTM, 512, 256, num_layers=2, bidirectional=True)
        self.head = nn.Linear(512, letters)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.read(self.see(x).squeeze(2).transpose(1, 2))).transpose(1, 2)
        return out


@case("adadelta", "fp32", 64, clip=True)
def lines_of_print() -> Spec:
    return Spec(_Lines(80), made(parts.numbers(1, 32, 240), kinds(80, 60)), classified)


class _Steps(nn.Module):
    """A sentence is read, another written with the writer's own state looking back (Luong's attention)."""

    def __init__(self, words: int = 14000, width: int = 384) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, 256), nn.Embedding(words, 256)
        self.read, self.write = (
            nn.GRU(256, width, 2, batch_first=True),
            nn.GRU(256, width, 2, batch_first=True),
        )
        self.near, self.join, self.head = (
            nn.Linear(width, width),
            nn.Linear(2 * width, width),
            nn.Linear(width, words),
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        seen, state = self.read(self.source(source))
        told, _ = self.write(self.target(target), state)
        weight = torch.bmm(self.near(told), seen.transpose(1, 2)).softmax(2)
        out: Tensor = self.head(torch.tanh(self.join(torch.cat([torch.bmm(weight, seen), told], 2))))
        return out


@case("adam", "fp32", 80, clip=True)
def portuguese_by_recurrence() -> Spec:
    return Spec(
        _Steps(),
        made(kinds(14000, 30), kinds(14000, 33)),
        lambda m, a, b: F.cross_entropy(m(a, b[:, :-1]).transpose(1, 2), b[:, 1:]),
    )


class _DayByDay(nn.Module):
    """A cell of LSTM written out, fed with its own answer for the last days."""

    def __init__(self, width: int = 320) -> None:
        super().__init__()
        self.cells, self.head = (
            nn.ModuleList([nn.LSTMCell(6, width), nn.LSTMCell(width, width)]),
            nn.Linear(width, 6),
        )

    def forward(self, x: Tensor, ahead: int = 30) -> Tensor:
        states = [(x.new_zeros(len(x), 320), x.new_zeros(len(x), 320)) for _ in self.cells]
        told, now = [], x[:, 0]
        for day in range(x.size(1) + ahead - 1):
            y = now
            for level, cell in enumerate(self.cells):
                states[level] = cell(y, states[level])
                y = states[level][0]
            told.append(self.head(y))
            now = x[:, day + 1] if day + 1 < x.size(1) else told[-1]
        return torch.stack(told[-ahead:], 1)


@case("adamw", "fp32", 128)
def days_written_out() -> Spec:
    return Spec(_DayByDay(), to_numbers(90, 6, outputs=(30, 6)), squared)


@case("rmsprop", "tf32", 256)
def tired_batteries() -> Spec:
    """Three layers of LSTM with dropout over 500 cycles, one number."""
    model = joined(
        Recurrent(nn.LSTM, 10, 160, num_layers=3, dropout=0.2), Taken("last"), perceptron(160, 64, 1)
    )
    return Spec(model, to_numbers(500, 10, outputs=(1,)), squared)


@case("adam_amsgrad", "amp_fp16", 16)
def signs_in_films() -> Spec:
    """Small frames by convolutions, one after another by a GRU."""
    see = joined(
        normed(3, 32, 5, 2),
        normed(32, 64, 3, 2),
        normed(64, 128, 3, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )

    class Films(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see, self.read, self.head = see, Recurrent(nn.GRU, 128, 256), nn.Linear(256, 64)

        def forward(self, x: Tensor) -> Tensor:
            seen = self.see(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            out: Tensor = self.head(self.read(seen)[:, -1])
            return out

    return Spec(Films(), labelled(24, 3, 96, 96, classes=64), classified)
