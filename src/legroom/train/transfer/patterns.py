"""Selects parameters by name or pattern, such as `classifier`, `encoder.layer.5` or `*.bias`."""

import fnmatch
from collections.abc import Iterable

from torch import nn

from legroom.errors import UsageError
from legroom.train.checkpoints.key_check import closest_name

Patterns = str | Iterable[str]


def as_list(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def matches(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(pattern + ".") or fnmatch.fnmatchcase(name, pattern)


def selected(model: nn.Module, patterns: Patterns) -> dict[str, nn.Parameter]:
    """Return the parameters that match any of the patterns. Raises UsageError for a pattern without a match."""
    parameters = dict(model.named_parameters())
    found: dict[str, nn.Parameter] = {}
    for pattern in as_list(patterns):
        matching = {name: parameter for name, parameter in parameters.items() if matches(name, pattern)}
        if not matching:
            raise UsageError(_no_match(model, pattern))
        found |= matching
    return found


def _no_match(model: nn.Module, pattern: str) -> str:
    modules = [
        name for name, module in model.named_modules() if name and any(True for _ in module.parameters())
    ]
    closest = closest_name(pattern.rstrip("*."), modules)
    top = dict.fromkeys(name.partition(".")[0] for name in modules)
    hint = f"Did you mean '{closest}'?" if closest else f"The model's top-level modules: {', '.join(top)}."
    return f"No parameter of the model matches '{pattern}'. {hint}"
