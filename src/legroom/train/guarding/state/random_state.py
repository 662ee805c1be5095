"""Saves and restores the states of the global random generators of torch (on the CPU and on the device), Python and
NumPy.

Reading these states does not synchronize with the GPU, because the state of a CUDA generator is a seed and an offset
on the host. Saving NumPy's state is optional, because it takes about a hundred microseconds, much longer than the
other states. Generators that a program creates itself (`torch.Generator()`) are not included.
"""

import random
import sys
from typing import Any

import torch


class RandomState:
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

    def numpy_state_changed(self) -> bool:
        """Return True if NumPy's generator has drawn numbers since the snapshot."""
        now = _numpy_state()
        if now is None or self._numpy is None:
            return now is not self._numpy
        return bool(now[2:] != self._numpy[2:] or (now[1] != self._numpy[1]).any())


def _numpy_state() -> Any:
    numpy: Any = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
