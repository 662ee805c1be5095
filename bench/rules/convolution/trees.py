"""Decision trees for hundreds of labels.

scikit-learn's regression trees are grown on random vectors, one per label. The variance of the vectors in a branch
approximates its Gini impurity. Therefore, sums of a few numbers replace counts of hundreds of labels.
"""

from typing import Any, NamedTuple

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from bench.rules.convolution.shipped_files import LEAF

CODE = 8
"""The length of a label's random vector."""
SAMPLED, TRIED = 0.8, 0.5
"""The fraction of the samples for each tree, and the fraction of the features that are tried for each split."""


class Tree(NamedTuple):
    """A tree as a list of nodes in preorder. Each node comes before its left branch, and the left branch comes before
    the right branch."""

    features: Any
    """The number of the feature, or LEAF."""
    values: Any
    """The largest value of the feature in the left branch. For a leaf, this is its most frequent label."""
    right: Any
    """The number of nodes from a node to its right branch."""


def grow(features: Any, labels: Any, leaves: int, seed: int) -> Tree:
    """Grow a tree. `features` has one row per sample. `labels` contains the label number of each sample."""
    random = np.random.default_rng(seed)
    codes = random.standard_normal((int(labels.max()) + 1, CODE)).astype(np.float32)
    samples = random.choice(len(labels), int(SAMPLED * len(labels)), replace=False)
    model = DecisionTreeRegressor(max_leaf_nodes=leaves, max_features=TRIED, random_state=seed)
    model.fit(features[samples], codes[labels[samples]])
    return _in_preorder(model.tree_, _most_common(model.apply(features[samples]), labels[samples]))


def _most_common(leaves_of: Any, labels: Any) -> dict[int, int]:
    """Return the most frequent label of each leaf, by node."""
    order = np.argsort(leaves_of, kind="stable")
    nodes, begins = np.unique(leaves_of[order], return_index=True)
    return {
        int(node): int(np.bincount(labels).argmax())
        for node, labels in zip(nodes, np.split(labels[order], begins[1:]), strict=True)
    }


def _in_preorder(grown: Any, labels: dict[int, int]) -> Tree:
    """Return the nodes in the order in which they are stored."""
    features, values, right = (np.zeros(grown.node_count, kind) for kind in ("u1", "f8", "u4"))
    left_of, right_of = grown.children_left, grown.children_right
    waiting: list[tuple[int, int | None]] = [(0, None)]
    place = 0
    while waiting:
        node, parent = waiting.pop()
        if parent is not None:
            right[parent] = place - parent
        if left_of[node] < 0:
            features[place], values[place] = LEAF, labels[node]
        else:
            features[place], values[place] = grown.feature[node], grown.threshold[node]
            waiting += [(right_of[node], place), (left_of[node], None)]
        place += 1
    return Tree(features, values, right)
