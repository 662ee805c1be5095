"""Rules for the workspace of a convolution, and helper functions that all workspace estimates share.

The fast kernels of cuDNN read and write channels-last images. If the tensors are contiguous, these kernels first
convert the input and the weights to channels-last, and convert the result back at the end. The workspace contains the
converted copies of input, weights and output. Pointwise convolutions need no conversion, because they are matrix
products in either layout. For very small inputs, cuDNN has special kernels.

The gradient of the weights is a sum over all pixels, which many blocks compute together. Each block stores its partial
sum in its own float32 copy of the weights.

cuDNN's choice of kernels is not documented. These rules and thresholds were fitted to 5,500 convolutions measured on an
H200 (cuDNN 9.19), half of them with random shapes.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from legroom.gpus.catalog import GpuSpec

TILE = 128
"""One block computes a tile with this many rows and columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """The sizes of a convolution. For a transposed convolution, `inputs` is the number of channels of its argument."""

    element: int
    channels_last: bool
    batch: int
    inputs: int
    outputs: int
    input_area: int
    """The number of pixels of one image, in one to three dimensions."""
    output_area: int
    kernel_area: int
    stride: int
    groups: int
    transposed: bool = False

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.inputs

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.kernel_area // self.groups

    @property
    def pointwise(self) -> bool:
        return self.kernel_area == 1

    def padded_weights(self, to: int = 1) -> int:
        return round_up(self.inputs, to) * round_up(self.outputs, to) * self.kernel_area // self.groups

    def converted(self, *, input: bool = True, weight: bool = True, output: bool = True, to: int = 1) -> int:
        """Return the size in bytes of converted copies, with channels padded to a multiple of `to`."""
        size = 0
        if input:
            size += self.batch * round_up(self.inputs, to) * self.input_area
        if weight and not self.pointwise:
            size += self.padded_weights(to)
        if output:
            size += self.batch * round_up(self.outputs, to) * self.output_area
        return size * self.element


class ConvWorkspaces(NamedTuple):
    forward: int
    input_gradient: int
    weight_gradient: int


def upper_bound(c: Convolution, gpu: GpuSpec) -> ConvWorkspaces:
    """Return the workspace sizes for kernels that convert all tensors. The workspace contains the input, the weights
    and the output with padded channels, and the partial sums of the weight gradient. Channels-last tensors are padded
    but not converted. In 3 to 10% of the measured cases, additional copies of the weights increased the size by more
    than 2%.
    """
    if c.channels_last:
        return ConvWorkspaces(_padding(c), _padding(c), _padding(c) + partial_weights(c, gpu))
    to = 16 // c.element
    converted = c.converted(to=to) + (c.padded_weights(to) * c.element if c.pointwise else 0)
    return ConvWorkspaces(converted, converted, converted + partial_weights(c, gpu))


def forward(c: Convolution) -> int:
    if c.depthwise:
        return 0
    if c.channels_last:
        return _padding(c)
    half = c.element == 2
    if c.pointwise:
        if c.stride > 1:
            converts = c.inputs * c.outputs > 100_000
        else:
            converts = c.weights > 750_000 or (half and c.output_area < 57 and c.weights > 78_000)
        return c.converted() if converts else 0
    values = c.inputs * c.kernel_area // c.groups
    if values <= (31 if half else 94) and not c.transposed:
        return 0
    if (
        not half
        and c.groups == 1
        and c.weights < 100_000
        and c.outputs > 72
        and c.inputs <= 80
        and not c.transposed
    ):
        return c.converted(output=False)
    return c.converted(to=8 if half else 1)


def input_gradient(c: Convolution) -> int:
    if c.depthwise:
        return 0
    if c.channels_last:
        return _padding(c)
    half = c.element == 2
    if c.pointwise:
        return c.converted() if c.weights > (750_000 if c.stride == 1 else 106_000) else 0
    if c.weights <= 5_000:
        return 0
    return c.converted(to=8 if half else 1)


def weight_gradient(c: Convolution, gpu: GpuSpec) -> int:
    half = c.element == 2
    if c.depthwise:
        return _depthwise_weights(c, gpu)
    partial = partial_weights(c, gpu)
    if c.channels_last:
        return partial + _padding(c)
    if c.pointwise and c.stride == 1:
        return _pointwise_weights(c, partial)
    if not half and c.inputs * c.kernel_area // c.groups <= 60 and not c.pointwise:
        return 0
    return c.converted(to=8 if half else 1) + partial


def _pointwise_weights(c: Convolution, partial: int) -> int:
    """Return the workspace size in bytes for a pointwise convolution. Each image has its own matrix product and its own
    copy of the weight gradient. If these copies would be much larger than the images, cuDNN uses another kernel, whose
    workspace contains converted tensors and partial sums.
    """
    if c.output_area == 1:
        return 0
    copies = c.batch * c.weights * 4
    converted = c.converted() + c.weights * c.element
    if c.output_area >= TILE:
        per_image = copies <= 1.1 * converted
    else:
        per_image = copies <= 3.5 * converted and c.batch <= 48
    return copies if per_image else converted + partial // 2


def _depthwise_weights(c: Convolution, gpu: GpuSpec) -> int:
    """Return the size in bytes of the partial sums for channels-last tensors. Each image and channel has eight partial
    sums. For float32 tensors and large convolution kernels, the image is unrolled, and each of four blocks per SM has
    its own partial sums.
    """
    if not c.channels_last or c.batch < 8:
        return 0
    if c.element == 2:
        return 8 * c.batch * round_up(c.inputs, 32) * c.kernel_area * 4
    if c.kernel_area < 49 or c.output_area < 784:
        return 0
    return 8 * c.converted(output=False, weight=False) + 4 * gpu.sm_count * c.weights * 4 + 40 * c.inputs


def one_group(c: Convolution) -> Convolution:
    return replace(c, inputs=c.inputs // c.groups, outputs=c.outputs // c.groups, groups=1)


def group_width(c: Convolution) -> int:
    """Return the number of channels per group that kernels with group support use, for both inputs and outputs."""
    return round_up(max(c.inputs, c.outputs) // c.groups, 4)


PARALLEL_GROUPS = 8
"""Kernels without group support compute this number of groups at the same time, each with its own workspace."""


def tensor_bytes(c: Convolution) -> int:
    return c.converted() + (c.weights * c.element if c.pointwise else 0)


def _padding(c: Convolution) -> int:
    """Return the size of the padded copies in bytes. Channels-last tensors are copied only if their channels must be
    padded to 16 bytes.
    """
    multiple = 16 // c.element
    input, output = bool(c.inputs % multiple), bool(c.outputs % multiple)
    if not input and not output:
        return 0
    return c.converted(input=input, output=output, to=multiple)


def partial_weights(c: Convolution, gpu: GpuSpec) -> int:
    """Return the size in bytes of the partial weight gradients. Their number is chosen to keep all SMs busy."""
    rows, columns = c.outputs, c.inputs * c.kernel_area // c.groups
    tiles = round_up(rows, TILE) // TILE * (round_up(columns, TILE) // TILE)
    copies = min(gpu.sm_count // tiles, c.batch * c.output_area // 1024)
    if copies < 2:
        return 0
    return min(copies * rows * columns * 4, gpu.sm_count * TILE * TILE * 4)


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def round_up(number: int, multiple: int) -> int:
    return ceil_div(number, multiple) * multiple
