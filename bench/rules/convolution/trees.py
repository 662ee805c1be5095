"""Decision trees for hundreds of labels.

A tree is split where that makes its branches purest, the most useful split first, until it has so many leaves. Purity is measured on random codes:
each label stands for a vector drawn at random, and the spread of the vectors in a branch is, but for noise, the chance that two of its samples have
different labels (Gini's measure). Sums of a few numbers take the place of counts of hundreds of labels, and scikit-learn's trees for numbers can grow them.
"""

from typing import Any, NamedTuple

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from legroom.observe.cuda_rules.convolution.decision_forest import LEAF

CODE = 8
"""Numbers that stand for one label."""
SAMPLED, TRIED = 0.8, 0.5
"""Share of all samples that a tree grows on, and of the features that are tried for each split."""


class Tree(NamedTuple):
    """Nodes, each before its left branch and that before its right one."""

    asked: Any
    """A feature, or LEAF."""
    values: Any
    """What the feature may be at most on the left; of a leaf the label that most of its samples have."""
    right: Any
    """How many nodes on the right branch begins."""


def grow(asked: Any, told: Any, leaves: int, seed: int) -> Tree:
    """`asked`: a row of features for each sample. `told`: the number of its label."""
    dice = np.random.default_rng(seed)
    codes = dice.standard_normal((int(told.max()) + 1, CODE)).astype(np.float32)
    samples = dice.choice(len(told), int(SAMPLED * len(told)), replace=False)
    model = DecisionTreeRegressor(max_leaf_nodes=leaves, max_features=TRIED, random_state=seed)
    model.fit(asked[samples], codes[told[samples]])
    return _laid_down(model.tree_, _most_common(model.apply(asked[samples]), told[samples]))


def _most_common(reached: Any, told: Any) -> dict[int, int]:
    """The label that most samples have which reached a leaf, by its node."""
    order = np.argsort(reached, kind="stable")
    nodes, begins = np.unique(reached[order], return_index=True)
    return {
        int(node): int(np.bincount(labels).argmax())
        for node, labels in zip(nodes, np.split(told[order], begins[1:]), strict=True)
    }


def _laid_down(grown: Any, labels: dict[int, int]) -> Tree:
    """Its nodes in the order in which they are kept."""
    asked, values, right = (np.zeros(grown.node_count, kind) for kind in ("u1", "f8", "u4"))
    left_of, right_of = grown.children_left, grown.children_right
    waiting: list[tuple[int, int | None]] = [(0, None)]
    place = 0
    while waiting:
        node, parent = waiting.pop()
        if parent is not None:
            right[parent] = place - parent
        if left_of[node] < 0:
            asked[place], values[place] = LEAF, labels[node]
        else:
            asked[place], values[place] = grown.feature[node], grown.threshold[node]
            waiting += [(right_of[node], place), (left_of[node], None)]
        place += 1
    return Tree(asked, values, right)
