"""Device tensors without data: operations on them compute shapes only and use no memory.

Host tensors are real, so data loading, sampling and logging run as usual. When the host reads a small device tensor
that does not depend on the model, the real values are returned (`known_values`). When the host reads any other device
tensor, a placeholder is returned. The placeholder is 1 for `.item()`, True for `all()`, `equal()` and `allclose()`,
False for other Boolean values, and ones for `.cpu()`.

Models are usually built in host memory first, and real host tensors would cost time and memory. Large tensors that a
module creates in its constructor are therefore fake from the beginning, and so are all parameters and buffers.
"""

import contextlib
import functools
import importlib
import math
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from legroom.observe.dispatch.backward_engine import in_backward_pass
from legroom.observe.dispatch.operations import overloads
from legroom.observe.dispatch.wider_dtypes import in_wider_dtype, is_dtype_error
from legroom.observe.fake.host_data import run_on_host
from legroom.observe.fake.known_values import MAX_TRACKED_BYTES, KnownValues, needs_values
from legroom.observe.fake.shape_cache import ShapeCache

SMALL = 64 * 1024
"""Tensors below this size that a module's constructor creates stay real. Small tensors use little memory, and the
constructor may read their values (`[rate.item() for rate in torch.linspace(0, 0.1, depth)]`).
"""

DEVICE_QUERY = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_CHECK_INF = getattr(torch.ops.aten, "_amp_foreach_non_finite_check_and_unscale_", None)


class _StorageSet:
    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._references[storage._cdata] = weakref.ref(storage)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        reference = self._references.get(storage._cdata)
        return reference is not None and reference() is storage


