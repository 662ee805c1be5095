"""Computes an operation in a wider dtype if CUDA supports the dtype of its arguments but the CPU does not.

The results are converted back, so the program receives the dtypes that CUDA would return. This module runs only after
an error in the CPU kernel, so it does not slow down supported operations. If CUDA does not support the operation
either, the error is raised.
"""

import re
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

Tensor = torch.Tensor

Widening = dict[torch.dtype, torch.dtype]
_HALF: Widening = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_WIDENINGS: dict[torch.dtype, tuple[Widening, ...]] = {
    torch.float16: (_HALF,),
    torch.complex32: (_HALF,),
    torch.bfloat16: ({torch.bfloat16: torch.float32},),
    torch.bool: ({torch.bool: torch.uint8}, {torch.bool: torch.float32}),
    **{
        dtype: ({dtype: torch.float64},)
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    },
}
"""The wider dtypes to try for an argument of each dtype. A wider dtype can represent all values of the dtype."""

_COMPLEX = """_fft_c2c _fft_c2r acos acosh angle asin asinh atan atanh cos cosh cumprod div exp flip lerp log logaddexp pow prod
    rsqrt sigmoid sigmoid_backward sin sinh sqrt sum tan tanh tanh_backward trace"""
_MARGIN_LOSSES = "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward"
_POOLS = "avg_pool3d avg_pool3d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward"
_FFT = """fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn
    fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn"""
"""Functions in which torch rejects the dtype before it dispatches an operation."""
_ONLY_ON_CUDA: dict[torch.dtype, frozenset[str]] = {
    torch.complex32: frozenset(_COMPLEX.split()),
    torch.float16: frozenset(f"_fft_r2c rrelu_with_noise {_POOLS} {_MARGIN_LOSSES} {_FFT}".split()),
    torch.bfloat16: frozenset(f"{_POOLS} {_MARGIN_LOSSES}".split()),
    torch.bool: frozenset(("abs", "trace")),
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), frozenset(("histc",))),
}
"""The operations that support a dtype on CUDA but not on the CPU. `bench/sweep/dtypes.py` derives this table from
torch's own tests (torch 2.13).
"""

_UNSUPPORTED = re.compile(
    r"not implemented for '|Unsupported dtype|expected scalar type \w+ but found (Half|BFloat16|ComplexHalf)"
)


def is_dtype_error(error: BaseException) -> bool:
    return _UNSUPPORTED.search(str(error)) is not None


def in_wider_dtype(func: Any, args: Any, kwargs: dict[str, Any] | None, error: BaseException) -> Any:
    """Compute an operation that failed with `error` in a wider dtype. Raise `error` if CUDA does not support the dtype
    either.
    """
    kwargs = kwargs or {}
    for widening in _widenings(_name(func), args, kwargs):
        try:
            return _run(func, args, kwargs, widening)
        except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
            continue
    raise error


def is_only_on_cuda(name: str, dtype: torch.dtype) -> bool:
    return name in _ONLY_ON_CUDA.get(dtype, ())


def _name(func: Any) -> str:
    return str(getattr(getattr(func, "overloadpacket", func), "__name__", "")).rstrip("_")


def _widenings(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Widening, ...]:
    # If the arguments have different floating-point dtypes, CUDA rejects the operation too.
    dtypes: dict[torch.dtype, None] = {}
    tree_map_only(Tensor, lambda tensor: dtypes.setdefault(tensor.dtype), (args, kwargs))
    floating = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    dtype = next(iter(floating or dtypes), torch.float32)
    found = _WIDENINGS[dtype] if is_only_on_cuda(name, dtype) else ()
    return tuple(widening for widening in found if all(dtype in widening for dtype in floating))


def _run(func: Any, args: Any, kwargs: dict[str, Any], widening: Widening) -> Any:
    originals: dict[int, Tensor] = {}
    copies: dict[int, Tensor] = {}

    def widen(tensor: Tensor) -> Tensor:
        if tensor.dtype not in widening:
            return tensor
        if id(tensor) not in copies:
            copies[id(tensor)] = copy = tensor.to(widening[tensor.dtype])
            originals[id(copy)] = tensor
        return copies[id(tensor)]

    wide_args, wide_kwargs = tree_map_only(Tensor, widen, (tuple(args), kwargs))
    wide_kwargs = {name: _wide(value, widening) for name, value in wide_kwargs.items()}
    result = func(*wide_args, **wide_kwargs)
    for index, name in _written(func):
        value = wide_args[index] if index < len(wide_args) else wide_kwargs.get(name)
        if isinstance(value, Tensor) and id(value) in originals:
            originals[id(value)].copy_(value)
    back = {wide: narrow for narrow, wide in widening.items()}

    def narrowed(tensor: Tensor) -> Tensor:
        if id(tensor) in originals:
            return originals[id(tensor)]
        return tensor.to(back[tensor.dtype]) if tensor.dtype in back else tensor

    return tree_map_only(Tensor, narrowed, result)


def _wide(value: Any, widening: Widening) -> Any:
    return widening.get(value, value) if isinstance(value, torch.dtype) else value


def _written(func: Any) -> list[tuple[int, str]]:
    schema = getattr(func, "_schema", None)
    return [
        (index, argument.name)
        for index, argument in enumerate(() if schema is None else schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
