"""Tensors sorted by device, as optimizers and gradient clipping do before they work on many at once.

torch sorts them in C++, where all tensors here are the CPU's. On several virtual GPUs, or with parameters left on the
host, one list would then mix devices; and a group must say that it is CUDA's.
"""

from collections.abc import Iterable
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, table
from legroom.observe.virtual.protocols import Host

Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]


def replacements(host: Host) -> Iterable[Replacement]:
    """The C function behind `_group_tensors_by_device_and_dtype`; torch versions without it sort in Python."""
    plain = getattr(torch._C, "_group_tensors_by_device_and_dtype", None)
    if plain is None:
        return []

    def group(lists: list[list[Any]], with_indices: bool = False) -> Groups:
        found: Groups = {}
        for (device, dtype), (columns, positions) in plain(lists, True).items():
            for row, first in enumerate(columns[0]):
                index = host.device_of(first)
                key = (device if index is None else torch.device("cuda", index), dtype)
                group, numbers = found.setdefault(key, ([[] for _ in columns], []))
                for column, sorted_column in zip(columns, group, strict=True):
                    if column:
                        sorted_column.append(column[row])
                if with_indices:
                    numbers.append(positions[row])
        return found

    return table(torch._C, {"_group_tensors_by_device_and_dtype": group})
