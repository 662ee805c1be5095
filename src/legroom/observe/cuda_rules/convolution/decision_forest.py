"""A random forest that predicts the workspace formula of a convolution, trained on queries to cuDNN on a real H200.

There is one forest per operation (`convolutions_h200.forest.xz`, written by `bench/rules/convolution/forest.py`). The
trees branch on the sizes of a convolution, its matrix product and its number of tiles. Each tree votes for a formula.
Votes for formulas with the same result are added. The forest is used in two cases: the cuDNN library is not installed,
or it does not log the kernels that it skips without a GPU.
"""

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, islice
from math import prod
from pathlib import Path
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution.cudnn_library import ConvOperation
from legroom.observe.cuda_rules.convolution.cudnn_query import OPERATIONS
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import kernel_problem
from legroom.observe.cuda_rules.convolution.recorded_table import (
    DTYPES,
    ConvQuery,
    decompress,
    read_array,
    ungroup,
)
from legroom.observe.cuda_rules.convolution.split_k import actual_operation, product_of
from legroom.observe.cuda_rules.convolution.workspace_formulas import formula_bytes
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution, tensor_bytes

FOREST = Path(__file__).with_name("convolutions_h200.forest.xz")
RATIOS = range(47, 51)
"""The indices of the features that are not integers. The thresholds of all other features are integers."""


class Vote(NamedTuple):
    size: int
    share: float
    formula: str


