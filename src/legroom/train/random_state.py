"""The random generators a training step draws from: torch's on the host and on the device, Python's, NumPy's.

Reading them waits for nothing: a CUDA generator's state is a seed and a count that the host keeps. Generators that a
program makes for itself (`torch.Generator()`) are not known here.
"""

import random
import sys
from typing import Any

import torch


class RandomState:
    """The state of all of them at one moment."""

    __slots__ = ("_device", "_device_state", "_host", "_numpy", "_python")

    def __init__(self, device: torch.device) -> None:
        self._host = torch.get_rng_state()
        self._device = device
        self._device_state = _module(device).get_rng_state(device) if device.type != "cpu" else None
        self._python = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self._host)
        if self._device_state is not None:
            _module(self._device).set_rng_state(self._device_state, self._device)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
