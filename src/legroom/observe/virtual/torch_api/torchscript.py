"""TorchScript archives: `torch.jit.load(file, map_location="cuda")` reads in C++, so the device's part comes after.

What is lost: an archive does not know that its tensors were a virtual GPU's, so without `map_location` they come back to
the host.
"""

from collections.abc import Iterable
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, optional_module, table


def replacements() -> Iterable[Replacement]:
    plain: Any = torch.jit.load

    def load(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        device = None if map_location is None else torch.device(map_location)
        if device is None or device.type != "cuda":
            return plain(f, map_location, *args, **options)
        return plain(f, "cpu", *args, **options).to(device)

    yield from table(torch.jit, {"load": load})
    yield from table(optional_module("torch.jit._serialization"), {"load": load})
