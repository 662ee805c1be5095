"""Estimates the completed fraction of a forward pass, measured in the memory of its outputs.

Layers differ in the size of their outputs: the last layer of a language model has one output per word of the
vocabulary, and the first layers of a convolutional network have the largest images. So each layer counts with its
number of channels, and with the image size that follows from the strides before it. If a model pools its images with
functions instead of modules, the input size of its first linear layer shows the size of the last images.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

_CHANNELS = ("out_features", "out_channels", "embedding_dim", "num_features", "num_channels")
_MAX_MODULES = 20_000


def pixels_of(args: tuple[Any, ...]) -> int:
    """Return the number of pixels of one image in the inputs of a model, or 0 if there are no images."""
    if torch._C._get_tracing_state() is not None:
        return 0  # sizes are tensors
    images = next((each for each in args if isinstance(each, torch.Tensor) and each.dim() >= 4), None)
    return 0 if images is None else math.prod(map(int, images.shape[2:]))


def forward_progress(
    root: nn.Module, entered: int, last: int, pixels: int = 0, *, has_returned: bool = False
) -> float | None:
    """Return the fraction of the outputs that exist while the module with the `id` `last` runs, including its output.

    `entered` is the number of submodules that were called. The layers must be called about in the order in which they
    are defined. Otherwise, the result is None. `pixels` is the size of one input image, or 0 if it is unknown.
    `has_returned` means that the module has returned. After the last layer, the model then computes the loss itself.
    """
    modules = [module for name, module in root.named_modules() if name][:_MAX_MODULES]
    position = next((index for index, module in enumerate(modules) if id(module) == last), None)
    if position is None or abs(position + 1 - entered) > max(2, len(modules) // 4):
        return None
    sizes = _output_sizes(modules, _factor_of_functions(modules, pixels))
    output = next((size for size in reversed(sizes) if size), 0.0)
    total = sum(sizes) + 2 * output  # the loss and its gradient
    done = sum(sizes[: position + 1])
    if has_returned and not any(sizes[position + 1 :]):
        done += output
    return done / total if total else None


def _output_sizes(modules: Sequence[nn.Module], factor: float) -> list[float]:
    """Return the size of the output of each module relative to the others. A container has the size 0. Functions
    multiply the image size by `factor` after each convolution.
    """
    sizes, channels, area, after_convolution = [], 1.0, 1.0, 1.0
    for module in modules:
        if _is_convolution(module):
            area, after_convolution = area * after_convolution, factor
        elif isinstance(module, nn.Linear):
            area, after_convolution = area * after_convolution, 1.0
        if not _is_shortcut(module, channels):
            area = min(area * _area_factor(module), 1.0)
        is_layer = not any(module.children())
        own = _channels(module, is_layer)
        channels = own or channels
        is_new = (is_layer or own) and not _returns_its_input(module)
        sizes.append(channels * area if is_new else 0.0)
    return sizes


def _factor_of_functions(modules: Sequence[nn.Module], pixels: int) -> float:
    """Return the average factor by which functions change the image size after a convolution, or 1 if it is unknown."""
    convolutions = [position for position, module in enumerate(modules) if _is_convolution(module)]
    if not pixels or not convolutions or any(_area_factor(module) != 1 for module in modules):
        return 1.0
    last: Any = modules[convolutions[-1]]
    linear = next((each for each in modules[convolutions[-1] :] if isinstance(each, nn.Linear)), None)
    left = linear.in_features / last.out_channels if linear is not None else 1.0
    # One pixel per channel: the images are averaged at the end, and it is unknown how large they were.
    return float(left / pixels) ** (1 / len(convolutions)) if 1 < left < pixels else 1.0


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def _returns_its_input(module: nn.Module) -> bool:
    if isinstance(module, nn.Identity | nn.Flatten | nn.Unflatten):
        return True
    return getattr(module, "inplace", None) is True or getattr(module, "p", None) == 0


def _channels(module: nn.Module, is_layer: bool) -> float:
    own = next((getattr(module, name) for name in _CHANNELS if hasattr(module, name)), None)
    if own is None:
        shape: Any = getattr(module, "normalized_shape", None)
        own = shape[-1] if isinstance(shape, tuple) and shape else None
    if isinstance(own, int) and is_layer:
        return float(own)
    # For example, a recurrent layer, or an attention layer whose projection has no module.
    return float(sum(each.shape[0] for each in module.parameters(recurse=False) if each.ndim > 1))


def _area_factor(module: nn.Module) -> float:
    """Return the size of the module's output image divided by the size of its input image."""
    kind = type(module).__name__
    if kind.startswith("AdaptiveAvgPool"):
        return 1 / 64
    if kind.startswith("Upsample"):
        return _product(getattr(module, "scale_factor", None) or 1, 2)
    stride = getattr(module, "stride", None)
    if stride is None or not kind.startswith(("Conv", "MaxPool", "AvgPool")):
        return 1.0
    dimensions = int(kind[-2]) if kind[-2:-1].isdecimal() else 2
    if kind.startswith("ConvTranspose"):
        return _product(stride, dimensions)
    return 1 / max(_product(stride, dimensions), 1)


def _is_shortcut(module: Any, channels: float) -> bool:
    """Return whether a convolution runs in parallel with other layers that have the same stride. `channels` is the
    number of channels that the layer before it returns.
    """
    if not _is_convolution(module) or channels == 1.0:
        return False
    return bool(math.prod(module.kernel_size) == 1 or module.in_channels != channels)


def _product(value: Any, dimensions: int) -> float:
    return float(math.prod(value)) if isinstance(value, tuple | list) else float(value) ** dimensions
