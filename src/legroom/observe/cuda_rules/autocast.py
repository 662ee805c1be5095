"""Autocast with CUDA's lists of operations, for tensors that stand for CUDA ones.

Which precision an operation runs in under autocast differs between devices: on CUDA, softmax, norms, losses and sums
run in single precision, and so save larger tensors; the CPU has other lists. torch registers its lists for every
device in every build, so the names are asked of torch itself; only the policy of each is written down here.
Source: ATen/autocast_mode.h (the AT_FORALL lists) and autocast_mode.cpp (`cached_cast`).

Copies of parameters in lower precision are kept until the outermost region ends, as `cached_cast` keeps them.

The region itself must be entered for the CPU (the virtual GPU does that): stand-in tensors are CPU tensors below.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides, overload

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
"""Run in the region's lower precision."""
OUT_SINGLE = frozenset(
    {
        "prod", "prod.dim_int", "prod.dim_Dimname", "softmax.int", "softmax.Dimname", "log_softmax.int",
        "log_softmax.Dimname", "cumprod", "cumprod.dimname", "cumsum", "cumsum.dimname", "linalg_vector_norm",
        "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList", "sum.dim_DimnameList",
    }
)  # fmt: skip
"""Are asked for a result in single precision, unless the call names a dtype itself."""
WIDEST = frozenset(
    {
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
        "scatter_add",
    }
)  # fmt: skip
"""Run in the widest precision among their arguments."""
NORMS = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
    "norm.names_ScalarOpt_dim": "norm.names_ScalarOpt_dim_dtype",
}
"""Have another overload that takes the dtype."""
REFUSED = frozenset({"binary_cross_entropy"})
"""Raise under autocast on CUDA: the program would not come this far."""

_KEY = "AutocastCPU"


def cuda_operations() -> set[str]:
    """What CUDA's autocast treats in any way. Everything that is in none of the lists above runs in single precision."""
    return _registered("AutocastCUDA")


@contextlib.contextmanager
def installed(overrides: Overrides) -> Iterator[None]:
    """CUDA's lists are in force for stand-in tensors; caches of cast parameters end with the outermost region."""
    casts = Casts(overrides.stands_for_cuda)
    theirs = _registered(_KEY)
    ours = cuda_operations()
    for name in theirs - ours:
        overrides.put(name, torch.library.fallthrough_kernel, _KEY)
    for name in ours - REFUSED:
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
    """Without torch's private list of registrations nothing is known to be registered, and autocast stays the CPU's."""
    ask = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if ask is None:
        return set()
    return {name.removeprefix("aten::") for name in ask(key) if name.startswith("aten::")}


class Casts:
    """The casts of one run, and the parameters' copies in lower precision."""

    def __init__(self, stands_for_cuda: Callable[[torch.Tensor], bool]) -> None:
        self._stands_for_cuda = stands_for_cuda
        self._kept: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def clear(self) -> None:
        self._kept.clear()

    def kernel(self, name: str, operation: Any) -> Callable[..., Any]:
        """What runs instead of `operation` inside a region."""
        change: Callable[[Any, Any], tuple[Any, Any]]
        if name in LOWER:
            change = self._lower
        elif name in OUT_SINGLE:
            change = self._out_single(operation)
        elif name in WIDEST:
            change = self._widest
        elif name in NORMS:
            operation, change = overload(NORMS[name]), self._with_dtype(operation)
        else:
            change = self._single

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                args, kwargs = change(args, kwargs)
                try:
                    return operation(*args, **kwargs)
                finally:
                    if isinstance(args, list):
                        args.reverse()  # casts die as C++ ends them, the first argument's first; a list ends with its last

        return run

    def _lower(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self._all(args, kwargs, torch.get_autocast_dtype("cpu"))

    def _single(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self._all(args, kwargs, torch.float32)

    def _out_single(self, operation: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
        names = [argument.name for argument in operation._schema.arguments]
        position = names.index("dtype")

        def change(args: Any, kwargs: Any) -> tuple[Any, Any]:
            said = args[position] if len(args) > position else kwargs.get("dtype")
            if said is not None or not self._eligible(args[0]):
                return args, kwargs
            return args[:position], {**kwargs, "dtype": torch.float32}

        return change

    def _with_dtype(self, operation: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
        """For an overload that takes the dtype: it has none of the defaults of `operation`, and torch leaves out what equals them."""
        arguments = operation._schema.arguments

        def change(args: Any, kwargs: Any) -> tuple[Any, Any]:
            dtype = torch.float32 if self._eligible(args[0]) else args[0].dtype
            left_out = {
                one.name: one.default_value for one in arguments[len(args) :] if one.has_default_value()
            }
            return args, {**left_out, **kwargs, "dtype": dtype}

        return change

    def _widest(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        values = [*args, *kwargs.values()]
        tensors = [t for value in values for t in (value if isinstance(value, list | tuple) else (value,))]
        single = any(self._eligible(t) and t.dtype == torch.float32 for t in tensors)
        return self._all(args, kwargs, torch.float32 if single else torch.get_autocast_dtype("cpu"))

    def _all(self, args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[Any, Any]:
        """The last argument first: so compilers evaluate the casts in torch's own call, and the allocator sees it."""
        named = {name: self._cast(value, dtype) for name, value in reversed(kwargs.items())}
        return [self._cast(value, dtype) for value in reversed(args)][::-1], named

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return [self._cast(item, dtype) for item in value]
        if not self._eligible(value) or value.dtype == dtype:
            return value
        keep = (
            dtype == torch.get_autocast_dtype("cpu")
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not keep:
            return value.to(dtype)
        kept = self._kept.get(id(value))
        if kept is None or kept[0]() is not value:
            kept = self._kept[id(value)] = weakref.ref(value), value.to(dtype)
        return kept[1]

    def _eligible(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.dtype != torch.float64
            and self._stands_for_cuda(value)
        )


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
