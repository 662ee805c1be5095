"""Saves the states of all random generators (torch, CUDA, Python, NumPy) as plain data, so that a checkpoint can
contain them.

In contrast, the module `guarding.state.random_state` saves the states as objects, and only for the duration of a step.
"""

import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch


def random_states() -> dict[str, Any]:
    numpy: Any = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": None if numpy is None else _numpy_as_plain(numpy.random.get_state()),
    }


def restore_random_states(state: Mapping[str, Any]) -> None:
    """Restore the states of all random generators. GPUs without a saved state are not changed."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        for index, cuda_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(cuda_state, index)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and state["numpy"] is not None:
        name, keys, position, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), position, has_gauss, gauss))


def generator_states(generators: Iterable[torch.Generator]) -> list[torch.Tensor]:
    return [generator.get_state() for generator in generators]


def _numpy_as_plain(state: Any) -> tuple[Any, ...]:
    name, keys, position, has_gauss, gauss = state
    return str(name), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)
