"""Which recipe a convolution's workspace follows, as decision trees have it that were grown on what a real H200 answered.

A forest for each operation (`convolutions_h200.forest.gz`, made by `bench/rules/convolution/forest.py`): the trees ask for a convolution's sizes, its
matrix product and how many tiles that has, and each votes for a recipe. Recipes that come to the same bytes share their votes. It is asked where cuDNN's own
library is not there, or does not see all kernels because there is no GPU.
"""

import gzip
import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from legroom.observe.cuda_rules.convolution.cudnn_library import Kind
from legroom.observe.cuda_rules.convolution.cudnn_query import OPERATIONS
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import asked
from legroom.observe.cuda_rules.convolution.recorded_table import Question
from legroom.observe.cuda_rules.convolution.split_k import product_of, turned
from legroom.observe.cuda_rules.convolution.workspace import Convolution, whole
from legroom.observe.cuda_rules.convolution.workspace_formulas import cooked

FOREST = Path(__file__).with_name("convolutions_h200.forest.gz")
LEAF = 255
"""Instead of a feature's number: here a tree ends."""


class Voted(NamedTuple):
    """A size, and the share of the trees that voted for it."""

    size: int
    share: float
    recipe: str


def vote(question: Question, c: Convolution, operation: Kind) -> list[Voted]:
    """What the trees think, the likeliest first, where they are not at one the middle size; nothing where there is no forest."""
    forest = _forests().get(turned(operation, c.transposed))
    if forest is None:
        return []
    seen = features(question, c, operation)
    votes: dict[str, int] = {}
    for recipe in forest.walk(seen):
        votes[recipe] = votes.get(recipe, 0) + 1
    near = whole(c) // 50
    sizes = {recipe: cooked(recipe, question, c, operation) for recipe in votes}
    middle = sorted(sizes[recipe] for recipe in votes for _ in range(votes[recipe]))[forest.trees // 2]
    found: list[Voted] = []
    for recipe, size in sizes.items():
        support = sum(count for other, count in votes.items() if abs(sizes[other] - size) <= near)
        found.append(Voted(size, support / forest.trees, recipe))
    return sorted(found, key=lambda one: (-one.share, -votes[one.recipe], abs(one.size - middle)))


def features(question: Question, c: Convolution, operation: Kind) -> list[float]:
    """What trees may ask for. A transposed convolution is turned around, and over one dimension pictures are one pixel high."""
    layer = question.layer
    one = asked(operation, layer, c, question.output_sizes)
    inner, outer, kernel = (_deep(sizes) for sizes in (one.before, one.after, one.kernel))
    inputs, outputs = one.inputs // c.groups, one.outputs // c.groups
    before, after = prod(inner), prod(outer)
    p = product_of(c, operation)
    rows, columns, depth = p.rows, p.columns * p.column_taps, p.depth * p.depth_taps
    tiles = _tiles(rows, columns, 128, 128)
    taps = _tiles(outputs, inputs, 128, 128) * c.kernel_area
    read, written = c.batch * one.inputs * before, c.batch * one.outputs * after
    return [
        _NUMBERS.index(layer.dtype), layer.channels_last, len(one.before), c.batch, inputs, outputs, c.groups,
        before, after, c.kernel_area, *kernel, *outer, *inner,
        max(layer.stride), min(layer.stride), max(one.padding), min(one.padding), max(layer.dilation),
        _even(inputs), _even(outputs), _even(after), _even(outer[-1]), _even(before),
        rows, columns, depth, rows * columns, rows * depth, columns * depth, rows * columns * depth,
        tiles, _tiles(rows, columns, 256, 128), _tiles(rows, columns, 128, 256), _tiles(rows, columns, 64, 64),
        taps, _tiles(outputs, inputs, 64, 64) * c.kernel_area, tiles % 132, taps % 132,
        read, written, c.weights, (read + written) / c.weights, depth / tiles, before / after, outputs / inputs,
        c.batch * after, inputs * c.kernel_area, outputs * c.kernel_area,
    ]  # fmt: skip


def _deep(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Depth, height and width."""
    depth, height, width = (1,) * (3 - len(sizes)) + tuple(sizes)
    return depth, height, width


_NUMBERS = ("float32", "float32_strict", "float16", "bfloat16")


def _tiles(rows: int, columns: int, height: int, width: int) -> int:
    return -(-rows // height) * -(-columns // width)


def _even(number: int) -> int:
    """The largest power of two that divides it, up to 64."""
    return min(number & -number, 64)


class _Forest:
    """Trees, one after the other, each node before its branches: the left one follows at once."""

    def __init__(
        self,
        recipes: list[str],
        limits: Sequence[float],
        starts: list[int],
        asked: bytes,
        values: Sequence[int],
        right: Sequence[int],
    ) -> None:
        self.trees = len(starts)
        self._recipes = recipes
        self._limits = limits
        self._starts = starts
        self._asked = asked
        self._values = values
        self._right = right

    def walk(self, seen: list[float]) -> Iterator[str]:
        """The recipe of each tree."""
        asked, values, limits, right = self._asked, self._values, self._limits, self._right
        for node in self._starts:
            while (feature := asked[node]) != LEAF:
                node += 1 if seen[feature] <= limits[values[node]] else right[node]
            yield self._recipes[values[node]]


class Head(NamedTuple):
    """What the file says of one operation's forest before its nodes."""

    recipes: list[str]
    limits: int
    """How many different limits its nodes have."""
    starts: list[int]
    """Where each tree begins."""
    nodes: int


@lru_cache(maxsize=1)
def _forests() -> dict[Kind, _Forest]:
    """The file: a line of JSON for each operation (`Head`), then for each its limits, and of its nodes the features, what they are compared with
    (the number of a limit, or of a leaf's recipe) and how far to the right branch."""
    if not FOREST.exists():
        return {}
    found: dict[Kind, _Forest] = {}
    with gzip.open(FOREST) as file:
        heads = [Head(*json.loads(file.readline())) for _ in OPERATIONS]
        for operation, head in zip(OPERATIONS, heads, strict=True):
            limits = _read(file, "f", head.limits)
            asked = file.read(head.nodes)
            values, right = _read(file, "H", head.nodes), _read(file, "I", head.nodes)
            found[operation] = _Forest(head.recipes, limits, head.starts, asked, values, right)
    return found


def _read(file: gzip.GzipFile, kind: str, count: int) -> Sequence[Any]:
    values = array(kind)
    values.frombytes(file.read(values.itemsize * count))
    if sys.byteorder == "big":
        values.byteswap()
    return values
