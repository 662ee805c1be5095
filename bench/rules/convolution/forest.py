"""Trains the forest that predicts convolution workspaces from answers that `ask_cudnn --survey` recorded.

    python -m bench.rules.convolution.forest FOLDER... [--trees 3 3 5] [--leaves 24000 24000 24000] [--most 800000] [--jobs 2] [--out FILE]

A tenth of the layers, with all their batch sizes, dtypes and layouts, is held out, and the program prints the accuracy
on these layers. The forest is written to FILE, by default
src/legroom/observe/cuda_rules/convolution/convolutions_h200.forest.xz. Needs scikit-learn.
"""

import argparse
import gzip
import json
import multiprocessing
import random
import sys
from collections.abc import Iterator
from itertools import islice, starmap
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from bench.rules.convolution.shipped_files import write_forest
from bench.rules.convolution.trees import Tree, grow
from legroom.observe.cuda_rules.convolution import decision_forest
from legroom.observe.cuda_rules.convolution.cudnn_library import ConvOperation
from legroom.observe.cuda_rules.convolution.cudnn_query import OPERATIONS
from legroom.observe.cuda_rules.convolution.decision_forest import FOREST, features, vote
from legroom.observe.cuda_rules.convolution.recorded_table import (
    ConvLayer,
    ConvQuery,
    convolution_of,
    output_sizes,
)
from legroom.observe.cuda_rules.convolution.split_k import actual_operation
from legroom.observe.cuda_rules.convolution.workspace_formulas import formula_for
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution, tensor_bytes

LARGEST = 4 << 30
"""The maximum workspace size in bytes. Larger workspaces are not learned, because they are rare, and because kernels
split such convolutions."""


class Answered(NamedTuple):
    """One recorded answer about a convolution."""

    question: ConvQuery
    c: Convolution
    sizes: tuple[int, ...]
    engines: tuple[Any, ...]

    @property
    def held_out(self) -> bool:
        """True if the layer is in the held-out tenth."""
        return crc32(repr(self.question.layer[2:9]).encode()) % 10 == 0

    def formula(self, place: int) -> str:
        """Return the label of a recorded answer."""
        engine, knobs = self.engines[place]
        settings = {int(name): value for name, value in knobs.items()}
        return formula_for(self.sizes[place], engine, settings, self.question, self.c, OPERATIONS[place])


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument(
        "--trees",
        type=int,
        nargs=3,
        default=(3, 3, 5),
        help="trees for the forward pass and the two gradients",
    )
    parser.add_argument(
        "--leaves",
        type=int,
        nargs=3,
        default=(24_000, 24_000, 24_000),
        help="maximum number of leaves per tree",
    )
    parser.add_argument(
        "--most", type=int, default=800_000, help="maximum number of convolutions to learn from"
    )
    parser.add_argument(
        "--judged", type=int, default=12_000, help="number of held-out convolutions to predict"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FOREST)
    options = parser.parse_args(argv)
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        parts = pool.map(
            read_part, [(options.folders, options.most, part, options.jobs) for part in range(options.jobs)]
        )
    features_of = [np.concatenate([part.features_of[kind] for part in parts]) for kind in OPERATIONS]
    labels = [np.concatenate([part.labels[kind] for part in parts]) for kind in OPERATIONS]
    tested = [one for part in parts for one in part.held_out]
    print(f"{len(features_of[-1])} convolutions for training, {len(tested)} held out", flush=True)
    formulas = [sorted(set(names.tolist())) for names in labels]
    numbered = [np.searchsorted(known, names) for known, names in zip(formulas, labels, strict=True)]
    TRAINING_DATA[:] = zip(features_of, numbered, strict=True)
    wanted = [
        (place, seed, options.leaves[place])
        for place in range(len(OPERATIONS))
        for seed in range(options.trees[place])
    ]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        grown = pool.starmap(grow_tree, wanted, chunksize=1)
    trees = iter(grown)
    forests = [list(islice(trees, count)) for count in options.trees]
    write_forest(options.out, formulas, forests)
    print(f"{options.out.stat().st_size / 1024:.0f} KiB", flush=True)
    judge(options, tested)
    return 0


