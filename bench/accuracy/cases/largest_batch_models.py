"""Models whose largest batch was measured and that are not part of any set of cases."""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.lib.models import parts
from bench.lib.models.blocks import Select, UNet, binary_loss, pooled_head
from bench.lib.models.layers import Recurrent, Residual, conv_norm, sequential
from bench.lib.models.parts import (
    Spec,
    StepParts,
    batch_of,
    causal_lm,
    classification_loss,
    huggingface,
    labelled,
    masked_text_loss,
    mlp,
    no_loss,
    normal,
    segmentation,
    transformer_sizes,
    unlabelled,
    zeros_or_ones,
)

LARGEST_BATCH_MODELS: dict[str, Callable[[], Spec]] = {}


def model(builder: Callable[[], Spec]) -> Callable[[], Spec]:
    """Register a builder by its function's name."""
    LARGEST_BATCH_MODELS[builder.__name__] = builder
    return builder


@model
def qwen2() -> Spec:
    return causal_lm(
        "Qwen2", 640, vocab_size=48000, hidden_size=896, intermediate_size=2432, num_hidden_layers=8, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip


class _Translator(nn.Module):
    """An LSTM encoder and decoder with dot-product attention."""

    def __init__(self, words: int = 12000, width: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width // 2, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.decoder = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(2 * width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, _ = self.encoder(self.embed(source))
        state, _ = self.decoder(self.embed(target))
        weights = torch.softmax(state @ memory.transpose(1, 2) / 22.6, -1)
        out: Tensor = self.head(torch.cat([state, weights @ memory], -1))
        return out


@model
def translator() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randint(0, 12000, (count, 48), device=device) for _ in range(2)]

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())

    return Spec(_Translator(), batch, loss)


class _SuperResolution(nn.Module):
    """Residual blocks without norms, and pixel shuffling at the end."""

    def __init__(self, width: int = 80, blocks: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(blocks)
        )
        self.leave = nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x) * 0.1
        out: Tensor = self.leave(x)
        return out


@model
def super_resolution() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 72, 72, device=device), torch.randn(count, 3, 144, 144, device=device)]

    return Spec(_SuperResolution(), batch, lambda model, x, y: F.l1_loss(model(x), y))


class _VolumeNet(nn.Module):
    """A small 3D U-Net, as for medical scans."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()

        def pair(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01),
                nn.Conv3d(outputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01),
            )  # fmt: skip

        self.first, self.second, self.third = (
            pair(1, width),
            pair(width, 2 * width),
            pair(2 * width, 4 * width),
        )
        self.rise2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, 2)
        self.rise1 = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.back2, self.back1 = pair(4 * width, 2 * width), pair(2 * width, width)
        self.leave = nn.Conv3d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.second(F.max_pool3d(one, 2))
        three = self.third(F.max_pool3d(two, 2))
        two = self.back2(torch.cat([self.rise2(three), two], 1))
        out: Tensor = self.leave(self.back1(torch.cat([self.rise1(two), one], 1)))
        return out


@model
def volume_net() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 1, 48, 48, 48, device=device),
            torch.randint(0, 3, (count, 48, 48, 48), device=device),
        ]

    return Spec(_VolumeNet(), batch, classification_loss)


@model
def sick_plants() -> Spec:
    """Return a nine-layer residual network on 256-pixel images."""

    def twice(width: int) -> nn.Module:
        return Residual(*conv_norm(width, width), *conv_norm(width, width))

    model = sequential(
        conv_norm(3, 64), conv_norm(64, 128), nn.MaxPool2d(4), twice(128), conv_norm(128, 256), nn.MaxPool2d(4), conv_norm(256, 512),
        nn.MaxPool2d(4), twice(512), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(512, 38),
    )  # fmt: skip
    return Spec(model, labelled(3, 256, 256, classes=38), classification_loss)


def _generator(codes: int, widths: tuple[int, ...], channels: int) -> nn.Sequential:
    """Build a generator from transposed convolutions."""
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(codes, widths[0], 4, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(True),
    ]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [
            nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], channels, 4, 2, 1, bias=False), nn.Tanh())


def _discriminator(channels: int, widths: tuple[int, ...], norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Build a convolutional discriminator."""
    layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 4, 2, 1), norm(outputs), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4), nn.Flatten())


def _dcgan_step(parts: StepParts) -> Callable[[], Tensor]:
    """Return a DCGAN step. The discriminator learns from real images and from generated images, and then the
    generator learns."""
    generator, discriminator = parts.model["generator"], parts.model["discriminator"]
    discriminator_optimizer, generator_optimizer = (
        parts.optimizer(discriminator.parameters()),
        parts.optimizer(generator.parameters()),
    )
    criterion = nn.BCEWithLogitsLoss()

    def step() -> Tensor:
        (real,) = parts.batch()
        label = torch.full((len(real), 1), 1.0, device=real.device)
        discriminator.zero_grad()
        with parts.precision():
            real_loss = criterion(discriminator(real), label)
        real_loss.backward()
        with parts.precision():
            fake = generator(torch.randn(len(real), 100, 1, 1, device=real.device))
            fake_loss = criterion(discriminator(fake.detach()), label.fill_(0.0))
        fake_loss.backward()
        discriminator_optimizer.step()
        generator.zero_grad()
        with parts.precision():
            generator_loss = criterion(discriminator(fake), label.fill_(1.0))
        generator_loss.backward()
        generator_optimizer.step()
        return generator_loss.detach()

    return step


