"""Texts, sounds and measurements one after another: recurrent networks and convolutions in time. Cases stand above the model
they train.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Recurrent, Residual, joined, normed
from bench.model_parts import (
    Spec,
    bits,
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

THIRD_SERIES = CaseSet()
case = THIRD_SERIES.case


class _Last(nn.Module):
    """What a series ends with."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


class _Turned(nn.Module):
    """Channels and time change places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


@case("adam", "fp32", 50, clip=True)
def short_reviews() -> Spec:
    """Words, two layers of LSTM, the last word's answer, a sigmoid."""
    model = nn.Sequential(
        nn.Embedding(74073, 400), Recurrent(nn.LSTM, 400, 256, num_layers=2, dropout=0.5), nn.Dropout(0.3), _Last(),
        nn.Linear(256, 1), nn.Sigmoid(), nn.Flatten(0),
    )  # fmt: skip
    return Spec(model, made(kinds(74073, 200), bits()), lambda m, x, y: F.binary_cross_entropy(m(x), y))


class _Weighed(nn.Module):
    """GRU in both directions; each word has a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.read = (
            nn.Embedding(30000, 200, padding_idx=0),
            Recurrent(nn.GRU, 200, 128, bidirectional=True),
        )
        self.turn, self.weigh, self.head = (
            nn.Linear(256, 100),
            nn.Linear(100, 1, bias=False),
            nn.Linear(256, 20),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.read(self.words(ids))
        weight = self.weigh(torch.tanh(self.turn(x))).masked_fill((ids == 0).unsqueeze(2), -1e9).softmax(1)
        out: Tensor = self.head((x * weight).sum(1))
        return out


@case("adam", "fp32", 128)
def newsgroups() -> Spec:
    return Spec(_Weighed(), padded_texts(30000, 300, 20), classified)


class _ThroughOneState(nn.Module):
    """A sentence into one state, and out again in another language."""

    def __init__(self, source: int = 7853, target: int = 5893) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source, 256), nn.Embedding(target, 256)
        self.read, self.write = nn.LSTM(256, 512, 2, dropout=0.5), nn.LSTM(256, 512, 2, dropout=0.5)
        self.head = nn.Linear(512, target)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.read(F.dropout(self.source(source), 0.5, self.training))
        told = []
        for word in target[:-1]:
            out, state = self.write(F.dropout(self.target(word), 0.5, self.training).unsqueeze(0), state)
            told.append(self.head(out.squeeze(0)))
        return torch.stack(told)


@case("adam", "fp32", 128, clip=True)
def through_one_state() -> Spec:
    lengths = itertools.cycle(((22, 20), (18, 24), (26, 22)))

    def batch(count: int, device: str) -> list[Tensor]:
        source, target = next(lengths)
        return [
            torch.randint(4, 7853, (source, count)).to(device),
            torch.randint(4, 5893, (target, count)).to(device),
        ]

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), target[1:].flatten(), ignore_index=1)

    return Spec(_ThroughOneState(), batch, loss)


class _Rain(nn.Module):
    """Radar pictures one after another through convolutions with a state (ConvLSTM)."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(1 + width, 4 * width, 5, padding=2)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, steps, _, height, across = x.shape
        state, kept = (torch.zeros(n, self.width, height, across, device=x.device) for _ in range(2))
        told = []
        for step in range(steps):
            i, f, o, g = self.gates(torch.cat([x[:, step], state], 1)).chunk(4, 1)
            kept = torch.sigmoid(f) * kept + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(kept)
            told.append(self.head(state))
        return torch.stack(told, 1)


@case("adam", "fp32", 8)
def rain() -> Spec:
    return Spec(_Rain(), to_numbers(10, 1, 64, 64, outputs=(10, 1, 64, 64)), squared)


class _Stacks(nn.Module):
    """Perceptrons that each take their part away from a series (N-BEATS)."""

    def __init__(self, past: int = 120, future: int = 24) -> None:
        super().__init__()
        self.past, self.future = past, future
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(past, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                nn.Linear(512, past + future),
            )
            for _ in range(20)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        told = torch.zeros(len(x), self.future, device=x.device)
        for block in self.blocks:
            back, ahead = block(x).split([self.past, self.future], 1)
            x, told = x - back, told + ahead
        return told


