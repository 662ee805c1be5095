"""Formulas that compute the workspace size of a kernel for convolutions of any size.

A workspace contains copies of tensors in a different layout, and partial sums. Both follow exactly from the number of
the kernel and a few of its settings. The formulas were derived from 424,000 queries to cuDNN 9.19 on an H200. The
kernel numbers apply to cuDNN 9.19.
"""

# | formula | bytes |
# |---|---|
# | `0` | none |
# | `P` | copies; the letter is a layout of `LAYOUTS` |
# | `P+` | copies, and the semaphores of a split-K kernel that does not split |
# | `P/<tile>,<rows>,<columns>` | copies, and the partial sums of a split-K kernel with this tile and cluster |
# | `P*<count>` | copies, and this number of float32 copies of the weights |
# | `P#<tile>,<count>` | copies, and this number of copies of the weights in whole tiles |
# | `=<algorithm>` | the workspace of a GPU-only kernel (`gpu_only_kernels.Algorithm`) |
# | `R<power>` | unknown: `STEP` to this power times the bytes of input, weights and output |

from collections.abc import Mapping
from math import log

from legroom.observe.cuda_rules.convolution.cudnn_library import ConvOperation, Knob
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import (
    ALGORITHMS,
    Algorithm,
    algorithm_workspace,
    kernel_problem,
)
from legroom.observe.cuda_rules.convolution.layout_copies import copied_weights, copy_bytes
from legroom.observe.cuda_rules.convolution.recorded_table import ConvQuery
from legroom.observe.cuda_rules.convolution.split_k import (
    TILES,
    actual_operation,
    partial_sums,
    product_in_groups,
    product_of,
)
from legroom.observe.cuda_rules.convolution.workspace_rules import (
    PARALLEL_GROUPS,
    Convolution,
    ceil_div,
    one_group,
    round_up,
    tensor_bytes,
)

STEP = 1.1
NO_BYTES = "0"


def formula_bytes(formula: str, query: ConvQuery, c: Convolution, operation: ConvOperation) -> int:
    """Return the workspace size in bytes that a formula yields for a convolution. `query` and `c` describe the same
    convolution.
    """
    if formula == NO_BYTES:
        return 0
    if formula[0] == "R":
        return round(STEP ** int(formula[1:]) * tensor_bytes(c))
    if formula[0] == "=":
        return (
            algorithm_workspace(
                Algorithm[formula[1:]], kernel_problem(operation, query.layer, c, query.output_sizes)
            )
            or 0
        )
    if formula[0].islower() and c.groups == 1:
        formula = formula[0].upper() + formula[1:]
    elif formula[0].islower():
        return min(c.groups, PARALLEL_GROUPS) * _evaluate(formula, query, one_group(c), operation)
    return _evaluate(formula, query, c, operation)


def _evaluate(formula: str, query: ConvQuery, c: Convolution, operation: ConvOperation) -> int:
    copies = copy_bytes(formula[0], c)
    copies += _COPY_OVERHEAD if copies else 0
    form, settings = formula[1:2], [int(number) for number in formula[2:].split(",") if number]
    match form:
        case "+":
            return copies + _SEMAPHORES
        case "/":
            tile, *cluster = settings
            product = product_in_groups(c, operation)
            return (
                copies
                + _SEMAPHORES
                + partial_sums(product, tile, (cluster[0], cluster[1]), query.layer.dtype)
            )
        case "*":
            return copies + _WEIGHTS_OVERHEAD + settings[0] * 4 * copied_weights(c, "P")
        case "#":
            return copies + _tiled_copies(c, operation, formula[0] in "UL", *settings)
    return copies


_COPY_OVERHEAD, _SEMAPHORES, _WEIGHTS_OVERHEAD, _TILES_OVERHEAD = 16, 131, 128, 159
"""The bytes that a kernel uses in addition to its copies, in four cases: the kernel copies tensors, may split sums,
copies weights, or copies weights in tiles.
"""


def _tiled_copies(c: Convolution, operation: ConvOperation, unpadded: bool, tile: int, count: int) -> int:
    """Return the workspace size in bytes. The workspace contains `count` copies of the result, padded to whole tiles.
    There is one semaphore for each tile in the result and in each copy.
    """
    height, width = _TILES[tile]
    if c.groups > 1:
        product = product_in_groups(c, operation)
        tiles = ceil_div(product.rows, height) * ceil_div(product.columns, width) * product.column_taps
    else:
        product, multiple = product_of(c, operation), 1 if unpadded else 16 // c.element
        columns = round_up(product.columns, multiple) * product.column_taps
        tiles = ceil_div(product.rows, height) * ceil_div(columns, width)
    return tiles * 4 * (count * height * width + count + 1) + _TILES_OVERHEAD


