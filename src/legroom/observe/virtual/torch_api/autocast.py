"""`torch.autocast("cuda")` on a virtual GPU: the CPU's autocast with the same data type, for the same lines.

torch keeps one autocast state per kind of device, and the tensors of a virtual GPU are CPU tensors underneath. So
while a region for CUDA is entered, the CPU's state is set to the same and put back afterwards; the state for CUDA is
kept as well, so everything that asks for it (`torch.is_autocast_enabled("cuda")`, `custom_fwd`, checkpointing) hears
what it would on a GPU. Host tensors within the region are cast too: nothing tells them apart down there.

`GradScaler` needs nothing but a GPU that says it is available.
"""

from collections.abc import Iterable
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, table


def replacements() -> Iterable[Replacement]:
    """Entering and leaving a region; every way to write one derives from this one class."""
    autocast: Any = torch.amp.autocast_mode.autocast
    enter, leave = autocast.__enter__, autocast.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807
        if self.device == "cuda":
            before = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
            # A stack: one object may be entered again inside itself, as the decorator of a recursive function is.
            vars(self).setdefault("_cpu_states", []).append(before)
            torch.set_autocast_enabled("cpu", self._enabled)
            torch.set_autocast_dtype("cpu", self.fast_dtype)
        return enter(self)

    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807
        try:
            return leave(self, *error)
        finally:
            if states := vars(self).get("_cpu_states"):
                enabled, dtype = states.pop()
                torch.set_autocast_enabled("cpu", enabled)
                torch.set_autocast_dtype("cpu", dtype)

    yield from table(autocast, {"__enter__": __enter__, "__exit__": __exit__})
