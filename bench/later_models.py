"""Models of the second fresh cases: ordinary and unusual convolutions, recurrent networks, transformers and mixtures of them.

As in `models`: random weights, configurations and never downloads, real libraries where they have the network.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.model_parts import Spec, causal, language_model_loss, tokens, torchvision, vision


def _to_itself(*shape: int) -> Callable[[int, str], list[Tensor]]:
    """Random inputs that are their own targets."""

    def batch(count: int, device: str) -> list[Tensor]:
        x = torch.randn(count, *shape, device=device)
        return [x, x]

    return batch


def _classes(*shape: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, *shape, device=device), torch.randint(0, classes, (count,), device=device)]

    return batch


def _squared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x).float(), y)


def _classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _wav2vec() -> Spec:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536, layerdrop=0.0,
        apply_spec_augment=False, conv_dim=(256,) * 7,
    )  # fmt: skip

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).last_hidden_state.float().pow(2).mean()

    return Spec(Wav2Vec2Model(config), lambda count, device: [torch.randn(count, 32000, device=device)], loss)


class _CausalBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.weight_norm
        self.edge = 4 * dilation
        self.first = normed(nn.Conv1d(inputs, outputs, 5, padding=self.edge, dilation=dilation))
        self.second = normed(nn.Conv1d(outputs, outputs, 5, padding=self.edge, dilation=dilation))
        self.short = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(F.relu(self.first(x)[..., : -self.edge]), 0.1, self.training)
        y = F.dropout(F.relu(self.second(y)[..., : -self.edge]), 0.1, self.training)
        return F.relu(y + self.short(x))


def _temporal_convolutions() -> Spec:
    """Causal, dilated convolutions over long series."""
    width = 150
    model = nn.Sequential(
        *(_CausalBlock(22 if level == 0 else width, width, 2**level) for level in range(6)), nn.Conv1d(width, 22, 1)
    )  # fmt: skip
    return Spec(model, _to_itself(22, 1200), _squared)


def _sharpener() -> Spec:
    """The three layers of SRCNN."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 9, padding=4), nn.ReLU(), nn.Conv2d(64, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 3, 5, padding=2)
    )  # fmt: skip
    return Spec(model, _to_itself(3, 200, 200), _squared)


def _denoiser() -> Spec:
    """DnCNN: 3×3 convolutions with norms over grey pictures."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(inplace=True)]
    for _ in range(15):
        layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return Spec(nn.Sequential(*layers, nn.Conv2d(64, 1, 3, padding=1)), _to_itself(1, 90, 90), _squared)


class _VolumeBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.down = nn.Conv3d(inputs, outputs, 2, 2)
        self.body = nn.Sequential(
            nn.Conv3d(outputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm3d(outputs), nn.PReLU(),
            nn.Conv3d(outputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm3d(outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return F.relu(x + self.body(x))


def _scans() -> Spec:
    """A V-Net's way down, with kernels of five, and a transposed way up."""
    model = nn.Sequential(
        nn.Conv3d(2, 16, 5, padding=2), nn.PReLU(), _VolumeBlock(16, 40, 5), _VolumeBlock(40, 80, 3),
        nn.ConvTranspose3d(80, 40, 2, 2), nn.PReLU(), nn.ConvTranspose3d(40, 16, 4, 2, 1), nn.PReLU(), nn.Conv3d(16, 2, 1),
    )  # fmt: skip
    return Spec(model, _to_itself(2, 64, 64, 64), _squared)


def _clips() -> Spec:
    """C3D: full convolutions over short clips."""
    layers: list[nn.Module] = []
    widths = (3, 48, 96, 192, 192)
    for level, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Conv3d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool3d((1, 2, 2) if level == 0 else 2)]  # fmt: skip
    model = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(192 * 2 * 6 * 6, 512), nn.ReLU(), nn.Linear(512, 50)
    )
    return Spec(model, _classes(3, 16, 96, 96, classes=50), _classified)


class _LineReader(nn.Module):
    """Convolutions over a line of text, pooled mostly in height, then an LSTM in both directions."""

    def __init__(self, letters: int = 96) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, pool: tuple[int, int]) -> list[nn.Module]:
            return [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.MaxPool2d(pool),
            ]

        self.look = nn.Sequential(
            *block(1, 48, (2, 2)), *block(48, 112, (2, 2)), *block(112, 224, (2, 1)), *block(224, 320, (2, 1)),
            nn.Conv2d(320, 320, (2, 1)), nn.ReLU(),
        )  # fmt: skip
        self.read = nn.LSTM(320, 256, 2, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(512, letters)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.read(self.look(x).squeeze(2).permute(2, 0, 1))[0])
        return out


