"""Recurrent networks and convolutions in time, over words, letters, sensors and sounds. Cases stand above the model they
train.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import (
    Spec,
    Workshop,
    alone,
    classified,
    labelled,
    no_loss,
    padded_texts,
    squared,
    to_numbers,
)

SEALED_SERIES = CaseSet()
case = SEALED_SERIES.case


# Recurrent networks.


class _WordByWord(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.words, self.read, self.head = (
            nn.Embedding(33278, 650),
            nn.LSTM(650, 650, 2, dropout=0.5),
            nn.Linear(650, 33278),
        )
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.read(self.drop(self.words(ids)), state)
        return self.head(self.drop(y)).view(-1, 33278), state


def _carried(shop: Workshop) -> Callable[[], Tensor]:
    """The state goes on from batch to batch, cut off from its past; the learning rate is applied by hand as well."""
    model = shop.model
    optimizer = shop.optimizer(model.parameters())
    weight = model.head.weight
    state = [torch.zeros(2, 20, 650, device=weight.device) for _ in range(2)]

    def step() -> Tensor:
        ids, wanted = shop.batch()
        optimizer.zero_grad()
        told, (first, second) = model(
            ids, (state[0][:, : ids.size(1)].contiguous(), state[1][:, : ids.size(1)].contiguous())
        )
        state[:] = [first.detach(), second.detach()]
        loss = F.cross_entropy(told, wanted.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.detach()

    return step


@case("sgd", "fp32", 20)
def word_by_word() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        ids = torch.randint(0, 33278, (36, count))
        return [ids[:-1].to(device), ids[1:].to(device)]

    return Spec(_WordByWord(), batch, no_loss, _carried)


class _Tagger(nn.Module):
    """Words and their letters: a convolution over letters beside each word, then GRUs in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.letters = nn.Embedding(30000, 100, padding_idx=0), nn.Embedding(100, 25)
        self.spell = nn.Conv1d(25, 30, 3, padding=1)
        self.read, self.head = (
            nn.GRU(130, 200, 2, batch_first=True, bidirectional=True, dropout=0.3),
            nn.Linear(400, 17),
        )

    def forward(self, words: Tensor, letters: Tensor) -> Tensor:
        n, length, size = letters.shape
        spelled = self.spell(self.letters(letters).view(n * length, size, 25).transpose(1, 2)).amax(2)
        x = torch.cat([self.words(words), spelled.view(n, length, 30)], 2)
        out: Tensor = self.head(self.read(F.dropout(x, 0.3, self.training))[0])
        return out


@case("adam", "fp32", 32, clip=True)
def parts_of_speech() -> Spec:
    lengths = itertools.cycle((42, 65, 51))

    def batch(count: int, device: str) -> list[Tensor]:
        length = next(lengths)
        made = (
            torch.randint(1, 30000, (count, length)),
            torch.randint(0, 100, (count, length, 14)),
            torch.randint(0, 17, (count, length)),
        )
        return [one.to(device) for one in made]

    def loss(model: nn.Module, words: Tensor, letters: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(words, letters).flatten(0, 1), y.flatten())

    return Spec(_Tagger(), batch, loss)


class _Chained(nn.Module):
    """An LSTM's scores and a chain of tags over them (CRF), walked in a loop."""

    def __init__(self, tags: int = 9) -> None:
        super().__init__()
        self.words, self.read = (
            nn.Embedding(15000, 100),
            nn.LSTM(100, 128, batch_first=True, bidirectional=True),
        )
        self.head, self.moves = nn.Linear(256, tags), nn.Parameter(torch.randn(tags, tags) * 0.1)

    def forward(self, ids: Tensor, tags: Tensor) -> Tensor:
        scores = self.head(self.read(self.words(ids))[0])
        right = scores.gather(2, tags.unsqueeze(2)).squeeze(2).sum(1) + self.moves[
            tags[:, :-1], tags[:, 1:]
        ].sum(1)
        total = scores[:, 0]
        for place in range(1, scores.size(1)):
            total = torch.logsumexp(total.unsqueeze(2) + self.moves, dim=1) + scores[:, place]
        return (torch.logsumexp(total, 1) - right).mean()


