"""Draws random convolutions like those in custom networks.

`draw_practice(count)` returns the same list on every machine. These are layers of small classifiers with odd channels
and no padding, and layers for games, time series, text, audio, volumes, patches and many input bands. There are also
heads, groups, large depthwise kernels and transposed convolutions.
"""

import random
from collections.abc import Callable

from bench.rules.convolution.random_layers import Layer, Request, make_layer

Maker = Callable[[random.Random], Layer]

BATCHES = (1, 2, 4, 8, 8, 10, 12, 16, 16, 16, 20, 24, 32, 32, 32, 32, 48, 50, 64, 64, 64, 64, 96, 100, 100, 128, 128, 128, 128,
           150, 200, 256, 256, 256, 500, 512, 512, 1000, 1024)  # fmt: skip
DTYPES = ("float32",) * 9 + ("float16",) * 5 + ("bfloat16",) * 5 + ("float32_strict",)
"""The dtypes to draw. `float32_strict` is float32 with `torch.backends.cudnn.allow_tf32 = False`."""
PICTURES = (28, 28, 32, 32, 32, 40, 48, 64, 64, 84, 96, 100, 112, 128, 128, 144, 150, 160, 180, 192, 200, 224, 224, 240, 250,
            256, 280, 299, 300, 320, 384)  # fmt: skip
WIDTHS = (4, 6, 8, 8, 10, 12, 15, 16, 16, 16, 18, 20, 24, 24, 25, 30, 32, 32, 32, 32, 36, 40, 48, 50, 60, 64, 64, 64, 64, 72, 80, 96,
          100, 120, 128, 128, 128, 150, 192, 200, 256, 256, 300, 384, 400, 500, 512)  # fmt: skip


def draw_practice(count: int, seed: int = 57, *, seldom: bool = False) -> list[Request]:
    """Return random requests. With `seldom`, the kinds with the largest errors are drawn more often."""
    rng = random.Random(seed)
    makers, weights = zip(*(MAKERS | SELDOM if seldom else MAKERS).items(), strict=True)
    requests: list[Request] = []
    for maker in rng.choices(makers, weights, k=count):
        layer = maker(rng)
        if seldom and rng.random() < 0.5:
            layer = _otherwise(layer, rng)
        last = len(layer.sizes) > 1 and rng.random() < 0.12
        batch = rng.choice(BATCHES if not seldom else BATCHES + OTHER_BATCHES)
        requests.append((layer, batch, rng.choice(DTYPES), last))
    return requests


OTHER_BATCHES = (1, 2, 3, 3, 4, 5, 6, 6, 7, 9, 10, 14, 15, 18, 25, 28, 30, 36, 40, 40, 42, 50, 56, 60, 60, 72, 75, 80, 80, 90, 100, 112, 120, 125,
                 140, 144, 160, 160, 180, 192, 240, 250, 288, 300, 320, 350, 384, 400, 600, 640, 768, 800, 2000, 2048)  # fmt: skip


