"""What cuDNN was seen to take for the convolutions most like one that was never measured.

cuDNN's choice of a kernel depends on sizes in ways that no short rule catches, but smoothly enough that like convolutions mostly
get like kernels. So a convolution that is not in the table takes what its nearest neighbour there took, told for its own sizes;
what the next few took says how far that may be off. `bench/convolution_guesses.py` leaves out each measured layer in turn and
guesses it from the rest: that is where the weights below and the number of neighbours come from.
"""

from bisect import insort
from collections.abc import Callable
from functools import lru_cache
from math import dist, log, prod
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution_table import KINDS, UNIT, Layer, Row, described, size_of, table
from legroom.observe.cuda_rules.convolution_workspace import Convolution, Workspaces, partial_weights
from legroom.observe.gpus import Gpu

COUNT = 8
"""How many neighbours are asked. Of the measured layers, left out in turn, the largest of so many was enough for all but 2 to 4%."""


class Guess(NamedTuple):
    """What a convolution may take."""

    likely: Workspaces
    most: Workspaces


class _Measured(NamedTuple):
    place: tuple[float, ...]
    layer: Layer
    row: Row


_Family = dict[tuple[float, ...], list[_Measured]]
"""Measurements by their channels (the first two of their place), which decide most of a distance."""


def guess(
    layer: Layer, c: Convolution, gpu: Gpu, without: Callable[[Layer, int], bool] | None = None
) -> Guess | None:
    """What the nearest neighbour took, and the most that any of the nearest took; None if there is none of its family.

    `without(layer, batch)`: measurements to be left out.
    """
    place = _place(layer, c.batch)
    for family in _families_of(layer):
        near = _nearest(_families().get(family, {}), place, without)
        if len(near) >= COUNT or (near and len(family) < _NARROW):
            sizes = [_carried_over(one, c, gpu) for one in near]
            return Guess(sizes[0], Workspaces(*(max(column) for column in zip(*sizes, strict=True))))
    return None


def _nearest(
    family: _Family, place: tuple[float, ...], without: Callable[[Layer, int], bool] | None
) -> list[_Measured]:
    """The nearest few, nearest first. Whole groups are passed over once their channels alone are farther away."""
    found: list[tuple[float, int, _Measured]] = []
    seen = 0
    for away, channels in sorted((dist(channels, place[:2]), channels) for channels in family):
        if len(found) >= COUNT and away > found[COUNT - 1][0]:
            break
        for one in family[channels]:
            if without is None or not without(one.layer, one.row[0]):
                seen += 1
                insort(found, (dist(one.place, place), seen, one))
        del found[COUNT:]
    return [one for _, _, one in found]


_NARROW = 7


def _carried_over(measured: _Measured, c: Convolution, gpu: Gpu) -> Workspaces:
    """What a neighbour took, told for a convolution of other sizes.

    Copies follow the sizes of what is copied; what remains are mostly partial sums, and shrinks with those. (That it
    does not grow with them either was found by leaving out measured layers.)
    """
    like = described(measured.layer, measured.row[0])
    before, now = partial_weights(like, gpu), partial_weights(c, gpu)
    growth = min(1.0, now / before if before and now else c.weights / like.weights)
    sizes = []
    for place in (1, 3, 5):
        kind, rest = KINDS[measured.row[place]], measured.row[place + 1] * UNIT
        if (
            kind.copies and not c.pointwise
        ):  # a coincidence: only products of pictures copy the weights for each
            rest, kind = rest + size_of(kind, like), KINDS[0]
        sizes.append(size_of(kind, c) + (round(rest * growth) if rest > 2 * UNIT else rest))
    return Workspaces(*sizes)


def _families_of(layer: Layer) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Layers that may be compared: those with the very same kernel and stride; where there are too few, all of their kind."""
    wide = (
        layer.dtype == "float32",
        layer.channels_last,
        len(layer.sizes),
        layer.transposed,
        prod(layer.kernel) == 1,
    )
    return (*wide, layer.kernel, layer.stride), wide


def _place(layer: Layer, batch: int) -> tuple[float, ...]:
    """Where a convolution lies among others: factors between sizes are distances."""
    multiple = 4 if layer.dtype == "float32" else 8  # channels that kernels read at once
    return (
        log(layer.inputs),
        log(layer.outputs),
        0.5 * log(prod(layer.sizes)),
        0.5 * log(batch),
        1.0 * bool(layer.inputs % multiple),
        1.0 * bool(layer.outputs % multiple),
        0.5 * log(max(layer.dilation)),
        log(layer.groups),
        log(prod(layer.kernel)),
        log(prod(layer.stride)),
        0.3 * (layer.dtype == "bfloat16"),
    )


@lru_cache(maxsize=1)
def _families() -> dict[tuple[object, ...], _Family]:
    found: dict[tuple[object, ...], _Family] = {}
    for layer, rows in table().items():
        if layer.groups == layer.inputs > 1:
            continue  # depthwise: kernels of their own
        for row in rows:
            measured = _Measured(_place(layer, row[0]), layer, row)
            for family in _families_of(layer):
                found.setdefault(family, {}).setdefault(measured.place[:2], []).append(measured)
    return found