def vote(query: ConvQuery, c: Convolution, operation: ConvOperation) -> list[Vote]:
    """Return the formulas that the decision trees vote for, with the most votes first. Among formulas with equal votes,
    the result closest to the median comes first. The result is empty if there is no forest.
    """
    forest = _forests().get(actual_operation(operation, c.transposed))
    if forest is None:
        return []
    inputs = features(query, c, operation)
    votes: dict[str, int] = {}
    for formula in forest.predict(inputs):
        votes[formula] = votes.get(formula, 0) + 1
    tolerance = tensor_bytes(c) // 50
    sizes = {formula: formula_bytes(formula, query, c, operation) for formula in votes}
    median = sorted(sizes[formula] for formula in votes for _ in range(votes[formula]))[forest.trees // 2]
    found: list[Vote] = []
    for formula, size in sizes.items():
        support = sum(count for other, count in votes.items() if abs(sizes[other] - size) <= tolerance)
        found.append(Vote(size, support / forest.trees, formula))
    return sorted(found, key=lambda one: (-one.share, -votes[one.formula], abs(one.size - median)))


def features(query: ConvQuery, c: Convolution, operation: ConvOperation) -> list[float]:
    """Return the features of a convolution. A transposed convolution is treated as the gradient of an ordinary
    convolution.
    """
    layer = query.layer
    problem = kernel_problem(operation, layer, c, query.output_sizes)
    inner, outer, kernel = (_3d(sizes) for sizes in (problem.input_size, problem.output_size, problem.kernel))
    inputs, outputs = problem.inputs // c.groups, problem.outputs // c.groups
    before, after = prod(inner), prod(outer)
    p = product_of(c, operation)
    rows, columns, depth = p.rows, p.columns * p.column_taps, p.depth * p.depth_taps
    tiles = _tiles(rows, columns, 128, 128)
    taps = _tiles(outputs, inputs, 128, 128) * c.kernel_area
    read, written = c.batch * problem.inputs * before, c.batch * problem.outputs * after
    return [
        DTYPES.index(layer.dtype), layer.channels_last, len(problem.input_size), c.batch, inputs, outputs, c.groups,
        before, after, c.kernel_area, *kernel, *outer, *inner,
        max(layer.stride), min(layer.stride), max(problem.padding), min(problem.padding), max(layer.dilation),
        _power_of_two(inputs), _power_of_two(outputs), _power_of_two(after), _power_of_two(outer[-1]), _power_of_two(before),
        rows, columns, depth, rows * columns, rows * depth, columns * depth, rows * columns * depth,
        tiles, _tiles(rows, columns, 256, 128), _tiles(rows, columns, 128, 256), _tiles(rows, columns, 64, 64),
        taps, _tiles(outputs, inputs, 64, 64) * c.kernel_area, tiles % 132, taps % 132,
        read, written, c.weights, (read + written) / c.weights, depth / tiles, before / after, outputs / inputs,
        c.batch * after, inputs * c.kernel_area, outputs * c.kernel_area,
    ]  # fmt: skip


def _3d(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    depth, height, width = (1,) * (3 - len(sizes)) + tuple(sizes)
    return depth, height, width


def _tiles(rows: int, columns: int, height: int, width: int) -> int:
    return -(-rows // height) * -(-columns // width)


def _power_of_two(number: int) -> int:
    return min(number & -number, 64)


class _Forest:
    """Stores trees in preorder: each node comes before its left branch, and the left branch comes before the right
    branch. Leaves that are close in a tree often have the same formula, so this order compresses well.
    """

    def __init__(
        self,
        formulas: list[str],
        is_inner: str,
        features: bytes,
        thresholds: Sequence[Sequence[float]],
        inner_values: Sequence[int],
        leaf_values: Sequence[int],
    ) -> None:
        self._formulas = formulas
        self._is_inner = is_inner
        self._features = features
        self._thresholds = thresholds
        self._inner_values = inner_values
        self._leaf_values = leaf_values
        self._roots, self._right = _roots_and_right_branches(is_inner)
        self.trees = len(self._roots)
        inner_counts = (is_inner.count("1", at, at + _BLOCK) for at in range(0, len(is_inner), _BLOCK))
        self._inner_before = [*accumulate(inner_counts, initial=0)]

    def predict(self, inputs: list[float]) -> Iterator[str]:
        is_inner, inner_before, right = self._is_inner, self._inner_before, self._right
        features, thresholds, values = self._features, self._thresholds, self._inner_values
        for node in self._roots:
            while True:
                inner = inner_before[node // _BLOCK] + is_inner.count("1", node - node % _BLOCK, node)
                if is_inner[node] == "0":
                    break
                feature = features[inner]
                node = right[inner] if inputs[feature] > thresholds[feature][values[inner]] else node + 1
            yield self._formulas[self._leaf_values[node - inner]]


def _roots_and_right_branches(is_inner: str) -> tuple[Sequence[int], Sequence[int]]:
    """Return the roots of all trees, and the first node of the right branch of each inner node."""
    right = array("I")
    branches: list[int] = []  # the branches after the current node whose parent comes before it
    add, push, pop = right.append, branches.append, branches.pop
    for following, kind in zip(range(len(is_inner), 0, -1), reversed(is_inner), strict=True):
        if kind == "0":
            push(following)  # a right branch or a tree starts after each leaf
        else:
            add(pop())
    right.reverse()
    return [0, *branches[:0:-1]], right


_BLOCK = 64
"""The number of nodes in a block. The number of inner nodes before each block is stored, because counting all earlier
inner nodes for each node would take longer than reading the file.
"""


class ForestHeader(NamedTuple):
    formulas: list[str]
    trees: int
    feature_counts: list[int]

    @property
    def nodes(self) -> int:
        return self.trees + 2 * sum(self.feature_counts)  # every inner node has two children

    @property
    def leaf_type(self) -> str:
        return "B" if len(self.formulas) <= 256 else "H"


@lru_cache(maxsize=1)
def _forests() -> dict[ConvOperation, _Forest]:
    """Read the forests.

    The file starts with a line of JSON, which contains the number of thresholds of each feature. The file continues
    with one line per operation (`ForestHeader`), and with the thresholds of all operations, sorted by feature and
    value. Four arrays per operation come last. Their nodes are in preorder:

    - one bit per node, which is 1 for inner nodes;
    - the feature of each inner node;
    - the index of the threshold of each inner node, grouped by feature;
    - the formula of each leaf.
    """
    if not FOREST.exists():
        return {}
    file = decompress(FOREST)
    counts = json.loads(file.readline())
    headers = [ForestHeader(*json.loads(file.readline())) for _ in OPERATIONS]
    thresholds = _read_thresholds(file, counts)
    found: dict[ConvOperation, _Forest] = {}
    for operation, header in zip(OPERATIONS, headers, strict=True):
        inner_count = sum(header.feature_counts)
        is_inner = _read_bits(file, header.nodes)
        features = file.read(inner_count)
        grouped = _read_halves(file, inner_count)
        inner_values = array("H", ungroup(features, grouped, header.feature_counts))
        leaf_values = read_array(file, header.leaf_type, header.nodes - inner_count)
        found[operation] = _Forest(header.formulas, is_inner, features, thresholds, inner_values, leaf_values)
    return found


def _read_bits(file: BytesIO, count: int) -> str:
    """Read `count` bits and return them as a string of zeros and ones. The file pads the last byte with zeros."""
    data = file.read(-(-count // 8))
    return f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}"[:count]


def _read_halves(file: BytesIO, count: int) -> Sequence[int]:
    """Read 16-bit integers. For better compression, all lower bytes come before all upper bytes."""
    interleaved = bytearray(2 * count)
    interleaved[0::2], interleaved[1::2] = file.read(count), file.read(count)
    return read_array(BytesIO(interleaved), "H", count)


def _read_thresholds(file: BytesIO, counts: Sequence[int]) -> list[Sequence[float]]:
    """Read the thresholds. For better compression, the first and the second bytes of the floats are stored separately.
    The upper halves are stored as differences, because thresholds are sorted.
    """
    total = sum(counts)
    interleaved = bytearray(4 * total)
    interleaved[0::4], interleaved[1::4] = file.read(total), file.read(total)
    differences = iter(_read_halves(file, total))
    upper = array("H")
    for count in counts:
        upper.extend(accumulate(islice(differences, count)))
    if sys.byteorder == "big":
        upper.byteswap()
    interleaved[2::4], interleaved[3::4] = upper.tobytes()[0::2], upper.tobytes()[1::2]
    floats = BytesIO(interleaved)
    return [read_array(floats, "f", count) for count in counts]
