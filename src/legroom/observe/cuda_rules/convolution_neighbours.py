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
"""Where no layer with this kernel and stride was measured, everything may be converted so many times over, whatever the neighbours took:
in the survey 2% of the results, 2% of the gradients of inputs and 8% of those of weights took more."""


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
"""Measurements by what of their place is due to channels, which decide most of a distance."""
_CHANNELS = 11
"""So many of a place's numbers come first and are due to channels and kernel."""


def guess(
    layer: Layer, c: Convolution, gpu: Gpu, without: Callable[[Layer, int], bool] | None = None
) -> Guess | None:
    """What most of the nearest took, and what each of them took; None if there is none of its kind.

    `without(layer, batch)`: measurements to be left out.
    """
    place = _place(layer, c)
    family = family_of(layer)
    near = _nearest([_group(family, c.depthwise)], place, without)
    is_far = len(near) < ENOUGH
    if is_far:
        near = _nearest([_group(other, c.depthwise) for other in families_like(family)], place, without)
    if not near:
        return None
    took = [_carried_over(one.measured, c, gpu) for one in near]
    votes = [exp((near[0].away - one.away) / _HEARING) for one in near]
    columns = [_heard(sizes, votes, c) for sizes in zip(*took, strict=True)]
    likely = Workspaces(*(size for size, _ in columns))
    others = [Workspaces(*sizes) for sizes in zip(*(sizes for _, sizes in columns), strict=True)]
    if is_far:
        others.append(Workspaces(*(FAR * size for size in most(c, gpu))))
    return Guess(likely, tuple(others))


def _heard(sizes: Sequence[int], votes: Sequence[float], c: Convolution) -> tuple[int, list[int]]:
    """The size that has most votes; and what it may be instead, likelier ones first, outliers last, of giants only those that some support."""
    whole = c.converted()

    def support(size: int, within: float) -> float:
        return sum(vote for vote, other in zip(votes, sizes, strict=True) if abs(other - size) <= within)

    backed = [support(size, _ALIKE * size if size > whole else _EXACTLY * whole) for size in sizes]
    is_giant = [size > GIANT * whole for size in sizes]
    half, some = sum(votes) / 2, _FEW * sum(votes)
    places = range(len(sizes))
    plausible = [place for place in places if not is_giant[place] or backed[place] >= half] or list(places)
    winner = sizes[max(plausible, key=backed.__getitem__)]
    choice = [size for size in sizes if abs(size - winner) <= (_ALIKE * winner if winner > whole else 0)]
    likely = max(choice, key=lambda size: support(size, _EXACTLY * whole))
    others = [likely if is_giant[place] and backed[place] < some else sizes[place] for place in places]
    return likely, sorted(others, key=lambda size: size > OUTLIER * whole)


_HEARING = 0.5
"""A neighbour that is so much farther away than the nearest has a third of its say."""
_EXACTLY, _ALIKE = 0.02, 0.25
"""By how much sizes differ that count as the same choice: a share of what the convolution reads and writes, or, where they are larger than that, of
themselves."""
GIANT = 16
"""Times what a convolution reads and writes: some kernels take hundreds of times that for gradients of weights. They are rare, and which layers
they are chosen for is hardly a matter of likeness: only where they have half of all votes are they thought likely."""
OUTLIER = 4
"""Times the same: such sizes are tried last, however near the neighbour is that took one."""
_FEW = 0.33
"""Share of votes that a giant needs to be reckoned with."""


def _nearest(
    groups: Sequence[_Group], place: tuple[float, ...], without: Callable[[Layer, int], bool] | None
) -> list[_Near]:
    """The nearest few, nearest first. Whole groups are passed over once their channels alone are farther away."""
    found: list[_Near] = []
    seen = 0
    channels = sorted(
        (dist(key, place[:_CHANNELS]), key, index) for index, group in enumerate(groups) for key in group
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

    Copies follow the sizes of what is copied. What remains are mostly partial sums, and shrinks with those (that it does not grow with them either was
    found by leaving out measured layers), or, where it is larger than all that the convolution reads and writes, pieces of the pictures, and goes with these.
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
        if (
            like.converted() < rest <= GIANT * like.converted()
        ):  # no partial sums: pieces of the pictures themselves
            rest = round(rest * c.converted() / like.converted())
        elif rest > 2 * UNIT:
            rest = round(rest * growth)
        sizes.append(size_of(kind, c) + rest)
    return Workspaces(*sizes)


def _place(layer: Layer, c: Convolution) -> tuple[float, ...]:
    """Where a convolution lies among others: factors between sizes are distances. Besides its own sizes, those of the matrix product that
    it amounts to; and whether channels can be read several at once, or halved."""
    multiple = 16 // c.element
    return (
        0.7 * log(layer.inputs),
        1.5 * log(layer.outputs),
        1.5 * log(layer.inputs * c.kernel_area),
        0.5 * log(c.weights),
        3.0 * bool(layer.inputs % multiple),
        0.7 * bool(layer.outputs % multiple),
        1.5 * bool(layer.outputs % 2),
        0.5 * _is_power_of_two(layer.inputs),
        0.4 * min(layer.inputs, 16),
        log(layer.groups),
        2.0 * log(c.kernel_area),
        # From here on, what has nothing to do with channels.
        0.3 * log(c.input_area),
        0.3 * log(c.batch),
        1.5 * log(c.batch * c.output_area),
        2.0 * log(_copied_share(c)),
        0.5 * log(max(layer.dilation)),
        3.0 * log(prod(layer.stride)),
        0.3 * (layer.dtype == "bfloat16"),
    )


def _copied_share(c: Convolution) -> float:
    """Of a kernel of one pixel: a copy of the weights' gradient for each picture, which one way of computing it takes, as a share of what the
    other ways convert."""
    if not c.pointwise:
        return 1.0
    return c.batch * c.weights * 4 / (c.converted() + c.weights * c.element)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@lru_cache(maxsize=256)
def _group(family: Family, depthwise: bool) -> _Group:
    """Of a family either the depthwise ones, which have kernels of their own, or all others."""
    found: _Group = {}
    for layer, rows in family_rows(family).items():
        if (layer.groups == layer.inputs > 1) is not depthwise:
            continue
        for row in rows:
            measured = _Measured(_place(layer, described(layer, row[0])), layer, row)
            found.setdefault(measured.place[:_CHANNELS], []).append(measured)
    return found
