"""What a kernel's workspace is made of, told in a few words, so that the same words fit convolutions of other sizes.

cuDNN's kernels differ in what they copy into another layout before they begin, and in what they keep while they sum up. Both follow from the number of
the kernel and a few of its settings, to the byte: read off 424,000 answers of an H200's cuDNN 9.19, whose numbers these are.

| recipe | bytes |
|---|---|
| `0` | none |
| `P` | what is converted; the letter tells which tensors (`READINGS`) |
| `P+` | that, and the marks of a kernel that may split its sums and does not |
| `P/<tile>,<rows>,<columns>` | that, and the partial sums of a kernel with this tile and cluster |
| `P*<count>` | that, and so many copies of the weights in single precision |
| `P#<tile>,<count>` | that, and so many copies of them in whole tiles |
| `=<way>` | as one of the ways of `convolution_hidden` has it |
| `R<power>` | none of these: `STEP` to this power times all that the convolution reads and writes |
"""

from collections.abc import Mapping
from math import log

from legroom.observe.cuda_rules.convolution.cudnn_library import Kind, Knob
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import WAYS, Way, asked, bytes_of
from legroom.observe.cuda_rules.convolution.layout_copies import converted, copied_weights
from legroom.observe.cuda_rules.convolution.recorded_table import Question
from legroom.observe.cuda_rules.convolution.split_k import (
    TILES,
    partial_sums,
    product_in_groups,
    product_of,
    turned,
)
from legroom.observe.cuda_rules.convolution.workspace import (
    AT_ONCE,
    Convolution,
    one_group,
    over,
    up,
    whole,
)

STEP = 1.1
NOTHING = "0"


def cooked(recipe: str, question: Question, c: Convolution, operation: Kind) -> int:
    """Bytes that a recipe gives for one convolution, which is told twice: as torch puts it, and as rules see it."""
    if recipe == NOTHING:
        return 0
    if recipe[0] == "R":
        return round(STEP ** int(recipe[1:]) * whole(c))
    if recipe[0] == "=":
        return bytes_of(Way[recipe[1:]], asked(operation, question.layer, c, question.output_sizes)) or 0
    if recipe[0].islower() and c.groups == 1:
        recipe = recipe[0].upper() + recipe[1:]
    elif recipe[0].islower():
        return min(c.groups, AT_ONCE) * _made(recipe, question, one_group(c), operation)
    return _made(recipe, question, c, operation)


def _made(recipe: str, question: Question, c: Convolution, operation: Kind) -> int:
    plain = converted(recipe[0], c)
    plain += _BOOKED if plain else 0
    form, settings = recipe[1:2], [int(number) for number in recipe[2:].split(",") if number]
    match form:
        case "+":
            return plain + _MARKS
        case "/":
            tile, *cluster = settings
            product = product_in_groups(c, operation)
            return (
                plain + _MARKS + partial_sums(product, tile, (cluster[0], cluster[1]), question.layer.dtype)
            )
        case "*":
            return plain + _COPYING + settings[0] * 4 * copied_weights(c, "P")
        case "#":
            return plain + _in_tiles(c, operation, recipe[0] in "UL", *settings)
    return plain


_BOOKED, _MARKS, _COPYING, _SUMMING = 16, 131, 128, 159
"""Bytes that kernels keep for themselves: where they convert anything, where they may split sums, where they keep copies of weights, and where these are in tiles."""


def _in_tiles(c: Convolution, operation: Kind, as_it_is: bool, tile: int, count: int) -> int:
    """`count` copies of what is summed up, in whole tiles, and a mark for each of them and for the result's."""
    height, width = _TILES[tile]
    if c.groups > 1:
        product = product_in_groups(c, operation)
        tiles = over(product.rows, height) * over(product.columns, width) * product.column_taps
    else:
        product, multiple = product_of(c, operation), 1 if as_it_is else 16 // c.element
        columns = up(product.columns, multiple) * product.column_taps
        tiles = over(product.rows, height) * over(columns, width)
    return tiles * 4 * (count * height * width + count + 1) + _SUMMING


