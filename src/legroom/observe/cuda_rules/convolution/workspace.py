"""How much workspace cuDNN takes for one convolution.

cuDNN's fast kernels read and write pictures channels last. Given the usual layout they first convert the input and the
weights and convert the result back, each into the workspace: so a convolution holds its input, weights and output a
second time. A kernel of one pixel needs no conversion, as it is a matrix product in either layout; nor do convolutions
over very few values, which have kernels of their own. Gradients of weights are summed over all pixels by many blocks at
once, each into a copy of the weights in single precision.

Which kernel is taken is decided by a heuristic that is not published. What follows was read off 5,500 convolutions
measured on an H200 (cuDNN 9.19), half of them of shapes drawn at random; the thresholds are theirs.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from legroom.gpus.catalog import GpuSpec

TILE = 128
"""Rows and columns of the piece of a matrix product that one block computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One convolution, as far as memory goes. For a transposed one, `inputs` are the channels of what it is given."""

    element: int
    """Bytes of one value."""
    channels_last: bool
    batch: int
    inputs: int
    outputs: int
    input_area: int
    """Pixels of one picture, in one to three dimensions."""
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
        """How many weights there are."""
        return self.inputs * self.outputs * self.kernel_area // self.groups

    @property
    def pointwise(self) -> bool:
        return self.kernel_area == 1

    def padded_weights(self, to: int = 1) -> int:
        """How many weights there are once channels are padded to a multiple of `to`."""
        return up(self.inputs, to) * up(self.outputs, to) * self.kernel_area // self.groups

    def converted(self, *, input: bool = True, weight: bool = True, output: bool = True, to: int = 1) -> int:
        """Bytes of second copies. `to`: channels are padded to a multiple of it."""
        size = 0
        if input:
            size += self.batch * up(self.inputs, to) * self.input_area
        if weight and not self.pointwise:
            size += self.padded_weights(to)
        if output:
            size += self.batch * up(self.outputs, to) * self.output_area
        return size * self.element


class Workspaces(NamedTuple):
    """Bytes for the result and the two gradients."""

    forward: int
    input_gradient: int
    weight_gradient: int


def most(c: Convolution, gpu: GpuSpec) -> Workspaces:
    """What a convolution takes where everything is converted: input, weights and output, channels padded, and for the
    gradient of the weights partial sums. In the survey 3 to 10% of the kernels took more than 2% beyond this; they keep further
    copies of the weights. Channels last there is nothing to convert but what must be padded."""
    if c.channels_last:
        return Workspaces(_padding(c), _padding(c), _padding(c) + partial_weights(c, gpu))
    to = 16 // c.element
    converted = c.converted(to=to) + (c.padded_weights(to) * c.element if c.pointwise else 0)
    return Workspaces(converted, converted, converted + partial_weights(c, gpu))


def forward(c: Convolution) -> int:
    """Bytes of workspace for the result."""
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
    """Bytes of workspace for the gradient of the input."""
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
    """Bytes of workspace for the gradient of the weights."""
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
    """One matrix product for each picture of the batch, each with its own copy of the weights' gradient; where those
    would be many times the pictures themselves, as other convolutions."""
    if c.output_area == 1:
        return 0
    copies = c.batch * c.weights * 4
    converted = c.converted() + c.weights * c.element
    if c.output_area >= TILE:
        alone = copies <= 1.1 * converted
    else:
        alone = copies <= 3.5 * converted and c.batch <= 48
    return copies if alone else converted + partial // 2


def _depthwise_weights(c: Convolution, gpu: GpuSpec) -> int:
    """Only channels last: eight partial sums for each picture and channel; single precision unrolls large kernels and keeps partial
    sums for four blocks on each multiprocessor."""
    if not c.channels_last or c.batch < 8:
        return 0
    if c.element == 2:
        return 8 * c.batch * up(c.inputs, 32) * c.kernel_area * 4
    if c.kernel_area < 49 or c.output_area < 784:
        return 0
    return 8 * c.converted(output=False, weight=False) + 4 * gpu.sm_count * c.weights * 4 + 40 * c.inputs


def one_group(c: Convolution) -> Convolution:
    """What a kernel sees that knows no groups."""
    return replace(c, inputs=c.inputs // c.groups, outputs=c.outputs // c.groups, groups=1)


def width_of_groups(c: Convolution) -> int:
    """Channels of a group, for a kernel that knows groups: as many for the input as for the output."""
    return up(max(c.inputs, c.outputs) // c.groups, 4)


AT_ONCE = 8
"""Groups that are computed side by side by kernels that know none, each with a workspace of its own."""


def whole(c: Convolution) -> int:
    """Bytes that the convolution reads and writes."""
    return c.converted() + (c.weights * c.element if c.pointwise else 0)


def _padding(c: Convolution) -> int:
    """Channels last already: only what must be padded, to 16 bytes a pixel, is copied."""
    multiple = 16 // c.element
    input, output = bool(c.inputs % multiple), bool(c.outputs % multiple)
    if not input and not output:
        return 0
    return c.converted(input=input, output=output, to=multiple)


def partial_weights(c: Convolution, gpu: GpuSpec) -> int:
    """As many copies of the weights as keep all multiprocessors busy, where the weights alone do not."""
    rows, columns = c.outputs, c.inputs * c.kernel_area // c.groups
    tiles = up(rows, TILE) // TILE * (up(columns, TILE) // TILE)
    copies = min(gpu.sm_count // tiles, c.batch * c.output_area // 1024)
    if copies < 2:
        return 0
    return min(copies * rows * columns * 4, gpu.sm_count * TILE * TILE * 4)


def over(number: int, divisor: int) -> int:
    """How many pieces there are, the last one perhaps not whole."""
    return -(-number // divisor)


def up(number: int, multiple: int) -> int:
    """The next multiple."""
    return over(number, multiple) * multiple
