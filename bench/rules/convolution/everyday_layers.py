"""Draws convolutions at random from common networks, at common sizes.

`draw_everyday(count)` returns the same list on every machine. Residual networks, U-Nets, feature pyramids, detectors,
diffusion models, autoencoders and GANs share a small set of layers. They differ in image size, first width, batch size
and dtype.
"""

import random
from collections.abc import Iterator

from bench.rules.convolution.random_layers import Layer, Request, make_layer

BATCHES = (1, 2, 4, 4, 6, 8, 8, 8, 10, 12, 16, 16, 16, 16, 20, 24, 32, 32, 32, 32, 40, 48, 50, 64, 64, 64, 80, 96, 100,
           128, 128, 128, 160, 192, 200, 256, 256, 512)  # fmt: skip
DTYPES = ("float32", "float32", "float32", "float16", "float16", "bfloat16", "bfloat16", "bfloat16")


def draw_everyday(count: int, seed: int = 41) -> list[Request]:
    rng = random.Random(seed)
    families = [sorted(set(family)) for family in (residual(), u_shaped(), pyramids(), detectors(), diffusion(), generative(), inverted())]  # fmt: skip
    requests: list[Request] = []
    for family in rng.choices(families, FREQUENCY, k=count):
        layer = rng.choice(family)
        last = len(layer.sizes) == 2 and rng.random() < 0.15
        requests.append((layer, rng.choice(BATCHES), rng.choice(DTYPES), last))
    return requests


FREQUENCY = (26, 20, 8, 12, 14, 12, 8)


def _square(
    inputs: int, outputs: int, side: int, kernel: int, stride: int = 1, padding: int | None = None,
    dilation: int = 1, groups: int = 1, transposed: bool = False,
) -> Layer:  # fmt: skip
    return make_layer(inputs, outputs, (side, side), kernel, stride, padding, dilation, groups, transposed)


