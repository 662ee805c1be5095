"""Builds sweep cases: one operation in several shapes, precisions, layouts and gradient settings.

`Kit` provides the first tensor of an operation and further tensors of the same kind. `variants` returns the cases of
one operation: every shape in every precision, and one shape in every layout. These cases show copies of
non-contiguous tensors, and buffers that only large or odd sizes need.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

TYPES = {
    "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64, "int64": torch.int64,
    "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool, "complex": torch.complex64,
}  # fmt: skip
RECURRENT = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
"""Modules that accept a device and a dtype, although their signatures do not contain these arguments."""
Shape = tuple[int, ...]
Action = Callable[["Kit"], Any]


class Case(NamedTuple):
    name: str
    """The name of the case. Its first word is the operation."""
    run: Callable[[], Any]


class Variant(NamedTuple):
    """The properties of one case of an operation: shape, precision, layout and gradients."""

    shape: Shape
    dtype: str = "fp32"
    autocast: str = ""
    layout: str = ""
    gradient: str = ""

    def __str__(self) -> str:
        cast = f"autocast-{self.autocast}" if self.autocast else ""
        given = f"gradient-{self.gradient}" if self.gradient else ""
        return " ".join(filter(None, ("x".join(map(str, self.shape)), self.dtype, cast, self.layout, given)))


class Kit:
    """The inputs of an operation."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.shape = variant.shape
        self.dtype = TYPES[variant.dtype]
        self.x = self.tensor(*variant.shape) if variant.shape else None

    def tensor(self, *shape: int, grad: bool = True, dtype: torch.dtype | None = None) -> Any:
        """Return a tensor with the variant's precision and layout."""
        dtype = dtype or self.dtype
        grad = grad and (dtype.is_floating_point or dtype.is_complex)
        return _laid(shape, dtype, self.variant.layout, grad)

    def plain(self, *shape: int, grad: bool = True, dtype: torch.dtype | None = None) -> Any:
        """Return a contiguous tensor, regardless of the variant."""
        dtype = dtype or self.dtype
        return _laid(shape, dtype, "", grad and (dtype.is_floating_point or dtype.is_complex))

    def ints(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, device="cuda")

    def mask(self, *shape: int) -> Tensor:
        return torch.rand(shape, device="cuda") > 0.5

    def layer(self, kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return a module on the GPU, in the variant's precision if it has parameters."""
        if "device" in inspect.signature(kind).parameters or kind in RECURRENT:
            kwargs |= {"device": "cuda", "dtype": self.dtype}
        return kind(*args, **kwargs)


def _laid(shape: Shape, dtype: torch.dtype, layout: str, grad: bool) -> Tensor:
    def fresh(*size: int) -> Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(*size, device="cuda", dtype=dtype).requires_grad_(grad)
        return torch.randint(0, 2, size, device="cuda", dtype=dtype)

    if layout == "turned" and len(shape) >= 2:
        return fresh(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
    if layout == "last" and len(shape) in (4, 5):
        order = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        return fresh(*shape).detach().to(memory_format=order).requires_grad_(grad)
    if layout == "spread" and len(shape) >= 2:
        return fresh(1, *shape[1:]).expand(shape)
    if layout == "sliced" and shape:
        return fresh(*shape[:-1], 2 * shape[-1])[..., : shape[-1]]
    return fresh(*shape)


def case(operation: str, variant: Variant, action: Action) -> Case:
    """Return a case with the forward pass of `action` and a backward pass from all results that have gradients."""

    def run() -> None:
        kit = Kit(variant)
        with _region(variant.autocast):
            results = list(_differentiable(action(kit)))
        if results:
            torch.autograd.backward(results, [_gradient(result, variant.gradient) for result in results])

    return Case(f"{operation} {variant}", run)


def custom_case(operation: str, detail: str, action: Callable[[], Any]) -> Case:
    """Return a case that includes its own backward pass."""
    return Case(f"{operation} {detail}".strip(), action)


def _region(autocast: str) -> Any:
    return torch.autocast("cuda", TYPES[autocast]) if autocast else contextlib.nullcontext()


def _differentiable(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _differentiable(item)


def _gradient(result: Tensor, kind: str) -> Tensor:
    if kind == "spread":
        return torch.ones((), device="cuda", dtype=result.dtype).expand(result.shape)
    if kind == "turned" and result.dim() >= 2:
        return torch.ones_like(
            result.detach().transpose(-1, -2), memory_format=torch.contiguous_format
        ).transpose(-1, -2)
    return torch.ones_like(result)


def variants(
    operation: str,
    action: Action,
    shapes: Sequence[Shape],
    *,
    half: bool = True,
    layouts: bool = True,
    autocast: bool = True,
    integers: Sequence[str] = (),
) -> Iterator[Case]:
    """Return the cases of one operation. `half` means that the operation supports half precision. `integers` are the
    other dtypes to try."""
    for shape in shapes:
        yield case(operation, Variant(shape), action)
        if half:
            yield case(operation, Variant(shape, "bf16"), action)
        if autocast:
            yield case(operation, Variant(shape, autocast="bf16"), action)
        for dtype in integers:
            yield case(operation, Variant(shape, dtype), action)
    middle = max((shape for shape in shapes if math.prod(shape) < 6 << 20), key=math.prod, default=shapes[0])
    if half:
        yield case(operation, Variant(middle, "fp16"), action)
    if autocast:
        yield case(operation, Variant(middle, autocast="fp16"), action)
    if layouts:
        for layout in ("turned", "spread", "sliced", *(("last",) if len(middle) in (4, 5) else ())):
            yield case(operation, Variant(middle, layout=layout), action)
            if half and layout in ("turned", "last"):
                yield case(operation, Variant(middle, "bf16", layout=layout), action)
        for gradient in ("spread", "turned"):
            yield case(operation, Variant(middle, gradient=gradient), action)


def table(entries: dict[str, Action], shapes: Sequence[Shape], **options: Any) -> Iterator[Case]:
    """Return the cases of several operations over the same shapes."""
    for operation, action in entries.items():
        yield from variants(operation, action, shapes, **options)