@model
def famous_faces() -> Spec:
    """Build the DCGAN of the PyTorch tutorial on 64-pixel images."""
    model = {
        "generator": _generator(100, (512, 256, 128, 64), 3),
        "discriminator": _discriminator(3, (64, 128, 256, 512), nn.BatchNorm2d),
    }
    return Spec(nn.ModuleDict(model), unlabelled(3, 64, 64), no_loss, _dcgan_step)


@model
def emotions_in_voices() -> Spec:
    """Build HuBERT with frozen convolutions, on four seconds of audio."""
    config = huggingface().HubertConfig(
        **transformer_sizes(512, 6, num_labels=8), mask_time_prob=0.0, layerdrop=0.0
    )
    model = huggingface().HubertForSequenceClassification(config)
    model.freeze_feature_encoder()
    return Spec(model, labelled(64000, classes=8), lambda m, x, y: m(input_values=x, labels=y).loss)


def _in_time(inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """Return a 1D convolution that changes the length only by its stride, a norm, and a ReLU."""
    return [
        nn.Conv1d(inputs, outputs, kernel, stride, dilation * (kernel // 2), dilation, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()
    ]  # fmt: skip


@model
def hearts_in_detail() -> Spec:
    """Return a 1D ResNet-18 on twelve-lead ECGs at 500 Hz, multi-label."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        layers = _in_time(inputs, outputs, 7, stride) + _in_time(outputs, outputs, 7)[:-1]
        short = nn.Sequential(*_in_time(inputs, outputs, 1, stride)[:-1]) if inputs != outputs else None
        return Residual(*layers, short=short, act=nn.ReLU())

    blocks: list[nn.Module] = [*_in_time(12, 64, 15, 2), nn.MaxPool1d(3, 2, 1)]
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        blocks += [block(inputs, outputs, stride), block(outputs, outputs, 1)]
    model = sequential(blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, 26))
    return Spec(
        model,
        batch_of(normal(12, 5000), zeros_or_ones(26)),
        lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y),
    )


def _conv_group_norm(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()]


@model
def wounds() -> Spec:
    """Return a U-Net with group norms on 320-pixel images."""
    widths = (24, 48, 96, 192, 384)
    down = [
        sequential([nn.AvgPool2d(2)] if a > 3 else [], _conv_group_norm(a, b), _conv_group_norm(b, b))
        for a, b in itertools.pairwise((3, *widths))
    ]
    up = [
        sequential(_conv_group_norm(a + b, b), _conv_group_norm(b, b))
        for a, b in itertools.pairwise(widths[::-1])
    ]
    return Spec(UNet(down, up, nn.Conv2d(24, 4, 1)), segmentation(3, 320, 320, 4), classification_loss)


@model
def sounds_of_a_city() -> Spec:
    """Return a CNN on log-mel spectrograms of ten seconds, multi-label (PANNs)."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 64, 128, 256, 512)):
        layers += [
            *conv_norm(inputs, outputs),
            *conv_norm(outputs, outputs),
            nn.AvgPool2d(2),
            nn.Dropout(0.2),
        ]
    return Spec(
        sequential(layers, pooled_head(512, 527)),
        batch_of(normal(1, 1000, 64), zeros_or_ones(527)),
        binary_loss,
    )


@model
def questions_from_texts() -> Spec:
    """Build T5-small."""
    config = huggingface().T5Config(decoder_start_token_id=0, use_cache=False)
    return Spec(
        huggingface().T5ForConditionalGeneration(config),
        parts.source_and_target(32128, ((192, 32), (160, 40), (224, 28))),
        masked_text_loss,
    )


@model
def hotel_reviews() -> Spec:
    """Return a two-layer bidirectional GRU over 220 tokens with mean pooling."""
    read = Recurrent(nn.GRU, 200, 192, num_layers=2, bidirectional=True, dropout=0.3)
    model = sequential(nn.Embedding(30000, 200, padding_idx=0), read, Select("mean"), mlp(384, 96, 5))
    return Spec(model, parts.padded_texts(30000, 220, 5), classification_loss)


@model
def insurance() -> Spec:
    """Return a five-layer MLP with norms and dropout on 80 columns."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((80, 512), (512, 512), (512, 512), (512, 256), (256, 128)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.SiLU(), nn.Dropout(0.25)]
    return Spec(sequential(layers, nn.Linear(128, 3)), parts.labelled(80, classes=3), classification_loss)