def _line_reader() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 1, 32, 320, device=device),
            torch.randint(0, 96, (80, count), device=device),
        ]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())

    return Spec(_LineReader(), batch, loss)


def _flow() -> Spec:
    model = torchvision().models.optical_flow.raft_small(weights=None)

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 3, 192, 256, device=device) for _ in range(2)] + [
            torch.randn(count, 2, 192, 256, device=device)
        ]

    def loss(model: nn.Module, before: Tensor, after: Tensor, moved: Tensor) -> Tensor:
        guesses = model(before, after, num_flow_updates=6)
        return torch.stack([(guess - moved).abs().mean() for guess in guesses]).sum()

    return Spec(model, batch, loss)


def _video_in_parts() -> Spec:
    model = torchvision().models.video.r2plus1d_18(weights=None, num_classes=60)
    return Spec(model, _classes(3, 12, 96, 96, classes=60), _classified)


def _street_scenes() -> Spec:
    models = torchvision().models.segmentation
    model = models.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=19)

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 256, 384, device=device),
            torch.randint(0, 19, (count, 256, 384), device=device),
        ]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x)["out"], y))


def _bart() -> Spec:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=20000, d_model=512, encoder_layers=4, decoder_layers=4, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, use_cache=False,
    )  # fmt: skip
    return Spec(BartForConditionalGeneration(config), tokens(20000, 320), language_model_loss)


def _phi() -> Spec:
    return causal(
        "Phi", 512, vocab_size=24000, hidden_size=640, intermediate_size=2560, num_hidden_layers=6, num_attention_heads=10,
    )  # fmt: skip


def _segformer() -> Spec:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_labels=30, hidden_sizes=[48, 96, 160, 256], decoder_hidden_size=256, drop_path_rate=0.0
    )

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 256, 256, device=device),
            torch.randint(0, 30, (count, 256, 256), device=device),
        ]

    return Spec(
        SegformerForSemanticSegmentation(config),
        batch,
        lambda model, x, y: model(pixel_values=x, labels=y).loss,
    )