class TrainingPart(NamedTuple):
    """A part of the recorded answers: features and formulas by operation. Transposed convolutions count as the
    operation that they run."""

    features_of: dict[ConvOperation, Any]
    labels: dict[ConvOperation, Any]
    held_out: list[Answered]


TRAINING_DATA: list[tuple[Any, Any]] = []
"""The features and formula numbers of every convolution, by operation. Forked processes read this variable."""


def read_part(share: tuple[list[Path], int, int, int]) -> TrainingPart:
    seen: dict[ConvOperation, list[list[float]]] = {kind: [] for kind in OPERATIONS}
    labels: dict[ConvOperation, list[str]] = {kind: [] for kind in OPERATIONS}
    held_out: list[Answered] = []
    for one in answered(*share):
        if one.held_out:
            held_out.append(one)
            continue
        for place, operation in enumerate(OPERATIONS):
            if one.engines[place][0] is None:
                continue
            kind = actual_operation(operation, one.c.transposed)
            seen[kind].append(features(one.question, one.c, operation))
            labels[kind].append(one.formula(place))
    return TrainingPart(
        {kind: np.array(rows, dtype=np.float32) for kind, rows in seen.items()},
        {kind: np.array(names) for kind, names in labels.items()},
        held_out,
    )


def grow_tree(place: int, seed: int, leaves: int) -> Tree:
    features_of, names = TRAINING_DATA[place]
    return grow(features_of, names, leaves, seed)


def answered(folders: list[Path], most: int, part: int, parts: int) -> Iterator[Answered]:
    """Yield every convolution once, except the largest, in an order that does not depend on the files."""
    lines: set[str] = set()
    for path in sorted(path for folder in folders for path in folder.rglob("answers-*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            lines.update(file)
    mixed = sorted(lines)
    random.Random(5).shuffle(mixed)
    for line in mixed[:most][part::parts]:
        dtype, layout, batch, inputs, outputs, sizes, kernel, stride, padding, dilation, groups, transposed, grown, *rest = json.loads(line)  # fmt: skip
        if max(rest[:3]) > LARGEST:
            continue
        layer = ConvLayer(
            dtype, layout == "last", inputs, outputs, tuple(sizes), tuple(kernel), tuple(stride), tuple(dilation), groups,
            transposed, tuple(padding),
        )  # fmt: skip
        made = tuple(size + grown for size in output_sizes(layer, padding))
        yield Answered(
            ConvQuery(layer, batch, made),
            convolution_of(layer, batch, grown),
            tuple(rest[:3]),
            tuple(rest[3:]),
        )


def judge(options: argparse.Namespace, tested: list[Answered]) -> None:
    """Print the errors of the forest's predictions."""
    decision_forest.FOREST = options.out
    errors: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one in tested[: options.judged]:
        kind = "one pixel" if one.c.pointwise else "groups" if one.c.groups > 1 else "other"
        for place, operation in enumerate(OPERATIONS):
            if one.engines[place][0] is None:
                continue
            sizes = [each.size for each in vote(one.question, one.c, operation)]
            errors.setdefault((operation.name.lower(), kind), []).append(_errors(sizes, one, place))
    columns = ["operation", "kind", "count", "right", "error", "too small", "covered"]
    print_table("workspaces of held-out layers", columns, list(starmap(_row, sorted(errors.items()))))


def _row(key: tuple[str, str], found: list[tuple[float, float]]) -> list[str]:
    return [
        *key,
        str(len(found)),
        f"{np.mean([abs(error) < 0.02 for error, _ in found]):.1%}",
        f"{np.mean([min(abs(error), 3) for error, _ in found]):.1%}",
        f"{np.mean([error < -0.02 for error, _ in found]):.1%}",
        f"{np.mean([most > -0.02 for _, most in found]):.1%}",
    ]


def _errors(sizes: list[int], one: Answered, place: int) -> tuple[float, float]:
    """Return the errors of the most likely size and of the largest size, relative to the bytes that the convolution
    reads and writes."""
    real, scale = one.sizes[place], tensor_bytes(one.c)
    return (sizes[0] - real) / scale, (max(sizes) - real) / scale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
