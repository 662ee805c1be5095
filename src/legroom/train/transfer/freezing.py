"""Freezes parameters. Frozen parameters need no gradients and no optimizer state. Layers before the first trainable
parameter save no activations.

Batch normalization in a frozen part stays in evaluation mode, even after `model.train()`. In training mode, its running
statistics would adapt to the new data and change the frozen features. After `unfreeze`, batch normalization follows
`model.train()` again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError
from legroom.train.transfer.patterns import Patterns, as_list, matches, selected
from legroom.units import format_size

ADAM_MOMENTS = 2
"""The number of state tensors that Adam keeps for each parameter. Each state tensor is as large as the parameter."""
_STAYS_IN_EVAL = "_legroom_stays_in_eval"
_NORM_LAYERS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True, slots=True)
class FreezeResult:
    """The number of frozen parameters, and the memory that freezing saves."""

    frozen_parameters: int
    trainable_parameters: int
    gradient_bytes: int
    """The total size in bytes of the gradients that are no longer needed."""
    optimizer_state_bytes: int
    """The size in bytes of the Adam state that is no longer needed."""
    norm_layers: int
    peak_before: int | None = None
    """The predicted peak memory in bytes of a training step before freezing, if a batch was given."""
    peak_after: int | None = None

    @property
    def saved_bytes(self) -> int:
        """The number of bytes saved at the predicted peak. Without a prediction, only gradients and optimizer state
        are included."""
        if self.peak_before is None or self.peak_after is None:
            return self.gradient_bytes + self.optimizer_state_bytes
        return self.peak_before - self.peak_after

    def __str__(self) -> str:
        total = self.frozen_parameters + self.trainable_parameters
        text = (
            f"{self.frozen_parameters:,} of {total:,} parameters are frozen "
            f"({self.frozen_parameters / max(1, total):.1%}). "
        )
        if self.peak_before is None or self.peak_after is None:
            return text + (
                f"This saves {format_size(self.gradient_bytes)} of gradients and "
                f"{format_size(self.optimizer_state_bytes)} of Adam state. Pass batch= to include activations."
            )
        return text + (
            f"Predicted peak memory of a step: {format_size(self.peak_after)} instead of {format_size(self.peak_before)}, "
            f"which saves {format_size(self.saved_bytes)} ({self.saved_bytes / self.peak_before:.0%})."
        )


def freeze(
    model: nn.Module,
    trainable: Patterns = (),
    *,
    batch: Any = None,
    gpu: str | int = "80GiB",
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> FreezeResult:
    """Freeze all parameters except the parameters that `trainable` selects.

    `trainable` contains names of parameters or modules, or patterns, such as `classifier`, `encoder.layer.5` or
    `*.bias`. With a `batch`, the peak of a training step on `gpu` is predicted before and after freezing. `optimizer`
    is a function that creates the optimizer from the parameters. The default optimizer is AdamW.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"freeze() expects a model (nn.Module), not {type(model).__name__}.")
    selection = selected(model, trainable)
    before = None if batch is None else _peak(model, batch, gpu, optimizer)
    newly_frozen = [
        parameter
        for name, parameter in model.named_parameters()
        if name not in selection and parameter.requires_grad
    ]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in selection)
        if name not in selection:
            parameter.grad = None
    norm_layers = _update_norm_modes(model)
    size = sum(parameter.nbytes for parameter in newly_frozen)
    return FreezeResult(
        frozen_parameters=sum(p.numel() for p in model.parameters() if not p.requires_grad),
        trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        gradient_bytes=size,
        optimizer_state_bytes=ADAM_MOMENTS * size,
        norm_layers=norm_layers,
        peak_before=before,
        peak_after=None if before is None else _peak(model, batch, gpu, optimizer),
    )


def unfreeze(model: nn.Module, patterns: Patterns = "*") -> list[str]:
    """Make the parameters that match `patterns` trainable again. By default, all parameters become trainable. Return
    the names of the parameters that were frozen before."""
    if not as_list(patterns):
        return []
    names = [name for name, parameter in selected(model, patterns).items() if not parameter.requires_grad]
    for name in names:
        model.get_parameter(name).requires_grad_(True)
    _update_norm_modes(model)
    return names


def param_groups(
    model: nn.Module, options: Mapping[str, Mapping[str, Any]] | None = None, **common: Any
) -> list[dict[str, Any]]:
    """Return optimizer parameter groups for the parameters that are not frozen.

    `options` maps names or patterns to options, and the first match applies. `common` contains the options for all
    groups.

        AdamW(param_groups(model, {"classifier": {"lr": 1e-3}, "*.bias": {"weight_decay": 0.0}}, lr=2e-5))
    """
    by_pattern = dict(options or {})
    for pattern in by_pattern:
        selected(model, pattern)
    groups: dict[str | None, dict[str, Any]] = {
        pattern: {"params": [], **common, **by_pattern[pattern]} for pattern in by_pattern
    }
    groups[None] = {"params": [], **common}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matching = next((pattern for pattern in by_pattern if matches(name, pattern)), None)
            groups[matching]["params"].append(parameter)
    non_empty = [group for group in groups.values() if group["params"]]
    if not non_empty:
        raise UsageError(
            "All parameters of the model are frozen. Select the trainable parameters: freeze(model, "
            "trainable=...)."
        )
    return non_empty


def _peak(
    model: nn.Module, batch: Any, gpu: str | int, optimizer: Callable[[Any], torch.optim.Optimizer] | None
) -> int | None:
    from legroom.predict.api import estimate

    if not any(parameter.requires_grad for parameter in model.parameters()):
        return None
    return estimate(model, batch, gpu=gpu, optimizer=optimizer, search=False).peak_allocated


def _update_norm_modes(model: nn.Module) -> int:
    """Set normalization layers with running statistics and frozen parameters to evaluation mode. Return the number of
    these layers.
    """
    count = 0
    for parent in model.modules():
        for layer in parent.children():
            if isinstance(layer, _NORM_LAYERS) and layer.track_running_stats:
                own = list(layer.parameters()) or list(parent.parameters())
                is_frozen = bool(own) and not any(p.requires_grad for p in own)
                count += _set_norm_mode(layer, is_frozen, parent.training)
    return count


def _set_norm_mode(layer: nn.Module, is_frozen: bool, training: bool) -> bool:
    was_frozen = getattr(layer, _STAYS_IN_EVAL, None)
    if was_frozen is None and is_frozen:
        layer.register_forward_pre_hook(_ensure_eval)
    if was_frozen is not None or is_frozen:
        setattr(layer, _STAYS_IN_EVAL, is_frozen)
    if is_frozen:
        layer.eval()
    elif was_frozen:
        layer.train(training)
    return is_frozen


def _ensure_eval(layer: nn.Module, _: Any) -> None:
    """Set a module to evaluation mode before each forward pass, in case `model.train()` was called."""
    if layer.training and getattr(layer, _STAYS_IN_EVAL, False):
        layer.eval()
