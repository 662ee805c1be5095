"""How well the workspace of a convolution that was never measured is guessed: measured ones are left out and guessed from the rest.

    python -m bench.convolution_guesses [--every 60]

First each layer, at all its batch sizes, dtypes and layouts, as for a network that nobody measured. Then whole kinds of layers at once
(all kernels of eight, all of three dimensions, ...), as for a network unlike any that was measured. Errors are shares of the convolution's
input, weights and output; "covered" is what took at most (within 2% of that) the largest size that the safe bound reckons with.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench.table import print_table
from legroom.observe.cuda_rules import convolution_workspace as rules
from legroom.observe.cuda_rules.convolution_neighbours import Guess, guess
from legroom.observe.cuda_rules.convolution_table import Layer, Row, described, table, told
from legroom.observe.cuda_rules.convolution_workspace import Convolution, Workspaces
from legroom.observe.gpus import find_gpu

H200 = find_gpu("h200")
OPERATIONS = ("forward", "input gradient", "weight gradient")

KINDS: dict[str, Callable[[Layer], bool]] = {
    "kernel of 8": lambda layer: max(layer.kernel) == 8,
    "kernel of 5": lambda layer: max(layer.kernel) == 5,
    "3 × 3, stride 1": lambda layer: layer.kernel == (3, 3) and layer.stride == (1, 1),
    "stride 4": lambda layer: max(layer.stride) == 4,
    "one input channel": lambda layer: layer.inputs == 1,
    "three dimensions": lambda layer: len(layer.sizes) == 3,
    "transposed": lambda layer: layer.transposed,
    "dilated": lambda layer: max(layer.dilation) > 1,
    "groups": lambda layer: layer.groups > 1,
    "channels last": lambda layer: layer.channels_last,
    "TF32 off": lambda layer: layer.dtype == "float32_strict",
}


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
            f"{sum(error >= -0.02 for error in self.most) / count:.1%}",
        ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=60, help="only every n-th measured layer")
    options = parser.parse_args(argv)
    everything = [(layer, rows) for layer, rows in table() if not layer.groups == layer.inputs > 1]
    told_by: dict[tuple[str, str], Errors] = {}
    for layer, rows in everything[:: options.every]:
        for row in rows[:2]:
            c = described(layer, row[0])
            note(told_by, "by rules", layer, row, by_rules(c))
            note(told_by, "by neighbours", layer, row, guessed(layer, c, lambda other, layer=layer: other[2:10] == layer[2:10]))  # fmt: skip
    for name, belongs in KINDS.items():
        kind = [(layer, rows) for layer, rows in everything if belongs(layer)]
        for layer, rows in itertools.islice(kind, 0, None, max(1, len(kind) // (6000 // options.every))):
            c = described(layer, rows[0][0])
            note(told_by, f"without {name}", layer, rows[0], guessed(layer, c, belongs))
    columns = ["guessed", "operation", "count", "right", "error", "too small", "covered"]
    print_table("guessed workspaces", columns, [[*key, *errors.row()] for key, errors in told_by.items()])
    return 0


def note(told_by: dict[tuple[str, str], Errors], way: str, layer: Layer, row: Row, guess: Guess) -> None:
    c = described(layer, row[0])
    size = c.converted() + (c.weights * c.element if c.pointwise else 0)
    for index, real in enumerate(told(row, c)):
        errors = told_by.setdefault((way, OPERATIONS[index]), Errors())
        errors.likely.append((guess.likely[index] - real) / size)
        errors.most.append((_largest(guess, index) - real) / size)


def _largest(guess: Guess, index: int) -> int:
    sizes: Iterable[Workspaces] = (guess.likely, *guess.others)
    return max(workspaces[index] for workspaces in sizes)


def guessed(layer: Layer, c: Convolution, left_out: Callable[[Layer], bool]) -> Guess:
    return guess(layer, c, H200, lambda other, _batch: left_out(other)) or by_rules(c)


def by_rules(c: Convolution) -> Guess:
    sizes = Workspaces(rules.forward(c), rules.input_gradient(c), rules.weight_gradient(c, H200))
    return Guess(sizes, (rules.most(c, H200),))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
