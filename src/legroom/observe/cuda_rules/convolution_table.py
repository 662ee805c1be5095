"""Workspaces that cuDNN was seen to take, for convolutions of well-known networks.

cuDNN chooses its kernels by a heuristic that is not published, so where a layer was measured its choice is looked up, not
guessed. The table (`convolutions_h200.json.gz`, made by `bench/convolution_table.py`) holds for each layer, at several
batch sizes, what was converted and what remained; between them the nearest batch size speaks. It tells about
Hopper, on which it was measured.
"""

import gzip
import json
from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution_workspace import Convolution, Workspaces
from legroom.observe.gpus import Gpu

TABLE = Path(__file__).with_name("convolutions_h200.json.gz")
UNIT = 512
"""Bytes: what the allocator rounds to. Remainders are kept in it."""

Key = tuple[
    str, bool, int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int, bool
]


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


class Measured(NamedTuple):
    """What was measured for a layer, told for the batch that is asked about."""

    batch: int
    """The size of batch that was measured."""
    workspaces: Workspaces


def size_of(kind: Kind, c: Convolution) -> int:
    if kind.copies:
        return c.batch * c.weights * 4
    size = c.converted(input=kind.input, weight=False, output=kind.output, to=kind.padding)
    if kind.weight:
        size += c.padded_weights(kind.padding) * c.element
    return size


def look_up(key: Key, c: Convolution, gpu: Gpu) -> Measured | None:
    """What was measured for this layer, at the nearest batch size; None where it was not, or on another generation."""
    if gpu.capability[0] != 9:
        return None
    table = _table()
    rows = table.get(key, [])
    if (
        key[0] == "bfloat16"
    ):  # chosen otherwise than for float16 in a tenth of the cases, but measured at fewer sizes
        close = [row for row in rows if abs(log(row[0] / c.batch)) < log(2.5)]
        rows = close or [*rows, *table.get(("float16", *key[1:]), [])]
    if not rows:
        return None
    nearest = min(rows, key=lambda row: abs(log(row[0] / c.batch)))
    sizes = [size_of(KINDS[nearest[place]], c) + nearest[place + 1] * UNIT for place in (1, 3, 5)]
    return Measured(nearest[0], Workspaces(*sizes))


@lru_cache(maxsize=1)
def _table() -> dict[Key, list[list[int]]]:
    """Layer → rows of batch size and, three times, a kind and a remainder."""
    if not TABLE.exists():
        return {}
    with gzip.open(TABLE, "rt") as file:
        rows = json.load(file)["layers"]
    found: dict[Key, list[list[int]]] = {}
    for dtype, last, inputs, outputs, sizes, kernel, stride, dilation, groups, transposed, measured in rows:
        key = (
            dtype, bool(last), inputs, outputs, tuple(sizes), tuple(kernel), tuple(stride), tuple(dilation), groups,
            bool(transposed),
        )  # fmt: skip
        found[key] = measured
    return found
