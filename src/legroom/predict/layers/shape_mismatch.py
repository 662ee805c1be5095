"""Finds the layer whose input has the wrong shape, and suggests a code change that corrects the shape."""

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legroom.observe.source.user_files import is_user_file

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """A call to a layer or an operation."""

    name: str
    kind: str
    module: nn.Module | None
    shapes: tuple[Shape, ...]
    arguments: Any
    """The arguments of the call. They are used only while the exception is handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeMismatch:
    """The layer or operation that failed, and a code change that fixes the error."""

    layer: str
    """The path of the layer, for example `classifier.0`, or "" for the model itself."""
    kind: str
    """The class of the layer or the name of the operation, for example `Linear` or `cat`."""
    got: str
    expects: str
    edit: str
    error: str
    file: str = ""
    line: int | None = None


def find_mismatch(error: BaseException, calls: list[LayerCall]) -> ShapeMismatch:
    """Return the cause of `error`. `calls` contains the active calls, innermost first. The result keeps no reference to
    the error.
    """
    file, line = _location(error)
    message = next(iter(str(error).splitlines()), "") or type(error).__name__
    for call in calls:
        found = _of_layer(call) if call.module is not None else _of_operation(call)
        if found is not None:
            expects, edit = found
            return ShapeMismatch(
                layer=call.name, kind=call.kind, got=_format_shapes(call.shapes), expects=expects, edit=edit, error=message, file=file, line=line,
            )  # fmt: skip
    call = calls[0] if calls else LayerCall(name="", kind="model", module=None, shapes=(), arguments=())
    return ShapeMismatch(
        layer=call.name,
        kind=call.kind,
        got=_format_shapes(call.shapes),
        expects="",
        edit="",
        error=message,
        file=file,
        line=line,
    )


def _location(error: BaseException) -> tuple[str, int | None]:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return frame.filename, frame.lineno
    return "", None


def _format_shapes(shapes: tuple[Shape, ...]) -> str:
    return " and ".join(format_shape(shape) for shape in shapes) or "no tensors"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_shape(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


Suggestion = tuple[str, str] | None
"""The expected input and the suggested edit, or None if the shapes are not the cause of the error."""


# --- layers


def _of_layer(call: LayerCall) -> Suggestion:
    module, shapes = call.module, call.shapes
    if module is None or not shapes:
        return None
    for kind, check in _LAYERS:
        if isinstance(module, kind):
            return check(module, shapes[0], call.arguments)
    return None


def _linear(module: Any, shape: Shape, _: Any) -> Suggestion:
    if not shape or shape[-1] == module.in_features:
        return None
    expects = f"a last dimension of {module.in_features}"
    rest = math.prod(shape[1:])
    if len(shape) > 2 and rest == module.in_features:
        return expects, "flatten the input: x.flatten(1)"
    if len(shape) > 2 and shape[-1] < 64 and shape[-1] == shape[-2]:  # an image that is not flattened
        return expects, f"flatten the input, x.flatten(1), and set in_features={rest}"
    return expects, f"in_features={shape[-1]}"


def _convolution(module: Any, shape: Shape, _: Any) -> Suggestion:
    sides = len(module.kernel_size)
    form = ", ".join(
        ["batch", "channels", "depth", "height", "width"][:2] + ["depth", "height", "width"][3 - sides :]
    )
    if len(shape) not in (sides + 1, sides + 2):
        edit = "add the batch dimension: x.unsqueeze(0)" if len(shape) < sides + 1 else "reshape the input"
        return f"({form})", edit
    channels = shape[-sides - 1]
    if channels == module.in_channels:
        small = shape[-sides:]
        if any(
            size + 2 * _pad(module, at) < kernel
            for at, (size, kernel) in enumerate(zip(small, module.kernel_size, strict=True))
        ):
            return (
                f"a spatial size of at least {tuple(module.kernel_size)}",
                "use larger inputs, fewer pooling layers, or padding",
            )
        return None
    expects = f"{_count(module.in_channels, 'channel')}, ({form})"
    if shape[-1] == module.in_channels and len(shape) == sides + 2:
        order = ", ".join(map(str, (0, sides + 1, *range(1, sides + 1))))
        return expects, f"move the channels to dimension 1: x.permute({order})"
    return expects, f"in_channels={channels}"


def _pad(module: Any, at: int) -> int:
    return 0 if isinstance(module.padding, str) else int(module.padding[at])


def _batch_norm(module: Any, shape: Shape, _: Any) -> Suggestion:
    wanted = {"BatchNorm1d": (2, 3), "BatchNorm2d": (4,), "BatchNorm3d": (5,)}.get(type(module).__name__)
    if wanted is not None and len(shape) not in wanted:
        fitting = {2: 1, 3: 1, 4: 2, 5: 3}.get(len(shape))
        edit = f"nn.BatchNorm{fitting}d" if fitting else "reshape the input"
        return f"{' or '.join(map(str, wanted))} dimensions", edit
    if len(shape) < 2 or shape[1] == module.num_features:
        return None
    return f"{_count(module.num_features, 'channel')} in dimension 1", f"num_features={shape[1]}"


def _layer_norm(module: Any, shape: Shape, _: Any) -> Suggestion:
    wanted = tuple(module.normalized_shape)
    if shape[len(shape) - len(wanted) :] == wanted:
        return None
    fits = shape[len(shape) - len(wanted) :] if len(shape) >= len(wanted) else shape
    written = fits[0] if len(fits) == 1 else tuple(fits)
    return f"last dimensions {format_shape(wanted)}", f"normalized_shape={written}"


def _group_norm(module: Any, shape: Shape, _: Any) -> Suggestion:
    if len(shape) < 2 or shape[1] == module.num_channels:
        return None
    return f"{_count(module.num_channels, 'channel')} in dimension 1", f"num_channels={shape[1]}"


def _embedding(module: Any, shape: Shape, arguments: Any) -> Suggestion:
    given = next((each for each in arguments if isinstance(each, torch.Tensor)), None)
    if given is not None and given.dtype not in (torch.int32, torch.int64):
        return f"integer indices from 0 to {module.num_embeddings - 1}, not {given.dtype}", "x.long()"
    return None


def _recurrent(module: Any, shape: Shape, _: Any) -> Suggestion:
    if len(shape) not in (2, 3):
        return "(batch, time, features), or without the batch dimension", "reshape the input"
    if shape[-1] == module.input_size:
        return None
    return f"a last dimension of {module.input_size}", f"input_size={shape[-1]}"


def _attention(module: Any, shape: Shape, _: Any) -> Suggestion:
    if shape[-1] == module.embed_dim:
        return None
    return f"a last dimension of {module.embed_dim}", f"embed_dim={shape[-1]}"


_LAYERS: tuple[tuple[Any, Callable[[Any, Shape, Any], Suggestion]], ...] = (
    (nn.Linear, _linear),
    (nn.modules.conv._ConvNd, _convolution),
    (nn.modules.batchnorm._NormBase, _batch_norm),
    (nn.LayerNorm, _layer_norm),
    (nn.GroupNorm, _group_norm),
    (nn.Embedding, _embedding),
    (nn.RNNBase, _recurrent),
    (nn.MultiheadAttention, _attention),
)


# --- operations


def _of_operation(call: LayerCall) -> Suggestion:
    shapes = call.shapes
    if call.kind in ("matmul", "mm", "bmm", "rmatmul") and len(shapes) >= 2:
        return _product(shapes[0], shapes[1])
    if call.kind == "linear" and len(shapes) >= 2:
        return f"a last dimension of {shapes[1][-1]}", f"use a weight with {_count(shapes[0][-1], 'column')}"
    if call.kind in ("cat", "concat", "concatenate", "stack") and len(shapes) >= 2:
        return _concatenation(call)
    if call.kind in ("view", "reshape") and shapes:
        return _view(call)
    if len(shapes) == 2 and call.kind in _ELEMENTWISE:
        return "broadcastable shapes", _broadcast(shapes[0], shapes[1])
    return None


_ELEMENTWISE = {
    "add",
    "sub",
    "mul",
    "div",
    "truediv",
    "radd",
    "iadd",
    "rmul",
    "imul",
    "rsub",
    "where",
    "maximum",
    "minimum",
    "pow",
}


def _product(left: Shape, right: Shape) -> Suggestion:
    if not left or not right:
        return None
    inner = right[-2] if len(right) > 1 else right[-1]
    if left[-1] == inner:
        return (
            f"the same batch dimensions: {format_shape(left[:-2])} and {format_shape(right[:-2])}",
            "make the batch dimensions equal or 1",
        )
    expects = f"a second matrix with {_count(left[-1], 'row')}, not {inner}"
    if len(right) > 1 and right[-1] == left[-1]:
        return expects, "transpose the second matrix: b.transpose(-2, -1)"
    if len(left) > 1 and left[-2] == inner:
        return expects, "transpose the first matrix: a.transpose(-2, -1)"
    return expects, ""


def _concatenation(call: LayerCall) -> Suggestion:
    first, *others = call.shapes
    dimension = (
        next((each for each in call.arguments[1:] if isinstance(each, int)), 0)
        if len(call.arguments) > 1
        else 0
    )
    for other in others:
        if len(other) != len(first):
            return (
                "tensors with the same number of dimensions",
                "unsqueeze or flatten the tensor that differs",
            )
        differ = [at for at, (a, b) in enumerate(zip(first, other, strict=True)) if a != b]
        if call.kind != "stack":
            differ = [at for at in differ if at != dimension % len(first)]
        if differ:
            at = differ[0]
            fitting = [
                d
                for d in range(len(first))
                if all(a == b for k, (a, b) in enumerate(zip(first, other, strict=True)) if k != d)
            ]
            edit = (
                f"dim={fitting[0]}"
                if fitting and call.kind != "stack"
                else f"pad or crop dimension {at} to the same size"
            )
            return f"equal sizes in dimension {at}: {first[at]} and {other[at]}", edit
    return None


def _view(call: LayerCall) -> Suggestion:
    shape = call.shapes[0]
    rest = call.arguments[1:]
    wanted = [size for item in rest for size in (item if isinstance(item, list | tuple) else [item])]
    if not wanted or not all(isinstance(size, int) for size in wanted):
        return None
    numbers = math.prod(shape)
    fixed = math.prod(size for size in wanted if size != -1)
    if -1 in wanted and fixed and numbers % fixed == 0:
        return None
    flat = math.prod(shape[1:])
    return (
        f"{'a multiple of ' if -1 in wanted else ''}{_count(fixed, 'element')}, not {numbers}",
        f"x.flatten(1), which has shape ({shape[0]}, {flat}); set in_features={flat} in the next layer"
        if shape
        else "",
    )


def _broadcast(left: Shape, right: Shape) -> str:
    for at in range(1, min(len(left), len(right)) + 1):
        if left[-at] != right[-at] and 1 not in (left[-at], right[-at]):
            return f"make dimension -{at} equal: {left[-at]} and {right[-at]}"
    return ""
