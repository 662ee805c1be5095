"""A new last layer, for as many classes as the new task has. Each library keeps its head elsewhere; here is where.

timm models replace it themselves. transformers models have it in `classifier` or `score` and count the classes in their
config. torchvision models have `fc`, `classifier` or `head`, with the layer last in it, and some have auxiliary heads.
In anything else it is the last layer of the model, as long as that is a linear one.
"""

from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError

NAMES = ("classifier", "score", "fc", "heads", "head", "classification_head", "last_linear", "output")
AUXILIARY = ("AuxLogits.fc", "aux1.fc2", "aux2.fc2", "aux_classifier")
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def replace_head(model: nn.Module, classes: int) -> tuple[str, ...]:
    """Put a fresh layer with `classes` outputs at the end of the model; its names, for `freeze(model, except_=...)`."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"replace_head needs a model, an nn.Module; it got a {type(model).__name__}")
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise UsageError(f"classes={classes} is no number of classes: give 1 or more")
    if isinstance(model, _LAYERS):
        raise UsageError(
            "the model is a single layer, which cannot be replaced inside itself: make a new one of as many outputs"
        )
    if hasattr(model, "reset_classifier") and hasattr(model, "get_classifier"):
        return _of_timm(model, classes)
    config = getattr(model, "config", None)
    if hasattr(config, "num_labels"):
        return _of_transformers(model, config, classes)
    if type(model).__module__.startswith("torchvision.models.detection"):
        raise UsageError(
            f"{type(model).__name__} finds objects, and has a box and a class for each: replace model.roi_heads.box_predictor, or "
            "build it with num_classes="
        )
    found = [name for name in (_in_known_place(model) or _last_layer(model), *_auxiliary(model)) if name]
    if not found:
        last = list(model.named_modules())[-1]
        raise UsageError(
            f"the model's last layer is no linear one ({last[0] or 'the model'} is a {type(last[1]).__name__}), so it has no head to "
            "replace: add one, nn.Sequential(model, nn.Linear(features, classes))"
        )
    for name in found:
        _replace(model, name, classes)
    if isinstance(getattr(model, "num_classes", None), int):
        model.num_classes = classes  # type: ignore[assignment]
    return tuple(found)


def _of_timm(model: Any, classes: int) -> tuple[str, ...]:
    model.reset_classifier(classes)
    new = model.get_classifier()
    layers = new if isinstance(new, list | tuple) else (new,)
    return tuple(name for name, module in model.named_modules() if any(module is layer for layer in layers))


def _of_transformers(model: Any, config: Any, classes: int) -> tuple[str, ...]:
    name = _in_known_place(model)
    if name is None:
        raise UsageError(
            f"{type(model).__name__} has no classification head: load it with one, "
            f"AutoModelForSequenceClassification.from_pretrained(..., num_labels={classes})"
        )
    _replace(model, name, classes, spread=getattr(config, "initializer_range", None))
    config.num_labels = classes  # also makes names for the classes
    if hasattr(model, "num_labels"):
        model.num_labels = classes
    return (name,)


def _in_known_place(model: nn.Module) -> str | None:
    """The last layer inside the first of the usual attributes."""
    for name in NAMES:
        head = getattr(model, name, None)
        if isinstance(head, nn.Module):
            inner = _last_layer(head)
            if inner is not None:
                return f"{name}.{inner}" if inner else name
    return None


def _last_layer(model: nn.Module) -> str | None:
    """The linear layer that nothing with parameters comes after; "" for the module itself."""
    with_parameters = [
        (name, module) for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))
    ]  # fmt: skip
    if not with_parameters:
        return None
    name, module = with_parameters[-1]
    return name if isinstance(module, _LAYERS) and _is_per_class(module) else None


def _is_per_class(layer: Any) -> bool:
    """A convolution is a head if it looks at one place at a time."""
    return isinstance(layer, nn.Linear) or set(layer.kernel_size) == {1}


def _auxiliary(model: nn.Module) -> list[str]:
    found = []
    for name in AUXILIARY:
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


def _replace(model: nn.Module, name: str, classes: int, spread: float | None = None) -> None:
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
            f"{name} shares its weights with {shared[0]}: it predicts words, not classes, and is not a head to replace"
        )
    setattr(parent, attribute, _like(old, classes, spread))


@torch.no_grad()
def _like(old: Any, classes: int, spread: float | None) -> nn.Module:
    place = {"device": old.weight.device, "dtype": old.weight.dtype}
    new: Any
    if isinstance(old, nn.Linear):
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None, **place)
    else:
        new = type(old)(
            old.in_channels, classes, old.kernel_size, stride=old.stride, padding=old.padding, bias=old.bias is not None, **place
        )  # fmt: skip
    if spread is not None:
        nn.init.normal_(new.weight, std=spread)
        if new.bias is not None:
            nn.init.zeros_(new.bias)
    new.train(old.training)
    made: nn.Module = new
    return made
