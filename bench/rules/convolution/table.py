"""Rebuilds the table of cuDNN's convolution workspaces. If folders are given, new recordings of `survey` are added.

    python -m bench.rules.convolution.table [FOLDER...] [--out FILE]

The table is src/legroom/observe/cuda_rules/convolution/convolutions_h200.table.xz. Each measured size is stored as its
parts and a remainder, so that other batch sizes can be extrapolated. The parts are copies of input, weights or output
with padded channels, or a copy of the weights per sample. The table contains all measurements, so rebuilding it
without folders writes the same bytes.
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.lib.command_line import command_line
from bench.rules.convolution.shipped_files import write_table
from legroom.observe.cuda_rules.convolution.recorded_table import (
    TABLE,
    UNIT,
    WORKSPACE_KINDS,
    ConvLayer,
    Row,
    convolution_of,
    kind_bytes,
    table,
)
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=TABLE)
    options = parser.parse_args(argv)
    layers = {layer: {row[0]: row for row in rows} for layer, rows in table()}
    for folder in options.folders:
        for measurement in measured(folder):
            layer, row = encode(measurement)
            layers.setdefault(layer, {})[row[0]] = row
    write_table(options.out, ((layer, list(rows.values())) for layer, rows in layers.items()))
    print(
        f"{len(layers)} layers, {sum(map(len, layers.values()))} layers × batch sizes, {options.out.stat().st_size / 1024:.0f} KiB"
    )
    return 0


def measured(folder: Path) -> Iterator[list[Any]]:
    """Yield every row that ran."""
    for path in sorted(folder.glob("convolutions-*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            yield from (row for row in map(json.loads, file) if row[-1] is not None)


def encode(measurement: list[Any]) -> tuple[ConvLayer, Row]:
    """Encode a measurement in the format of the table: the layer, and its batch size with kinds and remainders."""
    dtype, layout, batch, inputs, outputs, sizes, kernel, stride, padding, dilation, groups, transposed, grown, *bytes_ = measurement  # fmt: skip
    layer = ConvLayer(
        dtype, layout == "last", inputs, outputs, tuple(sizes), tuple(kernel), tuple(stride), tuple(dilation), groups, transposed,
        tuple(padding),
    )  # fmt: skip
    convolution = convolution_of(layer, batch, grown)
    forward, input_gradient, weight_gradient = (explain(size, convolution) for size in bytes_)
    return layer, (batch, *forward, *input_gradient, *weight_gradient)


def explain(size: int, convolution: Convolution) -> tuple[int, int]:
    """Return the kind that leaves the smallest remainder, and that remainder. If several kinds leave a small
    remainder, the simplest kind is used.

    The sum of kind and remainder must not exceed the allocator's block size. Otherwise, a predicted workspace might
    not fit into a block that the real workspace fitted into.
    """
    size = -(-size // UNIT) * UNIT
    best = min(
        range(len(WORKSPACE_KINDS)),
        key=lambda index: (
            rest_of(size, index, convolution) // (4 * UNIT),
            sum(WORKSPACE_KINDS[index][:3]),
            index,
        ),
    )
    rest = rest_of(size, best, convolution)
    return best, rest // UNIT


def rest_of(size: int, index: int, convolution: Convolution) -> int:
    rest = size - kind_bytes(WORKSPACE_KINDS[index], convolution)
    return rest if rest >= 0 else 1 << 60  # a kind larger than the measured size explains nothing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