def recipe_of(
    size: int, engine: int, knobs: Mapping[int, int], question: Question, c: Convolution, operation: Kind
) -> str:
    """The recipe of a kernel that cuDNN named, with the size that it took: where the recipe of its number and settings does not come to that, the nearest one."""
    if size < _LITTLE:
        return NOTHING
    known = of_kernel(engine, knobs, c, operation)
    near = max(_LITTLE, whole(c) // 100)
    if "/" in known or abs(cooked(known, question, c, operation) - size) <= near:
        return known
    copies = size / (4 * c.weights)
    if (
        turned(operation, c.transposed) == Kind.WEIGHT_GRADIENT
        and 2 * size < whole(c)
        and copies < _MOST_COPIES
    ):
        return f"0*{max(1, round(copies))}"
    return f"R{max(-40, min(40, round(log(size / whole(c)) / log(STEP))))}"


_LITTLE = 2048
_MOST_COPIES = 1000


def of_kernel(engine: int, knobs: Mapping[int, int], c: Convolution, operation: Kind) -> str:
    """The recipe of a kernel, from its number and its settings alone."""
    kernel = (turned(operation, c.transposed), engine)
    way = WAYS.get(kernel)
    if way is not None:
        return f"={way.name}"
    reading = _READING_OF.get(kernel, "P")
    if c.groups > 1 and kernel in _ONE_BY_ONE:
        reading = reading.lower()
    if Knob.CLUSTER_ROWS in knobs:
        if knobs.get(Knob.NO_WORKSPACE, 0):
            return reading
        if Knob.NO_WORKSPACE not in knobs:
            return f"{reading}+"
        return f"{reading}/{knobs[Knob.TILE]},{knobs[Knob.CLUSTER_ROWS]},{knobs[Knob.CLUSTER_COLUMNS]}"
    if Knob.COPIES in knobs:
        return f"{reading}*{knobs[Knob.COPIES] if kernel not in _SUMS_IN_PLACE else 0}"
    if Knob.BUFFERS in knobs and knobs.get(Knob.TILE) in _TILES:
        return f"{reading}#{knobs[Knob.TILE]},{max(1, knobs[Knob.BUFFERS])}"
    return reading


_READING_OF = {
    (Kind.FORWARD, 0): "0", (Kind.FORWARD, 1): "N", (Kind.FORWARD, 28): "0", (Kind.FORWARD, 38): "H", (Kind.FORWARD, 41): "H",
    (Kind.FORWARD, 46): "I", (Kind.FORWARD, 47): "U", (Kind.FORWARD, 48): "V", (Kind.FORWARD, 57): "0", (Kind.FORWARD, 70): "M",
    (Kind.INPUT_GRADIENT, 0): "0", (Kind.INPUT_GRADIENT, 1): "N", (Kind.INPUT_GRADIENT, 2): "N", (Kind.INPUT_GRADIENT, 3): "0",
    (Kind.INPUT_GRADIENT, 25): "N", (Kind.INPUT_GRADIENT, 58): "K", (Kind.INPUT_GRADIENT, 62): "0", (Kind.INPUT_GRADIENT, 65): "K", (Kind.INPUT_GRADIENT, 74): "M",
    (Kind.WEIGHT_GRADIENT, 0): "0", (Kind.WEIGHT_GRADIENT, 1): "0", (Kind.WEIGHT_GRADIENT, 20): "Q",
    (Kind.WEIGHT_GRADIENT, 30): "J", (Kind.WEIGHT_GRADIENT, 34): "J", (Kind.WEIGHT_GRADIENT, 48): "J", (Kind.WEIGHT_GRADIENT, 50): "J",
    (Kind.WEIGHT_GRADIENT, 37): "U", (Kind.WEIGHT_GRADIENT, 39): "U", (Kind.WEIGHT_GRADIENT, 40): "L",
}  # fmt: skip
"""Kernels that read otherwise than `P`, by operation, as it is in truth for transposed convolutions, and cuDNN's number."""
_SUMS_IN_PLACE = {(Kind.WEIGHT_GRADIENT, 47), (Kind.WEIGHT_GRADIENT, 48)}
"""Kernels that keep no copies, whatever they are set to."""
_TILES = {
    **TILES,
    2: (128, 32),
    8: (64, 32),
    10: (64, 16),
    11: (32, 16),
    12: (32, 32),
    14: (16, 64),
    23: (32, 128),
}
"""Rows and columns of tiles, by cuDNN's numbers for them, with those of kernels that have no clusters."""
_ONE_BY_ONE = {
    *((Kind.FORWARD, number) for number in (1, 27, 35, 45, 46, 63, 70)),
    *((Kind.INPUT_GRADIENT, number) for number in (1, 2, 25, 57, 58, 59, 60, 64, 65, 74)),
    *((Kind.WEIGHT_GRADIENT, number) for number in (20, 33, 34, 45, 47, 48, 49, 50, 67)),
}
"""Kernels that know no groups."""
