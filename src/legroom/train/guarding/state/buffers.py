"""A model's buffers as they were: running statistics, counters, anything a forward pass changes beside the gradients.

Weights are not among them and are never copied: no forward or backward pass changes them.
"""

import torch
from torch import nn

from legroom.train.guarding.state.copies import Copies


class Buffers:
    """Keeps one copy of every buffer: `take()` makes it now, `restore()` puts it back, as often as wanted."""

    def __init__(self, model: nn.Module) -> None:
        self._places: list[dict[str, torch.Tensor | None]] = [module._buffers for module in model.modules()]
        self._lengths: list[int] = []
        self._filled: list[dict[str, torch.Tensor | None]] = []
        self._taken: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor | None]] = []
        self._copies = Copies()

    def take(self) -> None:
        lengths = list(map(len, self._places))
        if lengths != self._lengths:  # most modules have none
            self._lengths, self._filled = lengths, [place for place in self._places if place]
        self._taken = [(place, name, tensor) for place in self._filled for name, tensor in place.items()]
        self._copies.take([tensor for _, _, tensor in self._taken if tensor is not None])

    def restore(self) -> None:
        """The same tensors hold the same numbers again; buffers that were replaced or added are as they were."""
        for place in self._places:
            place.clear()
        for place, name, tensor in self._taken:
            place[name] = tensor
        self._copies.restore()
