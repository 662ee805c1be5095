"""Workspaces that cuDNN was seen to take, for convolutions of well-known networks and of random ones.

cuDNN chooses its kernels by a heuristic that is not published, so where a layer was measured its choice is looked up, not
guessed. The table (`convolutions_h200.jsonl.gz`, made by `bench/rules/convolution/table.py`) holds for each layer, at several
batch sizes, what was converted and what remained, which is what the survey saw. It
tells about Hopper, on which it was measured.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution.workspace import Convolution, Workspaces

TABLE = Path(__file__).with_name("convolutions_h200.jsonl.gz")
UNIT = 512
"""Bytes: what the allocator rounds to. Remainders are kept in it."""

Row = tuple[int, int, int, int, int, int, int]
"""Batch size and, for the result and the two gradients, a kind and a remainder."""


class Layer(NamedTuple):
    """A convolution without its batch, as the table names it."""

    dtype: str
    """As torch names it; `float32_strict` where sums may not be rounded to TF32 (`torch.backends.cudnn.allow_tf32`)."""
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
    """None: it was not noted; mostly such that the size is kept."""


class Question(NamedTuple):
    """A convolution as torch puts it to cuDNN."""

    layer: Layer
    batch: int
    output_sizes: tuple[int, ...]
    deterministic: bool = False
    """`torch.backends.cudnn.deterministic`."""


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
    known = family_rows(family_of(layer))
    rows = [*known.get(layer, []), *known.get(layer._replace(padding=None), [])]
    return next((told(row, c) for row in rows if row[0] == c.batch), None)


def described(layer: Layer, batch: int, grown: int = 0) -> Convolution:
    """A layer as rules see it. Where no padding was noted, the size is kept, or pictures are cut up. `grown`: lines that a transposed
    one adds at the edge."""
    padding: Sequence[int] | None = layer.padding
    if padding is None:
        same = [gap * (reach - 1) // 2 for gap, reach in zip(layer.dilation, layer.kernel, strict=True)]
        padding = [0] * len(same) if tuple(layer.kernel) == tuple(layer.stride) else same
    return Convolution(
        element=4 if layer.dtype.startswith("float32") else 2,
        channels_last=bool(layer.channels_last),
        batch=batch,
        inputs=layer.inputs,
        outputs=layer.outputs,
        input_area=prod(layer.sizes),
        output_area=prod(size + grown for size in output_sizes(layer, padding)),
        kernel_area=prod(layer.kernel),
        stride=max(layer.stride),
        groups=layer.groups,
        transposed=bool(layer.transposed),
    )


def output_sizes(layer: Layer, padding: Sequence[int]) -> list[int]:
    edges = zip(layer.sizes, layer.kernel, layer.stride, padding, layer.dilation, strict=True)
    if layer.transposed:
        return [
            (size - 1) * step - 2 * edge + gap * (reach - 1) + 1 for size, reach, step, edge, gap in edges
        ]
    return [(size + 2 * edge - gap * (reach - 1) - 1) // step + 1 for size, reach, step, edge, gap in edges]


class Family(NamedTuple):
    """Layers that may be compared with each other: of one width of numbers, layout and number of dimensions, with the same kernel and stride."""

    numbers: str
    """`half` for both of 16 bits, else the dtype."""
    channels_last: bool
    dimensions: int
    transposed: bool
    kernel: tuple[int, ...]
    stride: tuple[int, ...]


def family_of(layer: Layer) -> Family:
    numbers = layer.dtype if layer.dtype.startswith("float32") else "half"
    return Family(
        numbers, layer.channels_last, len(layer.sizes), layer.transposed, layer.kernel, layer.stride
    )


def table() -> Iterator[tuple[Layer, list[Row]]]:
    """Every measured layer."""
    for family in _lines():
        yield from family_rows(family).items()


@lru_cache(maxsize=256)
def family_rows(family: Family) -> dict[Layer, list[Row]]:
    """What was measured of one family, by layer. Read when it is asked for: a network needs few families, and all take seconds."""
    line = _lines().get(family)
    found: dict[Layer, list[Row]] = {}
    for dtype, inputs, outputs, sizes, dilation, groups, padding, measured in (
        json.loads(line) if line else ()
    ):
        layer = Layer(
            dtype, family.channels_last, inputs, outputs, tuple(sizes), family.kernel, family.stride, tuple(dilation), groups,
            family.transposed, None if padding is None else tuple(padding),
        )  # fmt: skip
        found[layer] = [tuple(row) for row in measured]
    return found


@lru_cache(maxsize=1)
def _lines() -> dict[Family, str]:
    """The file: a line for each family, its name and its layers, which are not read yet."""
    if not TABLE.exists():
        return {}
    found: dict[Family, str] = {}
    with gzip.open(TABLE, "rt") as file:
        for line in file:
            name, _, layers = line.partition("\t")
            numbers, last, dimensions, transposed, kernel, stride = json.loads(name)
            found[Family(numbers, last, dimensions, transposed, tuple(kernel), tuple(stride))] = layers
    return found


def written(layers: Iterable[tuple[Layer, list[Row]]]) -> str:
    """The file's text for these layers, in an order that does not depend on theirs."""
    lines: dict[Family, list[list[object]]] = {}
    for layer, rows in layers:
        named = [
            layer.dtype,
            layer.inputs,
            layer.outputs,
            layer.sizes,
            layer.dilation,
            layer.groups,
            layer.padding,
            sorted(rows),
        ]
        lines.setdefault(family_of(layer), []).append(named)
    texts = {json.dumps(family): layers for family, layers in lines.items()}
    return "".join(
        f"{name}\t{json.dumps(sorted(layers, key=str), separators=(',', ':'))}\n"
        for name, layers in sorted(texts.items())
    )
