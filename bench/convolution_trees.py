"""Decision trees, grown with numpy alone.

A tree is split where that makes its branches purest, the most useful split first, until it has so many leaves. Purity is measured on random codes:
each label stands for a vector drawn at random, and the spread of the vectors in a branch is, but for noise, the chance that two of its samples have
different labels (Gini's measure). Sums of a few numbers take the place of counts of hundreds of labels.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np

from legroom.observe.cuda_rules.convolution_forest import LEAF

CODE = 12
"""Numbers that stand for one label."""
SAMPLED, TRIED = 0.7, 0.4
"""Share of all samples that a tree grows on, and of the features that are tried for each split."""


class Tree(NamedTuple):
    """Nodes, each before its left branch and that before its right one."""

    asked: list[int]
    """A feature, or LEAF."""
    values: list[float]
    """What the feature may be at most on the left; of a leaf the label that most of its samples have."""
    right: list[int]
    """How many nodes on the right branch begins."""


class _Node:
    """Samples that came here, and how they are best split."""

    def __init__(self, samples: Any, told: Any) -> None:
        self.label = int(np.bincount(told[samples]).argmax())
        self.feature = LEAF
        self.limit = 0.0
        self.branches: tuple[_Node, _Node] | None = None


def grow(asked: Any, told: Any, leaves: int, seed: int) -> Tree:
    """`asked`: a row of features for each sample. `told`: the number of its label."""
    dice = np.random.default_rng(seed)
    codes = dice.standard_normal((int(told.max()) + 1, CODE))
    samples = dice.choice(len(told), int(SAMPLED * len(told)), replace=False)
    root = _Node(samples, told)
    waiting: list[tuple[float, int, _Node, Any, int, float]] = []
    made = 0

    def consider(node: _Node, samples: Any) -> None:
        nonlocal made
        gain, feature, limit = _best_split(asked[samples], codes[told[samples]], dice)
        if gain > 1e-9:
            made += 1
            heapq.heappush(waiting, (-gain, made, node, samples, feature, limit))

    consider(root, samples)
    for _ in range(leaves - 1):
        if not waiting:
            break
        _, _, node, samples, node.feature, node.limit = heapq.heappop(waiting)
        left = asked[samples, node.feature] <= node.limit
        parts = samples[left], samples[~left]
        node.branches = _Node(parts[0], told), _Node(parts[1], told)
        for branch, part in zip(node.branches, parts, strict=True):
            consider(branch, part)
    tree = Tree([], [], [])
    _lay_down(root, tree)
    return tree


def _best_split(asked: Any, codes: Any, dice: np.random.Generator) -> tuple[float, int, float]:
    """How much the best of some splits gains, its feature and its limit."""
    count = len(asked)
    if count < 2 or np.ptp(codes[:, 0]) == 0:
        return 0.0, LEAF, 0.0
    total = codes.sum(axis=0)
    before = float(total @ total) / count
    sizes = np.arange(1, count)
    best = (0.0, LEAF, 0.0)
    for feature in dice.permutation(asked.shape[1])[: int(TRIED * asked.shape[1])]:
        order = np.argsort(asked[:, feature], kind="stable")
        ordered = asked[order, feature]
        places = np.flatnonzero(ordered[1:] > ordered[:-1])
        if not len(places):
            continue
        left = np.cumsum(codes[order], axis=0)[places]
        taken = sizes[places]
        pure = (left**2).sum(axis=1) / taken + ((total - left) ** 2).sum(axis=1) / (count - taken)
        place = int(pure.argmax())
        gain = float(pure[place]) - before
        if gain > best[0]:
            limit = (float(ordered[places[place]]) + float(ordered[places[place] + 1])) / 2
            best = (gain, int(feature), limit)
    return best


def _lay_down(root: _Node, tree: Tree) -> None:
    waiting: list[tuple[_Node, int | None]] = [(root, None)]
    while waiting:
        node, parent = waiting.pop()
        place = len(tree.asked)
        if parent is not None:
            tree.right[parent] = place - parent
        leaf = node.branches is None
        tree.asked.append(LEAF if leaf else node.feature)
        tree.values.append(node.label if leaf else node.limit)
        tree.right.append(0)
        if node.branches is not None:
            waiting += [(node.branches[1], place), (node.branches[0], None)]
