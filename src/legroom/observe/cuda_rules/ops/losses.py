"""Losses: what they make on the way to one number, and their gradients.

Most losses are a tensor of single losses and its mean or sum, and differ in what else lies beside it at the time. Seen in the
histories of each on an H200, with every reduction, precision and layout.
"""

from typing import Any

import torch

from legroom.observe.cuda_rules.ops import reductions
from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, numbered, size_of


def _mean_of_loss(call: Call) -> Plan | None:
    """The result is first made as large as the inputs and shrunk later (its memory stays), beside the losses themselves."""
    if not _reduces(call):
        return None
    losses = size_of(call.arguments["self"])
    return Plan([Output(0, losses), Take("losses", losses), *_staged(call)])


def _loss_in_place(call: Call) -> Plan | None:
    """The losses are made where the result will be: it stays as large as they are."""
    if not _reduces(call):
        return None
    return Plan([Output(0, size_of(call.arguments["self"])), *_staged(call)])


def _loss_beside(call: Call) -> Plan | None:
    """The losses are made, then their mean."""
    if not _reduces(call):
        return None
    return Plan([Take("losses", size_of(call.arguments["self"])), Output(0), *_staged(call)])


def _logits_loss(call: Call) -> Plan:
    """The logarithm of the sigmoid, weighted where positives have weights, then the losses (`binary_cross_entropy_with_logits` in Loss.cpp)."""
    logits = size_of(call.arguments["self"])
    steps: list[Step] = [Take("log sigmoid", logits)]
    weights = call.arguments.get("pos_weight")
    if weights is not None:
        steps += [Take("weights less one", size_of(weights)), Take("weights", logits)]
        steps += [Give("weights less one"), Give("weights")]
    if not _reduces(call):
        return Plan([*steps, Output(0)])
    return Plan([*steps, Take("losses", logits), Output(0), *_staged(call)])


def _soft_margin_backward(call: Call) -> Plan:
    """exp(-target × input) in three steps, then the gradient (`soft_margin_loss_backward_out` in Loss.cpp)."""
    each = size_of(call.arguments["self"])
    return Plan(
        [
            Take("negative", each),
            Take("product", each),
            Take("exponential", each),
            Give("product"),
            Give("negative"),
            Output(0),
        ]
    )


def _reduces(call: Call) -> bool:
    return bool(call.arguments.get("reduction", 1))


def _staged(call: Call) -> list[Take]:
    """The reduction's own buffers."""
    sizes = reductions.of_tensor(_flat(call.arguments["self"]), None, call.gpu, accumulator=4)
    return numbered("part", sizes)


def _flat(tensor: Any) -> Any:
    return tensor.new_empty(tensor.numel()) if tensor.device.type == "meta" else _Flat(tensor)


class _Flat:
    """A tensor's elements in one row, as far as a reduction asks."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = (tensor.numel(),)

    def dim(self) -> int:
        return 1

    def stride(self) -> tuple[int]:
        return (1,)


RULES: dict[str, Rule] = {
    "aten::mse_loss": _mean_of_loss,
    "aten::smooth_l1_loss": _mean_of_loss,
    "aten::huber_loss": _loss_beside,
    "aten::binary_cross_entropy": _loss_in_place,
    "aten::soft_margin_loss": _loss_in_place,
    "aten::soft_margin_loss_backward": _soft_margin_backward,
    "aten::binary_cross_entropy_with_logits": _logits_loss,
}
