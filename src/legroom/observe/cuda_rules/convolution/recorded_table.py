"""Recorded workspaces for convolutions of well-known networks and for random convolutions.

cuDNN's choice of kernels is not documented, so the choices for measured layers are looked up. The table
(`convolutions_h200.table.xz`, written by `bench/rules/convolution/table.py`) lists the converted tensors and all other
workspace bytes for each layer at several batch sizes. The table is valid for Hopper GPUs, on which it was measured.
"""

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, chain, islice
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from legroom.errors import LegroomError
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution, ConvWorkspaces

TABLE = Path(__file__).with_name("convolutions_h200.table.xz")
UNIT = 512
"""The allocator rounds sizes to a multiple of this number of bytes. The table stores sizes in this unit."""

Row = tuple[int, int, int, int, int, int, int]
"""The batch size, followed by two numbers for each of the three workspaces: forward pass, input gradient and weight
gradient. The first number is an index into `WORKSPACE_KINDS`. The second number is the size of the rest of the
workspace, as a multiple of `UNIT`.
"""


class ConvLayer(NamedTuple):
    """A convolution without its batch size."""

    dtype: str
    """PyTorch's name for the dtype, or `float32_strict` if TF32 is not allowed (`torch.backends.cudnn.allow_tf32`)."""
    channels_last: bool
    inputs: int
    outputs: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    padding: tuple[int, ...] | None = None
    """The padding, or None if it is not recorded. Most layers without a recorded padding keep the image size."""


class ConvQuery(NamedTuple):
    layer: ConvLayer
    batch: int
    output_sizes: tuple[int, ...]
    deterministic: bool = False


class WorkspaceKind(NamedTuple):
    input: bool
    weight: bool
    output: bool
    padding: int
    copies: bool
    """True if the workspace contains a float32 copy of the weights for each image."""


WORKSPACE_KINDS = (
    *(
        WorkspaceKind(input, weight, output, padding, False)
        for padding in (1, 4, 8)
        for input in (False, True)
        for weight in (False, True)
        for output in (False, True)
        if padding == 1 or input or output
    ),
    WorkspaceKind(False, False, False, 1, True),
)


def kind_bytes(kind: WorkspaceKind, c: Convolution) -> int:
    if kind.copies:
        return c.batch * c.weights * 4
    size = c.converted(input=kind.input, weight=False, output=kind.output, to=kind.padding)
    if kind.weight:
        size += c.padded_weights(kind.padding) * c.element
    return size


def recorded_workspaces(row: Row, c: Convolution) -> ConvWorkspaces:
    sizes = [kind_bytes(WORKSPACE_KINDS[row[index]], c) + row[index + 1] * UNIT for index in (1, 3, 5)]
    return ConvWorkspaces(*sizes)


def look_up(layer: ConvLayer, c: Convolution) -> ConvWorkspaces | None:
    """Return the recorded workspaces of this layer at this batch size, or None if they were not measured."""
    known = family_rows(family_of(layer))
    rows = [*known.get(layer, []), *known.get(layer._replace(padding=None), [])]
    return next((recorded_workspaces(row, c) for row in rows if row[0] == c.batch), None)


def convolution_of(layer: ConvLayer, batch: int, output_padding: int = 0) -> Convolution:
    """Return the sizes of a layer for a given batch size. If the padding is not recorded, the layer is assumed to keep
    the image size. A layer that splits images into patches is assumed to have no padding.
    """
    padding: Sequence[int] | None = layer.padding
    if padding is None:
        same = [
            dilation * (size - 1) // 2 for dilation, size in zip(layer.dilation, layer.kernel, strict=True)
        ]
        padding = [0] * len(same) if tuple(layer.kernel) == tuple(layer.stride) else same
    return Convolution(
        element=4 if layer.dtype.startswith("float32") else 2,
        channels_last=bool(layer.channels_last),
        batch=batch,
        inputs=layer.inputs,
        outputs=layer.outputs,
        input_area=prod(layer.sizes),
        output_area=prod(size + output_padding for size in output_sizes(layer, padding)),
        kernel_area=prod(layer.kernel),
        stride=max(layer.stride),
        groups=layer.groups,
        transposed=bool(layer.transposed),
    )


