"""Nested tensors made on a device: torch makes them in C++, past every mode, so they are made on the host and moved."""

import functools
from collections.abc import Iterable
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, optional_module, table


def replacements() -> Iterable[Replacement]:
    nested = optional_module("torch.nested")
    for name in ("nested_tensor", "as_nested_tensor"):
        plain = getattr(nested, name, None)
        if plain is not None:
            yield from table(nested, {name: _made_on_the_host(plain)})


def _made_on_the_host(plain: Any) -> Any:
    @functools.wraps(plain)
    def make(*arguments: Any, device: Any = None, requires_grad: bool = False, **options: Any) -> Any:
        wanted = None if device is None else torch.device(device)
        if wanted is None or wanted.type != "cuda":
            extra = {"requires_grad": True} if requires_grad else {}
            return plain(*arguments, device=device, **extra, **options)
        made = plain(*arguments, **options).to(wanted)
        return made.requires_grad_() if requires_grad else made

    return make
