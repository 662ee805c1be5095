"""Kernels that cuDNN skips without a GPU, and their workspaces.

Some cuDNN kernels are compiled by the driver, and others call cuBLAS. If cuDNN receives only a description of a GPU, it
skips both kinds of kernels and logs the skipped kernels (`cudnn_library.captured_log`). A real GPU would run the first
of these kernels that can compute the convolution.

The workspaces of these kernels do not depend on the GPU. A workspace contains tiles of images, as in Winograd or FFT
algorithms, or one weight gradient per image. The formulas were derived from 19,000 queries to cuDNN 9.19 on an H200.
The kernel numbers apply to cuDNN 9.19.
"""

from collections.abc import Callable
from enum import Enum, auto
from math import prod
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution.cudnn_library import ConvOperation, SkippedKernel
from legroom.observe.cuda_rules.convolution.recorded_table import ConvLayer
from legroom.observe.cuda_rules.convolution.split_k import actual_operation
from legroom.observe.cuda_rules.convolution.workspace_rules import (
    PARALLEL_GROUPS,
    Convolution,
    ceil_div,
    one_group,
    round_up,
)


class Algorithm(Enum):
    """The algorithm of a kernel. The forest file contains the names of the members."""

    PRODUCT = auto()
    """A matrix product by cuBLAS."""
    WINOGRAD = auto()
    FOURIER = auto()
    """FFT of whole images."""
    FOURIER_TILES = auto()
    """FFT of 32 × 32 tiles."""
    COMPILED = auto()
    """A direct kernel that is compiled at run time and needs no workspace."""
    SUMMED = auto()
    """A direct kernel that is compiled at run time, and that stores partial sums in its workspace for depthwise
    convolutions.
    """


ALGORITHMS = {
    (ConvOperation.FORWARD, 3): Algorithm.FOURIER,
    (ConvOperation.FORWARD, 5): Algorithm.COMPILED,
    (ConvOperation.FORWARD, 6): Algorithm.WINOGRAD,
    (ConvOperation.FORWARD, 58): Algorithm.PRODUCT,
    (ConvOperation.INPUT_GRADIENT, 6): Algorithm.COMPILED,
    (ConvOperation.INPUT_GRADIENT, 7): Algorithm.WINOGRAD,
    (ConvOperation.INPUT_GRADIENT, 50): Algorithm.FOURIER_TILES,
    (ConvOperation.INPUT_GRADIENT, 63): Algorithm.PRODUCT,
    (ConvOperation.WEIGHT_GRADIENT, 16): Algorithm.SUMMED,
    (ConvOperation.WEIGHT_GRADIENT, 17): Algorithm.WINOGRAD,
    (ConvOperation.WEIGHT_GRADIENT, 18): Algorithm.FOURIER,
    (ConvOperation.WEIGHT_GRADIENT, 19): Algorithm.COMPILED,
    (ConvOperation.WEIGHT_GRADIENT, 62): Algorithm.PRODUCT,
}
"""The algorithm of each kernel, by `actual_operation` and cuDNN's number for the kernel. cuDNN lists all other kernels
even without a GPU.
"""


class KernelProblem(NamedTuple):
    """The forward pass or a gradient of a convolution, with the sizes that determine the workspace of a kernel that
    cuDNN skips without a GPU. A transposed convolution is treated as the gradient of an ordinary convolution.
    """

    operation: ConvOperation
    layer: ConvLayer
    c: Convolution
    inputs: int
    outputs: int
    input_size: tuple[int, ...]
    output_size: tuple[int, ...]
    kernel: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def planes(self) -> int:
        """The number of channels in all input and output images."""
        return self.c.batch * (self.inputs + self.outputs)

    @property
    def kernels(self) -> int:
        return self.inputs * self.outputs // self.c.groups