@case("adam", "fp32", 64)
def chained_tags() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randint(0, 15000, (count, 50)).to(device), torch.randint(0, 9, (count, 50)).to(device)]

    return Spec(_Chained(), batch, lambda m, ids, tags: m(ids, tags))


class _Surnames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.read, self.head = (
            nn.Embedding(60, 64),
            nn.RNN(64, 128, batch_first=True),
            nn.Linear(128, 18),
        )

    def forward(self, ids: Tensor) -> Tensor:
        _, last = self.read(self.letters(ids))
        out: Tensor = self.head(last[0])
        return out


@case("sgd", "fp32", 64)
def surnames() -> Spec:
    return Spec(_Surnames(), padded_texts(60, 20, 18), classified)


class _Writer(nn.Module):
    """A GRU reads, another writes with Luong's attention, word by word."""

    def __init__(self, width: int = 400) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(7000, 256), nn.Embedding(6000, 256)
        self.read = nn.GRU(256, width, 2, batch_first=True, dropout=0.1)
        self.write = nn.GRU(256, width, 2, batch_first=True, dropout=0.1)
        self.join, self.head = nn.Linear(2 * width, width), nn.Linear(width, 6000)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        seen, state = self.read(self.source(source))
        told = []
        for place in range(target.size(1) - 1):
            out, state = self.write(self.target(target[:, place : place + 1]), state)
            weights = torch.softmax(out @ seen.transpose(1, 2), dim=-1)
            told.append(self.head(torch.tanh(self.join(torch.cat([out, weights @ seen], 2)))))
        return torch.cat(told, 1)


@case("adam", "fp32", 64, clip=True)
def replies() -> Spec:
    lengths = itertools.cycle(((14, 16), (10, 12), (12, 20)))

    def batch(count: int, device: str) -> list[Tensor]:
        first, second = next(lengths)
        return [
            torch.randint(0, 7000, (count, first)).to(device),
            torch.randint(1, 6000, (count, second)).to(device),
        ]

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), target[:, 1:].flatten())

    return Spec(_Writer(), batch, loss)


class _StepByStep(nn.Module):
    """An LSTM reads a week; a cell tells the next day, fed with what it told."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.cell, self.head = (
            nn.LSTM(8, 128, batch_first=True),
            nn.LSTMCell(1, 128),
            nn.Linear(128, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        _, (h, c) = self.read(x)
        h, c, last, told = h[0], c[0], x[:, -1, :1], []
        for _ in range(24):
            h, c = self.cell(last, (h, c))
            last = self.head(h)
            told.append(last)
        return torch.cat(told, 1)


@case("adam", "fp32", 128)
def hour_by_hour() -> Spec:
    return Spec(_StepByStep(), to_numbers(168, 8, outputs=(24,)), squared)


class _Movements(nn.Module):
    """Convolutions in time, then an LSTM, then attention over its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv1d(9, 64, 5), nn.ReLU(), nn.Conv1d(64, 64, 5), nn.ReLU(), nn.Dropout(0.3), nn.MaxPool1d(2)
        )
        self.read, self.weigh, self.head = (
            nn.LSTM(64, 128, 2, batch_first=True),
            nn.Linear(128, 1),
            nn.Linear(128, 6),
        )

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.read(self.see(x).transpose(1, 2))
        out: Tensor = self.head((torch.softmax(self.weigh(y), 1) * y).sum(1))
        return out


@case("adam", "fp32", 100)
def movements() -> Spec:
    return Spec(_Movements(), labelled(9, 128, classes=6), classified)


class _SamePair(nn.Module):
    """Two questions through one LSTM; how near they end."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40000, 300).requires_grad_(False)
        self.read = nn.LSTM(300, 50, batch_first=True)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = (self.read(self.words(one))[1][0][0] for one in (a, b))
        return torch.exp(-(first - second).abs().sum(1))


@case("adadelta", "fp32", 64, clip=True)
def same_question() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        made = (
            torch.randint(0, 40000, (count, 30)),
            torch.randint(0, 40000, (count, 30)),
            torch.randint(0, 2, (count,)).float(),
        )
        return [one.to(device) for one in made]

    return Spec(_SamePair(), batch, lambda m, a, b, y: F.mse_loss(m(a, b), y))


class _Listener(nn.Module):
    """Convolutions over a spectrogram's frames, LSTMs, and letters without knowing where (CTC)."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv1d(80, 256, 11, 2, 5), nn.BatchNorm1d(256), nn.Hardtanh(0, 20), nn.Conv1d(256, 256, 11, 1, 5), nn.Hardtanh(0, 20))  # fmt: skip
        self.read, self.head = nn.LSTM(256, 320, 3, batch_first=True, dropout=0.2), nn.Linear(320, 29)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.read(self.see(x).transpose(1, 2))
        return self.head(y).log_softmax(-1).transpose(0, 1)


