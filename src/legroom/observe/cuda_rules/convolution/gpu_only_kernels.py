"""Kernels that cuDNN puts first, but cannot offer where there is no GPU: which they are, and what they take.

Some kernels have to be compiled by the driver or leave their products to cuBLAS. Asked about a GPU that is only described, cuDNN
passes over them, and only its log says so (`convolution_library.overhear`). On a real one it would have taken the first of them that can compute the convolution.
What they take does not depend on the GPU: pieces of pictures as Winograd's or Fourier's way has them, or the weights' gradient once
for each picture. Read off 19,000 answers of an H200's cuDNN 9.19; the numbers of kernels are that version's.
"""

from collections.abc import Callable
from enum import Enum, auto
from math import prod
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution.cudnn_library import Kind, Refusal
from legroom.observe.cuda_rules.convolution.recorded_table import Layer
from legroom.observe.cuda_rules.convolution.split_k import turned
from legroom.observe.cuda_rules.convolution.workspace import AT_ONCE, Convolution, one_group, over, up


class Way(Enum):
    """How a kernel computes."""

    PRODUCT = auto()
    """cuBLAS multiplies."""
    WINOGRAD = auto()
    FOURIER = auto()
    """Of whole pictures."""
    FOURIER_TILES = auto()
    """Of pieces of 32 × 32."""
    COMPILED = auto()
    """Directly, by a kernel that is compiled for it and keeps nothing."""
    SUMMED = auto()
    """The same, but for a weight of one channel its sums are kept."""


WAYS = {
    (Kind.FORWARD, 3): Way.FOURIER,
    (Kind.FORWARD, 5): Way.COMPILED,
    (Kind.FORWARD, 6): Way.WINOGRAD,
    (Kind.FORWARD, 58): Way.PRODUCT,
    (Kind.INPUT_GRADIENT, 6): Way.COMPILED,
    (Kind.INPUT_GRADIENT, 7): Way.WINOGRAD,
    (Kind.INPUT_GRADIENT, 50): Way.FOURIER_TILES,
    (Kind.INPUT_GRADIENT, 63): Way.PRODUCT,
    (Kind.WEIGHT_GRADIENT, 16): Way.SUMMED,
    (Kind.WEIGHT_GRADIENT, 17): Way.WINOGRAD,
    (Kind.WEIGHT_GRADIENT, 18): Way.FOURIER,
    (Kind.WEIGHT_GRADIENT, 19): Way.COMPILED,
    (Kind.WEIGHT_GRADIENT, 62): Way.PRODUCT,
}
"""By operation, as it is in truth for transposed convolutions, and cuDNN's number. No other kernel needs a GPU to be offered."""


class Asked(NamedTuple):
    """One operation of a convolution, as these kernels see it: a transposed one is turned around."""

    operation: Kind
    layer: Layer
    c: Convolution
    inputs: int
    outputs: int
    before: tuple[int, ...]
    """Sizes of a picture; over one dimension they are one pixel high."""
    after: tuple[int, ...]
    kernel: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def pictures(self) -> int:
        """Channels of all that is read and written."""
        return self.c.batch * (self.inputs + self.outputs)

    @property
    def kernels(self) -> int:
        return self.inputs * self.outputs // self.c.groups


def asked(operation: Kind, layer: Layer, c: Convolution, output_sizes: tuple[int, ...]) -> Asked:
    inner, outer, inputs, outputs = layer.sizes, output_sizes, c.inputs, c.outputs
    if c.transposed:
        inner, outer, inputs, outputs = outer, inner, outputs, inputs
    padding = layer.padding or (0,) * len(layer.sizes)
    lone = len(layer.sizes) == 1
    return Asked(
        turned(operation, c.transposed), layer, c, inputs, outputs,
        (1, *inner) if lone else inner, (1, *outer) if lone else outer,
        (1, *layer.kernel) if lone else layer.kernel, (0, *padding) if lone else padding,
    )  # fmt: skip


def first_hidden(one: Asked, refused: list[Refusal]) -> Way | None:
    """The first of the kernels that cuDNN passed over which a real GPU would have run."""
    for refusal in refused:
        way = WAYS.get((one.operation, refusal.engine))
        if way is not None and _RUNS[way](one, refusal):
            return way
    return None


def _multiplies(one: Asked, _: Refusal) -> bool:
    largest = max(one.inputs * prod(one.before), one.outputs * prod(one.after)) * one.c.batch
    plain = one.c.pointwise and max(one.layer.stride) == 1 and not any(one.padding) and one.c.groups == 1
    return plain and largest < 2**31 and one.layer.dtype != "float32_strict"


def _transforms_pieces(one: Asked, _: Refusal) -> bool:
    as_usual = not one.c.channels_last or one.operation == Kind.WEIGHT_GRADIENT
    return as_usual and one.kernel in ((3, 3), (5, 5)) and _steps_by_one(one)


