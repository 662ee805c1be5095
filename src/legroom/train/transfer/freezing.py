"""Freezing: parameters that are not trained need no gradient, no optimizer state, and, below the first trained one, no
saved activations.

Batch normalisation in a frozen part stays in evaluation mode, whatever `model.train()` says: otherwise its running
statistics, which nobody trains, drift to the new data, and the frozen features with them. `unfreeze` takes that back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError
from legroom.train.transfer.patterns import Patterns, as_list, selected
from legroom.units import format_size

MOMENTS = 2
"""Copies of a parameter that Adam keeps."""
_STAYS = "_legroom_stays_in_evaluation"
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True, slots=True)
class Frozen:
    """What was frozen, and what that saves."""

    parameters: int
    """Numbers in the model that are now frozen."""
    trained: int
    """Numbers that are left to train."""
    gradients: int
    """Bytes of gradients that are not made any more."""
    optimizer_state: int
    """Bytes of Adam's moments that are not made any more."""
    normalisations: int
    """Normalising layers that stay in evaluation mode."""
    peak_before: int | None = None
    """Predicted bytes at the peak of a training step, if a batch was given."""
    peak_after: int | None = None

    @property
    def saved(self) -> int:
        """Bytes: of the peak where it was predicted, otherwise of gradients and optimizer state alone."""
        if self.peak_before is None or self.peak_after is None:
            return self.gradients + self.optimizer_state
        return self.peak_before - self.peak_after

    def __str__(self) -> str:
        whole = self.parameters + self.trained
        text = f"{self.parameters:,} of {whole:,} parameters are frozen ({self.parameters / max(1, whole):.1%}). "
        if self.peak_before is None or self.peak_after is None:
            return text + (
                f"Saved: {format_size(self.gradients)} of gradients and {format_size(self.optimizer_state)} of Adam's state; "
                "give batch= to have the activations counted too."
            )
        return text + (
            f"A step should need {format_size(self.peak_after)} instead of {format_size(self.peak_before)}: "
            f"{format_size(self.saved)} less ({self.saved / self.peak_before:.0%})."
        )


def freeze(
    model: nn.Module,
    except_: Patterns = (),
    *,
    batch: Any = None,
    gpu: str | int = "80GiB",
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> Frozen:
    """Freeze all parameters but those that `except_` names.

    Names are of parameters or modules, or patterns: `classifier`, `encoder.layer.5`, `*.bias`.
    With a `batch`, the peak of a training step on `gpu` is predicted as it was and as it is now (`optimizer`: a function of the
    parameters, AdamW by default).
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"freeze needs a model, an nn.Module; it got a {type(model).__name__}")
    trained = selected(model, except_)
    before = None if batch is None else _peak(model, batch, gpu, optimizer)
    newly = [
        parameter
        for name, parameter in model.named_parameters()
        if name not in trained and parameter.requires_grad
    ]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
        if name not in trained:
            parameter.grad = None
    normalisations = _keep_in_evaluation(model)
    size = sum(parameter.nbytes for parameter in newly)
    return Frozen(
        parameters=sum(p.numel() for p in model.parameters() if not p.requires_grad),
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        gradients=size,
        optimizer_state=MOMENTS * size,
        normalisations=normalisations,
        peak_before=before,
        peak_after=None if before is None else _peak(model, batch, gpu, optimizer),
    )


def unfreeze(model: nn.Module, patterns: Patterns = "*") -> list[str]:
    """Train these parameters again, by default all. Gives the names of those that were frozen: the optimizer may need them."""
    if not as_list(patterns):
        return []
    thawed = [name for name, parameter in selected(model, patterns).items() if not parameter.requires_grad]
    for name in thawed:
        model.get_parameter(name).requires_grad_(True)
    _keep_in_evaluation(model)
    return thawed


def _peak(
    model: nn.Module, batch: Any, gpu: str | int, optimizer: Callable[[Any], torch.optim.Optimizer] | None
) -> int | None:
    """Predicted bytes of a step; None where nothing is trained."""
    from legroom.predict.api import estimate

    if not any(parameter.requires_grad for parameter in model.parameters()):
        return None
    return estimate(model, batch, gpu=gpu, optimizer=optimizer, search=False).peak_allocated


def _keep_in_evaluation(model: nn.Module) -> int:
    """Every normalising layer with running statistics follows its parameters; how many stay in evaluation mode."""
    count = 0
    for parent in model.modules():
        for layer in parent.children():
            if isinstance(layer, _NORMS) and layer.track_running_stats:
                own = list(layer.parameters()) or list(parent.parameters())
                count += _let_stay(
                    layer, bool(own) and not any(p.requires_grad for p in own), parent.training
                )
    return count


def _let_stay(layer: nn.Module, stays: bool, training: bool) -> bool:
    was = getattr(layer, _STAYS, None)
    if was is None and stays:
        layer.register_forward_pre_hook(_in_evaluation)
    if was is not None or stays:
        setattr(layer, _STAYS, stays)
    if stays:
        layer.eval()
    elif was:
        layer.train(training)
    return stays


def _in_evaluation(layer: nn.Module, _: Any) -> None:
    """Before each forward pass: `model.train()` has reached it since."""
    if layer.training and getattr(layer, _STAYS, False):
        layer.eval()
