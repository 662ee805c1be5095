"""Makes the table of cuDNN's workspaces from what `convolution_survey` measured.

    python -m bench.rules.convolution.table FOLDER...       adds to src/legroom/observe/cuda_rules/convolutions_h200.jsonl.gz

Each measured size is written as what it is made of (copies of input, weights, output, with channels padded; or a copy of
the weights for each picture) and a remainder, so that it can be told for other batch sizes.
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from legroom.observe.cuda_rules.convolution.recorded_table import (
    KINDS,
    TABLE,
    UNIT,
    Layer,
    Row,
    described,
    size_of,
    table,
    written,
)
from legroom.observe.cuda_rules.convolution.workspace import Convolution


def main(argv: list[str]) -> int:
    layers = {layer: {row[0]: row for row in rows} for layer, rows in table()}
    for folder in argv:
        for measurement in measured(Path(folder)):
            layer, row = encode(measurement)
            layers.setdefault(layer, {})[row[0]] = row
    content = written((layer, list(rows.values())) for layer, rows in layers.items())
    with gzip.GzipFile(TABLE, "wb", compresslevel=9, mtime=0) as file:
        file.write(content.encode())
    print(
        f"{len(layers)} layers, {sum(map(len, layers.values()))} sizes of batches, {TABLE.stat().st_size / 1024:.0f} KiB"
    )
    return 0


def measured(folder: Path) -> Iterator[list[Any]]:
    """Every row that ran."""
    for path in sorted(folder.glob("convolutions-*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            yield from (row for row in map(json.loads, file) if row[-1] is not None)


def encode(measurement: list[Any]) -> tuple[Layer, Row]:
    """What was measured as the table has it: the layer, and its batch with kinds and remainders."""
    dtype, layout, batch, inputs, outputs, sizes, kernel, stride, padding, dilation, groups, transposed, grown, *bytes_ = measurement  # fmt: skip
    layer = Layer(
        dtype, layout == "last", inputs, outputs, tuple(sizes), tuple(kernel), tuple(stride), tuple(dilation), groups, transposed,
        tuple(padding),
    )  # fmt: skip
    convolution = described(layer, batch, grown)
    forward, input_gradient, weight_gradient = (explain(size, convolution) for size in bytes_)
    return layer, (batch, *forward, *input_gradient, *weight_gradient)


def explain(size: int, convolution: Convolution) -> tuple[int, int]:
    """The kind that leaves the smallest remainder, and that remainder. Simpler kinds win where both leave little.

    Both together must round up to what the allocator made of the measured size, not beyond: half a KiB more may not fit
    where the real one did.
    """
    size = -(-size // UNIT) * UNIT
    best = min(
        range(len(KINDS)),
        key=lambda index: (rest_of(size, index, convolution) // (4 * UNIT), sum(KINDS[index][:3]), index),
    )
    rest = rest_of(size, best, convolution)
    return best, rest // UNIT


def rest_of(size: int, index: int, convolution: Convolution) -> int:
    rest = size - size_of(KINDS[index], convolution)
    return rest if rest >= 0 else 1 << 60  # what is more than was taken explains nothing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
