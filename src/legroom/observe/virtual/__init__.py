"""Virtual GPUs of any size on a machine without a GPU. `VirtualGPU` is in the module `gpu`. Each simulated part of CUDA
has its own module.
"""

import sys
from typing import Any


def active_virtual_gpu() -> Any:
    """Return the active `VirtualGPU`, or None. This function does not import `gpu`, which is loaded only if there is a
    virtual GPU.
    """
    module = sys.modules.get("legroom.observe.virtual.gpu")
    return None if module is None else module.VirtualGPU.active()
