"""Products of three (`nn.Bilinear`), and places written as ones among zeros (`one_hot`).

Source: `_trilinear` in ATen/native/Linear.cpp, which on CUDA too goes through one dimension slice by slice, multiplies the first two and
then the third, and adds the slice to the result; `one_hot` in ATen/native/Onehot.cpp, which compares with a range where a tensor has no
data and puts ones into zeros where it has.
"""

import math
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Take


def install(overrides: Overrides) -> None:
    overrides.composite("one_hot", _ones_among_zeros)


def _ones_among_zeros(original: Any, self: torch.Tensor, num_classes: int = -1) -> Any:
    if num_classes <= 0 or self.numel() == 0:
        return original.decompose(self, num_classes)
    zeros = self.new_zeros((*self.shape, num_classes))
    return zeros.scatter_(-1, self.unsqueeze(-1), 1)


def _product_of_three(call: Call) -> Plan:
    """One slice: the product of the first two without what is summed there, then that with the third."""
    sides = [_spread(call.arguments[f"i{n}"], call.arguments[f"expand{n}"]) for n in (1, 2, 3)]
    unrolled, summed = call.arguments["unroll_dim"], set(call.arguments["sumdim"])
    first = {dim for dim in summed if dim in call.arguments["expand3"]}
    pair = [
        1 if dim == unrolled or dim in first else max(sizes)
        for dim, sizes in enumerate(zip(*sides[:2], strict=True))
    ]
    whole = [
        1 if dim == unrolled or dim in summed else max(sizes)
        for dim, sizes in enumerate(zip(pair, sides[2], strict=True))
    ]
    each = call.arguments["i1"].element_size()
    return Plan(
        [
            Output(0),
            Take("pair", math.prod(pair) * each),
            Take("slice", math.prod(whole) * each),
            Give("pair"),
        ]
    )


def _spread(tensor: Any, new: list[int]) -> list[int]:
    """A tensor's sizes with a one in each of the `new` dimensions."""
    sizes = list(tensor.shape)
    for dim in sorted(new):
        sizes.insert(dim, 1)
    return sizes


RULES: dict[str, Rule] = {"aten::_trilinear": _product_of_three}