def kernel_problem(
    operation: ConvOperation, layer: ConvLayer, c: Convolution, output_sizes: tuple[int, ...]
) -> KernelProblem:
    inner, outer, inputs, outputs = layer.sizes, output_sizes, c.inputs, c.outputs
    if c.transposed:
        inner, outer, inputs, outputs = outer, inner, outputs, inputs
    padding = layer.padding or (0,) * len(layer.sizes)
    is_1d = len(layer.sizes) == 1
    return KernelProblem(
        actual_operation(operation, c.transposed), layer, c, inputs, outputs,
        (1, *inner) if is_1d else inner, (1, *outer) if is_1d else outer,
        (1, *layer.kernel) if is_1d else layer.kernel, (0, *padding) if is_1d else padding,
    )  # fmt: skip


def first_gpu_only(problem: KernelProblem, skipped: list[SkippedKernel]) -> Algorithm | None:
    for kernel in skipped:
        algorithm = ALGORITHMS.get((problem.operation, kernel.engine))
        if algorithm is not None and _CAN_RUN[algorithm](problem, kernel):
            return algorithm
    return None


def _can_multiply(problem: KernelProblem, _: SkippedKernel) -> bool:
    largest = (
        max(problem.inputs * prod(problem.input_size), problem.outputs * prod(problem.output_size))
        * problem.c.batch
    )
    is_plain = (
        problem.c.pointwise
        and max(problem.layer.stride) == 1
        and not any(problem.padding)
        and problem.c.groups == 1
    )
    return is_plain and largest < 2**31 and problem.layer.dtype != "float32_strict"


def _can_use_winograd(problem: KernelProblem, _: SkippedKernel) -> bool:
    supports_layout = not problem.c.channels_last or problem.operation == ConvOperation.WEIGHT_GRADIENT
    return supports_layout and problem.kernel in ((3, 3), (5, 5)) and _has_unit_steps(problem)


def _can_use_fft(problem: KernelProblem, _: SkippedKernel) -> bool:
    return (
        max(_padded(problem)) <= _MAX_FFT_SIZE
        and problem.layer.dtype != "bfloat16"
        and _has_unit_steps(problem)
    )


def _can_use_tiled_fft(problem: KernelProblem, _: SkippedKernel) -> bool:
    return max(problem.kernel) <= TILE and problem.layer.dtype != "bfloat16" and _has_unit_steps(problem)


def _can_compile(_: KernelProblem, kernel: SkippedKernel) -> bool:
    return _NO_DRIVER in kernel.reason


_CAN_RUN: dict[Algorithm, Callable[[KernelProblem, SkippedKernel], bool]] = {
    Algorithm.PRODUCT: _can_multiply,
    Algorithm.WINOGRAD: _can_use_winograd,
    Algorithm.FOURIER: _can_use_fft,
    Algorithm.FOURIER_TILES: _can_use_tiled_fft,
    Algorithm.COMPILED: _can_compile,
    Algorithm.SUMMED: _can_compile,
}
_NO_DRIVER = "libcuda == nullptr"
"""The reason that cuDNN logs if it skips a kernel only because there is no driver."""
_MAX_FFT_SIZE = 256


def _has_unit_steps(problem: KernelProblem) -> bool:
    return len(problem.kernel) == 2 and max(problem.layer.stride) == max(problem.layer.dilation) == 1


def algorithm_workspace(algorithm: Algorithm, problem: KernelProblem) -> int | None:
    if algorithm == Algorithm.COMPILED:
        return 0
    if algorithm == Algorithm.SUMMED:
        return _summed(problem)
    if problem.c.groups > 1:
        return _in_groups(algorithm, problem)
    if problem.c.channels_last and algorithm == Algorithm.PRODUCT:
        return None
    if algorithm == Algorithm.PRODUCT and 1 in (problem.c.batch, prod(problem.output_size)):
        return None  # a single product, which cuBLAS may split
    match algorithm:
        case Algorithm.PRODUCT:
            return (
                problem.c.batch * problem.kernels * 4
                if problem.operation == ConvOperation.WEIGHT_GRADIENT
                else 0
            )
        case Algorithm.WINOGRAD:
            size = _winograd(problem)
        case Algorithm.FOURIER:
            size = _fourier(problem)
        case Algorithm.FOURIER_TILES:
            size = _fourier_tiles(problem)
    return size + _contiguous_copies(problem) if problem.c.channels_last else size


