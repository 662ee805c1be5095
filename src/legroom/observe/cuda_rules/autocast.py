"""Autocast with CUDA's lists of operations, for tensors on a virtual device.

The precision of an operation under autocast depends on the device. On CUDA, softmax, norms, losses and sums run in
float32 and save larger tensors. The CPU has different lists of operations. PyTorch registers its lists for every device
in every build, so the names of the operations come from torch. This module defines only the policy of each list. The
rules follow ATen/autocast_mode.h (the AT_FORALL lists) and autocast_mode.cpp (`cached_cast`).

Casts of parameters are cached until the outermost region ends, as in `cached_cast`. The autocast region must have the
device type `cpu`. On a virtual GPU, all regions have this device type, because the tensors are CPU tensors.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides, overload
from legroom.observe.tensor_reference import TensorReference

LOWER = frozenset(
    {
        "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
        "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "cudnn_convolution",
        "cudnn_convolution_transpose", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
        "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
        "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
        "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
    }
)  # fmt: skip
"""Operations that run in the lower precision of the region."""
FLOAT32_RESULT = frozenset(
    {
        "prod", "prod.dim_int", "prod.dim_Dimname", "softmax.int", "softmax.Dimname", "log_softmax.int",
        "log_softmax.Dimname", "cumprod", "cumprod.dimname", "cumsum", "cumsum.dimname", "linalg_vector_norm",
        "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList", "sum.dim_DimnameList",
    }
)  # fmt: skip
"""Operations that have a float32 result, unless the call sets `dtype`."""
WIDEST = frozenset(
    {
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
        "scatter_add",
    }
)  # fmt: skip
"""Operations that run in the widest precision of their arguments."""
NORMS = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
    "norm.names_ScalarOpt_dim": "norm.names_ScalarOpt_dim_dtype",
}
"""The overload of each norm operation that has a `dtype` argument."""
REJECTED = frozenset({"binary_cross_entropy"})
"""Operations that raise an error under autocast on CUDA."""

_KEY = "AutocastCPU"


def cuda_operations() -> set[str]:
    """Return the operations that CUDA's autocast handles. An operation that is in none of the lists above runs in
    float32.
    """
    return _registered("AutocastCUDA")


@contextlib.contextmanager
def installed(overrides: Overrides) -> Iterator[None]:
    casts = Casts(overrides.is_on_device)
    cpu_operations = _registered(_KEY)
    operations = cuda_operations()
    for name in cpu_operations - operations:
        overrides.put(name, torch.library.fallthrough_kernel, _KEY)
    for name in operations - REJECTED:
        operation = overload(name)
        if operation is not None:
            overrides.put(name, casts.kernel(name, operation), _KEY)
    original = torch.clear_autocast_cache

    def clear() -> None:
        casts.clear()
        original()

    torch.clear_autocast_cache = clear
    try:
        yield
    finally:
        torch.clear_autocast_cache = original
        casts.clear()


def _registered(key: str) -> set[str]:
    """Return the operations that are registered for a dispatch key. If this version of torch lacks the private function
    that lists them, the result is empty, and autocast follows the CPU's lists.
    """
    registrations = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if registrations is None:
        return set()
    return {name.removeprefix("aten::") for name in registrations(key) if name.startswith("aten::")}


class Casts:
    def __init__(self, is_on_device: Callable[[torch.Tensor], bool]) -> None:
        self._is_on_device = is_on_device
        self._cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def clear(self) -> None:
        self._cache.clear()

    def kernel(self, name: str, operation: Any) -> Callable[..., Any]:
        change: Callable[[Any, Any], tuple[Any, Any]]
        if name in LOWER:
            change = self._lower
        elif name in FLOAT32_RESULT:
            change = self._float32_result(operation)
        elif name in WIDEST:
            change = self._widest
        elif name in NORMS:
            operation, change = overload(NORMS[name]), self._with_dtype(operation)
        else:
            change = self._float32

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                args, kwargs = change(args, kwargs)
                try:
                    return operation(*args, **kwargs)
                finally:
                    if isinstance(args, list):
                        args.reverse()  # C++ frees the first argument's cast first; a list frees its last item first

        return run

    def _lower(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self._all(args, kwargs, torch.get_autocast_dtype("cpu"))

    def _float32(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self._all(args, kwargs, torch.float32)

    def _float32_result(self, operation: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
        names = [argument.name for argument in operation._schema.arguments]
        position = names.index("dtype")

        def change(args: Any, kwargs: Any) -> tuple[Any, Any]:
            given = args[position] if len(args) > position else kwargs.get("dtype")
            if given is not None or not self._eligible(args[0]):
                return args, kwargs
            return args[:position], {**kwargs, "dtype": torch.float32}

        return change

    def _with_dtype(self, operation: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
        """Return a function that adds `dtype` and the defaults of `operation` to the arguments. Torch omits arguments
        that are equal to the defaults, but the overload with `dtype` requires them.
        """
        arguments = operation._schema.arguments

        def change(args: Any, kwargs: Any) -> tuple[Any, Any]:
            dtype = torch.float32 if self._eligible(args[0]) else args[0].dtype
            defaults = {
                one.name: one.default_value for one in arguments[len(args) :] if one.has_default_value()
            }
            return args, {**defaults, **kwargs, "dtype": dtype}

        return change

    def _widest(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        values = [*args, *kwargs.values()]
        tensors = [t for value in values for t in (value if isinstance(value, list | tuple) else (value,))]
        has_float32 = any(self._eligible(t) and t.dtype == torch.float32 for t in tensors)
        return self._all(args, kwargs, torch.float32 if has_float32 else torch.get_autocast_dtype("cpu"))

    def _all(self, args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[Any, Any]:
        """Cast all arguments, starting with the last argument. The C++ compiler evaluates the casts of torch's own call
        in this order, and the order affects the allocator.
        """
        named = {name: self._cast(value, dtype) for name, value in reversed(kwargs.items())}
        return [self._cast(value, dtype) for value in reversed(args)][::-1], named

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return [self._cast(item, dtype) for item in value]
        if not self._eligible(value) or value.dtype == dtype:
            return value
        is_cached = (
            dtype == torch.get_autocast_dtype("cpu")
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not is_cached:
            return value.to(dtype)
        cached = self._cache.get(id(value))
        if cached is None or cached[0]() is not value:
            cached = self._cache[id(value)] = TensorReference(value), value.to(dtype)
        return cached[1]

    def _eligible(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.dtype != torch.float64
            and self._is_on_device(value)
        )


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