@case("adam", "fp32", 1024)
def monthly_numbers() -> Spec:
    return Spec(_Stacks(), to_numbers(120, outputs=(24,)), lambda m, x, y: F.l1_loss(m(x), y))


@case("adamw", "fp32", 64)
def worn_engines() -> Spec:
    """Convolutions in time, then an LSTM: how long an engine will run."""
    model = nn.Sequential(
        _Turned(), nn.Conv1d(24, 64, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(64, 128, 5, padding=2), nn.ReLU(), _Turned(),
        Recurrent(nn.LSTM, 128, 100, num_layers=2, dropout=0.2), _Last(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 1),
    )  # fmt: skip
    return Spec(model, to_numbers(500, 24, outputs=(1,)), squared)


@case("rmsprop", "fp32", 64)
def plain_recurrence() -> Spec:
    """torch's simplest recurrent layer over rows of pixels."""
    model = nn.Sequential(
        Recurrent(nn.RNN, 28, 200, num_layers=2, nonlinearity="relu"), _Last(), nn.Linear(200, 10)
    )
    return Spec(model, labelled(28, 28, classes=10), classified)


class _Cells(nn.Module):
    """A loop over LSTMCell, its future fed with its own answers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51), nn.Linear(51, 1)

    def forward(self, x: Tensor) -> Tensor:
        h1, c1, h2, c2 = (torch.zeros(len(x), 51, device=x.device) for _ in range(4))
        told = []
        for value in x.split(1, 1):
            h1, c1 = self.first(value, (h1, c1))
            h2, c2 = self.second(h1, (h2, c2))
            told.append(self.head(h2))
        return torch.cat(told, 1)


@case("sgd", "fp32", 512)
def sines_of_cells() -> Spec:
    return Spec(_Cells(), to_numbers(160, outputs=(160,)), squared)


class _Sentences(nn.Module):
    """A sentence as one code and back, word by word (a variational GRU)."""

    def __init__(self, words: int = 12000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 300)
        self.read, self.write = (
            nn.GRU(300, 256, batch_first=True, bidirectional=True),
            nn.GRU(332, 512, batch_first=True),
        )
        self.code, self.head = nn.Linear(512, 64), nn.Linear(512, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        _, state = self.read(x)
        mean, spread = self.code(torch.cat([state[0], state[1]], 1)).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        told, _ = self.write(
            torch.cat(
                [F.dropout(x[:, :-1], 0.3, self.training), code.unsqueeze(1).expand(-1, x.size(1) - 1, -1)], 2
            )
        )
        far = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        return F.cross_entropy(self.head(told).flatten(0, 1), ids[:, 1:].flatten()) + 0.1 * far


@case("adam", "fp32", 32, clip=True)
def sentences_as_codes() -> Spec:
    return Spec(_Sentences(), tokens(12000, 40), lambda m, ids, _: m(ids))


class _Cleaner(nn.Module):
    """Speech without noise: an LSTM tells which part of each frequency to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.read = Recurrent(nn.LSTM, 257, 400, num_layers=2, bidirectional=True)
        self.keep = nn.Sequential(nn.Linear(800, 257), nn.Sigmoid())

    def sizes(self, sound: Tensor) -> Tensor:
        return torch.stft(sound, 512, 256, window=self.window, return_complex=True).abs()

    def forward(self, sound: Tensor) -> Tensor:
        size = self.sizes(sound)
        kept: Tensor = self.keep(self.read(torch.log1p(size).transpose(1, 2))).transpose(1, 2)
        return kept * size


@case("adam", "fp32", 16, clip=True)
def cleaner_speech() -> Spec:
    return Spec(
        _Cleaner(),
        made(numbers(48000), numbers(48000)),
        lambda m, noisy, clean: F.l1_loss(m(noisy), m.sizes(clean)),
    )


class _Speakers(nn.Module):
    """Wider and wider looks in time, mean and spread over it, then who speaks (x-vectors)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, kernel, dilation in (
            (40, 512, 5, 1),
            (512, 512, 3, 2),
            (512, 512, 3, 3),
            (512, 512, 1, 1),
            (512, 1500, 1, 1),
        ):
            layers += [
                nn.Conv1d(inputs, outputs, kernel, dilation=dilation),
                nn.ReLU(),
                nn.BatchNorm1d(outputs),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(3000, 512), nn.ReLU(), nn.BatchNorm1d(512), nn.Linear(512, 1211))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        out: Tensor = self.head(torch.cat([y.mean(2), y.std(2)], 1))
        return out


@case("sgdm", "fp32", 64)
def who_speaks() -> Spec:
    return Spec(_Speakers(), labelled(40, 300, classes=1211), classified)


@case("adam", "amp_fp16", 32)
def sounds_in_pictures() -> Spec:
    """Spectrograms of 128 by 431 through convolutions, then a GRU over time (CRNN), an answer for each frame."""

    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see = joined(
                normed(1, 64), nn.MaxPool2d((4, 1)), nn.Dropout(0.2), normed(64, 64), nn.MaxPool2d((4, 1)), normed(64, 64),
                nn.MaxPool2d((4, 1)),
            )  # fmt: skip
            self.read = Recurrent(nn.GRU, 128, 64, num_layers=2, bidirectional=True, dropout=0.2)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            y = self.see(x).flatten(1, 2).transpose(1, 2)
            out: Tensor = self.head(self.read(y))
            return out

    return Spec(
        Frames(),
        made(numbers(1, 128, 431), bits(431, 10)),
        lambda m, x, y: F.binary_cross_entropy_with_logits(m(x).float(), y),
    )


@case("nesterov", "fp32", 128)
def words_as_channels() -> Spec:
    """Kernels of three, four and five over words, the largest answer of each, two kinds of text."""

    class Kim(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.still, self.learnt = nn.Embedding(18765, 300), nn.Embedding(18765, 300)
            self.still.weight.requires_grad_(False)
            self.looks = nn.ModuleList(nn.Conv1d(600, 100, size) for size in (3, 4, 5))
            self.head = nn.Linear(300, 2)

        def forward(self, ids: Tensor) -> Tensor:
            x = torch.cat([self.still(ids), self.learnt(ids)], 2).transpose(1, 2)
            y = torch.cat([F.relu(look(x)).amax(2) for look in self.looks], 1)
            out: Tensor = self.head(F.dropout(y, 0.5, self.training))
            return out

    return Spec(Kim(), padded_texts(18765, 64, 2), classified)


@case("adam", "fp32", 16)
def sleep() -> Spec:
    """Thirty seconds at 100 Hz, twenty of them: two towers of kernels of 50 and 400, then an LSTM."""

    class Stages(nn.Module):
        def __init__(self) -> None:
            super().__init__()

            def tower(kernel: int, stride: int, pool: int, inner: int) -> nn.Sequential:
                layers: list[nn.Module] = [nn.Conv1d(1, 64, kernel, stride), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(pool, pool), nn.Dropout()]  # fmt: skip
                for width in (64, 128, 128):
                    layers += [
                        nn.Conv1d(width, 128, inner, padding=inner // 2),
                        nn.BatchNorm1d(128),
                        nn.ReLU(),
                    ]
                return nn.Sequential(*layers, nn.MaxPool1d(4, 4), nn.Flatten())

            self.fine, self.coarse = tower(50, 6, 8, 8), tower(400, 50, 4, 6)
            self.read, self.head = Recurrent(nn.LSTM, 128 * 20, 256, bidirectional=True), nn.Linear(512, 5)

        def forward(self, x: Tensor) -> Tensor:
            n, pieces, _ = x.shape
            flat = x.flatten(0, 1).unsqueeze(1)
            seen = torch.cat([self.fine(flat), self.coarse(flat)], 1).view(n, pieces, -1)
            out: Tensor = self.head(self.read(seen)).transpose(1, 2)
            return out

    return Spec(Stages(), made(numbers(20, 3000), kinds(5, 20)), classified)


@case("adam", "fp32", 32)
def vibrations() -> Spec:
    """A residual network in time over 8,192 samples, kernels of fifteen."""

    def block(inputs: int, outputs: int) -> nn.Module:
        layers = [
            nn.Conv1d(inputs, outputs, 15, 2, 7), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Conv1d(outputs, outputs, 15, 1, 7),
            nn.BatchNorm1d(outputs),
        ]  # fmt: skip
        return Residual(*layers, short=nn.Conv1d(inputs, outputs, 1, 2), act=nn.ReLU())

    blocks = [block(a, b) for a, b in itertools.pairwise((2, 32, 64, 96, 128))]
    model = nn.Sequential(*blocks, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(128, 10))
    return Spec(model, labelled(2, 8192, classes=10), classified)
