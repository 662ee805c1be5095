"""How well the workspace of a convolution that was never measured is guessed: each measured layer is left out in turn.

    python -m bench.convolution_guesses [--every 20]

Twice: without the layer at any batch size, dtype and layout, as for a network that nobody measured; and without this batch
size only. Errors are shares of the convolution's input, weights and output.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.table import print_table
from legroom.observe.cuda_rules import convolution_workspace as rules
from legroom.observe.cuda_rules.convolution_neighbours import guess
from legroom.observe.cuda_rules.convolution_table import Layer, described, table, told
from legroom.observe.cuda_rules.convolution_workspace import Workspaces
from legroom.observe.gpus import find_gpu

H200 = find_gpu("h200")
OPERATIONS = ("forward", "input gradient", "weight gradient")


@dataclass
class Errors:
    """Of one way of guessing, for one operation: guessed less measured, as shares."""

    likely: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        count = len(self.likely)
        return [
            str(count),
            f"{sum(abs(error) < 0.02 for error in self.likely) / count:.1%}",
            f"{sum(min(abs(error), 3) for error in self.likely) / count:.1%}",
            f"{sum(error < -0.02 for error in self.likely) / count:.1%}",
            f"{sum(error < -0.02 for error in self.most) / count:.1%}",
            f"{sum(min(3, most - likely) for most, likely in zip(self.most, self.likely, strict=True)) / count:.0%}",
        ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=20, help="only every n-th measured layer")
    options = parser.parse_args(argv)
    told_by: dict[tuple[str, str, str], Errors] = {}
    for layer, rows in list(table().items())[:: options.every]:
        if layer.groups == layer.inputs > 1:
            continue
        for row in rows:
            c = described(layer, row[0])
            size = c.converted() + (c.weights * c.element if c.pointwise else 0)
            for way, (likely, most) in guesses(layer, row[0]).items():
                for index, real in enumerate(told(row, c)):
                    for kind in ("all", f"{len(layer.sizes)}-d {layer.dtype}"):
                        errors = told_by.setdefault((kind, OPERATIONS[index], way), Errors())
                        errors.likely.append((likely[index] - real) / size)
                        errors.most.append((max(most[index], likely[index]) - real) / size)
    print_table(
        "guessed workspaces",
        [
            "layers",
            "operation",
            "from",
            "count",
            "right",
            "error",
            "too small",
            "most too small",
            "most above",
        ],
        [[*key, *errors.row()] for key, errors in sorted(told_by.items())],
    )
    return 0


def guesses(layer: Layer, batch: int) -> dict[str, tuple[Workspaces, Workspaces]]:
    c = described(layer, batch)

    def no_such_layer(other: Layer, _batch: int) -> bool:
        return other[2:] == layer[2:]

    def no_such_batch(other: Layer, its_batch: int) -> bool:
        return other[2:] == layer[2:] and its_batch == batch

    ways: dict[str, Callable[[Layer, int], bool]] = {
        "other layers": no_such_layer,
        "other batches too": no_such_batch,
    }
    by_rule = Workspaces(rules.forward(c), rules.input_gradient(c), rules.weight_gradient(c, H200))
    found = {"rules": (by_rule, rules.most(c, H200))}
    for way, without in ways.items():
        guessed = guess(layer, c, H200, without)
        if guessed is not None:
            found[way] = (guessed.likely, guessed.most)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
