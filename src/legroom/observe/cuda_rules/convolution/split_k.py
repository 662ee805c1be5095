"""Partial sums that Hopper's kernels keep where the pieces of a convolution do not fill the GPU.

A convolution is a matrix product, computed piece by piece ("tiles"), as many at a time as blocks run at once. What is left over after full
rounds would keep few multiprocessors busy, so its sums are split: each block adds up a part of the depth and leaves it, in single precision, in the
workspace. cuDNN tells which tile and which group of blocks ("cluster") it takes; without a GPU it does not know how many clusters run at once, and its answer
leaves these sums out or has too few. Read off the answers of a real H200: of 32,000 that were drawn, the bytes are right in 95%, 92 to 100% by tile and kind of numbers.
"""

from dataclasses import replace
from math import prod
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution.cudnn_library import Kind
from legroom.observe.cuda_rules.convolution.workspace import Convolution, over, up, width_of_groups


class Product(NamedTuple):
    """A convolution as a matrix product."""

    rows: int
    columns: int
    depth: int
    column_taps: int = 1
    """Places of the kernel, where each has columns of its own: gradients of weights."""
    depth_taps: int = 1
    """Places of the kernel, where each is a part of the depth: results and gradients of inputs."""


def product_of(c: Convolution, operation: Kind) -> Product:
    """The matrix product that an operation is."""
    near, far = (c.inputs, c.batch * c.input_area), (c.outputs, c.batch * c.output_area)
    (inputs, before), (outputs, after) = (far, near) if c.transposed else (near, far)
    operation = turned(operation, c.transposed)
    if operation == Kind.FORWARD:
        return Product(after, outputs, inputs, depth_taps=c.kernel_area)
    if operation == Kind.INPUT_GRADIENT:
        return Product(before, inputs, outputs, depth_taps=c.kernel_area)
    return Product(outputs, inputs, after, column_taps=c.kernel_area)


def product_in_groups(c: Convolution, operation: Kind) -> Product:
    """The same for groups, which lie side by side in the rows of gradients of weights, and in the columns of all else."""
    if c.groups == 1:
        return product_of(c, operation)
    width = width_of_groups(c)
    product = product_of(replace(c, inputs=width * c.groups, outputs=width * c.groups), operation)
    if product.column_taps > 1 or turned(operation, c.transposed) == Kind.WEIGHT_GRADIENT:
        return product._replace(columns=width)
    return product._replace(depth=width)


def turned(operation: Kind, transposed: bool) -> Kind:
    """What is computed in truth: a transposed convolution is the gradient of an ordinary one."""
    return _TURNED.get(operation, operation) if transposed else operation


_TURNED = {Kind.FORWARD: Kind.INPUT_GRADIENT, Kind.INPUT_GRADIENT: Kind.FORWARD}


def partial_sums(product: Product, tile: int, cluster: tuple[int, int], dtype: str) -> int:
    """Bytes. `tile`: cuDNN's number for it. `dtype`: as the measured table names it."""
    blocks = _BLOCKS.get(cluster[0] * cluster[1])
    if tile not in TILES or blocks is None:
        return 0
    height, width = TILES[tile]
    rounds, rest = divmod(_count(product, tile, cluster), blocks)
    element = 4 if dtype.startswith("float32") else 2
    steps = product.depth_taps * over(product.depth, _STEP // element)
    if not rest:
        return 0
    most = blocks // rest
    parts = min(most, steps // (_DEEP * element // _STEP + 1))
    if parts <= FEW:
        if rounds > _LAST_ROUND.get((dtype, tile), rounds):
            return 0
        joining = _joining(dtype.removesuffix("_strict"), tile, rounds)
        parts = min(
            range(1, most + 1),
            key=lambda parts: (over(steps, parts) + joining * (parts - 1).bit_length(), -parts),
        )
    return parts * rest * (height * width + 1) * 4 if parts > 1 else 0  # and a mark for each


def most_sums(product: Product | None, tile: int, cluster: tuple[int, int]) -> int:
    """Bytes, if what is left over keeps all blocks busy: more were hardly ever seen. `product`: None where it is not known how it is cut."""
    blocks = _BLOCKS.get(cluster[0] * cluster[1])
    if tile not in TILES or blocks is None:
        return 0
    rest = _count(product, tile, cluster) % blocks if product else 1
    return blocks // rest * rest * (prod(TILES[tile]) + 1) * 4 if rest else 0


def _count(product: Product, tile: int, cluster: tuple[int, int]) -> int:
    """How many tiles there are."""
    height, width = TILES[tile]
    return up(over(product.rows, height), cluster[0]) * up(
        over(product.columns, width) * product.column_taps, cluster[1]
    )


FEW = 8
_DEEP = 1024
"""Products that can be cut into more parts than a few, each deeper than this, are cut into as many; others as is cheapest."""


def _joining(dtype: str, tile: int, rounds: int) -> float:
    """What one more doubling of the parts costs, in steps: less where other tiles are computed before."""
    costs = (_JOINING_LATER if rounds else _JOINING)[dtype]
    return costs.get(tile, costs[0])


TILES = {
    0: (128, 128), 1: (128, 64), 3: (256, 128), 4: (256, 64), 5: (64, 64), 6: (128, 256), 7: (64, 128), 9: (64, 256),
}  # fmt: skip
"""Rows and columns, by cuDNN's numbers for them."""
_BLOCKS = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120, 16: 112}
"""How many blocks an H200 runs at once, by the size of their clusters, which must not cross its parts."""
_STEP = 128
"""Bytes of the depth that a block adds up at a time."""
_JOINING = {
    "float16": {0: 8, 1: 9, 3: 7, 4: 8, 5: 13, 6: 6, 7: 9, 9: 7},
    "bfloat16": {0: 52, 1: 76, 3: 46, 4: 52, 5: 90, 6: 40, 7: 76, 9: 52},
    "float32": {0: 14, 1: 18, 3: 12, 4: 14, 5: 24, 7: 18},
}
"""By the kind of numbers and the tile, in the first round. In bfloat16 it costs, for whatever reason, much more than in float16."""
_JOINING_LATER = {
    "float16": {0: 3, 3: 2, 5: 5, 7: 4},
    "bfloat16": {0: 26, 1: 30, 3: 24, 5: 42, 6: 24, 7: 32},
    "float32": {0: 5, 1: 6, 3: 3, 5: 10, 9: 4},
}
"""The same where a full round comes before."""
_LAST_ROUND = {("float16", 1): 6, ("float16", 6): 6}
"""By the kind of numbers and the tile: after more rounds nothing is split."""
