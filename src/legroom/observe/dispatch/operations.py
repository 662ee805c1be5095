"""Sets of torch operations, identified by `id`.

Operations are never freed, so their `id`s are unique. Hashing an operation would be slower, because it calls into
Python.
"""

from typing import Any

import torch


def overloads(*names: str) -> frozenset[int]:
    """Return the `id`s of all overloads of these aten operations in the installed torch version."""
    packets: list[Any] = [getattr(torch.ops.aten, name, None) for name in names]
    return frozenset(
        id(getattr(packet, overload))
        for packet in packets
        if packet is not None
        for overload in packet.overloads()
    )