def _otherwise(layer: Layer, rng: random.Random) -> Layer:
    """Return the layer with a kernel that is not square, another image size, or other channels."""
    sizes = tuple(
        max(reach, round(size * rng.uniform(0.7, 1.4)))
        for size, reach in zip(layer.sizes, layer.kernel, strict=True)
    )
    if rng.random() < 0.5 or layer.groups > 1:
        return layer._replace(sizes=sizes)
    if rng.random() < 0.5 or len(layer.sizes) < 2 or layer.transposed:
        step = rng.choice((4, 5, 10, 12, 20))
        wider = [
            max(step, round(width / step) * step) if width > step else width
            for width in (layer.inputs, layer.outputs)
        ]
        return layer._replace(inputs=wider[0], outputs=wider[1])
    kernel = tuple(rng.choice((1, 2, 3, 3, 3, 5, 5, 7, 7, 9, 11)) for _ in layer.kernel)
    padding = tuple(gap * (reach - 1) // 2 for gap, reach in zip(layer.dilation, kernel, strict=True))
    sizes = tuple(
        max(reach * gap, size) for size, reach, gap in zip(layer.sizes, kernel, layer.dilation, strict=True)
    )
    return layer._replace(sizes=sizes, kernel=kernel, padding=padding)


def _small_classifier(rng: random.Random) -> Layer:
    """Return a layer from a chain of convolution, activation and pooling."""
    side = rng.choice(PICTURES)
    inputs = rng.choice((1, 1, 3, 3, 3))
    outputs = rng.choice(WIDTHS[:30])
    kernel = rng.choice((3, 3, 3, 3, 5, 5, 5, 7, 4, 2))
    padding = rng.choice((0, 0, kernel // 2))
    stride = rng.choice((1, 1, 1, 1, 1, 2))
    for _ in range(rng.choice((0, 0, 1, 1, 2, 2, 3, 4))):
        smaller = ((side + 2 * padding - kernel) // stride + 1) // rng.choice((1, 2, 2))
        if smaller < kernel:
            break
        side, inputs = smaller, outputs
        outputs = rng.choice((inputs, 2 * inputs, 2 * inputs, rng.choice(WIDTHS)))
    return make_layer(inputs, outputs, (side, side), kernel, stride, padding)


def _game(rng: random.Random) -> Layer:
    """Return a layer of an agent that receives images, as in DQN, IMPALA and control from pixels."""
    edge = rng.choice((1, 2, 3, 4, 4, 4, 9, 12))
    side = rng.choice((64, 72, 84, 84, 84, 84, 96, 100))
    first, second = rng.choice(((32, 64), (32, 64), (16, 32), (64, 128), (32, 32)))
    after = (side - 8) // 4 + 1
    last = (after - 4) // 2 + 1
    return rng.choice(
        (
            make_layer(edge, first, (side, side), 8, 4, 0),
            make_layer(edge, first, (side, side), 8, 4, 0),
            make_layer(first, second, (after, after), 4, 2, 0),
            make_layer(first, second, (after, after), 4, 2, 0),
            make_layer(second, rng.choice((second, 64, 512)), (last, last), 3, 1, 0),
            make_layer(edge, first, (side, side), 3),
            make_layer(first, second, (side // 2, side // 2), 3),
            make_layer(second, second, (side // 4, side // 4), 3),
            make_layer(edge, 32, (side, side), 3, 2, 0),
            make_layer(32, 32, ((side - 3) // 2 + 1 - rng.choice((0, 2, 4)),) * 2, 3, 1, 0),
            make_layer(edge, first, (side, side), 5, 2, rng.choice((0, 2))),
            make_layer(first, second, (side // 2, side // 2), 5, 2, rng.choice((0, 2))),
            make_layer(edge, first, (side, side), 4, 2, rng.choice((0, 1))),
            make_layer(first, second, (side // 2 - 1, side // 2 - 1), 4, 2, 0),
        )
    )


def _series(rng: random.Random) -> Layer:
    """Return a layer for sensors, prices or heartbeats, with few channels, long or dilated kernels, and sometimes
    causal padding."""
    inputs = rng.choice((1, 1, 1, 2, 3, 6, 7, 8, 9, 12, 16, 21, *WIDTHS[16:]))
    outputs = rng.choice(WIDTHS[7:])
    length = rng.choice((24, 30, 48, 50, 60, 96, 100, 128, 128, 168, 187, 200, 256, 300, 336, 400, 500, 512, 600, 720, 1000, 1000, 1024,
                          1500, 2000, 2048, 2500, 3000, 4096, 5000))  # fmt: skip
    kernel = rng.choice((2, 2, 3, 3, 3, 3, 5, 5, 7, 7, 8, 9, 11, 13, 15, 16, 17, 21, 25, 31))
    dilation = rng.choice((1, 1, 1, 2, 4, 8, 16, 32, 64, 128)) if kernel <= 9 else 1
    reach = dilation * (kernel - 1)
    way = rng.choice(("same", "same", "valid", "before", "both"))
    if way == "before":
        length += reach
    stride = rng.choice((1, 1, 1, 2, 2, 4)) if dilation == 1 else 1
    if length <= reach:
        length += reach
    padding = {"same": reach // 2, "both": reach}.get(way, 0)
    return make_layer(inputs, outputs, (length,), kernel, stride, padding, dilation)


def _text(rng: random.Random) -> Layer:
    """Return a convolution over words, or over the embedding matrix as an image."""
    width = rng.choice((32, 50, 64, 100, 100, 128, 128, 200, 256, 300, 300, 384, 512, 768))
    outputs = rng.choice((32, 50, 64, 100, 100, 128, 128, 150, 200, 256, 300, 512, width))
    length = rng.choice(
        (20, 32, 40, 50, 60, 64, 80, 100, 120, 128, 150, 200, 250, 256, 300, 400, 500, 512, 1000, 1014, 1024)
    )
    kernel = rng.choice((2, 3, 3, 3, 4, 4, 5, 5, 7))
    if rng.random() < 0.25:
        return make_layer(
            1, outputs, (length, width), (kernel, width), 1, (rng.choice((0, 0, kernel - 1)), 0)
        )
    return make_layer(width, outputs, (length,), kernel, 1, rng.choice((0, 0, kernel // 2)))


def _wave(rng: random.Random) -> Layer:
    """Return a layer for raw audio with strides, or for frames of spectra."""
    length = rng.choice((4000, 8000, 16000, 16000, 22050, 24000, 32000, 44100, 48000))
    width = rng.choice((16, 32, 32, 48, 64, 64, 128, 256, 512))
    shrunk = length // rng.choice((4, 5, 8, 16, 20, 64, 160, 320))
    step = rng.choice((2, 4, 5, 8))
    return rng.choice(
        (
            make_layer(rng.choice((1, 1, 2)), width, (length,), rng.choice((7, 15, 31, 64, 80)), rng.choice((1, 2, 4, 16))),
            make_layer(1, width, (length,), 10, 5, 0),
            make_layer(1, rng.choice((256, 512)), (length,), 16, 8, 0),
            make_layer(width, width, (shrunk,), rng.choice((3, 7)), 1, None, rng.choice((1, 1, 3, 9))),
            make_layer(width, 2 * width, (shrunk,), 2 * step, step, step // 2),
            make_layer(width, rng.choice((width, 2 * width)), (shrunk,), rng.choice((2, 3, 3, 4, 8)), rng.choice((2, 2, 4)), rng.choice((0, 1))),
            make_layer(rng.choice((40, 64, 80, 80, 128)), rng.choice((128, 256, 384, 512)), (rng.choice((100, 200, 400, 800, 1000, 1500, 3000)),), rng.choice((3, 5, 5, 7, 9, 11)), rng.choice((1, 1, 2))),
            make_layer(2 * width, width, (shrunk,), 2 * step, step, step // 2, transposed=True),
            make_layer(512, 1, (shrunk,), 16, 8, 0, transposed=True),
        )
    )  # fmt: skip


def _spectrum(rng: random.Random) -> Layer:
    """Return a layer for spectrograms, which are images that are not square, or a layer along one dimension only."""
    sizes = (rng.choice((40, 64, 64, 80, 96, 128, 128, 161, 201, 256, 257)), rng.choice((63, 87, 94, 100, 101, 128, 157, 173, 200, 216, 256, 300, 313, 431, 500)))  # fmt: skip
    shrunk = rng.choice((1, 1, 2, 2, 4, 8))
    inputs = rng.choice((1, 1, 2)) if shrunk == 1 and rng.random() < 0.6 else rng.choice(WIDTHS[5:])
    kernel = rng.choice((3, 3, 3, 3, 5, 5, 7, (3, 5), (5, 3), (1, 3), (3, 1), (1, 5), (7, 3)))
    padding = rng.choice((None, None, None, 0))
    return make_layer(inputs, rng.choice((*WIDTHS[5:], inputs, 2 * inputs)), (sizes[0] // shrunk, sizes[1] // shrunk), kernel, rng.choice((1, 1, 1, 2)), padding)  # fmt: skip


def _volume(rng: random.Random) -> Layer:
    """Return a layer for medical scans or videos."""
    edge = rng.choice((1, 1, 2, 3, 3, 4))
    width = rng.choice((8, 8, 16, 16, 16, 24, 32, 32, 32, 48, 64, 64, 96, 128, 256))
    inputs, outputs = rng.choice(
        ((edge, width), (width, width), (width, 2 * width), (2 * width, width), (width, edge))
    )
    side = rng.choice((4, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 64, 80, 96, 112, 128))
    depth = rng.choice((side, side, 3, 4, 5, 8, 10, 16, 16, 20, 30, 32))
    kernel = rng.choice((3, 3, 3, 3, 3, 1, 2, 4, 5, (1, 3, 3), (3, 1, 1), (3, 7, 7), (5, 7, 7)))
    stride = 2 if kernel in (2, 4) else rng.choice((1, 1, 1, 2, (1, 2, 2)))
    if kernel == 2 and rng.random() < 0.5:
        return make_layer(2 * width, width, (depth, side, side), 2, 2, 0, transposed=True)
    return make_layer(inputs, outputs, (max(depth, 4), max(side, 7), max(side, 7)), kernel, stride, {2: 0, 4: 1}.get(kernel if isinstance(kernel, int) else 0))  # fmt: skip


def _patches(rng: random.Random) -> Layer:
    patch = rng.choice((2, 4, 4, 7, 8, 8, 14, 16, 16, 16, 32))
    tiles = rng.choice((4, 6, 7, 8, 8, 10, 12, 14, 14, 16, 16, 20, 24, 28, 32, 37))
    width = rng.choice((48, 64, 96, 128, 128, 192, 192, 256, 256, 384, 384, 512, 512, 768, 768, 1024, 1280))
    if rng.random() < 0.1:  # videos in small blocks
        return make_layer(
            3,
            width,
            (rng.choice((8, 16)), patch * tiles, patch * tiles),
            (2, patch, patch),
            (2, patch, patch),
            0,
        )
    if rng.random() < 0.1:  # series
        return make_layer(rng.choice((1, 3, 7, 12)), width, (patch * tiles * 4,), patch, patch, 0)
    return make_layer(rng.choice((1, 1, 3, 3, 3, 3, 4)), width, (patch * tiles,) * 2, patch, patch, 0)


def _head(rng: random.Random) -> Layer:
    """Return a last layer with a kernel of one or three pixels, or a layer over a single pixel, as in gates."""
    outputs = rng.choice(
        (1, 1, 2, 3, 4, 5, 6, 8, 10, 12, 17, 19, 20, 21, 24, 32, 64, 80, 85, 91, 100, 150, 255)
    )
    inputs = rng.choice((8, 16, 16, 32, 32, 48, 64, 64, 64, 96, 128, 128, 256, 256, 512, 768, 1024, 2048))
    side = rng.choice(
        (1, 7, 8, 13, 14, 16, 20, 26, 28, 32, 40, 52, 56, 64, 80, 96, 112, 128, 160, 200, 224, 256, 320)
    )
    if rng.random() < 0.25:
        return make_layer(inputs, max(4, inputs // rng.choice((1, 2, 4, 4, 8, 16, 24))), (1, 1), 1)
    if rng.random() < 0.2:
        return make_layer(inputs, outputs, (side * side,), 1)
    return make_layer(inputs, outputs, (side, side), rng.choice((1, 1, 1, 3)))


def _first(rng: random.Random) -> Layer:
    """Return a first layer for gray images, two views, four latent channels, masks with images, or satellite bands."""
    edge = rng.choice((1, 1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10, 12, 13))
    kernel, stride = rng.choice(
        ((3, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2), (7, 2), (4, 2), (9, 1), (11, 4), (6, 2))
    )
    height = rng.choice(PICTURES)
    width = height if rng.random() < 0.8 else rng.choice((64, 128, 256, 320, 512))
    padding = {4: 1, 11: 2, 6: 2}.get(kernel)
    return make_layer(edge, rng.choice(WIDTHS), (height, width), kernel, stride, padding)


def _grouped(rng: random.Random) -> Layer:
    groups = rng.choice((2, 2, 4, 4, 8, 8, 16, 32))
    inputs = groups * rng.choice((2, 4, 4, 8, 8, 16, 16, 32, 64))
    outputs = rng.choice((inputs, inputs, 2 * inputs))
    dimensions = rng.choice((1, 1, 2, 2, 2, 2, 3))
    side = {
        1: rng.choice((50, 100, 128, 256, 500, 1000, 2000)),
        2: rng.choice((7, 8, 14, 16, 28, 32, 48, 56, 64, 96, 112)),
        3: rng.choice((4, 7, 8, 14, 16, 28, 32)),
    }[dimensions]
    kernel = rng.choice((1, 3, 3, 3, 3, 5, 7))
    return make_layer(inputs, outputs, (side,) * dimensions, kernel, rng.choice((1, 1, 1, 2)), groups=groups)


def _depthwise(rng: random.Random) -> Layer:
    channels = rng.choice(
        (16, 24, 32, 48, 64, 96, 96, 128, 144, 192, 240, 256, 384, 512, 576, 768, 960, 1152)
    )
    dimensions = rng.choice((1, 2, 2, 2, 2, 2, 3))
    side = {
        1: rng.choice((64, 100, 128, 200, 250, 500, 1000, 1500)),
        2: rng.choice((7, 8, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112)),
        3: rng.choice((4, 7, 8, 14, 16, 28)),
    }[dimensions]
    kernel = {
        1: rng.choice((3, 5, 7, 9, 15, 31)),
        2: rng.choice((3, 3, 5, 5, 7, 7, 9, 11, 13, 31)),
        3: rng.choice((3, 3, 5)),
    }[dimensions]
    outputs = rng.choice((channels,) * 6 + (2 * channels,))
    dilation = rng.choice((1,) * 7 + (2,))
    return make_layer(
        channels, outputs, (side,) * dimensions, kernel, rng.choice((1, 1, 1, 2)), None, dilation, channels
    )


def _transposed(rng: random.Random) -> Layer:
    """Return a layer of a decoder. With a kernel size of three, doubling the input size requires output padding."""
    inputs = rng.choice(
        (4, 8, 8, 16, 16, 20, 32, 32, 32, 48, 64, 64, 64, 96, 100, 128, 128, 128, 256, 256, 512, 1024)
    )
    outputs = rng.choice((inputs, inputs // 2, inputs // 2, inputs // 2, 1, 1, 3, 3, 16, 32, 64))
    kernel, stride, padding, grown = rng.choice(
        ((2, 2, 0, 0), (2, 2, 0, 0), (3, 2, 1, 1), (3, 2, 1, 1), (3, 2, 1, 1), (3, 1, 1, 0), (3, 2, 0, 0), (4, 2, 1, 0), (4, 2, 1, 0),
         (4, 1, 0, 0), (5, 2, 2, 1), (5, 1, 0, 0), (6, 2, 2, 0), (7, 2, 3, 1), (4, 4, 0, 0), (8, 4, 2, 0), (16, 8, 4, 0))
    )  # fmt: skip
    dimensions = rng.choice((1, 1, 2, 2, 2, 2, 2, 2, 3))
    side = {
        1: rng.choice((16, 25, 32, 50, 64, 100, 125, 250, 500, 1000, 2000, 4000)),
        2: rng.choice((1, 2, 3, 4, 4, 7, 7, 8, 8, 14, 16, 16, 25, 28, 32, 32, 50, 56, 64, 100, 112)),
        3: rng.choice((2, 4, 5, 6, 8, 10, 12, 16, 24, 32)),
    }[dimensions]
    layer = make_layer(inputs, outputs, (side,) * dimensions, kernel, stride, padding, transposed=True)
    return layer._replace(grown=grown)


def _inner(rng: random.Random) -> Layer:
    """Return a layer from the middle of a residual, U-shaped or dense network, for any image size."""
    side = max(3, rng.choice(PICTURES) // rng.choice((1, 2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 32)))
    width = rng.choice(
        (16, 24, 32, 32, 48, 64, 64, 64, 96, 128, 128, 160, 192, 256, 256, 320, 384, 512, 512, 640, 768, 1024)
    )
    inputs = rng.choice((width, width, width, width // 2, 2 * width, width + width // 2, 4 * width))
    kernel, stride = rng.choice(
        ((3, 1),) * 8 + ((3, 2), (3, 2), (1, 1), (1, 1), (1, 1), (1, 2), (5, 1), (2, 2), (4, 2))
    )
    other = side if rng.random() < 0.8 else max(3, rng.choice(PICTURES) // 8)
    dilation = rng.choice((1,) * 12 + (2, 4)) if (kernel, stride) == (3, 1) else 1
    return make_layer(inputs, width, (side, other), kernel, stride, {2: 0, 4: 1}.get(kernel), dilation)


MAKERS: dict[Maker, float] = {
    _small_classifier: 20,
    _game: 7,
    _series: 11,
    _text: 6,
    _wave: 6,
    _spectrum: 6,
    _volume: 8,
    _patches: 4,
    _head: 7,
    _first: 7,
    _grouped: 4,
    _depthwise: 5,
    _transposed: 9,
    _inner: 20,
}
"""The relative frequency of each kind."""
SELDOM: dict[Maker, float] = {_grouped: 40, _volume: 25, _series: 20, _transposed: 15, _depthwise: 8}
"""The relative frequency of kinds that are rare in networks."""
