"""Partial sums of Hopper's split-K kernels, for convolutions whose tiles do not fill the GPU.

A convolution is a matrix product that is computed in tiles. Each block computes one tile, and the tiles that are
computed at the same time are called a wave. The tiles after the last full wave would keep only a few SMs busy, so their
sums are split along the depth of the matrices. Each block computes a partial sum and writes it to the workspace in
float32.

cuDNN reports the tile and the cluster of blocks. Without a GPU, the number of clusters that run at once is unknown, so
the workspace size that cuDNN reports includes too few partial sums or none. The formula was derived from queries on a
real H200. The formula is exact for 95% of 32,000 random convolutions (92 to 100%, depending on tile and dtype).
"""

from dataclasses import replace
from math import prod
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution.cudnn_library import ConvOperation
from legroom.observe.cuda_rules.convolution.workspace_rules import (
    Convolution,
    ceil_div,
    group_width,
    round_up,
)


class MatrixProduct(NamedTuple):
    rows: int
    columns: int
    depth: int
    column_taps: int = 1
    """The number of kernel positions that have their own columns, which is 1 except for weight gradients."""
    depth_taps: int = 1
    """The number of kernel positions that are part of the depth, which is 1 for weight gradients."""


def product_of(c: Convolution, operation: ConvOperation) -> MatrixProduct:
    near, far = (c.inputs, c.batch * c.input_area), (c.outputs, c.batch * c.output_area)
    (inputs, before), (outputs, after) = (far, near) if c.transposed else (near, far)
    operation = actual_operation(operation, c.transposed)
    if operation == ConvOperation.FORWARD:
        return MatrixProduct(after, outputs, inputs, depth_taps=c.kernel_area)
    if operation == ConvOperation.INPUT_GRADIENT:
        return MatrixProduct(before, inputs, outputs, depth_taps=c.kernel_area)
    return MatrixProduct(outputs, inputs, after, column_taps=c.kernel_area)


def product_in_groups(c: Convolution, operation: ConvOperation) -> MatrixProduct:
    """Return the result of `product_of` for convolutions with groups. A single matrix product computes all groups. The
    groups are in the rows of this product for weight gradients, and in its columns for other operations.
    """
    if c.groups == 1:
        return product_of(c, operation)
    width = group_width(c)
    product = product_of(replace(c, inputs=width * c.groups, outputs=width * c.groups), operation)
    if product.column_taps > 1 or actual_operation(operation, c.transposed) == ConvOperation.WEIGHT_GRADIENT:
        return product._replace(columns=width)
    return product._replace(depth=width)


def actual_operation(operation: ConvOperation, transposed: bool) -> ConvOperation:
    # A transposed convolution is the input gradient of an ordinary convolution.
    return _TRANSPOSED.get(operation, operation) if transposed else operation


_TRANSPOSED = {
    ConvOperation.FORWARD: ConvOperation.INPUT_GRADIENT,
    ConvOperation.INPUT_GRADIENT: ConvOperation.FORWARD,
}


def partial_sums(product: MatrixProduct, tile: int, cluster: tuple[int, int], dtype: str) -> int:
    """Return the size of the partial sums in bytes. `tile` is cuDNN's number for the tile. `dtype` is a name in
    `recorded_table.DTYPES`.
    """
    blocks = _BLOCKS.get(cluster[0] * cluster[1])
    if tile not in TILES or blocks is None:
        return 0
    height, width = TILES[tile]
    waves, remaining = divmod(_count(product, tile, cluster), blocks)
    element = 4 if dtype.startswith("float32") else 2
    steps = product.depth_taps * ceil_div(product.depth, _STEP // element)
    if not remaining:
        return 0
    most = blocks // remaining
    parts = min(most, steps // (_MIN_DEPTH * element // _STEP + 1))
    if parts <= MANY_PARTS:
        if waves > _LAST_SPLIT_WAVE.get((dtype, tile), waves):
            return 0
        cost = _split_cost(dtype.removesuffix("_strict"), tile, waves)
        parts = min(
            range(1, most + 1),
            key=lambda parts: (ceil_div(steps, parts) + cost * (parts - 1).bit_length(), -parts),
        )
    return parts * remaining * (height * width + 1) * 4 if parts > 1 else 0  # 1 semaphore per tile


def max_partial_sums(product: MatrixProduct | None, tile: int, cluster: tuple[int, int]) -> int:
    """Return the size in bytes of the partial sums if the product is split into enough parts to keep all blocks busy
    in the last wave. In measurements, partial sums were rarely larger. Return 0 if the tiles of the kernel are
    unknown.
    """
    blocks = _BLOCKS.get(cluster[0] * cluster[1])
    if tile not in TILES or blocks is None:
        return 0
    remaining = _count(product, tile, cluster) % blocks if product else 1
    return blocks // remaining * remaining * (prod(TILES[tile]) + 1) * 4 if remaining else 0


def _count(product: MatrixProduct, tile: int, cluster: tuple[int, int]) -> int:
    height, width = TILES[tile]
    return round_up(ceil_div(product.rows, height), cluster[0]) * round_up(
        ceil_div(product.columns, width) * product.column_taps, cluster[1]
    )


MANY_PARTS = 8
_MIN_DEPTH = 1024
"""If a matrix product can be split into more than `MANY_PARTS` parts of at least this depth, it is split into as many
such parts as possible. With fewer such parts, the product is split into the number of parts with the lowest cost.
"""


def _split_cost(dtype: str, tile: int, waves: int) -> float:
    """Return the cost of doubling the number of parts, as a number of steps of `_STEP` bytes. The cost is lower after a
    full wave.
    """
    costs = (_SPLIT_COST_LATER if waves else _SPLIT_COST)[dtype]
    return costs.get(tile, costs[0])


TILES = {
    0: (128, 128), 1: (128, 64), 3: (256, 128), 4: (256, 64), 5: (64, 64), 6: (128, 256), 7: (64, 128), 9: (64, 256),
}  # fmt: skip
"""The rows and columns of each tile, by cuDNN's number for the tile."""
_BLOCKS = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120, 16: 112}
"""The number of blocks that an H200 runs at once, by cluster size. All blocks of a cluster run in the same GPC (a group
of SMs), so the number depends on the cluster size.
"""
_STEP = 128
"""The number of bytes along the inner dimension that a block multiplies in one step."""
_SPLIT_COST = {
    "float16": {0: 8, 1: 9, 3: 7, 4: 8, 5: 13, 6: 6, 7: 9, 9: 7},
    "bfloat16": {0: 52, 1: 76, 3: 46, 4: 52, 5: 90, 6: 40, 7: 76, 9: 52},
    "float32": {0: 14, 1: 18, 3: 12, 4: 14, 5: 24, 7: 18},
}
"""The cost of a split before the first full wave, by dtype and tile. The cost for bfloat16 is much higher than for
float16, for an unknown reason.
"""
_SPLIT_COST_LATER = {
    "float16": {0: 3, 3: 2, 5: 5, 7: 4},
    "bfloat16": {0: 26, 1: 30, 3: 24, 5: 42, 6: 24, 7: 32},
    "float32": {0: 5, 1: 6, 3: 3, 5: 10, 9: 4},
}
"""The cost of a split after the first full wave, by dtype and tile."""
_LAST_SPLIT_WAVE = {("float16", 1): 6, ("float16", 6): 6}
"""The maximum number of full waves, by dtype and tile. If a convolution has more full waves, its sums are not split."""
