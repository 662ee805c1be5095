"""The random generators a training step draws from: torch's on the host and on the device, Python's, NumPy's.

Reading them waits for nothing: a CUDA generator's state is a seed and a count that the host keeps. NumPy's takes longest to
read, some hundred microseconds, so it can be left out. Generators that a program makes for itself
(`torch.Generator()`) are not known here.
"""

import random
import sys
from typing import Any

import torch


class RandomState:
    """The state of all of them at one moment."""

    __slots__ = ("_device", "_device_state", "_host", "_numpy", "_python")

    def __init__(self, device: torch.device, *, with_numpy: bool = True) -> None:
        self._host = torch.get_rng_state()
        self._device = device
        self._device_state = _module(device).get_rng_state(device) if device.type != "cpu" else None
        self._python = random.getstate()
        self._numpy = _numpy_state() if with_numpy else None

    def restore(self) -> None:
        torch.set_rng_state(self._host)
        if self._device_state is not None:
            _module(self._device).set_rng_state(self._device_state, self._device)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    def numpy_has_drawn(self) -> bool:
        """Whether NumPy's generator is elsewhere by now."""
        now = _numpy_state()
        if now is None or self._numpy is None:
            return now is not self._numpy
        return bool(now[2:] != self._numpy[2:] or (now[1] != self._numpy[1]).any())


def _numpy_state() -> Any:
    numpy: Any = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
