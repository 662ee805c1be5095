"""Single operations whose inner allocations are worth knowing: convolutions first, since cuDNN's are not written down.

`PROBES()` yields (name, function); each function runs a small forward and backward on the GPU. The list is the same
on every machine (seeded), so that it can be measured in parts.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def PROBES() -> Iterator[tuple[str, Callable[[], Any]]]:  # noqa: N802  (a constant list, made on demand)
    listed = [*_convolutions(), *_recurrent(), *_attention(), *_others()]
    random.Random(1).shuffle(listed)  # so that parts take equally long
    yield from listed


def _tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)


# Convolutions


def _convolve(
    dims: int, batch: int, inputs: int, outputs: int, size: tuple[int, ...], kernel: int, stride: int, groups: int,
    dilation: int, transposed: bool, dtype: torch.dtype, last: bool, bias: bool, first: bool,
) -> None:  # fmt: skip
    kinds: dict[tuple[int, bool], Any] = {
        (1, False): nn.Conv1d, (2, False): nn.Conv2d, (3, False): nn.Conv3d,
        (1, True): nn.ConvTranspose1d, (2, True): nn.ConvTranspose2d, (3, True): nn.ConvTranspose3d,
    }  # fmt: skip
    padding = dilation * (kernel - 1) // 2
    layer = kinds[dims, transposed](
        inputs,
        outputs,
        kernel,
        stride,
        padding,
        groups=groups,
        dilation=dilation,
        bias=bias,
        device="cuda",
        dtype=dtype,
    )
    x = _tensor(batch, inputs, *size, dtype=dtype, grad=not first)
    if last:
        layer = layer.to(memory_format=torch.channels_last)
        x = x.detach().to(memory_format=torch.channels_last).requires_grad_(not first)
    out = layer(x)
    out.backward(torch.empty_like(out))


def _convolutions() -> Iterator[tuple[str, Callable[[], Any]]]:
    seen = set()

    def probe(
        batch: int, inputs: int, outputs: int, size: tuple[int, ...], kernel: int, stride: int = 1, groups: int = 1,
        dilation: int = 1, transposed: bool = False, dtype: str = "fp32", last: bool = False, bias: bool = False,
    ) -> Iterator[tuple[str, Callable[[], Any]]]:  # fmt: skip
        width = 4 if dtype == "fp32" else 2
        area = 1
        for side in size:
            area *= side
        grown = area * (stride ** len(size) if transposed else 1)
        if batch * max(inputs * area, outputs * grown) * width > 900 << 20:
            return
        what = (
            f"conv{len(size)}d n{batch} {inputs}->{outputs} {'x'.join(map(str, size))} k{kernel} s{stride} g{groups} "
            f"d{dilation} {'transposed ' if transposed else ''}{dtype}{' last' if last else ''}{' bias' if bias else ''}"
        )
        if what in seen:
            return
        seen.add(what)
        arguments = (
            len(size), batch, inputs, outputs, size, kernel, stride, groups, dilation, transposed, HALF[dtype], last,
            bias, inputs <= 3,
        )  # fmt: skip
        yield what, lambda: _convolve(*arguments)

    # layers of real networks: (inputs, outputs, size, kernel, stride, groups)
    layers = [
        (3, 64, 224, 7, 2, 1), (3, 32, 224, 3, 2, 1), (3, 64, 224, 3, 1, 1), (3, 96, 224, 4, 4, 1), (3, 768, 224, 16, 16, 1),
        (3, 64, 32, 3, 1, 1), (3, 64, 64, 4, 2, 1), (3, 64, 299, 3, 2, 1), (1, 32, 28, 3, 1, 1), (4, 128, 64, 3, 1, 1),
        (64, 64, 56, 1, 1, 1), (64, 256, 56, 1, 1, 1), (256, 64, 56, 1, 1, 1), (256, 128, 56, 1, 1, 1),
        (256, 512, 56, 1, 2, 1), (512, 128, 28, 1, 1, 1), (128, 512, 28, 1, 1, 1), (512, 1024, 28, 1, 2, 1),
        (1024, 256, 14, 1, 1, 1), (256, 1024, 14, 1, 1, 1), (1024, 2048, 14, 1, 2, 1), (2048, 512, 7, 1, 1, 1),
        (512, 2048, 7, 1, 1, 1), (64, 64, 56, 3, 1, 1), (64, 128, 56, 3, 2, 1), (128, 128, 28, 3, 1, 1),
        (128, 128, 56, 3, 2, 1), (128, 256, 28, 3, 2, 1), (256, 256, 14, 3, 1, 1), (256, 256, 28, 3, 2, 1),
        (256, 512, 14, 3, 2, 1), (512, 512, 7, 3, 1, 1), (512, 512, 14, 3, 2, 1), (512, 512, 28, 3, 1, 1),
        (64, 64, 224, 3, 1, 1), (64, 128, 112, 3, 1, 1), (128, 128, 112, 3, 1, 1), (256, 256, 56, 3, 1, 1),
        (16, 16, 112, 3, 1, 16), (64, 64, 112, 3, 2, 64), (72, 72, 56, 5, 2, 72), (120, 120, 28, 5, 1, 120),
        (240, 240, 28, 3, 2, 240), (480, 480, 14, 3, 1, 480), (672, 672, 14, 5, 1, 672), (960, 960, 7, 5, 1, 960),
        (96, 96, 56, 7, 1, 96), (384, 384, 14, 7, 1, 384), (768, 768, 7, 7, 1, 768), (128, 128, 56, 3, 1, 32),
        (256, 256, 28, 3, 1, 32), (1024, 1024, 7, 3, 1, 32), (64, 64, 56, 3, 2, 4), (144, 144, 28, 3, 1, 9),
        (32, 16, 112, 1, 1, 1), (16, 96, 112, 1, 1, 1), (24, 144, 56, 1, 1, 1), (144, 40, 28, 1, 1, 1),
        (480, 112, 14, 1, 1, 1), (1152, 192, 7, 1, 1, 1), (320, 1280, 7, 1, 1, 1), (128, 32, 28, 3, 1, 1),
        (256, 128, 28, 1, 1, 1), (896, 128, 7, 1, 1, 1), (64, 19, 64, 1, 1, 1), (2048, 256, 32, 3, 1, 1),
        (256, 21, 32, 1, 1, 1), (512, 21, 32, 1, 1, 1), (96, 96, 64, 3, 1, 1), (96, 192, 64, 3, 1, 1),
        (192, 192, 32, 3, 2, 1), (288, 96, 64, 3, 1, 1), (96, 3, 64, 3, 1, 1), (384, 1152, 8, 1, 1, 1),
        (48, 64, 35, 5, 1, 1), (768, 192, 17, 1, 1, 1), (40, 40, 48, 3, 1, 1), (24, 48, 96, 3, 2, 1),
    ]  # fmt: skip
    for inputs, outputs, size, kernel, stride, groups in layers:
        for batch, dtype, last in itertools.product(
            (2, 16, 64, 128), ("fp32", "fp16", "bf16"), (False, True)
        ):
            if dtype == "bf16" and batch in (2, 128):
                continue
            yield from probe(
                batch, inputs, outputs, (size, size), kernel, stride, groups, dtype=dtype, last=last
            )
    for dilation in (2, 6, 12):
        for dtype, batch in itertools.product(("fp32", "bf16"), (4, 16)):
            yield from probe(batch, 512, 512, (32, 32), 3, dilation=dilation, dtype=dtype)
            yield from probe(batch, 2048, 256, (32, 32), 3, dilation=dilation, dtype=dtype)
    for inputs, outputs, size in ((512, 256, 24), (256, 128, 48), (128, 64, 96), (64, 32, 64)):
        for kernel, stride in ((2, 2), (4, 2), (3, 1)):
            for dtype, batch in itertools.product(("fp32", "bf16"), (2, 12, 48)):
                yield from probe(
                    batch,
                    inputs,
                    outputs,
                    (size, size),
                    kernel,
                    stride,
                    transposed=True,
                    dtype=dtype,
                    bias=True,
                )
    for inputs, outputs, length, kernel, stride in (
        (1, 128, 8000, 7, 1), (128, 256, 8000, 3, 1), (128, 128, 8000, 1, 1), (80, 512, 3000, 3, 1), (512, 512, 3000, 3, 2),
        (256, 256, 1000, 5, 1), (64, 128, 16000, 8, 4),
    ):  # fmt: skip
        for dtype, batch in itertools.product(("fp32", "fp16", "bf16"), (4, 24)):
            yield from probe(batch, inputs, outputs, (length,), kernel, stride, dtype=dtype, bias=True)
    for dilation, dtype in itertools.product((2, 8, 64), ("fp32", "bf16")):
        yield from probe(12, 128, 256, (8000,), 3, dilation=dilation, dtype=dtype, bias=True)
    for inputs, outputs, side, depth in (
        (3, 32, 112, 16),
        (32, 64, 56, 16),
        (64, 128, 28, 8),
        (128, 256, 14, 4),
    ):
        for dtype, batch in itertools.product(("fp32", "fp16"), (2, 8)):
            yield from probe(batch, inputs, outputs, (depth, side, side), 3, dtype=dtype)
    # and at random, so that a rule is not fitted to the habits of known networks
    dice = random.Random(7)
    for _ in range(420):
        kernel = dice.choice((1, 1, 3, 3, 3, 5, 7))
        inputs, outputs = (
            dice.choice((8, 12, 24, 32, 48, 64, 80, 100, 128, 160, 256, 320, 512, 768, 1024)) for _ in "io"
        )
        size = dice.choice((4, 7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 96, 112, 128))
        batch = dice.choice((1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128, 256))
        stride = dice.choice((1, 1, 1, 2))
        depthwise = dice.random() < 0.12
        yield from probe(
            batch, inputs, inputs if depthwise else outputs, (size, size), kernel, stride, inputs if depthwise else 1,
            dtype=dice.choice(("fp32", "fp32", "fp16", "bf16")), last=dice.random() < 0.3, bias=dice.random() < 0.5,
        )  # fmt: skip


# Recurrent layers


def _recurrent() -> Iterator[tuple[str, Callable[[], Any]]]:
    def run(kind: str, layers: int, width: int, hidden: int, batch: int, length: int, dtype: torch.dtype, both: bool,
            dropout: float, training: bool, first: bool) -> None:  # fmt: skip
        layer = getattr(nn, kind)(
            width,
            hidden,
            layers,
            batch_first=first,
            bidirectional=both,
            dropout=dropout,
            device="cuda",
            dtype=dtype,
        )
        layer.train(training)
        x = (
            _tensor(batch, length, width, dtype=dtype)
            if first
            else _tensor(length, batch, width, dtype=dtype)
        )
        out, _ = layer(x)
        if training:
            out.backward(torch.empty_like(out))

    shapes = [
        (1, 128, 128, 32, 50), (2, 650, 650, 20, 70), (2, 650, 650, 160, 70), (2, 650, 650, 80, 70), (2, 650, 650, 160, 35),
        (1, 650, 650, 160, 70), (3, 256, 512, 128, 200), (3, 256, 512, 32, 200), (2, 300, 400, 48, 150), (1, 512, 1024, 64, 100),
        (2, 512, 1024, 64, 100), (4, 256, 256, 64, 100), (1, 64, 2048, 16, 30), (2, 1024, 512, 256, 64), (1, 80, 320, 16, 800),
    ]  # fmt: skip
    for kind, shape, dtype in itertools.product(("LSTM", "GRU", "RNN"), shapes, ("fp32", "fp16", "bf16")):
        if kind == "RNN" and dtype != "fp32":
            continue
        for both, dropout, training, first in (
            (False, 0.0, True, True), (True, 0.0, True, True), (False, 0.3, True, False), (False, 0.0, False, True),
        ):  # fmt: skip
            if (both or dropout or not training) and (dtype == "bf16" or kind == "RNN"):
                continue
            layers, width, hidden, batch, length = shape
            arguments = (kind, *shape, HALF[dtype], both, dropout if layers > 1 else 0.0, training, first)
            name = (
                f"{kind} l{layers} {width}->{hidden} n{batch} t{length} {dtype}{' both' if both else ''}"
                f"{' dropout' if dropout else ''}{'' if training else ' eval'}{' first' if first else ''}"
            )
            yield name, lambda arguments=arguments: run(*arguments)


# Attention


def _attention() -> Iterator[tuple[str, Callable[[], Any]]]:
    def run(batch: int, heads: int, groups: int, queries: int, keys: int, width: int, dtype: torch.dtype, mask: str,
            dropout: float, packed: bool) -> None:  # fmt: skip
        if packed:
            whole = _tensor(batch, queries, 3, heads, width, dtype=dtype)
            q, k, v = (whole[:, :, i].transpose(1, 2) for i in range(3))
        else:
            q = _tensor(batch, heads, queries, width, dtype=dtype)
            k, v = (_tensor(batch, groups, keys, width, dtype=dtype) for _ in "kv")
        bias = None
        if mask == "bool":
            bias = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device="cuda")
        elif mask == "float":
            bias = torch.zeros(1, heads, queries, keys, dtype=dtype, device="cuda")
        elif mask == "learned":
            bias = _tensor(1, heads, queries, keys, dtype=dtype)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout, is_causal=mask == "causal", enable_gqa=heads != groups
        )
        out.backward(torch.empty_like(out))

    for (batch, heads, groups, queries, keys, width), dtype, mask, dropout in itertools.product(
        [
            (4, 12, 12, 512, 512, 64), (16, 12, 12, 197, 197, 64), (8, 12, 12, 128, 128, 64), (2, 16, 4, 768, 768, 64),
            (2, 8, 8, 1500, 1500, 64), (2, 8, 8, 1024, 1024, 128), (4, 4, 4, 64, 64, 96), (2, 4, 4, 256, 256, 256),
            (8, 8, 8, 128, 256, 64), (4, 6, 6, 100, 100, 32), (2, 3, 3, 333, 333, 40), (1, 8, 8, 4096, 4096, 64),
            (2, 8, 8, 512, 512, 20),
        ],
        ("fp32", "fp16", "bf16"),
        ("none", "causal", "bool", "float", "learned"),
        (0.0, 0.1),
    ):  # fmt: skip
        if mask == "causal" and queries != keys:
            continue
        for packed in (False, True):
            if packed and (queries != keys or heads != groups or mask in ("float", "learned")):
                continue
            arguments = (batch, heads, groups, queries, keys, width, HALF[dtype], mask, dropout, packed)
            name = f"sdpa n{batch} h{heads}/{groups} q{queries} k{keys} d{width} {dtype} {mask} p{dropout}{' packed' if packed else ''}"
            yield name, lambda arguments=arguments: run(*arguments)


# Everything else


def _others() -> Iterator[tuple[str, Callable[[], Any]]]:
    def both(name: str, make: Callable[[], Tensor | tuple[Any, ...]]) -> tuple[str, Callable[[], Any]]:
        def run() -> None:
            out = make()
            out = out[0] if isinstance(out, tuple) else out
            if out.requires_grad:
                out.backward(torch.empty_like(out))

        return name, run

    for rows, columns in ((8192, 4096), (2048, 3072), (1024, 768), (301056, 384), (12608, 2304), (100, 10), (50000, 33),
                          (4096, 1), (7, 100000), (64, 1000), (1, 50257), (4096, 50257)):  # fmt: skip
        for dtype in ("fp32", "bf16"):

            def tall(rows: int = rows, columns: int = columns, dtype: str = dtype) -> Tensor:
                return _tensor(rows, columns, dtype=HALF[dtype], grad=False)

            for operation in ("sum", "mean", "amax", "norm", "var", "argmax", "logsumexp", "prod"):
                for dim in (0, 1):
                    yield both(
                        f"{operation}{dim} {rows}x{columns} {dtype}",
                        lambda tall=tall, operation=operation, dim=dim: getattr(torch, operation)(
                            tall(), dim=dim
                        ),
                    )
                yield both(
                    f"{operation} all {rows}x{columns} {dtype}",
                    lambda tall=tall, operation=operation: (
                        getattr(torch, operation)(tall())
                        if operation != "logsumexp"
                        else torch.logsumexp(tall(), (0, 1))
                    ),
                )
    for count, channels, side in ((64, 64, 56), (16, 512, 14), (8, 3, 224), (4, 21, 256), (256, 128, 28)):
        for dtype, last in itertools.product(("fp32", "fp16", "bf16"), (False, True)):

            def picture(
                count: int = count,
                channels: int = channels,
                side: int = side,
                dtype: str = dtype,
                last: bool = last,
                grad: bool = True,
            ) -> Tensor:
                x = _tensor(count, channels, side, side, dtype=HALF[dtype], grad=False)
                return (x.to(memory_format=torch.channels_last) if last else x).requires_grad_(grad)

            tag = f"{count}x{channels}x{side} {dtype}{' last' if last else ''}"
            yield both(f"sum 0,2,3 {tag}", lambda picture=picture: picture(grad=False).sum((0, 2, 3)))
            yield both(
                f"batch_norm {tag}",
                lambda picture=picture, channels=channels: nn.BatchNorm2d(channels, device="cuda")(picture()),
            )
            yield both(
                f"batch_norm same {tag}",
                lambda picture=picture, channels=channels, dtype=dtype: nn.BatchNorm2d(
                    channels, device="cuda", dtype=HALF[dtype]
                )(picture()),
            )
            if channels % 16 == 0:
                yield both(
                    f"group_norm {tag}",
                    lambda picture=picture, channels=channels, dtype=dtype: nn.GroupNorm(
                        16, channels, device="cuda", dtype=HALF[dtype]
                    )(picture()),
                )
            yield both(
                f"instance_norm {tag}",
                lambda picture=picture, channels=channels: nn.InstanceNorm2d(channels, device="cuda")(
                    picture()
                ),
            )
            yield both(f"max_pool {tag}", lambda picture=picture: F.max_pool2d(picture(), 3, 2, 1))
            yield both(f"avg_pool {tag}", lambda picture=picture: F.avg_pool2d(picture(), 2))
            yield both(f"adaptive_pool {tag}", lambda picture=picture: F.adaptive_avg_pool2d(picture(), 1))
            yield both(f"adaptive_pool 3 {tag}", lambda picture=picture: F.adaptive_avg_pool2d(picture(), 3))
            for mode in ("nearest", "bilinear", "bicubic"):
                yield both(
                    f"interpolate {mode} {tag}",
                    lambda picture=picture, mode=mode: F.interpolate(picture(), scale_factor=2, mode=mode),
                )
            yield both(f"dropout2d {tag}", lambda picture=picture: F.dropout2d(picture(), 0.2))
            yield both(
                f"pixel_unshuffle {tag}",
                lambda picture=picture: (
                    F.pixel_unshuffle(picture(), 2) if picture().shape[-1] % 2 == 0 else picture()
                ),
            )
            yield both(f"pad {tag}", lambda picture=picture: F.pad(picture(), (1, 1, 1, 1), mode="reflect"))
            yield both(
                f"unfold {tag}",
                lambda picture=picture: (
                    F.unfold(picture(), 3, padding=1) if picture().numel() < 1 << 23 else picture()
                ),
            )
            yield both(f"softmax 1 {tag}", lambda picture=picture: F.softmax(picture(), 1))
            yield both(
                f"cross_entropy {tag}",
                lambda picture=picture, channels=channels: F.cross_entropy(
                    picture(),
                    torch.randint(0, channels, (picture().shape[0], *picture().shape[2:]), device="cuda"),
                ),
            )
            yield both(
                f"grid_sample {tag}",
                lambda picture=picture, dtype=dtype: F.grid_sample(
                    picture(),
                    torch.rand(picture().shape[0], 32, 32, 2, device="cuda", dtype=HALF[dtype]),
                    align_corners=False,
                ),
            )
    for shape, dtype in itertools.product(
        ((8, 512, 768), (64, 197, 768), (96, 56, 56, 96), (4096, 128), (16, 50, 5000)),
        ("fp32", "fp16", "bf16"),
    ):

        def hidden(shape: tuple[int, ...] = shape, dtype: str = dtype) -> Tensor:
            return _tensor(*shape, dtype=HALF[dtype])

        tag = f"{'x'.join(map(str, shape))} {dtype}"
        width = shape[-1]
        yield both(
            f"layer_norm {tag}",
            lambda hidden=hidden, width=width, dtype=dtype: nn.LayerNorm(
                width, device="cuda", dtype=HALF[dtype]
            )(hidden()),
        )
        yield both(
            f"layer_norm no affine {tag}", lambda hidden=hidden, width=width: F.layer_norm(hidden(), (width,))
        )
        yield both(
            f"rms_norm {tag}",
            lambda hidden=hidden, width=width, dtype=dtype: nn.RMSNorm(
                width, device="cuda", dtype=HALF[dtype]
            )(hidden()),
        )
        yield both(
            f"linear {tag}",
            lambda hidden=hidden, width=width, dtype=dtype: nn.Linear(
                width, 512, device="cuda", dtype=HALF[dtype]
            )(hidden()),
        )
        yield both(
            f"linear no bias {tag}",
            lambda hidden=hidden, width=width, dtype=dtype: nn.Linear(
                width, 512, bias=False, device="cuda", dtype=HALF[dtype]
            )(hidden()),
        )
        for name in (
            "gelu",
            "silu",
            "relu",
            "softmax",
            "log_softmax",
            "mish",
            "elu",
            "softplus",
            "hardswish",
            "leaky_relu",
            "sigmoid",
            "tanh",
            "glu",
        ):
            options = {"dim": -1} if "softmax" in name else {}
            yield both(
                f"{name} {tag}",
                lambda hidden=hidden, name=name, options=options: getattr(F, name)(hidden(), **options),
            )
        yield both(f"dropout {tag}", lambda hidden=hidden: F.dropout(hidden(), 0.1))
        for name in ("cumsum", "sort", "argsort", "median", "logcumsumexp", "cummax", "flip"):
            yield both(
                f"{name} {tag}",
                lambda hidden=hidden, name=name: getattr(torch, name)(
                    hidden(), *(([-1],) if name == "flip" else (-1,))
                ),
            )
        yield both(f"topk {tag}", lambda hidden=hidden: torch.topk(hidden(), 8, -1))
        yield both(f"std {tag}", lambda hidden=hidden: hidden().std(-1))
        yield both(f"norm {tag}", lambda hidden=hidden: hidden().norm())
        yield both(f"normalize {tag}", lambda hidden=hidden: F.normalize(hidden(), dim=-1))
        yield both(f"masked {tag}", lambda hidden=hidden: hidden().masked_fill(hidden() > 0, 0.0))
        yield both(f"masked_select {tag}", lambda hidden=hidden: hidden()[hidden() > 0])
        yield both(
            f"index rows {tag}",
            lambda hidden=hidden: hidden()[
                torch.randint(0, hidden().shape[0], (hidden().shape[0],), device="cuda")
            ],
        )
        yield both(
            f"index_select {tag}",
            lambda hidden=hidden: hidden().index_select(
                0, torch.randint(0, hidden().shape[0], (hidden().shape[0],), device="cuda")
            ),
        )
        yield both(
            f"gather {tag}",
            lambda hidden=hidden: hidden().gather(-1, torch.zeros_like(hidden(), dtype=torch.long)[..., :4]),
        )
        yield both(f"fft {tag}", lambda hidden=hidden: torch.fft.rfft(hidden().float()).abs())
        yield both(f"nonzero {tag}", lambda hidden=hidden: torch.nonzero(hidden().detach() > 1))
        yield both(f"unique {tag}", lambda hidden=hidden: torch.unique(hidden().detach().int()))
        yield both(
            f"multinomial {tag}",
            lambda hidden=hidden: torch.multinomial(hidden().detach().flatten(0, -2).float().softmax(-1), 2),
        )
        yield both(
            f"cross_entropy {tag}",
            lambda hidden=hidden, width=width: F.cross_entropy(
                hidden().flatten(0, -2),
                torch.randint(0, width, (hidden().flatten(0, -2).shape[0],), device="cuda"),
            ),
        )
        yield both(f"einsum {tag}", lambda hidden=hidden: torch.einsum("...d,...d->...", hidden(), hidden()))
        yield both(
            f"matmul {tag}",
            lambda hidden=hidden: (
                hidden() @ hidden().transpose(-1, -2) if hidden().shape[-2] < 1000 else hidden()
            ),
        )
        yield both(
            f"baddbmm {tag}",
            lambda hidden=hidden: (
                torch.baddbmm(
                    torch.zeros((), device="cuda", dtype=hidden().dtype),
                    hidden().flatten(0, -3),
                    hidden().flatten(0, -3).transpose(1, 2),
                )
                if hidden().dim() > 2
                else hidden()
            ),
        )
    for rows, width, count, dtype in itertools.product(
        (1000, 30522, 50257), (64, 768), (512, 3000, 4096, 12288, 32768), ("fp32", "bf16")
    ):
        yield both(
            f"embedding {rows}x{width} {count} {dtype}",
            lambda rows=rows, width=width, count=count, dtype=dtype: nn.Embedding(
                rows, width, device="cuda", dtype=HALF[dtype]
            )(torch.randint(0, rows, (count,), device="cuda")),
        )
    for mode in ("sum", "mean", "max"):
        yield both(
            f"embedding_bag {mode}",
            lambda mode=mode: nn.EmbeddingBag(50000, 64, mode=mode, device="cuda")(
                torch.randint(0, 50000, (4096, 4), device="cuda")
            ),
        )
    for size in (64, 256):
        for name in ("inverse", "cholesky", "svd", "qr", "eigh", "solve", "det", "lstsq"):

            def algebra(name: str = name, size: int = size) -> Any:
                a = _tensor(8, size, size)
                a = a @ a.transpose(1, 2) + 10 * torch.eye(size, device="cuda")
                functions: dict[str, Any] = {
                    "inverse": torch.inverse, "cholesky": torch.linalg.cholesky, "svd": lambda a: torch.linalg.svd(a)[1],
                    "qr": torch.linalg.qr, "eigh": torch.linalg.eigh, "solve": lambda a: torch.linalg.solve(a, a),
                    "det": torch.linalg.det, "lstsq": lambda a: torch.linalg.lstsq(a, a)[0],
                }  # fmt: skip
                return functions[name](a)

            yield both(f"{name} {size}", algebra)
    yield both(
        "ctc_loss",
        lambda: F.ctc_loss(
            _tensor(200, 16, 40).log_softmax(2),
            torch.randint(1, 40, (16, 30), device="cuda"),
            torch.full((16,), 200),
            torch.full((16,), 30),
        ),
    )
    yield both("cdist", lambda: torch.cdist(_tensor(2048, 64), _tensor(1024, 64)))
    yield both(
        "scatter_add",
        lambda: torch.zeros(1000, 64, device="cuda").scatter_add(
            0, torch.randint(0, 1000, (50000, 64), device="cuda"), _tensor(50000, 64)
        ),
    )
    yield both(
        "index_add",
        lambda: torch.zeros(1000, 64, device="cuda").index_add(
            0, torch.randint(0, 1000, (50000,), device="cuda"), _tensor(50000, 64)
        ),
    )
    yield both(
        "index_put accumulate",
        lambda: torch.zeros(1000, 64, device="cuda").index_put(
            (torch.randint(0, 1000, (50000,), device="cuda"),), _tensor(50000, 64), accumulate=True
        ),
    )
    yield both("bincount", lambda: torch.bincount(torch.randint(0, 1000, (50000,), device="cuda")))
    yield both("randperm", lambda: torch.randperm(1_000_000, device="cuda"))
    yield both(
        "repeat_interleave",
        lambda: _tensor(5000, 64).repeat_interleave(torch.randint(1, 4, (5000,), device="cuda"), 0),
    )

    def foreach(name: str) -> Callable[[], Any]:
        def run() -> None:
            with torch.no_grad():
                tensors = [
                    torch.randn(shape, device="cuda")
                    for shape in ((1000, 1000), (5, 7), (300000,), (64, 3, 7, 7))
                ] * 20
                if name == "norm":
                    torch._foreach_norm(tensors)
                elif name == "mul":
                    torch._foreach_mul_(tensors, torch.tensor(0.5, device="cuda"))
                elif name == "stack norm":
                    torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
                else:
                    torch._foreach_max(tensors)

        return run

    for name in ("norm", "mul", "stack norm", "max"):
        yield f"foreach {name}", foreach(name)