class FakeTensors:
    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._shapes = ShapeCache(self.mode, self._infer_shapes)
        self.values_read = 0
        self.values_substituted = 0
        self._overflow_flags = _StorageSet()
        self._true_results = _StorageSet()
        self._values = KnownValues(self._fake_like)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any], to_device: bool) -> Any:
        """Run an operation. With `to_device`, the results are on a device, regardless of the inputs."""
        if func is _ITEM:  # a host tensor may determine the size of a device tensor
            return self._value(args[0]) if isinstance(args[0], FakeTensor) else func(*args, **kwargs)
        if getattr(func, "namespace", "") == "c10d" and _any_fake(args):
            self._values.forget(args)
            return _run_collective(func, args)
        if to_device and args and is_lazy(args[0]):
            return func(*args, **kwargs)  # the tensor is empty, and fake mode does not support its class
        if not (to_device or _any_fake(args) or _any_fake(kwargs.values())):
            if active_fake_mode() is not None:
                return func(*args, **kwargs)
            if not _is_in_module_constructor(func, args, kwargs):
                return run_on_host(func, args, kwargs)
            return self._shapes.run(func, args, kwargs)
        # For example, torch copies a fake tensor. The active mode handles this operation next.
        if active_fake_mode() is not None:
            self._values.forget(args)
            return func(*args, **kwargs)
        return self._on_device(func, args, kwargs)

    def _on_device(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if needs_values(func, args):
            result = self._values.evaluate(func, args, kwargs)
            if result is not None:
                return result
            # Most comparisons are assertions, or conditions of loops that end when values no longer change.
            if id(func) in _COMPARISONS:
                self.values_read += 1
                self.values_substituted += 1
                return True
        if _CHECK_INF is not None and func is _CHECK_INF.default:
            self._overflow_flags.add(args[1])
        # An operation that returns nothing only writes in place, so there are no shapes to infer.
        out: Any = None if _returns_nothing(func) else self._shapes.run(func, args, kwargs)
        if id(func) in _MAY_BE_SPARSE and _is_sparse(out) and in_backward_pass():
            raise DynamicOutputShapeException(func)  # a fake sparse tensor would have no entries
        self._values.propagate(func, args, kwargs, out)
        if id(func) in _ALL and self._values.of(out) is None:
            self._true_results.add(out)
        return out

    def _infer_shapes(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if isinstance(func, HigherOrderOperator) and FakeTensorMode in func.python_key_table:
            # In torch 2.6, the mode reads the tags of every operation, and an operation that takes functions has none.
            return func.python_key_table[FakeTensorMode](self.mode, *args, **kwargs)
        if id(func) in _TAKES_INDICES:
            _check_indices(func, args, kwargs)
        try:
            return self.mode.__torch_dispatch__(func, (), args, kwargs)
        except RuntimeError as error:
            if not is_dtype_error(error):
                raise
            with self.mode:
                return in_wider_dtype(func, args, kwargs, error)

    def _fake_like(self, tensor: torch.Tensor) -> torch.Tensor:
        with self.mode, torch.no_grad():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    def device_of(self, tensor: FakeTensor) -> torch.device:
        """Return the device that a fake tensor reports, as `FakeTensorMode` does but without a dispatch through the
        mode.
        """
        return torch.device("meta") if tensor.fake_mode.in_kernel_invocation else tensor.fake_device

    def to_host(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return a real host copy of a fake tensor: its known values, or ones as a placeholder."""
        dtype = options.get("dtype") or tensor.dtype
        self.values_read += 1
        known = self._values.of(tensor)
        if known is not None:
            return known.to(dtype, copy=True)
        self.values_substituted += 1
        return torch.ones(tensor.shape, dtype=dtype).requires_grad_(False)

    def tolist(self, tensor: torch.Tensor) -> Any:
        return self.to_host(tensor).tolist()

    def _value(self, tensor: FakeTensor) -> Any:
        self.values_read += 1
        known = self._values.of(tensor)
        if known is not None:
            return known.item()
        self.values_substituted += 1
        if tensor in self._overflow_flags:  # GradScaler reads whether gradients overflowed
            return 0.0
        if tensor.dtype is torch.bool:
            return tensor in self._true_results  # result of `all()`: masks are usually all ones
        if tensor.dtype.is_complex:
            return 1 + 0j
        return 1.0 if tensor.dtype.is_floating_point else 1

    @contextlib.contextmanager
    def fake_modules(self) -> Iterator[None]:
        """Within the block, modules register fake tensors instead of real tensors."""
        fakes: dict[int, Any] = {}

        def registered(module: nn.Module, name: str, tensor: Any) -> Any:
            if (
                tensor is None
                or isinstance(tensor, FakeTensor)
                or type(tensor) not in (torch.Tensor, nn.Parameter)
            ):
                return None
            if id(tensor) not in fakes:
                fake = self._fake_like(tensor)
                if isinstance(tensor, nn.Parameter):
                    fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
                elif tensor.layout is torch.strided and tensor.nbytes <= MAX_TRACKED_BYTES:
                    self._values.set(fake, tensor.detach().clone(memory_format=torch.preserve_format))
                # Keep the original alive so that no other tensor gets its id.
                fakes[id(tensor)] = (tensor, fake)
            return fakes[id(tensor)][1]

        hooks = (
            nn.modules.module.register_module_parameter_registration_hook(registered),
            nn.modules.module.register_module_buffer_registration_hook(registered),
        )
        swap = torch.utils.swap_tensors

        def swap_data(tensor: Any, other: Any) -> None:
            # By default, `Module.to` would swap the tensors, which fails if a tensor has weak references. A copy to the
            # host, as in `module.cpu()`, is a real tensor.
            if isinstance(tensor, FakeTensor):
                fake = other if isinstance(other, FakeTensor) else self._fake_like(other.detach())
                tensor.data = fake.data
            else:
                swap(tensor, other)  # type: ignore[no-untyped-call]

        torch.utils.swap_tensors = swap_data
        try:
            yield
        finally:
            torch.utils.swap_tensors = swap
            for hook in hooks:
                hook.remove()


def active_fake_mode() -> Any:
    """Return the fake mode that is active on this thread, or None. Without torch's private functions, the result is
    always None, and copying a fake tensor fails.
    """
    get_mode, keys = (
        getattr(torch._C, "_get_dispatch_mode", None),
        getattr(torch._C, "_TorchDispatchModeKey", None),
    )
    return None if get_mode is None or keys is None else get_mode(keys.FAKE)


@functools.cache
def _returns_nothing(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and not schema.returns


def _run_collective(func: Any, args: Any) -> Any:
    """Run a collective on fake tensors. The collective completes at once and writes to its first argument.

    DistributedDataParallel cannot use the result of fake mode, so this function uses torch's private
    `_create_work_from_future`.
    """
    c10d: Any = importlib.import_module("torch._C._distributed_c10d")
    done: Any = torch.futures.Future()
    output = args[0]
    done.set_result(list(output) if isinstance(output, list | tuple) else [output])
    work = c10d._create_work_from_future(done).boxed()
    kinds = [str(returned.type) for returned in func._schema.returns]
    results = [output if "Tensor" in kind else work for kind in kinds]
    return results[0] if len(results) == 1 else tuple(results)


def _any_fake(values: Any) -> bool:
    for value in values:
        if isinstance(value, FakeTensor):
            return True
        if isinstance(value, tuple | list) and _any_fake(value):
            return True
    return False


def _check_indices(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise torch's own error if the indices are not integers. In many releases, torch's shape inference accepts such
    indices (`embedding` from 2.8 to 2.10, other operations in all releases). To get the error, the operation runs on
    small host tensors.
    """
    index = args[1] if id(func) in _EMBEDDING else args[2]
    if isinstance(index, torch.Tensor) and index.dtype.is_floating_point:
        func(*tree_map_only(torch.Tensor, _small, args), **kwargs)


def _small(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros((1,) * tensor.dim(), dtype=tensor.dtype, device="cpu")


_EMBEDDING = overloads("embedding")
_TAKES_INDICES = _EMBEDDING | overloads(
    "index_select", "index_add", "index_add_", "index_copy", "index_copy_"
)
_ALL = overloads("all", "_is_all_true")  # `torch.distributions` validates its parameters with `_is_all_true`
_COMPARISONS = overloads("equal", "allclose")
_MAY_BE_SPARSE = overloads("_sparse_coo_tensor_with_dims_and_tensors", "_embedding_bag_backward")
_FACTORIES = overloads(
    "empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "eye"
)


def _is_sparse(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.is_sparse


def is_factory(func: Any) -> bool:
    return id(func) in _FACTORIES


def _is_in_module_constructor(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    if id(func) not in _FACTORIES or _requested_bytes(args, kwargs) < SMALL:
        return False
    frame = sys._getframe(3)
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_code.co_argcount:
            first = frame.f_code.co_varnames[0]
            if isinstance(frame.f_locals.get(first), nn.Module):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _requested_bytes(args: Any, kwargs: dict[str, Any]) -> int:
    shape = next((value for value in args if isinstance(value, list | tuple)), None)
    if shape is None:
        return 0
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return math.prod(int(size) for size in shape) * dtype.itemsize
