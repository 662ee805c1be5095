"""Draws convolutions at random for text, audio, volumes and large images.

`draw(count)` returns the same list on every machine: (layer, batch, dtype, channels last). Sizes, channels and kernels
are common for such networks, so that the measurements represent networks that were not measured.
"""

import random
from collections.abc import Callable
from typing import NamedTuple


class Layer(NamedTuple):
    """A convolution without its batch, dtype and layout."""

    inputs: int
    outputs: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    grown: int = 0
    """The `output_padding` of a transposed convolution."""


Request = tuple[Layer, int, str, bool]


def draw(count: int, seed: int = 23) -> list[Request]:
    rng = random.Random(seed)
    makers, weights = zip(*KINDS.items(), strict=True)
    requests: list[Request] = []
    for maker in rng.choices(makers, weights, k=count):
        layer = maker(rng)
        last = len(layer.sizes) == 2 and rng.random() < 0.2
        dtype = rng.choice(("float32", "float32", "float16", "bfloat16"))
        requests.append((layer, rng.choice(BATCHES), dtype, last))
    return requests


BATCHES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256)
CHANNELS = (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 288, 320, 384, 448, 512)


def make_layer(
    inputs: int,
    outputs: int,
    sizes: tuple[int, ...],
    kernel: int | tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | None = None,
    dilation: int = 1,
    groups: int = 1,
    transposed: bool = False,
) -> Layer:
    """Return a layer. A single number applies to every dimension. Without `padding`, the layer keeps the size of the
    image."""
    dimensions = len(sizes)
    reach = (kernel,) * dimensions if isinstance(kernel, int) else kernel
    step = (stride,) * dimensions if isinstance(stride, int) else stride
    if padding is None:
        edge = tuple(dilation * (width - 1) // 2 for width in reach)
    else:
        edge = (padding,) * dimensions if isinstance(padding, int) else padding
    return Layer(
        inputs, outputs, sizes, reach, step, edge, (dilation,) * dimensions, groups, transposed
    )  # fmt: skip


def _text(rng: random.Random) -> Layer:
    width = rng.choice((50, 64, 100, 128, 200, 256, 300, 384, 512, 768, 1024))
    outputs = rng.choice((width, width, 2 * width, 64, 100, 128, 256, 512))
    length = rng.choice((32, 50, 64, 100, 128, 200, 256, 400, 512, 1024))
    kernel = rng.choice((1, 2, 3, 3, 3, 4, 5, 5, 7, 9))
    return make_layer(width, outputs, (length,), kernel, padding=rng.choice((kernel // 2, kernel // 2, 0)))


def _sound(rng: random.Random) -> Layer:
    inputs = rng.choice((1, 1, 2, 12, 40, 64, 80, 96, 128, 192, 256, 512))
    outputs = rng.choice((32, 48, 64, 96, 128, 256, 512))
    length = rng.choice((250, 800, 1600, 3000, 4096, 8000, 16000, 32000, 44100))
    kernel, stride = rng.choice(
        ((3, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (8, 4), (9, 1), (10, 5), (15, 2), (16, 8), (31, 1), (80, 4))
    )  # fmt: skip
    dilation = rng.choice((1, 1, 1, 2, 4, 8, 32)) if stride == 1 and kernel <= 7 else 1
    return make_layer(inputs, outputs, (length,), kernel, stride, dilation=dilation)


def _spectrogram(rng: random.Random) -> Layer:
    inputs = rng.choice((1, 1, 2, 16, 32, 32, 48, 64, 96))
    outputs = rng.choice((8, 16, 32, 32, 48, 64, 96, 128))
    kernel = rng.choice(
        ((11, 41), (41, 11), (11, 21), (21, 11), (5, 5), (3, 3), (3, 3), (3, 9), (9, 3), (7, 7), (1, 7), (7, 1), (1, 64), (5, 1))
    )  # fmt: skip
    sizes = (rng.choice((32, 64, 100, 128, 200, 400, 800)), rng.choice((40, 64, 80, 128, 161, 257)))
    if rng.random() < 0.3:
        sizes = (sizes[1], sizes[0])
    return make_layer(inputs, outputs, sizes, kernel, rng.choice(((1, 1), (1, 1), (2, 2), (2, 1), (1, 2))))


def _volume(rng: random.Random) -> Layer:
    inputs = rng.choice((1, 2, 3, 4, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128, 192, 256))
    outputs = rng.choice((3, 16, 24, 32, 48, 64, 96, 128, 256, inputs, 2 * inputs, 2 * inputs))
    side = rng.choice((4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112))
    depth = side if rng.random() < 0.6 else rng.choice((2, 4, 8, 16, 32))
    kernel = rng.choice((3, 3, 3, 3, 3, 1, 2, 5, 7, (1, 3, 3), (3, 1, 1), (1, 7, 7)))
    stride = 2 if kernel == 2 else rng.choice((1, 1, 1, 2))
    return make_layer(inputs, outputs, (depth, side, side), kernel, stride, 0 if kernel == 2 else None)


def _large_picture(rng: random.Random) -> Layer:
    width = rng.choice((32, 48, 56, 64, 64, 64, 96, 128))
    inputs, outputs = rng.choice(((width, width), (width, width), (3, width), (1, width), (width, 3), (width, 12), (width, 4 * width)))  # fmt: skip
    side = rng.choice((41, 48, 64, 72, 96, 100, 120, 128, 144, 160, 192, 240, 256, 320, 384, 512))
    return make_layer(inputs, outputs, (side, side), rng.choice((3, 3, 3, 5, 7, 9)))


def _odd_channels(rng: random.Random) -> Layer:
    inputs = rng.choice(CHANNELS)
    outputs = rng.choice((inputs, inputs, 2 * inputs, rng.choice(CHANNELS)))
    height = rng.choice(
        (
            4,
            5,
            6,
            7,
            8,
            9,
            10,
            12,
            14,
            15,
            16,
            18,
            20,
            24,
            28,
            30,
            32,
            36,
            40,
            48,
            56,
            60,
            64,
            72,
            80,
            96,
            112,
        )
    )
    width = height if rng.random() < 0.7 else rng.choice((8, 16, 25, 32, 50, 64, 100, 128))
    kernel = rng.choice((1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 7, (1, 3), (3, 1), (1, 7), (7, 1)))
    stride = kernel if kernel in (2, 4) else rng.choice((1, 1, 1, 2))
    dilation = rng.choice((1, 1, 1, 2, 4)) if kernel == 3 and stride == 1 else 1
    groups = rng.choice((1, 1, 1, 1, 1, 1, 2, 4, 8)) if inputs % 8 == 0 and outputs % 8 == 0 else 1
    return make_layer(
        inputs, outputs, (height, width), kernel, stride, 0 if kernel in (2, 4) else None, dilation, groups
    )


def _depthwise(rng: random.Random) -> Layer:
    channels = rng.choice((*CHANNELS, 576, 672, 768, 960, 1152))
    if rng.random() < 0.25:
        return make_layer(channels, channels, (rng.choice((64, 200, 500, 1000)),), rng.choice((3, 5, 7, 15, 31)), groups=channels)  # fmt: skip
    side = rng.choice((7, 10, 14, 16, 20, 28, 32, 40, 56, 64, 112))
    return make_layer(channels, channels, (side, side), rng.choice((3, 3, 5, 5, 7, 7, 9)), rng.choice((1, 1, 2)), groups=channels)  # fmt: skip


def _transposed(rng: random.Random) -> Layer:
    inputs = rng.choice((16, 32, 48, 64, 64, 96, 100, 128, 128, 192, 256, 256, 384, 512))
    outputs = rng.choice((inputs, inputs // 2, inputs // 2, inputs // 2, 1, 3, 32, 64))
    kernel, stride, padding = rng.choice(((2, 2, 0), (2, 2, 0), (3, 1, 1), (3, 2, 1), (4, 2, 1), (4, 2, 1), (5, 2, 2), (8, 4, 2), (4, 1, 0)))  # fmt: skip
    dimensions = rng.choice((1, 2, 2, 2, 3))
    side = {
        1: rng.choice((50, 100, 250, 500, 1000, 4000)),
        2: rng.choice((1, 4, 6, 7, 8, 12, 14, 16, 24, 32, 48, 64, 96)),
        3: rng.choice((4, 6, 8, 12, 16, 24, 32)),
    }[dimensions]
    return make_layer(inputs, outputs, (side,) * dimensions, kernel, stride, padding, transposed=True)


KINDS: dict[Callable[[random.Random], Layer], float] = {
    _text: 14,
    _sound: 10,
    _spectrogram: 12,
    _volume: 18,
    _large_picture: 8,
    _odd_channels: 18,
    _depthwise: 5,
    _transposed: 15,
}
