"""Which recipe a convolution's workspace follows, as decision trees have it that were grown on what a real H200 answered.

A forest for each operation (`convolutions_h200.forest.gz`, made by `bench/convolution_learning.py`): the trees ask for a convolution's sizes, its
matrix product and how many tiles that has, and each votes for a recipe. Recipes that come to the same bytes share their votes. It is asked where cuDNN's own
library is not there, or does not see all kernels because there is no GPU.
"""

import gzip
import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution_cudnn import OPERATIONS, Question
from legroom.observe.cuda_rules.convolution_library import Kind
from legroom.observe.cuda_rules.convolution_recipes import cooked, whole
from legroom.observe.cuda_rules.convolution_split import product_of, turned
from legroom.observe.cuda_rules.convolution_workspace import Convolution

FOREST = Path(__file__).with_name("convolutions_h200.forest.gz")
LEAF = 255
"""Instead of a feature's number: here a tree ends."""


class Voted(NamedTuple):
    """A size, and the share of the trees that voted for it."""

    size: int
    share: float
    recipe: str


def vote(question: Question, c: Convolution, operation: Kind) -> list[Voted]:
    """What the trees think, the likeliest first; nothing where there is no forest."""
    forest = _forests().get(operation)
    if forest is None:
        return []
    seen = features(question, c, operation)
    votes: dict[str, int] = {}
    for recipe in forest.walk(seen):
        votes[recipe] = votes.get(recipe, 0) + 1
    near = whole(c) // 50
    sizes = {recipe: cooked(recipe, question, c, operation) for recipe in votes}
    found: list[Voted] = []
    for recipe, size in sizes.items():
        support = sum(count for other, count in votes.items() if abs(sizes[other] - size) <= near)
        found.append(Voted(size, support / forest.trees, recipe))
    return sorted(found, key=lambda one: (-one.share, -votes[one.recipe], one.size))


def features(question: Question, c: Convolution, operation: Kind) -> list[float]:
    """What trees may ask for."""
    layer = question.layer
    inner, outer = layer.sizes, question.output_sizes
    inputs, outputs = c.inputs // c.groups, c.outputs // c.groups
    before, after = c.input_area, c.output_area
    if c.transposed:
        inner, outer, inputs, outputs, before, after = outer, inner, outputs, inputs, after, before
    p = product_of(c, operation)
    rows, columns, depth = p.rows, p.columns * p.column_taps, p.depth * p.depth_taps
    tiles = _tiles(rows, columns, 128, 128)
    taps = _tiles(outputs, inputs, 128, 128) * c.kernel_area
    read, written = c.batch * c.inputs * c.input_area, c.batch * c.outputs * c.output_area
    return [
        turned(operation, c.transposed), _NUMBERS.index(layer.dtype), layer.channels_last, len(inner), c.batch, inputs, outputs, c.groups,
        before, after, c.kernel_area, layer.kernel[0], layer.kernel[-1], outer[-1], outer[0], inner[-1],
        max(layer.stride), min(layer.stride), max(layer.padding or (0,)), max(layer.dilation),
        _even(inputs), _even(outputs), _even(after), _even(outer[-1]),
        rows, columns, depth, rows * columns, rows * depth, columns * depth, rows * columns * depth,
        tiles, _tiles(rows, columns, 256, 128), _tiles(rows, columns, 128, 256), _tiles(rows, columns, 64, 64),
        taps, _tiles(outputs, inputs, 64, 64) * c.kernel_area, tiles % 132, taps % 132,
        read, written, c.weights, (read + written) / c.weights, depth / tiles, before / after,
    ]  # fmt: skip


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
        starts: list[int],
        asked: bytes,
        values: Sequence[float],
        right: Sequence[int],
    ) -> None:
        self.trees = len(starts)
        self._recipes = recipes
        self._starts = starts
        self._asked = asked
        self._values = values
        self._right = right

    def walk(self, seen: list[float]) -> Iterator[str]:
        """The recipe of each tree."""
        asked, values, right = self._asked, self._values, self._right
        for node in self._starts:
            while (feature := asked[node]) != LEAF:
                node += 1 if seen[feature] <= values[node] else right[node]
            yield self._recipes[int(values[node])]


@lru_cache(maxsize=1)
def _forests() -> dict[Kind, _Forest]:
    """The file: a line of JSON for each operation (its recipes, where its trees start, how many nodes it has), then for each
    the features, values and steps to the right of its nodes."""
    if not FOREST.exists():
        return {}
    found: dict[Kind, _Forest] = {}
    with gzip.open(FOREST) as file:
        heads = [json.loads(file.readline()) for _ in OPERATIONS]
        for operation, (recipes, starts, nodes) in zip(OPERATIONS, heads, strict=True):
            asked = file.read(nodes)
            values, right = array("f"), array("H")
            values.frombytes(file.read(4 * nodes))
            right.frombytes(file.read(2 * nodes))
            if sys.byteorder == "big":
                values.byteswap()
                right.byteswap()
            found[operation] = _Forest(recipes, starts, asked, values, right)
    return found
