"""Replaces the classification head of a model for a new number of classes.

timm models have a method that replaces the head. In transformers models, the head is `classifier` or `score`, and the
config contains the number of classes. In torchvision models, the head is the last layer in `fc`, `classifier` or
`head`, and some models have auxiliary heads. In other models, the head is the last layer, if that layer is linear.
"""

from typing import Any

import torch
from torch import nn

from legroom.arguments import check_count
from legroom.errors import UsageError

HEAD_NAMES = ("classifier", "score", "fc", "heads", "head", "classification_head", "last_linear", "output")
AUXILIARY_HEADS = ("AuxLogits.fc", "aux1.fc2", "aux2.fc2", "aux_classifier")
_HEAD_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def replace_head(model: nn.Module, num_classes: int) -> tuple[str, ...]:
    """Replace the head with a new layer that has `num_classes` outputs. Return the names of the new layer and of new
    auxiliary heads, for `freeze(model, trainable=...)`."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"replace_head() expects a model (nn.Module), not {type(model).__name__}.")
    check_count("num_classes", num_classes)
    if isinstance(model, _HEAD_LAYERS):
        raise UsageError(
            "The model is a single layer, which cannot be replaced in place. Create a new layer instead."
        )
    if hasattr(model, "reset_classifier") and hasattr(model, "get_classifier"):
        return _replace_timm(model, num_classes)
    config = getattr(model, "config", None)
    if hasattr(config, "num_labels"):
        return _replace_transformers(model, config, num_classes)
    if type(model).__module__.startswith("torchvision.models.detection"):
        raise UsageError(
            f"{type(model).__name__} is a detection model, whose head also predicts boxes. Replace model.roi_heads.box_predictor, "
            "or build the model with num_classes=."
        )
    found = [name for name in (_named_head(model) or _last_layer(model), *_auxiliary_heads(model)) if name]
    if not found:
        last = list(model.named_modules())[-1]
        raise UsageError(
            f"The model has no head to replace: its last layer ({last[0] or 'the model'}, a "
            f"{type(last[1]).__name__}) is not linear. Add a head with nn.Sequential(model, "
            "nn.Linear(features, num_classes))."
        )
    for name in found:
        _replace(model, name, num_classes)
    if isinstance(getattr(model, "num_classes", None), int):
        model.num_classes = num_classes  # type: ignore[assignment]
    return tuple(found)


def _replace_timm(model: Any, num_classes: int) -> tuple[str, ...]:
    model.reset_classifier(num_classes)
    new = model.get_classifier()
    layers = new if isinstance(new, list | tuple) else (new,)
    return tuple(name for name, module in model.named_modules() if any(module is layer for layer in layers))


def _replace_transformers(model: Any, config: Any, num_classes: int) -> tuple[str, ...]:
    name = _named_head(model)
    if name is None:
        raise UsageError(
            f"{type(model).__name__} has no classification head. Load the model with a head: "
            f"AutoModelForSequenceClassification.from_pretrained(..., num_labels={num_classes})."
        )
    _replace(model, name, num_classes, std=getattr(config, "initializer_range", None))
    config.num_labels = num_classes  # also creates names of the classes
    if hasattr(model, "num_labels"):
        model.num_labels = num_classes
    return (name,)


def _named_head(model: nn.Module) -> str | None:
    for name in HEAD_NAMES:
        head = getattr(model, name, None)
        if isinstance(head, nn.Module):
            inner = _last_layer(head)
            if inner is not None:
                return f"{name}.{inner}" if inner else name
    return None


def _last_layer(model: nn.Module) -> str | None:
    """Return the name of the last layer with parameters, if it is linear. The name is "" if the module itself is this
    layer.
    """
    with_parameters = [
        (name, module) for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))
    ]  # fmt: skip
    if not with_parameters:
        return None
    name, module = with_parameters[-1]
    return name if isinstance(module, _HEAD_LAYERS) and _is_per_class(module) else None


def _is_per_class(layer: Any) -> bool:
    """Return True if the layer can be a head. A head is a linear layer or a convolution with kernel size 1."""
    return isinstance(layer, nn.Linear) or set(layer.kernel_size) == {1}


def _auxiliary_heads(model: nn.Module) -> list[str]:
    found = []
    for name in AUXILIARY_HEADS:
        owner, _, attribute = name.rpartition(".")
        try:
            head = getattr(model.get_submodule(owner) if owner else model, attribute, None)
        except AttributeError:
            continue
        if isinstance(head, nn.Module):
            inner = _last_layer(head)
            if inner is not None:
                found.append(f"{name}.{inner}" if inner else name)
    return found


def _replace(model: nn.Module, name: str, num_classes: int, std: float | None = None) -> None:
    owner, _, attribute = name.rpartition(".")
    parent = model.get_submodule(owner) if owner else model
    old: Any = getattr(parent, attribute)
    shared = [
        other
        for other, module in model.named_modules()
        if module is not old and getattr(module, "weight", None) is old.weight
    ]
    if shared:
        raise UsageError(
            f"{name} shares its weights with {shared[0]}. This layer predicts tokens, not classes, so it "
            "cannot be replaced."
        )
    setattr(parent, attribute, _new_layer(old, num_classes, std))


@torch.no_grad()
def _new_layer(old: Any, num_classes: int, std: float | None) -> nn.Module:
    options = {"device": old.weight.device, "dtype": old.weight.dtype}
    new: Any
    if isinstance(old, nn.Linear):
        new = nn.Linear(old.in_features, num_classes, bias=old.bias is not None, **options)
    else:
        new = type(old)(
            old.in_channels, num_classes, old.kernel_size, stride=old.stride, padding=old.padding, bias=old.bias is not None, **options
        )  # fmt: skip
    if std is not None:
        nn.init.normal_(new.weight, std=std)
        if new.bias is not None:
            nn.init.zeros_(new.bias)
    new.train(old.training)
    result: nn.Module = new
    return result