def _transforms_pictures(one: Asked, _: Refusal) -> bool:
    return max(_padded(one)) <= _LARGEST_PICTURE and one.layer.dtype != "bfloat16" and _steps_by_one(one)


def _transforms_tiles(one: Asked, _: Refusal) -> bool:
    return max(one.kernel) <= TILE and one.layer.dtype != "bfloat16" and _steps_by_one(one)


def _is_compiled(_: Asked, refusal: Refusal) -> bool:
    return _NO_DRIVER in refusal.words


_RUNS: dict[Way, Callable[[Asked, Refusal], bool]] = {
    Way.PRODUCT: _multiplies,
    Way.WINOGRAD: _transforms_pieces,
    Way.FOURIER: _transforms_pictures,
    Way.FOURIER_TILES: _transforms_tiles,
    Way.COMPILED: _is_compiled,
    Way.SUMMED: _is_compiled,
}
_NO_DRIVER = "libcuda == nullptr"
"""What the log says where only the driver is missing."""
_LARGEST_PICTURE = 256


def _steps_by_one(one: Asked) -> bool:
    return len(one.kernel) == 2 and max(one.layer.stride) == max(one.layer.dilation) == 1


def bytes_of(way: Way, one: Asked) -> int | None:
    """Bytes; None where they were not found out."""
    if way == Way.COMPILED:
        return 0
    if way == Way.SUMMED:
        return _summed(one)
    if one.c.groups > 1:
        return _in_groups(way, one)
    if one.c.channels_last and way == Way.PRODUCT:
        return None
    if way == Way.PRODUCT and 1 in (one.c.batch, prod(one.after)):
        return None  # a single product, which cuBLAS may split
    match way:
        case Way.PRODUCT:
            return one.c.batch * one.kernels * 4 if one.operation == Kind.WEIGHT_GRADIENT else 0
        case Way.WINOGRAD:
            size = _winograd(one)
        case Way.FOURIER:
            size = _fourier(one)
        case Way.FOURIER_TILES:
            size = _fourier_tiles(one)
    return size + _as_usual(one) if one.c.channels_last else size


def _in_groups(way: Way, one: Asked) -> int | None:
    """These kernels know no groups: some run side by side, and Fourier's are given copies of theirs."""
    c = one_group(one.c)
    alone = one._replace(c=c, inputs=one.inputs // one.c.groups, outputs=one.outputs // one.c.groups)
    size = bytes_of(way, alone)
    if size is None:
        return None
    if way in (Way.FOURIER, Way.FOURIER_TILES) and c.batch > 1 and not c.channels_last:
        size += c.converted(weight=False) + 16
    return min(one.c.groups, AT_ONCE) * size


def _summed(one: Asked) -> int:
    """Of weights that see one channel each eight sums for each picture, of 32 channels together."""
    return 0 if not one.c.depthwise else 8 * one.c.batch * up(one.inputs, 32) * prod(one.kernel) * 4


def _as_usual(one: Asked) -> int:
    """All that these kernels read and write, in the usual layout."""
    return one.c.converted() + 16


def _winograd(one: Asked) -> int:
    """Pieces of all pictures and the weights so, in single precision. For kernels of 3 × 3 pieces are of 6 × 6 and 4 × 4 of
    their pixels count; for 5 × 5 of 13 × 13 and 9 × 9."""
    side, step = (6, 4) if one.kernel == (3, 3) else (13, 9)
    sizes = one.before if one.operation == Kind.INPUT_GRADIENT else one.after
    batch = one.c.batch
    if side == 13 or one.operation != Kind.WEIGHT_GRADIENT:
        batch = up(batch, 16)
    pieces = batch * prod(over(size, step) for size in sizes)
    return side * side * 4 * ((one.inputs + one.outputs) * pieces + one.kernels)


def _fourier(one: Asked) -> int:
    """Frequencies of what is read and of what is made, whichever are more, twice, as they are turned around; and the weights, or the
    gradient, once more as they are."""
    side = 16
    while side < max(_padded(one)):
        side *= 2
    batch = one.c.batch
    if one.operation == Kind.FORWARD:
        held = max(batch * one.inputs + one.kernels, batch * one.outputs)
        plain = one.kernels * prod(one.kernel) * 4
    else:
        held = max(one.pictures, one.kernels)
        plain = batch * one.outputs * prod(one.after) * 4
    return 2 * _frequencies(side) * held + plain


def _fourier_tiles(one: Asked) -> int:
    """Frequencies of one tile of everything; of pictures that have several, of two."""
    tiles = 1 if max(_padded(one)) <= TILE else 2
    return _frequencies(TILE) * (tiles * one.pictures + one.kernels)


TILE = 32


def _frequencies(side: int) -> int:
    """Bytes of a picture's: half of them, as pictures are real."""
    return 8 * side * (side // 2 + 1)


def _padded(one: Asked) -> list[int]:
    return [size + 2 * edge for size, edge in zip(one.before, one.padding, strict=True)]
