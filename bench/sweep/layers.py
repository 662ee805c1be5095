"""Sweep cases: the modules of torch.nn with plausible arguments, in training and, if different, in evaluation.

These modules are omitted: containers, `Identity`, `Flatten` and `Unflatten` (no memory of their own), lazy modules
(they become other modules), `SyncBatchNorm` (needs several ranks), `CrossMapLRN2d` (CPU only) and
`LinearCrossEntropyLoss` (not in the measured release). Convolutions are covered by `bench.rules.convolution`. This
file contains a few convolutions for their biases and layouts.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.sweep.kit import Case, Kit, table

ROWS = ((37, 50), (3000, 256), (100000, 64), (500, 5000))
SERIES = ((3, 8, 50), (32, 64, 500), (16, 512, 300))
PICTURES = ((2, 8, 9, 9), (8, 64, 56, 56), (4, 16, 224, 224), (64, 256, 14, 14))
VOLUMES = ((2, 4, 5, 8, 8), (2, 32, 16, 28, 28))
TOKENS = ((2, 9, 32), (16, 197, 384), (4, 1024, 768))


def cases() -> Iterator[Case]:
    yield from table(_ON_ROWS, ROWS)
    yield from table(_ON_SERIES, SERIES)
    yield from table(_ON_PICTURES, PICTURES)
    yield from table(_ON_PICTURES_IN_SINGLE, PICTURES, half=False)
    yield from table(_ON_VOLUMES, VOLUMES)
    yield from table(_ON_TOKENS, TOKENS)


def _put(kind: Any, *args: Any, train: bool = True, **kwargs: Any) -> Any:
    """Return a module with fixed arguments."""
    return lambda k: k.layer(kind, *args, **kwargs).train(train)(k.x)


def _wide(kind: Any, *args: Any, train: bool = True, **kwargs: Any) -> Any:
    """Return a module whose first argument is the size of the last dimension."""
    return lambda k: k.layer(kind, k.shape[-1], *args, **kwargs).train(train)(k.x)


def _deep(kind: Any, *args: Any, train: bool = True, **kwargs: Any) -> Any:
    """Return a module whose first argument is the number of channels."""
    return lambda k: k.layer(kind, k.shape[1], *args, **kwargs).train(train)(k.x)


def _parametrized(wrap: Any, kind: Any, *args: Any) -> Any:
    def run(k: Kit) -> Any:
        return wrap(k.layer(kind, k.shape[-1] if kind is nn.Linear else k.shape[1], *args))(k.x)

    return run


_normed = nn.utils.parametrizations

_ON_ROWS: dict[str, Any] = {
    "Linear": _wide(nn.Linear, 96),
    "Linear-odd": _wide(nn.Linear, 33),
    "Linear-one": _wide(nn.Linear, 1),
    "Linear-bare": _wide(nn.Linear, 96, bias=False),
    "Linear-wide": _wide(nn.Linear, 1000),
    "Linear-chain": lambda k: nn.Sequential(k.layer(nn.Linear, k.shape[1], 128), nn.ReLU(), k.layer(nn.Linear, 128, 10))(k.x),
    "Linear-frozen": lambda k: k.layer(nn.Linear, k.shape[1], 96).requires_grad_(False)(k.x),
    "Linear-constant": lambda k: k.layer(nn.Linear, k.shape[1], 96)(k.x.detach()),
    "Bilinear": lambda k: k.layer(nn.Bilinear, 50, 40, 20)(k.plain(300, 50), k.plain(300, 40)),
    "BatchNorm1d": _wide(nn.BatchNorm1d),
    "BatchNorm1d-eval": _wide(nn.BatchNorm1d, train=False),
    "BatchNorm1d-bare": _wide(nn.BatchNorm1d, affine=False),
    "BatchNorm1d-untracked": _wide(nn.BatchNorm1d, track_running_stats=False),
    "LayerNorm": _wide(nn.LayerNorm),
    "LayerNorm-bare": _wide(nn.LayerNorm, elementwise_affine=False),
    "LayerNorm-unbiased": _wide(nn.LayerNorm, bias=False),
    "RMSNorm": _wide(nn.RMSNorm),
    "RMSNorm-bare": _wide(nn.RMSNorm, elementwise_affine=False),
    "GroupNorm-rows": lambda k: k.layer(nn.GroupNorm, 2, k.shape[1])(k.x),
    "PReLU": _put(nn.PReLU),
    "Softmax": _put(nn.Softmax, -1),
    "LogSoftmax": _put(nn.LogSoftmax, -1),
    "weight_norm": _parametrized(_normed.weight_norm, nn.Linear, 96),
    "spectral_norm": _parametrized(_normed.spectral_norm, nn.Linear, 96),
    "orthogonal": lambda k: _normed.orthogonal(nn.Linear(k.shape[1], 96, device="cuda"))(k.plain(64, k.shape[1], dtype=torch.float32)) if k.dtype == torch.float32 else None,
    "orthogonal-cayley": lambda k: _normed.orthogonal(nn.Linear(128, 96, device="cuda"), orthogonal_map="cayley")(k.plain(64, 128, dtype=torch.float32)) if k.dtype == torch.float32 else None,
    "weight_norm-old": _parametrized(nn.utils.weight_norm, nn.Linear, 96),
    "AdaptiveLogSoftmaxWithLoss": lambda k: k.layer(nn.AdaptiveLogSoftmaxWithLoss, k.shape[1], 20000, [1000, 5000])(k.x[:2000], k.ints(20000, min(2000, k.shape[0])))[1],
    "Embedding": lambda k: k.layer(nn.Embedding, 5000, 128)(k.ints(5000, 64, 50)),
    "Embedding-large": lambda k: k.layer(nn.Embedding, 50257, 768)(k.ints(50257, 8, 512)),
    "Embedding-max-norm": lambda k: k.layer(nn.Embedding, 5000, 128, max_norm=1.0)(k.ints(5000, 64, 50)),
    **{
        f"EmbeddingBag-{mode}": lambda k, mode=mode: k.layer(nn.EmbeddingBag, 5000, 128, mode=mode)(k.ints(5000, 700, 30))
        for mode in ("sum", "mean", "max")
    },
    "EmbeddingBag-offsets": lambda k: k.layer(nn.EmbeddingBag, 5000, 128)(k.ints(5000, 20000), torch.arange(0, 20000, 25, device="cuda")),
    "EmbeddingBag-weighted": lambda k: k.layer(nn.EmbeddingBag, 5000, 128, mode="sum")(k.ints(5000, 700, 30), per_sample_weights=k.plain(700, 30)),
    "EmbeddingBag-padded": lambda k: k.layer(nn.EmbeddingBag, 5000, 128, padding_idx=0)(k.ints(5000, 700, 30)),
    "EmbeddingBag-sparse": lambda k: k.layer(nn.EmbeddingBag, 5000, 128, sparse=True, mode="sum")(k.ints(5000, 700, 30)),
}  # fmt: skip

_ON_SERIES: dict[str, Any] = {
    "Conv1d": _deep(nn.Conv1d, 32, 3, padding=1),
    "ConvTranspose1d": _deep(nn.ConvTranspose1d, 32, 4, 2, 1),
    "BatchNorm1d-series": _deep(nn.BatchNorm1d),
    "BatchNorm1d-series-eval": _deep(nn.BatchNorm1d, train=False),
    "InstanceNorm1d": _deep(nn.InstanceNorm1d),
    "InstanceNorm1d-affine": _deep(nn.InstanceNorm1d, affine=True, track_running_stats=True),
    "GroupNorm-series": lambda k: k.layer(nn.GroupNorm, 4, k.shape[1])(k.x),
    "LayerNorm-two": lambda k: k.layer(nn.LayerNorm, k.shape[1:])(k.x),
    "MaxPool1d": _put(nn.MaxPool1d, 3, 2),
    "MaxPool1d-indices": lambda k: F.max_pool1d(k.x, 2, return_indices=True)[0],
    "MaxUnpool1d": lambda k: nn.MaxUnpool1d(2)(*F.max_pool1d(k.x, 2, return_indices=True)),
    "AvgPool1d": _put(nn.AvgPool1d, 3, 2, 1),
    "LPPool1d": _put(nn.LPPool1d, 2, 3),
    "AdaptiveAvgPool1d": _put(nn.AdaptiveAvgPool1d, 7),
    "AdaptiveMaxPool1d": _put(nn.AdaptiveMaxPool1d, 7),
    "AdaptiveAvgPool1d-one": _put(nn.AdaptiveAvgPool1d, 1),
    "Dropout1d": _put(nn.Dropout1d, 0.2),
    "ReflectionPad1d": _put(nn.ReflectionPad1d, 3),
    "ReplicationPad1d": _put(nn.ReplicationPad1d, 3),
    "CircularPad1d": _put(nn.CircularPad1d, 3),
    "ConstantPad1d": _put(nn.ConstantPad1d, 3, 1.0),
    "Upsample-linear": _put(nn.Upsample, scale_factor=2, mode="linear"),
    "Upsample-nearest": _put(nn.Upsample, scale_factor=2),
    "interpolate-size": lambda k: F.interpolate(k.x, size=77, mode="linear", align_corners=True),
    "PReLU-series": lambda k: k.layer(nn.PReLU, k.shape[1])(k.x),
    "LocalResponseNorm-series": lambda k: nn.LocalResponseNorm(3)(k.x),
    "glu-channels": lambda k: F.glu(k.x, 1),
    "weight_norm-conv": _parametrized(_normed.weight_norm, nn.Conv1d, 32, 3),
    "spectral_norm-conv": _parametrized(_normed.spectral_norm, nn.Conv1d, 32, 3),
    "fold-frames": lambda k: F.fold(k.x[:, : k.shape[1] // 4 * 4].reshape(k.shape[0], -1, k.shape[2])[:, : k.shape[1] // 4 * 4], (1, k.shape[2] + 3), (1, 4)),
}  # fmt: skip

_ON_PICTURES: dict[str, Any] = {
    "Conv2d": _deep(nn.Conv2d, 32, 3, padding=1),
    "Conv2d-one": _deep(nn.Conv2d, 32, 1),
    "BatchNorm2d": _deep(nn.BatchNorm2d),
    "BatchNorm2d-eval": _deep(nn.BatchNorm2d, train=False),
    "BatchNorm2d-bare": _deep(nn.BatchNorm2d, affine=False),
    "BatchNorm2d-cumulative": _deep(nn.BatchNorm2d, momentum=None),
    "BatchNorm2d-relu": lambda k: F.relu(k.layer(nn.BatchNorm2d, k.shape[1])(k.x), inplace=True),
    "BatchNorm2d-frozen": lambda k: k.layer(nn.BatchNorm2d, k.shape[1]).eval().requires_grad_(False)(k.x),
    "BatchNorm2d-single-in-half": lambda k: nn.BatchNorm2d(k.shape[1], device="cuda")(k.x),
    "InstanceNorm2d": _deep(nn.InstanceNorm2d),
    "InstanceNorm2d-affine": _deep(nn.InstanceNorm2d, affine=True),
    "InstanceNorm2d-tracked-eval": _deep(nn.InstanceNorm2d, affine=True, track_running_stats=True, train=False),
    "GroupNorm": lambda k: k.layer(nn.GroupNorm, 4, k.shape[1])(k.x),
    "GroupNorm-one": lambda k: k.layer(nn.GroupNorm, 1, k.shape[1])(k.x),
    "GroupNorm-bare": lambda k: k.layer(nn.GroupNorm, 4, k.shape[1], affine=False)(k.x),
    "GroupNorm-silu": lambda k: F.silu(k.layer(nn.GroupNorm, 4, k.shape[1])(k.x)),
    "LayerNorm-picture": lambda k: k.layer(nn.LayerNorm, k.shape[1:])(k.x),
    "LayerNorm-channels": lambda k: k.layer(nn.LayerNorm, k.shape[1])(k.x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "LocalResponseNorm": lambda k: nn.LocalResponseNorm(5)(k.x),
    "Dropout2d": _put(nn.Dropout2d, 0.2),
    "FeatureAlphaDropout": _put(nn.FeatureAlphaDropout, 0.2),
    "MaxPool2d": _put(nn.MaxPool2d, 2),
    "MaxPool2d-overlapping": _put(nn.MaxPool2d, 3, 2, 1),
    "MaxUnpool2d": lambda k: nn.MaxUnpool2d(2)(*F.max_pool2d(k.x, 2, return_indices=True)),
    "AvgPool2d": _put(nn.AvgPool2d, 2),
    "AvgPool2d-overlapping": _put(nn.AvgPool2d, 3, 1, 1),
    "LPPool2d": _put(nn.LPPool2d, 2, 2),
    "FractionalMaxPool2d": _put(nn.FractionalMaxPool2d, 2, output_ratio=0.6),
    "AdaptiveAvgPool2d": _put(nn.AdaptiveAvgPool2d, 5),
    "AdaptiveAvgPool2d-one": _put(nn.AdaptiveAvgPool2d, 1),
    "AdaptiveMaxPool2d": _put(nn.AdaptiveMaxPool2d, 5),
    "AdaptiveMaxPool2d-one": _put(nn.AdaptiveMaxPool2d, 1),
    "mean-of-picture": lambda k: k.x.mean((2, 3)),
    "max-of-picture": lambda k: k.x.amax((2, 3)),
    "squeeze-excite": lambda k: k.x * k.x.mean((2, 3), keepdim=True).sigmoid(),
    "spatial-attention": lambda k: k.x * torch.cat([k.x.mean(1, keepdim=True), k.x.amax(1, keepdim=True)], 1).mean(1, keepdim=True).sigmoid(),
    "Softmax2d": _put(nn.Softmax2d),
    "PReLU-picture": lambda k: k.layer(nn.PReLU, k.shape[1])(k.x),
    "ReflectionPad2d": _put(nn.ReflectionPad2d, 2),
    "ReplicationPad2d": _put(nn.ReplicationPad2d, 2),
    "CircularPad2d": _put(nn.CircularPad2d, 2),
    "ConstantPad2d": _put(nn.ConstantPad2d, 2, 0.5),
    "ZeroPad2d": _put(nn.ZeroPad2d, (0, 1, 0, 1)),
    "pad-negative": lambda k: F.pad(k.x, (-1, -1, -1, -1)),
    "PixelShuffle": _put(nn.PixelShuffle, 2),
    "PixelUnshuffle": lambda k: F.pixel_unshuffle(k.x[..., : k.shape[2] // 2 * 2, : k.shape[3] // 2 * 2], 2),
    "ChannelShuffle": _put(nn.ChannelShuffle, 4),
    **{
        f"interpolate-{mode}-{factor}": lambda k, mode=mode, factor=factor: F.interpolate(k.x, scale_factor=factor, mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
        for factor in (2, 0.5)
    },
    "UpsamplingBilinear2d": _put(nn.UpsamplingBilinear2d, scale_factor=2),
    "UpsamplingNearest2d": _put(nn.UpsamplingNearest2d, scale_factor=2),
    "interpolate-corners": lambda k: F.interpolate(k.x, size=(33, 47), mode="bilinear", align_corners=True),
    "interpolate-antialias": lambda k: F.interpolate(k.x, scale_factor=0.4, mode="bilinear", antialias=True),
    "interpolate-bicubic-antialias": lambda k: F.interpolate(k.x, scale_factor=0.4, mode="bicubic", antialias=True),
    "Unfold": _put(nn.Unfold, 3, padding=1),
    "Unfold-patches": _put(nn.Unfold, 4, stride=4),
    "Fold": lambda k: F.fold(F.unfold(k.x, 3, padding=1), k.shape[2:], 3, padding=1),
    "patches": lambda k: k.x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3),
    "windows": lambda k: k.x[:, :, : k.shape[2] // 7 * 7, : k.shape[3] // 7 * 7].reshape(k.shape[0], k.shape[1], k.shape[2] // 7, 7, k.shape[3] // 7, 7).permute(0, 2, 4, 3, 5, 1).reshape(-1, 49, k.shape[1]),
    "flatten-tokens": lambda k: k.x.flatten(2).transpose(1, 2).contiguous(),
    "shifted": lambda k: k.x.roll((-3, -3), (2, 3)),
    "flipped": lambda k: k.x.flip(3),
    "rotated": lambda k: k.x.rot90(1, (2, 3)),
    "layer-scale": lambda k: k.x * k.plain(k.shape[1], 1, 1),
    "stochastic-depth": lambda k: k.x * torch.empty(k.shape[0], 1, 1, 1, device="cuda", dtype=k.dtype).bernoulli_(0.9).div_(0.9),
    "total-variation": lambda k: (k.x[..., 1:] - k.x[..., :-1]).abs().mean(),
    "gram": lambda k: (k.x.flatten(2) @ k.x.flatten(2).transpose(1, 2)) / k.shape[2],
    "cat-channels": lambda k: torch.cat([k.x, k.x.relu()], 1),
    "cat-channels-last-one": lambda k: torch.cat([k.x, k.plain(*k.shape).to(memory_format=torch.channels_last)], 1),
    "softmax-channels": lambda k: k.x.softmax(1),
    "argmax-channels": lambda k: k.x.argmax(1),
    "cross-entropy-picture": lambda k: F.cross_entropy(k.x, k.ints(k.shape[1], k.shape[0], *k.shape[2:])),
    "spectral_norm-picture": _parametrized(_normed.spectral_norm, nn.Conv2d, 32, 1),
    "weight_norm-picture": _parametrized(_normed.weight_norm, nn.Conv2d, 32, 1),
    "weight-standardized": lambda k: F.conv2d(k.x, _standardized(k.plain(32, k.shape[1], 3, 3)), padding=1),
    "to-channels-last": lambda k: k.x.to(memory_format=torch.channels_last) * 2,
    "grid_sample": lambda k: F.grid_sample(k.x, k.plain(k.shape[0], 40, 40, 2), align_corners=False),
    "grid_sample-nearest": lambda k: F.grid_sample(k.x, k.plain(k.shape[0], 40, 40, 2), mode="nearest", align_corners=False),
    "grid_sample-bicubic": lambda k: F.grid_sample(k.x, k.plain(k.shape[0], 40, 40, 2), mode="bicubic", padding_mode="border", align_corners=False),
    "affine_grid": lambda k: F.grid_sample(k.x, F.affine_grid(k.plain(k.shape[0], 2, 3), list(k.shape), False), align_corners=False),
}  # fmt: skip


def _standardized(weight: Any) -> Any:
    deviation, mean = torch.std_mean(weight, (1, 2, 3), keepdim=True)
    return (weight - mean) / (deviation + 1e-5)


_ON_PICTURES_IN_SINGLE: dict[str, Any] = {
    "fft2-mixing": lambda k: torch.fft.fft2(k.x.float()).real,
    "rfft2-filter": lambda k: torch.fft.irfft2(torch.fft.rfft2(k.x.float()) * torch.ones(k.shape[2], k.shape[3] // 2 + 1, dtype=torch.complex64, device="cuda"), s=k.shape[2:]),
    "ssim-windows": lambda k: F.avg_pool2d(k.x * k.x, 3, 1) - F.avg_pool2d(k.x, 3, 1) ** 2,
}  # fmt: skip

_ON_VOLUMES: dict[str, Any] = {
    "Conv3d": _deep(nn.Conv3d, 16, 3, padding=1),
    "BatchNorm3d": _deep(nn.BatchNorm3d),
    "InstanceNorm3d": _deep(nn.InstanceNorm3d, affine=True),
    "GroupNorm-volume": lambda k: k.layer(nn.GroupNorm, 4, k.shape[1])(k.x),
    "Dropout3d": _put(nn.Dropout3d, 0.2),
    "MaxPool3d": _put(nn.MaxPool3d, 2),
    "MaxUnpool3d": lambda k: nn.MaxUnpool3d(2)(*F.max_pool3d(k.x, 2, return_indices=True)),
    "AvgPool3d": _put(nn.AvgPool3d, 2),
    "LPPool3d": _put(nn.LPPool3d, 2, 2),
    "FractionalMaxPool3d": _put(nn.FractionalMaxPool3d, 2, output_ratio=0.6),
    "AdaptiveAvgPool3d": _put(nn.AdaptiveAvgPool3d, 3),
    "AdaptiveAvgPool3d-one": _put(nn.AdaptiveAvgPool3d, 1),
    "AdaptiveMaxPool3d": _put(nn.AdaptiveMaxPool3d, 3),
    "ReflectionPad3d": _put(nn.ReflectionPad3d, 1),
    "ReplicationPad3d": _put(nn.ReplicationPad3d, 1),
    "CircularPad3d": _put(nn.CircularPad3d, 1),
    "ConstantPad3d": _put(nn.ConstantPad3d, 1, 0.0),
    "interpolate-trilinear": lambda k: F.interpolate(k.x, scale_factor=2, mode="trilinear"),
    "interpolate-nearest3d": lambda k: F.interpolate(k.x, scale_factor=2),
    "interpolate-area3d": lambda k: F.interpolate(k.x, scale_factor=0.5, mode="area"),
    "grid_sample3d": lambda k: F.grid_sample(k.x, k.plain(k.shape[0], 6, 10, 10, 3), align_corners=False),
    "mean-of-volume": lambda k: k.x.mean((2, 3, 4)),
    "softmax-volume": lambda k: k.x.softmax(1),
}

_ON_TOKENS: dict[str, Any] = {
    "Linear-tokens": _wide(nn.Linear, 128),
    "Linear-tokens-bare": _wide(nn.Linear, 128, bias=False),
    "Linear-tokens-gelu": lambda k: F.gelu(k.layer(nn.Linear, k.shape[2], 4 * k.shape[2])(k.x)),
    "LayerNorm-tokens": _wide(nn.LayerNorm),
    "RMSNorm-tokens": _wide(nn.RMSNorm),
    "RMSNorm-single-in-half": lambda k: nn.RMSNorm(k.shape[2], device="cuda")(k.x),
    "LayerNorm-single-in-half": lambda k: F.layer_norm(k.x.float(), (k.shape[2],), k.plain(k.shape[2], dtype=torch.float32), k.plain(k.shape[2], dtype=torch.float32)).to(k.dtype),
    "LayerNorm-residual": lambda k: k.x + k.layer(nn.LayerNorm, k.shape[2])(k.x),
    "residual-block": lambda k: k.x + k.layer(nn.Linear, k.shape[2], k.shape[2])(F.gelu(k.layer(nn.LayerNorm, k.shape[2])(k.x))),
    "gated": lambda k: F.silu(k.layer(nn.Linear, k.shape[2], 256, bias=False)(k.x)) * k.layer(nn.Linear, k.shape[2], 256, bias=False)(k.x),
    "norm-by-hand": lambda k: k.x * torch.rsqrt(k.x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(k.dtype) * k.plain(k.shape[2]),
    "mean-of-tokens": lambda k: k.x.mean(1),
    "first-token": lambda k: k.x[:, 0],
    "class-token": lambda k: torch.cat([k.plain(1, 1, k.shape[2]).expand(k.shape[0], -1, -1), k.x], 1),
    "masked-tokens": lambda k: torch.gather(k.x, 1, k.ints(k.shape[1], k.shape[0], k.shape[1] // 2)[..., None].expand(-1, -1, k.shape[2])),
    "shifted-tokens": lambda k: k.x[:, 1:] - k.x[:, :-1],
    "heads": lambda k: k.x.view(*k.shape[:2], 4, -1).transpose(1, 2).contiguous() if not k.variant.layout else None,
    "l2-loss": lambda k: F.mse_loss(k.x, k.plain(*k.shape, grad=False)),
    "scores": lambda k: (k.x @ k.x.transpose(1, 2)).softmax(-1) @ k.x,
    "scores-einsum": lambda k: torch.einsum("bqk,bkd->bqd", torch.einsum("bqd,bkd->bqk", k.x, k.x).softmax(-1), k.x),
    "positions": lambda k: k.x + k.layer(nn.Embedding, k.shape[1], k.shape[2])(torch.arange(k.shape[1], device="cuda")),
    "adapter": lambda k: k.layer(nn.Linear, k.shape[2], 64).requires_grad_(False)(k.x) + k.layer(nn.Linear, 8, 64, bias=False)(k.layer(nn.Linear, k.shape[2], 8, bias=False)(k.x)),
    "modulated": lambda k: k.x * (1 + k.plain(k.shape[0], 1, k.shape[2])) + k.plain(k.shape[0], 1, k.shape[2]),
}  # fmt: skip
