"""Device tensors without data: operations on them give shapes and nothing else, in no time and no memory.

What lives on a device is a fake tensor; what lives on the host is real, so that data loading, sampling and logging run
as they are. Where the two meet, small tensors that do not depend on the model have the values that they would have (`known_values`);
others' must be made up: `.item()` gives 1, `all()` True and any other question False; `.cpu()` gives ones.

Models are built on the host first and would take time and memory there: what a module makes while it is constructed
is fake from the beginning, and so is every parameter and buffer it registers.
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
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy

from legroom.observe.dispatch.backward_engine import in_backward_pass
from legroom.observe.dispatch.operations import overloads
from legroom.observe.fake.known_values import LARGEST, KnownValues, needs_values
from legroom.observe.fake.shape_cache import ShapeMemory

SMALL = 64 * 1024
"""Bytes below which a tensor made during a module's construction stays real: its values may steer the construction
(`[rate.item() for rate in torch.linspace(0, 0.1, depth)]`), and it costs nothing."""

ASKS_DEVICE = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_CHECK_INF = getattr(torch.ops.aten, "_amp_foreach_non_finite_check_and_unscale_", None)


class _Storages:
    """A set of storages, held weakly and told apart by identity."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._references[storage._cdata] = weakref.ref(storage)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        reference = self._references.get(storage._cdata)
        return reference is not None and reference() is storage


