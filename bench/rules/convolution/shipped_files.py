"""Writes the files of cuda_rules/convolution: the table and the forest.

A file consists of xz streams with settings that suit the item size of an array. Neighboring arrays with the same item
size share a stream if this makes the file smaller.
"""

import json
import lzma
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from legroom.observe.cuda_rules.convolution.decision_forest import RATIOS, ForestHeader
from legroom.observe.cuda_rules.convolution.recorded_table import (
    BLOCK,
    DIMENSION_COLUMNS,
    DTYPES,
    LAYER_COLUMNS,
    ROW_COLUMNS,
    ConvLayer,
    LayerFamily,
    Row,
    family_of,
)

LEAF = 255
"""The feature index that marks a leaf."""
Preorder = tuple[Sequence[int], Sequence[float], Sequence[int]]
"""The features, values and distances to the right branch of a tree, as in `trees.Tree`."""


def write_table(path: Path, layers: Iterable[tuple[ConvLayer, list[Row]]]) -> None:
    """Write the file that `recorded_table` reads, in a canonical order."""
    families: dict[LayerFamily, list[tuple[ConvLayer, list[Row]]]] = {}
    for layer, rows in layers:
        families.setdefault(family_of(layer), []).append((layer, sorted(rows)))
    ordered = {family: sorted(families[family], key=_order) for family in sorted(families, key=_family_order)}
    every = [one for members in ordered.values() for one in members]
    header = [
        [family, len(members), sum(len(rows) for _, rows in members)] for family, members in ordered.items()
    ]
    by_layer = [
        (DTYPES.index(layer.dtype), layer.inputs, layer.outputs, layer.groups, len(rows))
        for layer, rows in every
    ]
    by_dimension = [
        (layer.sizes[dimension], layer.dilation[dimension], _shifted(layer)[dimension])
        for family, members in ordered.items()
        for dimension in range(family.dimensions)
        for layer, _ in members
    ]
    every_row = [row for _, rows in every for row in rows]
    batches = sorted({batch for batch, *_ in every_row})
    kinds = [(row[1], row[3], row[5]) for row in every_row]
    combinations = [kind for kind, _ in Counter(kinds).most_common()]
    number_of = {kind: number for number, kind in enumerate(combinations)}
    by_row = [
        (batches.index(row[0]), number_of[kind], row[2], row[4], row[6])
        for row, kind in zip(every_row, kinds, strict=True)
    ]
    columns = [
        np.array(list(column), f"<u{array(code).itemsize}")
        for codes, records in (
            (LAYER_COLUMNS, by_layer),
            (DIMENSION_COLUMNS, by_dimension),
            (ROW_COLUMNS, by_row),
        )
        for code, column in zip(codes, zip(*records, strict=True), strict=True)
    ]
    block = np.arange(len(by_row)) // BLOCK
    for place, kind in enumerate(np.array(kinds).T, -3):
        # the remainders of each kind are next to each other, as `_block_remainders` expects
        columns[place] = columns[place][np.lexsort((kind, block))]
    lines = [json.dumps(each, separators=(",", ":")) for each in (header, batches, combinations)]
    _write(path, lines, columns)


def _family_order(family: LayerFamily) -> str:
    """Return a sort key that puts families with the same kernel next to each other, because they contain similar
    layers."""
    return json.dumps(
        [
            family.dimensions,
            family.transposed,
            family.kernel,
            family.stride,
            family.precision,
            family.channels_last,
        ]
    )


def _order(one: tuple[ConvLayer, list[Row]]) -> tuple[Any, ...]:
    """Return a sort key that puts similar layers next to each other, so that the columns compress well."""
    layer, _ = one
    return (
        layer.groups,
        layer.inputs,
        layer.outputs,
        layer.sizes,
        layer.dilation,
        layer.padding or (),
        layer.dtype,
    )


def _shifted(layer: ConvLayer) -> list[int]:
    return [0] * len(layer.sizes) if layer.padding is None else [edge + 1 for edge in layer.padding]