class _Conformer(nn.Module):
    """One block of convolution and attention over frames of sound."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attend = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.enter = nn.Conv1d(width, 2 * width, 1)
        self.along = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.norm = nn.BatchNorm1d(width)
        self.leave = nn.Conv1d(width, width, 1)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        y = F.glu(self.enter(self.norms[1](x).transpose(1, 2)), 1)
        x = x + self.leave(F.silu(self.norm(self.along(y)))).transpose(1, 2)
        out: Tensor = x + self.feed(self.norms[2](x))
        return out


class _Recogniser(nn.Module):
    def __init__(self, width: int = 176, depth: int = 6) -> None:
        super().__init__()
        self.shrink = nn.Sequential(
            nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU()
        )
        self.enter = nn.Linear(width * 19, width)
        self.blocks = nn.Sequential(*(_Conformer(width) for _ in range(depth)))
        self.head = nn.Linear(width, 1000)

    def forward(self, sound: Tensor) -> Tensor:
        x = self.shrink(sound[:, None]).transpose(1, 2).flatten(2)
        out: Tensor = self.head(self.blocks(self.enter(x)))
        return out


def _recogniser() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 600, 80, device=device),
            torch.randint(0, 1000, (count, 149), device=device),
        ]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return Spec(_Recogniser(), batch, loss)


class _Translated(nn.Module):
    """A U-Net of strided and transposed convolutions from picture to picture (pix2pix)."""

    def __init__(self, width: int = 56) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width, 8 * width]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in itertools.pairwise(widths))
        back = [8 * width, 8 * width, 4 * width, 2 * width, width]
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(a * (1 if level == 0 else 2), b, 4, 2, 1)
            for level, (a, b) in enumerate(zip(back, [*back[1:], 3], strict=True))
        )
        self.norms = nn.ModuleList(nn.InstanceNorm2d(b) for b in back[1:])

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = F.leaky_relu(layer(x), 0.2)
            kept.append(x)
        for level, layer in enumerate(self.up):
            x = layer(x if level == 0 else torch.cat([x, kept[-1 - level]], 1))
            x = F.relu(self.norms[level](x)) if level < len(self.norms) else torch.tanh(x)
        return x


class _Codes(nn.Module):
    """An autoencoder whose middle is rounded to a codebook (VQ-VAE)."""

    def __init__(self, width: int = 144, codes: int = 512) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, width // 2, 4, 2, 1), nn.ReLU(), nn.Conv2d(width // 2, width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 64, 1),
        )  # fmt: skip
        self.codes = nn.Embedding(codes, 64)
        self.decode = nn.Sequential(
            nn.Conv2d(64, width, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width // 2, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.encode(x).permute(0, 2, 3, 1)
        flat = found.reshape(-1, 64).float()
        nearest = torch.cdist(flat, self.codes.weight).argmin(1)
        rounded = self.codes(nearest).view(found.shape)
        price = F.mse_loss(rounded, found.detach().float()) + 0.25 * F.mse_loss(
            found.float(), rounded.detach()
        )
        return self.decode((found + (rounded - found).detach()).permute(0, 3, 1, 2)), price


def _codes() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out, price = model(x)
        return F.mse_loss(out.float(), y) + price

    return Spec(_Codes(), _to_itself(3, 128, 128), loss)


class _Speaker(nn.Module):
    """Text in: embeddings, convolutions of five letters, an LSTM in both directions (Tacotron's encoder)."""

    def __init__(self, width: int = 400) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, width)
        self.reads = nn.Sequential(
            *(nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5))
              for _ in range(3))
        )  # fmt: skip
        self.rnn = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.mel = nn.Linear(width, 80)
        self.post = nn.Sequential(
            nn.Conv1d(80, 512, 5, padding=2), nn.Tanh(), nn.Conv1d(512, 80, 5, padding=2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.reads(self.embed(ids).transpose(1, 2)).transpose(1, 2)
        mel = self.mel(self.rnn(x)[0]).transpose(1, 2)
        out: Tensor = mel + self.post(mel)
        return out


def _speaker() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randint(0, 200, (count, 180), device=device),
            torch.randn(count, 80, 180, device=device),
        ]

    return Spec(_Speaker(), batch, _squared)


def _brain_waves() -> Spec:
    """EEGNet: long kernels in time, then over electrodes, then separable ones."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, (1, 64), padding=(0, 32), bias=False), nn.BatchNorm2d(16),
        nn.Conv2d(16, 32, (32, 1), groups=16, bias=False), nn.BatchNorm2d(32), nn.ELU(), nn.AvgPool2d((1, 4)), nn.Dropout(0.25),
        nn.Conv2d(32, 32, (1, 16), padding=(0, 8), groups=32, bias=False), nn.Conv2d(32, 32, 1, bias=False),
        nn.BatchNorm2d(32), nn.ELU(), nn.AvgPool2d((1, 8)), nn.Flatten(), nn.LazyLinear(4),
    )  # fmt: skip
    model.eval()(torch.zeros(1, 1, 32, 512))
    return Spec(model, _classes(1, 32, 512, classes=4), _classified)


class _Projected(nn.Module):
    """A language model of LSTMs with projections."""

    def __init__(self, words: int = 15000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 320)
        self.rnn = nn.LSTM(320, 1024, 2, batch_first=True, proj_size=320, dropout=0.1)
        self.head = nn.Linear(320, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(self.embed(ids))[0])
        return out


def _projected() -> Spec:
    def loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())

    return Spec(_Projected(), tokens(15000, 70), loss)


class _Radiance(nn.Module):
    """Points of rays, their sines and cosines, and a deep perceptron with a short cut (NeRF)."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(63 if level == 0 else width, width) for level in range(4))
        self.second = nn.ModuleList(
            nn.Linear(width + 63 if level == 0 else width, width) for level in range(4)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, points: Tensor) -> Tensor:
        scaled = points[..., None] * 2.0 ** torch.arange(10, device=points.device)
        known = torch.cat([points, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], -1)
        x = known
        for layer in self.first:
            x = F.relu(layer(x))
        x = torch.cat([x, known], -1)
        for layer in self.second:
            x = F.relu(layer(x))
        out: Tensor = self.head(x)
        alpha = 1 - torch.exp(-F.softplus(out[..., 3]))
        passed = torch.cumprod(1 - alpha + 1e-10, -1)
        return ((alpha * passed)[..., None] * out[..., :3].sigmoid()).sum(1)


def _radiance() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 64, 3, device=device), torch.rand(count, 3, device=device)]

    return Spec(_Radiance(), batch, _squared)


LATER: dict[str, Callable[[], Spec]] = {
    "wav2vec": _wav2vec,
    "temporal_convolutions": _temporal_convolutions,
    "sharpener": _sharpener,
    "denoiser": _denoiser,
    "scans": _scans,
    "clips": _clips,
    "line_reader": _line_reader,
    "flow": _flow,
    "video_in_parts": _video_in_parts,
    "street_scenes": _street_scenes,
    "bart": _bart,
    "phi": _phi,
    "segformer": _segformer,
    "recogniser": _recogniser,
    "translated": lambda: Spec(_Translated(), _to_itself(3, 256, 256), _squared),
    "codes": _codes,
    "speaker": _speaker,
    "brain_waves": _brain_waves,
    "projected": _projected,
    "radiance": _radiance,
    "efficientnet_b2": lambda: vision("efficientnet_b2", size=288),
    "regnet_x_800mf": lambda: vision("regnet_x_800mf", size=192),
}