def residual() -> Iterator[Layer]:
    """Yield layers of ResNets: basic, with bottlenecks, and for small images."""
    for picture in (64, 96, 112, 128, 144, 160, 176, 192, 224, 256, 288, 299, 320, 384, 448, 512):
        yield _square(3, 64, picture, 7, 2)
        yield _square(1, 64, picture, 7, 2)
        for level in range(4):
            width, side = 64 << level, -(-picture // (4 << level))
            yield _square(width, width, side, 3)
            yield _square(width, 4 * width, side, 1)
            yield _square(4 * width, width, side, 1)
            if level < 3:
                yield _square(width, 2 * width, side, 3, 2)
                yield _square(width, 2 * width, side, 1, 2)
                yield _square(2 * width, 2 * width, side, 3, 2)
                yield _square(4 * width, 2 * width, side, 1)
                yield _square(4 * width, 8 * width, side, 1, 2)
    for picture in (28, 32, 64, 84):
        for first in (16, 32, 64, 160):
            yield _square(3, first, picture, 3)
            yield _square(1, first, picture, 3)
            for level in range(4):
                width, side = first << level, -(-picture // (1 << level))
                yield _square(width, width, side, 3)
                yield _square(width, 2 * width, side, 3, 2)
                yield _square(width, 2 * width, side, 3)
                yield _square(width, 2 * width, side, 1, 2)
                yield _square(width, 2 * width, side, 5)
    yield from (_square(4, 32, 84, 8, 4, 0), _square(32, 64, 20, 4, 2, 0), _square(64, 64, 9, 3, 1, 0))


def u_shaped() -> Iterator[Layer]:
    for picture in (64, 96, 112, 128, 160, 192, 224, 240, 256, 320, 384, 448, 512):
        for first in (16, 32, 48, 64):
            for edge in (1, 3, 4):
                yield _square(edge, first, picture, 3)
            for classes in (1, 2, 3, 4, 21):
                yield _square(first, classes, picture, 1)
            for level in range(5):
                width, side = first << level, picture >> level
                yield _square(width, width, side, 3)
                yield _square(2 * width, width, side, 3)
                yield _square(3 * width, width, side, 3)
                yield _square(width, 2 * width, side // 2, 3)
                yield _square(2 * width, width, side // 2, 2, 2, 0, transposed=True)
                yield _square(2 * width, width, side, 1)


def pyramids() -> Iterator[Layer]:
    """Yield layers of feature pyramids, and of heads of detectors and segmentation networks."""
    for picture in (256, 320, 384, 512, 640, 800):
        for level in range(5):
            side = picture >> (2 + level)
            yield _square(256, 256, side, 3)
            for outputs in (4, 12, 36, 80, 720, 819):
                yield _square(256, outputs, side, 3)
            for inputs in (256, 512, 1024, 2048):
                yield _square(inputs, 256, side, 1)
        for side in (picture // 8, picture // 16):
            for inputs in (512, 1024, 2048):
                yield _square(inputs, 256, side, 3)
                yield _square(inputs, inputs // 4, side, 3)
                for dilation in (2, 4, 6, 12, 18):
                    yield _square(inputs, 256, side, 3, dilation=dilation)
                    yield _square(inputs // 4, inputs // 4, side, 3, dilation=dilation)


def detectors() -> Iterator[Layer]:
    """Yield layers of one-stage detectors such as YOLO."""
    for picture in (320, 416, 512, 640):
        for first in (16, 24, 32, 48, 64):
            yield _square(3, first, picture, 3, 2)
            yield _square(3, first, picture, 3)
            for level in range(1, 6):
                width, side = first << (level - 1), picture >> level
                for outputs in (width, 2 * width, width // 2):
                    yield _square(width, outputs, side, 3)
                    yield _square(width, outputs, side, 1)
                yield _square(width, 2 * width, side, 3, 2)
                yield _square(2 * width, width, side, 1)
                yield _square(3 * width, 2 * width, side, 1)
                yield _square(width, 255, side, 1)


def diffusion() -> Iterator[Layer]:
    for picture in (28, 32, 64, 96, 128):
        for first in (32, 64, 96, 128, 160, 192, 224, 256, 320):
            for edge in (1, 3, 4):
                yield _square(edge, first, picture, 3)
                yield _square(first, edge, picture, 3)
            for level, factor in enumerate((1, 2, 3, 4)):
                width, side = first * factor, picture >> level
                if side < 4:
                    continue
                for inputs in (width, 2 * width, width + first):
                    yield _square(inputs, width, side, 3)
                    yield _square(inputs, width, side, 1)
                yield _square(width, width, side, 3, 2)
                yield _square(width, 3 * width, side, 1)
                yield _square(width, width + first, side // 2, 3)


def generative() -> Iterator[Layer]:
    """Yield layers of autoencoders, GANs and image-to-image networks."""
    for picture in (28, 32, 64, 128, 256):
        for first in (16, 32, 48, 64, 96, 128):
            for edge in (1, 3):
                for kernel in (3, 7, 9):
                    yield _square(edge, first, picture, kernel)
                    yield _square(first, edge, picture, kernel)
                yield _square(edge, first, picture, 4, 2, 1)
                yield _square(first, edge, picture // 2, 4, 2, 1, transposed=True)
            for level in range(1, 5):
                width, side = first << (level - 1), picture >> level
                if side < 2:
                    continue
                yield _square(width, 2 * width, side, 4, 2, 1)
                yield _square(width, 2 * width, side, 3, 2)
                yield _square(width, 2 * width, side, 4, 1, 1)
                yield _square(2 * width, width, side, 4, 2, 1, transposed=True)
                yield _square(4 * width, width, side, 4, 2, 1, transposed=True)
                yield make_layer(2 * width, width, (side, side), 3, 2, 1, transposed=True)
                yield _square(width, width, side, 3)
                yield _square(width, 4 * width, side, 3)
    for width in (64, 100, 128, 256):
        for outputs in (256, 512, 1024):
            yield _square(width, outputs, 1, 4, 1, 0, transposed=True)
            yield _square(outputs, 1, 4, 4, 1, 0)


def inverted() -> Iterator[Layer]:
    """Yield pointwise layers of inverted residuals, and stems."""
    for picture in (160, 192, 224, 240, 256, 260, 288, 300, 380):
        for outputs in (16, 24, 32, 40, 48):
            yield _square(3, outputs, picture, 3, 2)
        for shrunk, widths in ((2, (16, 24, 32)), (4, (24, 32, 40, 48)), (8, (32, 40, 48, 56)), (16, (64, 80, 88, 112, 120, 136, 160)), (32, (160, 192, 208, 232, 320, 352, 384))):  # fmt: skip
            side = -(-picture // shrunk)
            for width in widths:
                for factor in (3, 4, 6):
                    yield _square(width, factor * width, side, 1)
                    yield _square(factor * width, width, side, 1)
        yield _square(320, 1280, -(-picture // 32), 1)
        yield _square(384, 1536, -(-picture // 32), 1)