class StandIns:
    """Runs operations on data-less tensors, and makes up the values that a program asks for."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._memory = ShapeMemory(self.mode, self._worked_out)
        self.asked = 0
        """How often the program asked for values of a tensor ..."""
        self.made_up = 0
        """... and how often they had to be made up."""
        self._infinities = _Storages()
        self._true = _Storages()
        self._values = KnownValues(self._without_data)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any], to_device: bool) -> Any:
        """One operation. `to_device`: its results live on a device, whatever its inputs are."""
        if func is _ITEM:  # a host's tensor may say how large one on the device is to be
            return self._value(args[0]) if isinstance(args[0], FakeTensor) else func(*args, **kwargs)
        if getattr(func, "namespace", "") == "c10d" and _any_fake(args):
            self._values.forget(args)
            return _communicated(func, args)
        if to_device and args and is_lazy(args[0]):
            return func(*args, **kwargs)  # empty, and of a class that fake mode does not know
        if not (to_device or _any_fake(args) or _any_fake(kwargs.values())):
            if not _is_building(func, args, kwargs) or fake_mode_in_force() is not None:
                return func(*args, **kwargs)
            return self._memory.run(func, args, kwargs)
        # As when torch copies a stand-in: the mode's turn comes after ours.
        if fake_mode_in_force() is not None:
            self._values.forget(args)
            return func(*args, **kwargs)
        return self._on_device(func, args, kwargs)

    def _on_device(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operation on shapes, and on values as far as they are known."""
        if needs_values(func, args):
            answer = self._values.result_of(func, args, kwargs)
            if answer is not None:
                return answer
        if _CHECK_INF is not None and func is _CHECK_INF.default:
            self._infinities.add(args[1])
        # What returns nothing changes values in place, and has no shapes.
        out: Any = None if _returns_nothing(func) else self._memory.run(func, args, kwargs)
        if id(func) in _MAY_BE_SPARSE and _is_sparse(out) and in_backward_pass():
            raise DynamicOutputShapeException(func)  # a stand-in of it would have no rows
        self._values.follow(func, args, kwargs, out)
        if id(func) in _ALL and self._values.of(out) is None:
            self._true.add(out)
        return out

    def _worked_out(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return self.mode.__torch_dispatch__(func, (), args, kwargs)

    def _without_data(self, tensor: torch.Tensor) -> torch.Tensor:
        with self.mode, torch.no_grad():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    def device_of(self, tensor: FakeTensor) -> torch.device:
        """What a data-less tensor says of its device: as `FakeTensorMode` answers, without the way through it."""
        return torch.device("meta") if tensor.fake_mode.in_kernel_invocation else tensor.fake_device

    def on_host(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        """What a data-less tensor becomes when it is copied to the host: real, and made up where its values are not known."""
        dtype = options.get("dtype") or tensor.dtype
        self.asked += 1
        known = self._values.of(tensor)
        if known is not None:
            return known.to(dtype, copy=True)
        self.made_up += 1
        return torch.ones(tensor.shape, dtype=dtype).requires_grad_(False)

    def as_list(self, tensor: torch.Tensor) -> Any:
        return self.on_host(tensor).tolist()

    def _value(self, tensor: FakeTensor) -> Any:
        self.asked += 1
        known = self._values.of(tensor)
        if known is not None:
            return known.item()
        self.made_up += 1
        if tensor in self._infinities:  # GradScaler asks whether gradients overflowed
            return 0.0
        if tensor.dtype is torch.bool:
            return tensor in self._true  # "is all of it so?": masks usually are all ones
        return 1.0 if tensor.dtype.is_floating_point else 1

    @contextlib.contextmanager
    def models_without_data(self) -> Iterator[None]:
        """While active, whatever modules register is a stand-in."""
        made: dict[int, Any] = {}

        def registered(module: nn.Module, name: str, tensor: Any) -> Any:
            if (
                tensor is None
                or isinstance(tensor, FakeTensor)
                or type(tensor) not in (torch.Tensor, nn.Parameter)
            ):
                return None
            if id(tensor) not in made:
                fake = self._without_data(tensor)
                if isinstance(tensor, nn.Parameter):
                    fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
                elif tensor.layout is torch.strided and tensor.nbytes <= LARGEST:
                    self._values.note(fake, tensor.detach().clone(memory_format=torch.preserve_format))
                # The original is kept: another may not take its id meanwhile.
                made[id(tensor)] = (tensor, fake)
            return made[id(tensor)][1]

        hooks = (
            nn.modules.module.register_module_parameter_registration_hook(registered),
            nn.modules.module.register_module_buffer_registration_hook(registered),
        )
        swap = torch.utils.swap_tensors

        def take_over(tensor: Any, other: Any) -> None:
            """`Module.to` swaps stand-ins, which fails where a weak reference looks at one: take its memory instead."""
            if isinstance(tensor, FakeTensor) and isinstance(other, FakeTensor):
                tensor.data = other.data
            else:
                swap(tensor, other)  # type: ignore[no-untyped-call]

        torch.utils.swap_tensors = take_over
        try:
            yield
        finally:
            torch.utils.swap_tensors = swap
            for hook in hooks:
                hook.remove()


def fake_mode_in_force() -> Any:
    """The fake mode that somebody entered, or None. Without torch's private functions for that it is always None, and copies of
    stand-ins fail."""
    ask, keys = (
        getattr(torch._C, "_get_dispatch_mode", None),
        getattr(torch._C, "_TorchDispatchModeKey", None),
    )
    return None if ask is None or keys is None else ask(keys.FAKE)


@functools.cache
def _returns_nothing(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and not schema.returns


def _communicated(func: Any, args: Any) -> Any:
    """A collective operation over tensors without data: it is done at once, and what it fills is its first argument.

    Without torch's private `_create_work_from_future`, it takes fake mode's way, which DistributedDataParallel cannot use.
    """
    c10d: Any = importlib.import_module("torch._C._distributed_c10d")
    done: Any = torch.futures.Future()
    filled = args[0]
    done.set_result(list(filled) if isinstance(filled, list | tuple) else [filled])
    work = c10d._create_work_from_future(done).boxed()
    kinds = [str(returned.type) for returned in func._schema.returns]
    given = [filled if "Tensor" in kind else work for kind in kinds]
    return given[0] if len(given) == 1 else tuple(given)


def _any_fake(values: Any) -> bool:
    for value in values:
        if isinstance(value, FakeTensor):
            return True
        if isinstance(value, tuple | list) and _any_fake(value):
            return True
    return False


_ALL = overloads("all", "_is_all_true")  # the latter checks distributions' parameters
_MAY_BE_SPARSE = overloads("_sparse_coo_tensor_with_dims_and_tensors", "_embedding_bag_backward")
_FACTORIES = overloads(
    "empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "eye"
)


def _is_sparse(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.is_sparse


def makes_from_nothing(func: Any) -> bool:
    return id(func) in _FACTORIES


def _is_building(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a large tensor is about to be made from nothing inside the construction of a module."""
    if id(func) not in _FACTORIES or _bytes_asked_for(args, kwargs) < SMALL:
        return False
    frame = sys._getframe(3)
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_code.co_argcount:
            first = frame.f_code.co_varnames[0]
            if isinstance(frame.f_locals.get(first), nn.Module):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _bytes_asked_for(args: Any, kwargs: dict[str, Any]) -> int:
    shape = next((value for value in args if isinstance(value, list | tuple)), None)
    if shape is None:
        return 0
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return math.prod(int(size) for size in shape) * dtype.itemsize
