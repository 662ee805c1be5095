"""Copies of tensors on their own device, made in place by a few multi-tensor kernels, so that taking them at every step is cheap."""

from collections import defaultdict
from collections.abc import Sequence

import torch

Group = tuple[list[torch.Tensor], list[torch.Tensor]]


class Copies:
    """One copy of each of some tensors: `take()` makes it, `restore()` writes it back, as often as wanted.

    As long as the tensors are the same, the memory of the copies is used again.
    """

    def __init__(self) -> None:
        self._originals: list[torch.Tensor] = []
        self._groups: list[Group] = []

    @torch.no_grad()
    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        tensors = [
            getattr(tensor, "_local_tensor", tensor) for tensor in tensors
        ]  # of a sharded one, its shard
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
    """Multi-tensor kernels take one device and one type at a time."""
    groups: dict[tuple[torch.device, torch.dtype], Group] = defaultdict(lambda: ([], []))
    for tensor in tensors:
        if tensor.numel():
            originals, copies = groups[tensor.device, tensor.dtype]
            originals.append(tensor.detach())
            copies.append(torch.empty_like(tensor, requires_grad=False))
    return list(groups.values())
