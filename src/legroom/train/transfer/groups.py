"""Parameter groups for an optimizer: what is trained, and nothing else."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from legroom.errors import UsageError
from legroom.train.transfer.patterns import matches, selected


def param_groups(
    model: nn.Module, options: Mapping[str, Mapping[str, Any]] | None = None, **common: Any
) -> list[dict[str, Any]]:
    """Groups of the parameters that are not frozen.

    `options`: by name or pattern, what a part gets of its own, the first that fits; `common`: what all get.

        AdamW(param_groups(model, {"classifier": {"lr": 1e-3}, "*.bias": {"weight_decay": 0.0}}, lr=2e-5))
    """
    chosen = dict(options or {})
    for pattern in chosen:
        selected(model, pattern)
    groups: dict[str | None, dict[str, Any]] = {
        pattern: {"params": [], **common, **chosen[pattern]} for pattern in chosen
    }
    groups[None] = {"params": [], **common}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            fitting = next((pattern for pattern in chosen if matches(name, pattern)), None)
            groups[fitting]["params"].append(parameter)
    found = [group for group in groups.values() if group["params"]]
    if not found:
        raise UsageError(
            "every parameter of the model is frozen, so there is nothing to train: name what is to be trained, freeze(model, except_=...)"
        )
    return found