def formula_for(
    size: int,
    engine: int,
    knobs: Mapping[int, int],
    query: ConvQuery,
    c: Convolution,
    operation: ConvOperation,
) -> str:
    """Return the formula for a kernel whose workspace has this size. The number and the settings of the kernel
    determine a formula, which is returned if it yields exactly this size. If it yields another size, the formula with
    the closest result is returned.
    """
    if size < _NEGLIGIBLE:
        return NO_BYTES
    known = kernel_formula(engine, knobs, c, operation)
    tolerance = max(_NEGLIGIBLE, tensor_bytes(c) // 100)
    if "/" in known or abs(formula_bytes(known, query, c, operation) - size) <= tolerance:
        return known
    copies = size / (4 * c.weights)
    if (
        actual_operation(operation, c.transposed) == ConvOperation.WEIGHT_GRADIENT
        and 2 * size < tensor_bytes(c)
        and copies < _MAX_COPIES
    ):
        return f"0*{max(1, round(copies))}"
    return f"R{max(-40, min(40, round(log(size / tensor_bytes(c)) / log(STEP))))}"


_NEGLIGIBLE = 2048
_MAX_COPIES = 1000


def kernel_formula(engine: int, knobs: Mapping[int, int], c: Convolution, operation: ConvOperation) -> str:
    kernel = (actual_operation(operation, c.transposed), engine)
    algorithm = ALGORITHMS.get(kernel)
    if algorithm is not None:
        return f"={algorithm.name}"
    layout = _LAYOUT_OF.get(kernel, "P")
    if c.groups > 1 and kernel in _WITHOUT_GROUPS:
        layout = layout.lower()
    if Knob.CLUSTER_ROWS in knobs:
        if knobs.get(Knob.NO_WORKSPACE, 0):
            return layout
        if Knob.NO_WORKSPACE not in knobs:
            return f"{layout}+"
        return f"{layout}/{knobs[Knob.TILE]},{knobs[Knob.CLUSTER_ROWS]},{knobs[Knob.CLUSTER_COLUMNS]}"
    if Knob.COPIES in knobs:
        return f"{layout}*{knobs[Knob.COPIES] if kernel not in _SUMS_IN_PLACE else 0}"
    if Knob.BUFFERS in knobs and knobs.get(Knob.TILE) in _TILES:
        return f"{layout}#{knobs[Knob.TILE]},{max(1, knobs[Knob.BUFFERS])}"
    return layout


_LAYOUT_OF = {
    (ConvOperation.FORWARD, 0): "0", (ConvOperation.FORWARD, 1): "N", (ConvOperation.FORWARD, 28): "0", (ConvOperation.FORWARD, 38): "H", (ConvOperation.FORWARD, 41): "H",
    (ConvOperation.FORWARD, 46): "I", (ConvOperation.FORWARD, 47): "U", (ConvOperation.FORWARD, 48): "V", (ConvOperation.FORWARD, 57): "0", (ConvOperation.FORWARD, 70): "M",
    (ConvOperation.INPUT_GRADIENT, 0): "0", (ConvOperation.INPUT_GRADIENT, 1): "N", (ConvOperation.INPUT_GRADIENT, 2): "N", (ConvOperation.INPUT_GRADIENT, 3): "0",
    (ConvOperation.INPUT_GRADIENT, 25): "N", (ConvOperation.INPUT_GRADIENT, 58): "K", (ConvOperation.INPUT_GRADIENT, 62): "0", (ConvOperation.INPUT_GRADIENT, 65): "K", (ConvOperation.INPUT_GRADIENT, 74): "M",
    (ConvOperation.WEIGHT_GRADIENT, 0): "0", (ConvOperation.WEIGHT_GRADIENT, 1): "0", (ConvOperation.WEIGHT_GRADIENT, 20): "Q",
    (ConvOperation.WEIGHT_GRADIENT, 30): "J", (ConvOperation.WEIGHT_GRADIENT, 34): "J", (ConvOperation.WEIGHT_GRADIENT, 48): "J", (ConvOperation.WEIGHT_GRADIENT, 50): "J",
    (ConvOperation.WEIGHT_GRADIENT, 37): "U", (ConvOperation.WEIGHT_GRADIENT, 39): "U", (ConvOperation.WEIGHT_GRADIENT, 40): "L",
}  # fmt: skip
"""The layout of each kernel whose layout is not `P`, by operation (`actual_operation`) and cuDNN's number for the
kernel.
"""
_SUMS_IN_PLACE = {(ConvOperation.WEIGHT_GRADIENT, 47), (ConvOperation.WEIGHT_GRADIENT, 48)}
"""Kernels that write no copies of the result to the workspace, even if their `Knob.COPIES` setting is not 0."""
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
"""The rows and columns of each tile, by cuDNN's number for the tile. Kernels without clusters use tiles that are not in
`TILES`.
"""
_WITHOUT_GROUPS = {
    *((ConvOperation.FORWARD, number) for number in (1, 27, 35, 45, 46, 63, 70)),
    *((ConvOperation.INPUT_GRADIENT, number) for number in (1, 2, 25, 57, 58, 59, 60, 64, 65, 74)),
    *((ConvOperation.WEIGHT_GRADIENT, number) for number in (20, 33, 34, 45, 47, 48, 49, 50, 67)),
}
