"""Copies tensors on their own device with a few multi-tensor kernels, which is fast enough to do in every step."""

from collections import defaultdict
from collections.abc import Sequence

import torch

Group = tuple[list[torch.Tensor], list[torch.Tensor]]


class TensorCopies:
    """Copies of a list of tensors. `save()` makes the copies, and `restore()` can be called any number of times
    afterwards.

    The memory of the copies is reused as long as the tensors are the same.
    """

    def __init__(self) -> None:
        self._originals: list[torch.Tensor] = []
        self._groups: list[Group] = []

    @torch.no_grad()
    def save(self, tensors: Sequence[torch.Tensor]) -> None:
        tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]  # the shards of DTensors
        if len(tensors) != len(self._originals) or any(
            now is not before for now, before in zip(tensors, self._originals, strict=True)
        ):
            self._originals, self._groups = [], []
            self._groups = _grouped(tensors)
            self._originals = list(tensors)
        for originals, copies in self._groups:
            torch._foreach_copy_(copies, originals)

    @torch.no_grad()
    def restore(self) -> None:
        for originals, copies in self._groups:
            torch._foreach_copy_(originals, copies)


def _grouped(tensors: Sequence[torch.Tensor]) -> list[Group]:
    groups: dict[tuple[torch.device, torch.dtype], Group] = defaultdict(lambda: ([], []))
    for tensor in tensors:
        if tensor.numel():
            originals, copies = groups[tensor.device, tensor.dtype]
            originals.append(tensor.detach())
            copies.append(torch.empty_like(tensor, requires_grad=False))
    return list(groups.values())
