"""Workspaces that cuDNN was seen to take, for convolutions of well-known networks and of random ones.

cuDNN chooses its kernels by a heuristic that is not published, so where a layer was measured its choice is looked up, not
guessed. The table (`convolutions_h200.json.gz`, made by `bench/convolution_table.py`) holds for each layer, at several
batch sizes, what was converted and what remained, so that it can be told for other sizes too (`convolution_neighbours`). It
tells about Hopper, on which it was measured.
"""

import gzip
import json
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution_workspace import Convolution, Workspaces

TABLE = Path(__file__).with_name("convolutions_h200.json.gz")
UNIT = 512
"""Bytes: what the allocator rounds to. Remainders are kept in it."""

Row = tuple[int, int, int, int, int, int, int]
"""Batch size and, for the result and the two gradients, a kind and a remainder."""


class Layer(NamedTuple):
    """A convolution without its batch, as the table names it."""

    dtype: str
    channels_last: bool
    inputs: int
    outputs: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool


class Kind(NamedTuple):
    """What a workspace is made of."""

    input: bool
    weight: bool
    output: bool
    padding: int
    """Channels are padded to a multiple of it."""
    copies: bool
    """One copy of the weights in single precision for each picture of the batch."""


KINDS = (
    *(
        Kind(input, weight, output, padding, False)
        for padding in (1, 4, 8)
        for input in (False, True)
        for weight in (False, True)
        for output in (False, True)
        if padding == 1 or input or output
    ),
    Kind(False, False, False, 1, True),
)


def size_of(kind: Kind, c: Convolution) -> int:
    if kind.copies:
        return c.batch * c.weights * 4
    size = c.converted(input=kind.input, weight=False, output=kind.output, to=kind.padding)
    if kind.weight:
        size += c.padded_weights(kind.padding) * c.element
    return size


def told(row: Row, c: Convolution) -> Workspaces:
    """What a measured row says of its own layer."""
    sizes = [size_of(KINDS[row[place]], c) + row[place + 1] * UNIT for place in (1, 3, 5)]
    return Workspaces(*sizes)


def look_up(layer: Layer, c: Convolution) -> Workspaces | None:
    """What was measured for this layer at this size of batch; None where it was not."""
    return next((told(row, c) for row in table().get(layer, []) if row[0] == c.batch), None)


def described(layer: Layer, batch: int, padding: Sequence[int] | None = None) -> Convolution:
    """A layer as rules see it. The table does not keep paddings: without one, the size is kept, or pictures are cut up."""
    if padding is None:
        same = [gap * (reach - 1) // 2 for gap, reach in zip(layer.dilation, layer.kernel, strict=True)]
        padding = [0] * len(same) if tuple(layer.kernel) == tuple(layer.stride) else same
    return Convolution(
        element=4 if layer.dtype == "float32" else 2,
        channels_last=bool(layer.channels_last),
        batch=batch,
        inputs=layer.inputs,
        outputs=layer.outputs,
        input_area=prod(layer.sizes),
        output_area=prod(_output_sizes(layer, padding)),
        kernel_area=prod(layer.kernel),
        stride=max(layer.stride),
        groups=layer.groups,
        transposed=bool(layer.transposed),
    )


def _output_sizes(layer: Layer, padding: Sequence[int]) -> list[int]:
    edges = zip(layer.sizes, layer.kernel, layer.stride, padding, layer.dilation, strict=True)
    if layer.transposed:
        return [
            (size - 1) * step - 2 * edge + gap * (reach - 1) + 1 for size, reach, step, edge, gap in edges
        ]
    return [(size + 2 * edge - gap * (reach - 1) - 1) // step + 1 for size, reach, step, edge, gap in edges]


@lru_cache(maxsize=1)
def table() -> dict[Layer, list[Row]]:
    if not TABLE.exists():
        return {}
    with gzip.open(TABLE, "rt") as file:
        rows = json.load(file)["layers"]
    found: dict[Layer, list[Row]] = {}
    for dtype, last, inputs, outputs, sizes, kernel, stride, dilation, groups, transposed, measured in rows:
        layer = Layer(
            dtype, bool(last), inputs, outputs, tuple(sizes), tuple(kernel), tuple(stride), tuple(dilation), groups,
            bool(transposed),
        )  # fmt: skip
        found[layer] = [tuple(row) for row in measured]
    return found
