"""No function of torch.cuda or torch.accelerator calls a real GPU."""

import contextlib
import inspect
import warnings
from typing import Any

import pytest
import torch
from virtual_host import virtual_gpus

from legroom.errors import Unsupported
from legroom.units import GiB

NEEDS_TENSORS = ("Tensor", "Storage")
"""Suffixes of the names of classes that allocate on a device; test_virtual_tensor_types tests them."""


def callable_without_arguments(module: Any) -> list[str]:
    """Return the public functions and classes of a module that can be called without arguments."""

    def has_no_required_arguments(value: Any) -> bool:
        try:
            parameters = inspect.signature(value).parameters.values()
        except (TypeError, ValueError):
            return False
        return all(
            parameter.default is not parameter.empty
            or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            for parameter in parameters
        )

    return [
        name
        for name in module.__all__
        if callable(getattr(module, name)) and has_no_required_arguments(getattr(module, name))
    ]


FUNCTIONS = [
    (module, name)
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.accelerator)
    for name in callable_without_arguments(module)
    if not name.endswith(NEEDS_TENSORS)
]


@pytest.mark.parametrize(("module", "name"), FUNCTIONS, ids=[f"{m.__name__}.{n}" for m, n in FUNCTIONS])
def test_every_function_returns_or_raises_a_clear_error(module: Any, name: str) -> None:
    with virtual_gpus(GiB), warnings.catch_warnings():
        # Deprecated names may warn.
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FutureWarning)
        with contextlib.suppress(Unsupported):
            getattr(module, name)()


def test_functions_are_found() -> None:
    assert {"is_available", "memory_summary", "synchronize"} <= {name for _, name in FUNCTIONS}
