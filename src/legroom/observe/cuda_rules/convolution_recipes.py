"""What a workspace is made of, told in a few words, so that the same words fit convolutions of other sizes.

| recipe | bytes |
|---|---|
| `0` | none |
| `B` | everything that the kernel converts |
| `S<tile>,<rows>,<columns>` | that, and the partial sums of a kernel with this tile and cluster |
| `K<number>` | a kind of the measured table: some of input, weights and output, or the weights for each picture |
| `W` | pieces of 6 × 6 of all pictures, and the weights so: Winograd's way for gradients of weights |
| `P<power>` | everything converted, and `STEP` to this power times the weights in single precision |
| `C<power>` | `STEP` to this power times the weights in single precision |
| `R<power>` | `STEP` to this power times all that the convolution reads and writes |
"""

from math import log, prod

from legroom.observe.cuda_rules.convolution_cudnn import MARKS, Question
from legroom.observe.cuda_rules.convolution_library import Kind
from legroom.observe.cuda_rules.convolution_split import partial_sums, product_of
from legroom.observe.cuda_rules.convolution_table import KINDS, size_of
from legroom.observe.cuda_rules.convolution_workspace import Convolution, conversions

STEP = 1.1


def cooked(recipe: str, question: Question, c: Convolution, operation: Kind) -> int:
    """Bytes that a recipe gives for one convolution, which is told twice: as torch puts it, and as rules see it."""
    return 0 if recipe == "0" else _made(recipe, question, c, operation) + MARKS


def _made(recipe: str, question: Question, c: Convolution, operation: Kind) -> int:
    kind, value = recipe[0], recipe[1:]
    match kind:
        case "B":
            return conversions(c)
        case "S":
            tile, rows, columns = map(int, value.split(","))
            return conversions(c) + partial_sums(
                product_of(c, operation), tile, (rows, columns), question.layer.dtype
            )
        case "K":
            return size_of(KINDS[int(value)], c)
        case "W":
            return winograd(question, c)
        case "P":
            return conversions(c) + round(STEP ** int(value) * 4 * c.weights)
        case "C":
            return round(STEP ** int(value) * 4 * c.weights)
    return round(STEP ** int(value) * whole(c))


def recipe_of(size: int, question: Question, c: Convolution, operation: Kind) -> str:
    """The recipe that comes nearest to a measured size, simple ones first. Partial sums are not looked for: their kernels' settings tell of them."""
    if size < _NOTHING:
        return "0"
    near = max(_NOTHING, whole(c) // 100)
    plain = ["B", "W"] if operation == Kind.WEIGHT_GRADIENT else ["B"]
    for recipe in (*plain, *(f"K{number}" for number in range(len(KINDS)))):
        if abs(size - cooked(recipe, question, c, operation)) < near:
            return recipe
    copies = (size - conversions(c)) / (4 * c.weights)
    if operation == Kind.WEIGHT_GRADIENT:
        if 0 < copies < _MOST_COPIES:
            return f"P{max(-4, _power(copies))}"
        if 2 * size < whole(c) and size < _MOST_COPIES * 4 * c.weights:
            return f"C{_power(size / (4 * c.weights))}"
    return f"R{min(40, _power(size / whole(c)))}"


_NOTHING = 2048
_MOST_COPIES = 200


def whole(c: Convolution) -> int:
    """Bytes that the convolution reads and writes."""
    return c.converted() + (c.weights * c.element if c.pointwise else 0)


def winograd(question: Question, c: Convolution) -> int:
    made = question.layer.sizes if c.transposed else question.output_sizes
    pieces = c.batch * prod(-(-size // 4) for size in made)
    return 36 * 4 * ((c.inputs + c.outputs) * pieces + c.inputs * c.outputs)


def _power(ratio: float) -> int:
    return round(log(ratio) / log(STEP))