def write_forest(path: Path, formulas: Sequence[list[str]], forests: Sequence[Sequence[Preorder]]) -> None:
    """Write the file that `decision_forest` reads."""
    nodes_of = [
        [node for features, values, _ in trees for node in zip(features, values, strict=True)]
        for trees in forests
    ]
    used: dict[int, set[np.float32]] = {}
    for nodes in nodes_of:
        for feature, value in nodes:
            if feature != LEAF:
                used.setdefault(int(feature), set()).add(_threshold(feature, value))
    thresholds = [sorted(used.get(feature, ())) for feature in range(max(used, default=-1) + 1)]
    numbers = [{value: number for number, value in enumerate(values)} for values in thresholds]
    floats = np.array([value for values in thresholds for value in values], "<f4")
    first, second = floats.view("u1").reshape(-1, 4).T[:2].copy()
    upper = [np.array(values, "<f4").view("<u2")[1::2] for values in thresholds]
    differences = [np.diff(one, prepend=np.uint16(0)) for one in upper]
    columns: list[Any] = [first, second, *_halves(np.concatenate([*differences, np.array([], "<u2")]))]
    headers = []
    for names, trees, nodes in zip(formulas, forests, nodes_of, strict=True):
        inner = [
            (int(feature), numbers[feature][_threshold(feature, value)])
            for feature, value in nodes
            if feature != LEAF
        ]
        features = [feature for feature, _ in inner]
        header = ForestHeader(names, len(trees), [features.count(feature) for feature in range(len(numbers))])
        headers.append(json.dumps(header))
        columns += [
            np.packbits([feature != LEAF for feature, _ in nodes]),
            np.array(features, "u1"),
            *_halves(np.array([number for _, number in sorted(inner, key=itemgetter(0))], "<u2")),
            np.array(
                [value for feature, value in nodes if feature == LEAF],
                f"<u{array(header.leaf_type).itemsize}",
            ),
        ]
    _write(path, [json.dumps(list(map(len, thresholds))), *headers], columns)


def _halves(integers: Any) -> Any:
    """Return the lower and the upper bytes of 16-bit integers."""
    return integers.view("u1").reshape(-1, 2).T.copy()


def _threshold(feature: int, value: float) -> np.float32:
    """Return the threshold as it is stored. For integers, comparing with a rounded-down threshold gives the same result."""
    stored = np.float32(value)
    return stored if feature in RATIOS else np.floor(stored)


def _write(path: Path, lines: list[str], columns: Sequence[Any]) -> None:
    parts = [("".join(f"{line}\n" for line in lines).encode(), 1)]
    parts += [(column.tobytes(), column.itemsize) for column in columns if column.size]
    streams: list[bytes] = []
    for item_size, group in groupby(parts, key=itemgetter(1)):
        start = len(streams)
        last = b""
        for data, _ in group:
            alone = _compress(data, item_size)
            merged = _compress(last + data, item_size) if len(streams) > start else b""
            if merged and len(merged) < len(streams[-1]) + len(alone):
                streams[-1], last = merged, last + data
            else:
                streams.append(alone)
                last = data
    path.write_bytes(b"".join(streams))


def _compress(data: bytes, item_size: int) -> bytes:
    """Return the shortest of several compressed versions."""
    alignment = item_size.bit_length() - 1
    options = ((0, alignment, alignment), (4 - alignment, alignment, alignment), (3, 0, 0), (3, 1, 2))
    return min((_compressed(data, *each) for each in options), key=len)


def _compressed(data: bytes, context_bits: int, literal_position_bits: int, position_bits: int) -> bytes:
    coder = {
        "id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 23, "nice_len": 273,
        "lc": context_bits, "lp": literal_position_bits, "pb": position_bits,
    }  # fmt: skip
    return lzma.compress(data, check=lzma.CHECK_CRC32, filters=[coder])
