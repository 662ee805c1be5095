"""Virtual GPUs of any size on a machine without a GPU. `VirtualGPU` is in the module `gpu`."""

import sys
from typing import Any


def active_virtual_gpu() -> Any:
    """Return the active `VirtualGPU`, or None. The module `gpu` is not imported, because it takes a long time to
    load."""
    module = sys.modules.get("legroom.observe.virtual.gpu")
    return None if module is None else module.VirtualGPU.active()
