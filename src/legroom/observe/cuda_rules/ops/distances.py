"""Distances between all pairs of rows: what `torch.cdist` makes on its way.

Source: `_euclidean_dist` in ATen/native/Distance.cpp, which squares, sums, scales and joins both sides to make one product of
them, and `_cdist_backward` in cuda/DistanceKernel.cu, which holds the gradient of every pair for every column before it adds them
up. Measured on an H200, 94 pairs of sizes: Euclidean distances are equal; gradients of other norms too, but for sums over very few
columns, which take more than is said here.
"""

from legroom.observe.cuda_rules.ops import matmul, reductions
from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, numbered, size_of


def _euclidean(call: Call) -> Plan:
    steps: list[Step] = []
    for side in ("x1", "x2"):
        size = size_of(call.arguments[side])
        norms = size // max(1, call.arguments[side].shape[-1])
        steps += [Take(f"{side} squared", size), Take(f"{side} norms", norms), Give(f"{side} squared")]
        steps.append(Take(f"{side} ones", norms))
    steps.append(Take("scaled", size_of(call.arguments["x1"])))
    for side in ("x1", "x2"):
        rows = size_of(call.arguments[side]) // max(1, call.arguments[side].shape[-1])
        steps.append(Take(f"{side} joined", size_of(call.arguments[side]) + 2 * rows))
        steps += [Give(f"{side} norms"), Give(f"{side} ones")]
        if side == "x1":
            steps.append(Give("scaled"))
    return Plan([*steps, Output(0), matmul.kept(call)])


def _backward(call: Call) -> Plan:
    given = call.arguments["x1"]
    pairs, columns = call.arguments["cdist"].numel(), given.shape[-1]
    rows = max(1, given.numel() // max(1, columns))
    others = pairs // rows
    sums = reductions.buffers(
        (rows, others, columns), (others * columns, columns, 1), (1,), call.gpu, accumulator=4
    )
    return Plan([Output(0), Take("pairs", pairs * columns * given.element_size()), *numbered("sum", sums)])


def _within_backward(call: Call) -> Plan:
    """Distances within one set of rows: the gradient of each row by each other one is there before they are added up (`pdist_backward_kernel_impl`)."""
    given = call.arguments["self"]
    rows = given.shape[0] if given.dim() else 0
    return Plan([Output(0), Take("pairs", max(0, rows - 1) * size_of(given))])


RULES: dict[str, Rule] = {
    "aten::_euclidean_dist": _euclidean,
    "aten::_cdist_backward": _backward,
    "aten::_pdist_backward": _within_backward,
}