def output_sizes(layer: ConvLayer, padding: Sequence[int]) -> list[int]:
    edges = zip(layer.sizes, layer.kernel, layer.stride, padding, layer.dilation, strict=True)
    if layer.transposed:
        return [
            (size - 1) * step - 2 * edge + gap * (reach - 1) + 1 for size, reach, step, edge, gap in edges
        ]
    return [(size + 2 * edge - gap * (reach - 1) - 1) // step + 1 for size, reach, step, edge, gap in edges]


class LayerFamily(NamedTuple):
    """Layers with the same dtype size, layout, number of dimensions, kernel and stride."""

    precision: str
    """The dtype, or `half` for both 16-bit dtypes."""
    channels_last: bool
    dimensions: int
    transposed: bool
    kernel: tuple[int, ...]
    stride: tuple[int, ...]


def family_of(layer: ConvLayer) -> LayerFamily:
    precision = layer.dtype if layer.dtype.startswith("float32") else "half"
    return LayerFamily(
        precision, layer.channels_last, len(layer.sizes), layer.transposed, layer.kernel, layer.stride
    )


def table() -> Iterator[tuple[ConvLayer, list[Row]]]:
    for family in _table().families:
        yield from family_rows(family).items()


DTYPES = ("float32", "float32_strict", "float16", "bfloat16")
LAYER_COLUMNS = "BHHHB"
"""The type codes of the columns with one number per layer: the index of the dtype, the numbers of input and output
channels, the number of groups and the number of rows.
"""
DIMENSION_COLUMNS = "IHH"
"""The type codes of the columns with one number per dimension of a layer: the size, the dilation, and the padding plus
1 (0 if the padding is not recorded). In each family, the numbers of all layers for the first dimension come first.
"""
ROW_COLUMNS = "BHIII"
"""The type codes of the columns with one number per `Row`: the batch size, the three workspace kinds, and the sizes of
the rest of each workspace. The batch size is an index into the list of all batch sizes. The kinds are an index into
the list of all combinations of three kinds. The sizes are stored in blocks of `BLOCK` rows. Within each block, the
sizes are sorted by workspace kind.
"""
BLOCK = 4096


class _Table(NamedTuple):
    families: dict[LayerFamily, tuple[slice, slice, slice]]
    """The slices of the layer columns, the dimension columns and the row columns that belong to each family."""
    batches: list[int]
    kinds: list[Sequence[int]]
    """The kinds of the forward pass in all combinations, then those of the input gradient and of the weight gradient."""
    layers: list[Sequence[int]]
    dimensions: list[Sequence[int]]
    rows: list[Sequence[int]]


@lru_cache(maxsize=256)
def family_rows(family: LayerFamily) -> dict[ConvLayer, list[Row]]:
    """Return the layers of a family with their rows. A network uses only a few families, so each family is converted
    on demand. Converting all families takes more than a second.
    """
    columns = _table()
    if family not in columns.families:
        return {}
    layers, dimensions, rows = columns.families[family]
    batches = map(columns.batches.__getitem__, columns.rows[0][rows])
    pairs = [
        part for workspace in range(3) for part in (_kinds(workspace, rows), _remainders(workspace, rows))
    ]
    measured = zip(batches, *pairs, strict=True)
    count = layers.stop - layers.start
    first_edges = range(dimensions.start, dimensions.stop, count)
    edges = (
        zip(*(column[first : first + count] for first in first_edges), strict=True)
        for column in columns.dimensions
    )
    found: dict[ConvLayer, list[Row]] = {}
    for dtype, inputs, outputs, groups, count, sizes, dilation, padding in zip(
        *(column[layers] for column in columns.layers), *edges, strict=True
    ):
        layer = ConvLayer(
            DTYPES[dtype], family.channels_last, inputs, outputs, sizes, family.kernel, family.stride, dilation, groups,
            family.transposed, tuple(edge - 1 for edge in padding) if padding[0] else None,
        )  # fmt: skip
        found[layer] = list(islice(measured, count))
    return found


def _kinds(workspace: int, rows: slice) -> bytes:
    columns = _table()
    return bytes(map(columns.kinds[workspace].__getitem__, columns.rows[1][rows]))


def _remainders(workspace: int, rows: slice) -> Sequence[int]:
    """Return the sizes of the rest of a workspace in the original order. The file sorts them by workspace kind."""
    first = rows.start // BLOCK
    blocks = (_block_remainders(workspace, block) for block in range(first, -(-rows.stop // BLOCK)))
    return [*chain.from_iterable(blocks)][rows.start - first * BLOCK : rows.stop - first * BLOCK]


@lru_cache(maxsize=64)
def _block_remainders(workspace: int, block: int) -> Sequence[int]:
    rows = slice(block * BLOCK, (block + 1) * BLOCK)
    kinds, remainders = _kinds(workspace, rows), _table().rows[2 + workspace][rows]
    return ungroup(kinds, remainders, [kinds.count(kind) for kind in range(len(WORKSPACE_KINDS))])


@lru_cache(maxsize=1)
def _table() -> _Table:
    """Read the file. Its first line lists all families as JSON, with their numbers of layers and rows. The second line
    lists all batch sizes. The third line lists all combinations of three workspace kinds. The columns follow as arrays.
    """
    if not TABLE.exists():
        return _Table({}, [], [], [], [], [])
    file = decompress(TABLE)
    families: dict[LayerFamily, tuple[slice, slice, slice]] = {}
    layers = dimensions = rows = 0
    for (precision, last, edges, transposed, kernel, stride), layer_count, row_count in json.loads(
        file.readline()
    ):
        family = LayerFamily(precision, last, edges, transposed, tuple(kernel), tuple(stride))
        dimension_count = layer_count * edges
        families[family] = (
            slice(layers, layers := layers + layer_count),
            slice(dimensions, dimensions := dimensions + dimension_count),
            slice(rows, rows := rows + row_count),
        )
    batches = json.loads(file.readline())
    kinds = json.loads(file.readline())
    by_layer = [read_array(file, kind, layers) for kind in LAYER_COLUMNS]
    by_dimension = [read_array(file, kind, dimensions) for kind in DIMENSION_COLUMNS]
    by_row = [read_array(file, kind, rows) for kind in ROW_COLUMNS]
    return _Table(families, batches, [*zip(*kinds, strict=True)], by_layer, by_dimension, by_row)


def decompress(path: Path) -> BytesIO:
    try:
        import lzma
    except ImportError:
        raise LegroomError(
            "This Python was built without the `lzma` module, which Legroom needs to read its tables. Install liblzma "
            "(Debian and Ubuntu: `liblzma-dev`), and build Python again."
        ) from None
    return BytesIO(lzma.decompress(path.read_bytes()))


def read_array(file: BytesIO, kind: str, count: int) -> Sequence[Any]:
    values: array[Any] = array(kind)
    values.frombytes(file.read(values.itemsize * count))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def ungroup(groups: Sequence[int], values: Sequence[int], counts: Sequence[int]) -> Sequence[int]:
    """Restore the original order of `values`. `groups` contains the group of each value in this order, and `counts` the
    number of values in each group. The files store the values of group 0 first, then the values of group 1, and so on.
    Values of the same group are similar, so they compress better.
    """
    parts = [iter(values[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)]
    return [*map(next, map(parts.__getitem__, groups))]
