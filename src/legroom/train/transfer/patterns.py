"""Parameters by the names people write: `classifier`, `encoder.layer.5`, `*.bias`."""

import fnmatch
from collections.abc import Iterable

from torch import nn

from legroom.errors import UsageError
from legroom.train.checkpoints.key_check import nearest

Patterns = str | Iterable[str]


def as_list(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def matches(name: str, pattern: str) -> bool:
    """Whether a parameter has this name, lies in the module of this name, or fits the pattern."""
    return name == pattern or name.startswith(pattern + ".") or fnmatch.fnmatchcase(name, pattern)


def selected(model: nn.Module, patterns: Patterns) -> dict[str, nn.Parameter]:
    """The parameters that fit any of the patterns. A pattern that fits none is an error: it is a slip of the pen."""
    named = dict(model.named_parameters())
    found: dict[str, nn.Parameter] = {}
    for pattern in as_list(patterns):
        fitting = {name: parameter for name, parameter in named.items() if matches(name, pattern)}
        if not fitting:
            raise UsageError(_no_such_name(model, pattern))
        found |= fitting
    return found


def _no_such_name(model: nn.Module, pattern: str) -> str:
    modules = [
        name for name, module in model.named_modules() if name and any(True for _ in module.parameters())
    ]
    near = nearest(pattern.rstrip("*."), modules)
    top = dict.fromkeys(name.partition(".")[0] for name in modules)
    hint = f"did you mean '{near}'?" if near else f"the model has {', '.join(top)}"
    return f"no parameter of the model is called '{pattern}': {hint}"