def _in_groups(algorithm: Algorithm, problem: KernelProblem) -> int | None:
    """Return the workspace size in bytes of a kernel without group support. The kernel computes several groups at the
    same time, and each group has its own workspace. FFT kernels also copy the inputs and outputs of each group.
    """
    c = one_group(problem.c)
    single = problem._replace(
        c=c, inputs=problem.inputs // problem.c.groups, outputs=problem.outputs // problem.c.groups
    )
    size = algorithm_workspace(algorithm, single)
    if size is None:
        return None
    if algorithm in (Algorithm.FOURIER, Algorithm.FOURIER_TILES) and c.batch > 1 and not c.channels_last:
        size += c.converted(weight=False) + 16
    return min(problem.c.groups, PARALLEL_GROUPS) * size


def _summed(problem: KernelProblem) -> int:
    """Return the size in bytes of the partial sums in a depthwise convolution. Each image has eight partial sums, with
    channels padded to 32.
    """
    return (
        0
        if not problem.c.depthwise
        else 8 * problem.c.batch * round_up(problem.inputs, 32) * prod(problem.kernel) * 4
    )


def _contiguous_copies(problem: KernelProblem) -> int:
    return problem.c.converted() + 16


def _winograd(problem: KernelProblem) -> int:
    """Return the size in bytes of the transformed images and weights, in float32. For 3 × 3 kernels, a tile of 6 × 6
    yields 4 × 4 pixels. For 5 × 5 kernels, a tile of 13 × 13 yields 9 × 9 pixels.
    """
    side, step = (6, 4) if problem.kernel == (3, 3) else (13, 9)
    sizes = problem.input_size if problem.operation == ConvOperation.INPUT_GRADIENT else problem.output_size
    batch = problem.c.batch
    if side == 13 or problem.operation != ConvOperation.WEIGHT_GRADIENT:
        batch = round_up(batch, 16)
    tiles = batch * prod(ceil_div(size, step) for size in sizes)
    return side * side * 4 * ((problem.inputs + problem.outputs) * tiles + problem.kernels)


def _fourier(problem: KernelProblem) -> int:
    """Return the size in bytes of the Fourier transforms and of a float32 copy of the weights or the gradient. The
    larger of the input and output transforms is stored twice because it is transposed.
    """
    side = 16
    while side < max(_padded(problem)):
        side *= 2
    batch = problem.c.batch
    if problem.operation == ConvOperation.FORWARD:
        transforms = max(batch * problem.inputs + problem.kernels, batch * problem.outputs)
        copy = problem.kernels * prod(problem.kernel) * 4
    else:
        transforms = max(problem.planes, problem.kernels)
        copy = batch * problem.outputs * prod(problem.output_size) * 4
    return 2 * _frequencies(side) * transforms + copy


def _fourier_tiles(problem: KernelProblem) -> int:
    """Return the size in bytes of the Fourier transforms. For each channel and image, the workspace contains the
    transform of one tile, or of two tiles if the image has several tiles.
    """
    tiles = 1 if max(_padded(problem)) <= TILE else 2
    return _frequencies(TILE) * (tiles * problem.planes + problem.kernels)


TILE = 32


def _frequencies(side: int) -> int:
    """Return the size in bytes of the Fourier transform of one real image. Only half of the frequencies are stored."""
    return 8 * side * (side // 2 + 1)


def _padded(problem: KernelProblem) -> list[int]:
    return [size + 2 * padding for size, padding in zip(problem.input_size, problem.padding, strict=True)]