@case("adamw", "fp32", 16)
def letters_heard() -> Spec:
    lengths = itertools.cycle((640, 520, 800))

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 80, next(lengths)).to(device),
            torch.randint(1, 29, (count, 60)).to(device),
        ]

    def loss(model: nn.Module, x: Tensor, letters: Tensor) -> Tensor:
        told = model(x)
        heard = torch.full((len(x),), told.size(0), dtype=torch.long)
        return F.ctc_loss(told.float(), letters, heard, torch.full((len(x),), 60, dtype=torch.long))

    return Spec(_Listener(), batch, loss)


# Convolutions in time.


class _Beat(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(inputs, outputs, 17, 2, 8, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv1d(outputs, outputs, 17, 1, 8, bias=False), nn.BatchNorm1d(outputs),
        )  # fmt: skip
        self.short = nn.Sequential(nn.MaxPool1d(2), nn.Conv1d(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.short(x))


@case("adam", "fp32", 32)
def heart_beats() -> Spec:
    """Twelve leads of ten seconds through a residual network in time."""
    blocks = [_Beat(a, b) for a, b in itertools.pairwise((64, 128, 196, 256, 320))]
    model = nn.Sequential(nn.Conv1d(12, 64, 17, 1, 8), nn.BatchNorm1d(64), nn.ReLU(), *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(320, 5))  # fmt: skip
    return Spec(model, labelled(12, 4096, classes=5), classified)


@case("rmsprop", "fp32", 256)
def odd_beats() -> Spec:
    """An autoencoder in time: what it cannot repeat is odd."""
    model = nn.Sequential(
        nn.Conv1d(1, 32, 7, 2, 3), nn.ReLU(), nn.Dropout(0.2), nn.Conv1d(32, 16, 7, 2, 3), nn.ReLU(),
        nn.ConvTranspose1d(16, 16, 7, 2, 3, 1), nn.ReLU(), nn.Dropout(0.2), nn.ConvTranspose1d(16, 32, 7, 2, 3, 1), nn.ReLU(),
        nn.ConvTranspose1d(32, 1, 7, padding=3),
    )  # fmt: skip
    return Spec(model, alone(1, 288), lambda m, x: F.mse_loss(m(x), x))


@case("sgdm", "fp32", 128)
def letters_as_signals() -> Spec:
    """Texts of 1,014 letters, each letter one of seventy channels."""
    layers: list[nn.Module] = []
    for inputs, kernel, pool in (
        (70, 7, True),
        (256, 7, True),
        (256, 3, False),
        (256, 3, False),
        (256, 3, False),
        (256, 3, True),
    ):
        layers += [nn.Conv1d(inputs, 256, kernel), nn.ReLU(), *([nn.MaxPool1d(3)] if pool else [])]
    body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8704, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 4))  # fmt: skip

    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(F.one_hot(ids, 70).transpose(1, 2).float()), y)

    return Spec(body, padded_texts(70, 1014, 4), loss)


class _Tags(nn.Module):
    """Convolutions over a spectrogram of a song, GRUs over what is left of time."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm2d(1)]
        for inputs, outputs, pool in (
            (1, 64, (2, 2)),
            (64, 128, (3, 3)),
            (128, 128, (4, 4)),
            (128, 128, (4, 4)),
        ):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ELU(),
                nn.MaxPool2d(pool),
                nn.Dropout(0.1),
            ]
        self.see, self.read, self.head = (
            nn.Sequential(*layers),
            nn.GRU(128, 32, 2, batch_first=True),
            nn.Linear(32, 50),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.see(x).squeeze(2).transpose(1, 2)
        out: Tensor = self.head(self.read(y)[0][:, -1])
        return out


@case("adam", "amp_fp16", 16)
def songs() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), y.round())

    return Spec(_Tags(), to_numbers(1, 96, 1366, outputs=(50,)), loss)
