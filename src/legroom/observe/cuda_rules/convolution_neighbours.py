"""What cuDNN was seen to take for the convolutions most like one that was never measured.

cuDNN's choice of a kernel depends on sizes in ways that no short rule catches, but smoothly enough that like convolutions mostly
get like kernels. So a convolution that is not in the table takes what most of its neighbours there took, told for its own sizes, nearer
ones having more say; what each of them took is what it may take instead. `bench/convolution_guesses.py` leaves out measured layers in
turn, and whole kinds of layers, and guesses them from the rest: that is where the weights below and the number of neighbours come from.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import dist, exp, log, prod
from typing import NamedTuple

from legroom.observe.cuda_rules.convolution_table import (
    KINDS,
    UNIT,
    Family,
    Layer,
    Row,
    described,
    families_like,
    family_of,
    family_rows,
    size_of,
)
from legroom.observe.cuda_rules.convolution_workspace import Convolution, Workspaces, most, partial_weights
from legroom.observe.gpus import Gpu

COUNT = 12
"""How many neighbours are asked. Of the measured layers, left out in turn, the largest of so many was enough for all but 2 to 4%."""
ENOUGH = 8
"""With fewer measurements of a kernel and stride, others of the kind are asked too."""
FAR = 2
"""All that is converted, so many times over, is the most that is reckoned with: few kernels take more (they transform pictures for
products of waves), and few of those are near a convolution that is guessed. Where no layer with this kernel and stride was measured
this much may be taken whatever the neighbours took."""


class Guess(NamedTuple):
    """What a convolution may take."""

    likely: Workspaces
    others: tuple[Workspaces, ...] = ()
    """What it may take instead, likelier ones first; none where it was measured."""


class _Measured(NamedTuple):
    place: tuple[float, ...]
    layer: Layer
    row: Row


class _Near(NamedTuple):
    away: float
    order: int
    measured: _Measured


_Group = dict[tuple[float, ...], list[_Measured]]
"""Measurements by their channels (the first two of their place), which decide much of a distance."""


def guess(
    layer: Layer, c: Convolution, gpu: Gpu, without: Callable[[Layer, int], bool] | None = None
) -> Guess | None:
    """What most of the nearest took, and what each of them took; None if there is none of its kind.

    `without(layer, batch)`: measurements to be left out.
    """
    place = _place(layer, c)
    family = family_of(layer)
    near = _nearest([_group(family)], place, without)
    ceiling = Workspaces(*(FAR * size for size in most(c, gpu)))
    if len(near) >= ENOUGH:
        return Guess(_voted(near, c, gpu), _capped(near, c, gpu, ceiling))
    near = _nearest([_group(other) for other in families_like(family)], place, without)
    if not near:
        return None
    return Guess(_voted(near, c, gpu), (*_capped(near, c, gpu, ceiling), ceiling))


def _voted(near: Sequence[_Near], c: Convolution, gpu: Gpu) -> Workspaces:
    """For each of the three operations, what the nearest of those took that made the commonest choice."""
    sizes = []
    for operation in range(3):
        votes: dict[tuple[int, bool], float] = {}
        for away, _, measured in near:
            choice = _choice(measured.row, operation)
            votes[choice] = votes.get(choice, 0.0) + exp((near[0].away - away) / _HEARING)
        winner = max(votes, key=votes.__getitem__)
        speaker = next(one for one in near if _choice(one.measured.row, operation) == winner)
        sizes.append(_carried_over(speaker.measured, c, gpu)[operation])
    return Workspaces(*sizes)


_HEARING = 0.5
"""A neighbour that is so much farther away than the nearest has a third of its say."""


def _choice(row: Row, operation: int) -> tuple[int, bool]:
    """What a kernel converted, and whether it took more than that."""
    return row[1 + 2 * operation], row[2 + 2 * operation] > 2


def _capped(near: Sequence[_Near], c: Convolution, gpu: Gpu, ceiling: Workspaces) -> tuple[Workspaces, ...]:
    took = (_carried_over(one.measured, c, gpu) for one in near)
    return tuple(Workspaces(*map(min, sizes, ceiling)) for sizes in took)


def _nearest(
    groups: Sequence[_Group], place: tuple[float, ...], without: Callable[[Layer, int], bool] | None
) -> list[_Near]:
    """The nearest few, nearest first. Whole groups are passed over once their channels alone are farther away."""
    found: list[_Near] = []
    seen = 0
    channels = sorted(
        (dist(key, place[:2]), key, index) for index, group in enumerate(groups) for key in group
    )
    for away, key, index in channels:
        if len(found) >= COUNT and away > found[COUNT - 1].away:
            break
        for one in groups[index][key]:
            if without is None or not without(one.layer, one.row[0]):
                seen += 1
                insort(found, _Near(dist(one.place, place), seen, one))
        del found[COUNT:]
    return found


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


def _place(layer: Layer, c: Convolution) -> tuple[float, ...]:
    """Where a convolution lies among others: factors between sizes are distances. Besides its own sizes, those of the matrix product that
    it amounts to; and whether channels can be read several at once, or halved."""
    multiple = 16 // c.element
    return (
        0.7 * log(layer.inputs),
        1.5 * log(layer.outputs),
        0.3 * log(c.input_area),
        0.3 * log(c.batch),
        1.5 * log(c.batch * c.output_area),
        1.5 * log(layer.inputs * c.kernel_area),
        0.5 * log(c.weights),
        3.0 * bool(layer.inputs % multiple),
        0.7 * bool(layer.outputs % multiple),
        1.5 * bool(layer.outputs % 2),
        0.5 * _is_power_of_two(layer.inputs),
        0.4 * min(layer.inputs, 16),
        0.5 * log(max(layer.dilation)),
        log(layer.groups),
        2.0 * log(c.kernel_area),
        3.0 * log(prod(layer.stride)),
        0.3 * (layer.dtype == "bfloat16"),
    )


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@lru_cache(maxsize=256)
def _group(family: Family) -> _Group:
    found: _Group = {}
    for layer, rows in family_rows(family).items():
        if layer.groups == layer.inputs > 1:
            continue  # depthwise: kernels of their own
        for row in rows:
            measured = _Measured(_place(layer, described(layer, row[0])), layer, row)
            found.setdefault(measured.place[:2], []).append(measured)
    return found
