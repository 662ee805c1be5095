"""The function mode that places tensors on virtual devices.

With this mode, tensors report their virtual device, and calls with a device argument are rewritten. All operations run
on the CPU, so the results are bit-for-bit the same as without the mode.

PyTorch disables the mode while it runs a torch function that is written in Python, so this function operates on CPU
tensors. Tensors that the function creates without tensor inputs are placed on the device of its arguments. If the
function calls user code, `callbacks` enables the mode again.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from inspect import isgetsetdescriptor
from types import FunctionType
from typing import Any

import torch
from torch import overrides
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _device as _device_module

from legroom.memory.event_base import Category
from legroom.observe.dispatch.device_placement import HOST
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.dispatch.storages import storage_of, tensors_in
from legroom.observe.dispatch.wider_dtypes import in_wider_dtype, is_dtype_error
from legroom.observe.graph_traces import is_unrecorded
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import replaced, table
from legroom.observe.virtual.reading import TensorReads
from legroom.observe.virtual.torch_api.tensors.pinned import count_as_pinned

Tensor = torch.Tensor


class PlacementMode(TorchFunctionMode):
    def __init__(self, host: VirtualHost, recorder: Recorder) -> None:
        super().__init__()
        self._host = host
        self.recorder = recorder
        self._reads = TensorReads(self.device_index, self._cpu, recorder.fake_tensors)
        properties: Any = Tensor  # a function mode receives the descriptors of properties
        self._handlers: dict[Any, Callable[..., Any]] = {
            properties.device.__get__: self._device,
            properties.is_cuda.__get__: self._is_cuda,
            properties.is_cpu.__get__: lambda tensor: self.device_index(tensor) is None and tensor.is_cpu,
            Tensor.get_device: self._get_device,
            Tensor.to: self._to,
            Tensor.cuda: self._cuda,
            Tensor.cpu: self._cpu,
            Tensor.type: self._type,
            Tensor.type_as: lambda tensor, other: self._to(tensor, other),
            Tensor.new: self._new,
            Tensor.new_tensor: self._new_tensor,
            Tensor.__deepcopy__: self._deepcopy,
            Tensor.is_shared: lambda tensor: self.device_index(tensor) is not None or tensor.is_shared(),
            Tensor.share_memory_: self._share_memory,
            properties.grad.__set__: self._set_grad,
            torch._VF._pack_padded_sequence: self._pack,
            torch._VF._pad_packed_sequence: self._pad,
            torch.as_tensor: self._as_tensor,
            torch.asarray: self._as_tensor,
            **self._reads.handlers(),
        }
        if recorder.fake_tensors is not None:
            self._handlers[torch.tensor] = self._tensor
        for plain in _without_results():
            self._handlers.setdefault(plain, plain)
        # A private function that parses the arguments of `Module.to`. Versions of torch without it parse them
        # elsewhere.
        if (parse := getattr(torch._C._nn, "_parse_to", None)) is not None:
            self._handlers[parse] = functools.partial(_parse_to_arguments, parse)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            handler = self._handlers.get(func)
            if handler is not None:
                return handler(*args, **kwargs) if kwargs else handler(*args)
            return self._call(func, args, kwargs)
        except BaseException:
            # The traceback keeps this frame alive, which must not keep tensors alive.
            args = ()
            kwargs = None
            raise

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        try:
            if kwargs:
                if kwargs.get("device") is not None or kwargs.get("pin_memory"):
                    return self._create(func, args, dict(kwargs))
                if kwargs.get("generator") is not None and _device_module.CURRENT_DEVICE is None:
                    self._check_generator(kwargs["generator"], self._device_of_first(args))
            if _device_module.CURRENT_DEVICE is not None and func in _constructors():
                return self._create(func, args, {**(kwargs or {}), "device": _device_module.CURRENT_DEVICE})
            if isinstance(
                func, HigherOrderOperator
            ):  # these call `__torch_function__` of fake tensors, which have none
                with torch._C.DisableTorchFunctionSubclass():
                    return self._run(func, args, kwargs)
            return self._run(func, args, kwargs)
        except BaseException:
            args = ()  # the traceback keeps this frame alive
            kwargs = None
            raise

    # --- the device of a tensor

    def device_index(self, tensor: Any) -> int | None:
        return self.recorder.device_of(tensor)

    def _device(self, tensor: Any) -> torch.device:
        index = self.device_index(tensor)
        return tensor.device if index is None else torch.device("cuda", index)

    def _is_cuda(self, tensor: Any) -> bool:
        return self.device_index(tensor) is not None

    def _get_device(self, tensor: Any) -> int:
        index = self.device_index(tensor)
        return -1 if index is None else index

    def _type(self, tensor: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        index = self.device_index(tensor)
        if dtype is None:
            name = tensor.type()
            return name if index is None else name.replace("torch.", "torch.cuda.")
        name = (
            dtype
            if isinstance(dtype, str)
            else f"{getattr(dtype, '__module__', '')}.{getattr(dtype, '__name__', '')}"
        )
        if isinstance(dtype, torch.dtype) or ".cuda." not in f".{name}":
            if index is not None and isinstance(dtype, str):
                return self._cpu(tensor).type(dtype)
            return tensor.type(dtype, non_blocking, **kwargs)
        element = torch.empty(0).type(name.replace("torch.cuda.", "torch.")).dtype
        return self._to(tensor, "cuda", element)

    def _share_memory(self, tensor: Any) -> Any:
        """Do nothing for a device tensor, because device memory can be sent to other processes without a copy."""
        return tensor.share_memory_() if self.device_index(tensor) is None else tensor

    def _set_grad(self, tensor: Any, gradient: Any) -> None:
        if isinstance(gradient, Tensor) and self.device_index(gradient) != self.device_index(tensor):
            raise RuntimeError("assigned grad has data located on a different device")
        tensor.grad = gradient

    def _pack(self, data: Any, lengths: Any, *args: Any, **kwargs: Any) -> Any:
        index = self.device_index(lengths)
        if index is not None:
            raise RuntimeError(
                "'lengths' argument should be a 1D CPU int64 tensor, "
                f"but got {lengths.dim()}D cuda:{index} {lengths.type().removeprefix('torch.').removesuffix('Tensor')} tensor"
            )
        return self._run(torch._VF._pack_padded_sequence, (data, lengths, *args), kwargs)

    def _pad(self, *args: Any, **kwargs: Any) -> Any:
        # As in PyTorch, the returned lengths are on the host.
        padded, lengths = self._run(torch._VF._pad_packed_sequence, args, kwargs)
        return padded, self._cpu(lengths) if self.recorder.fake_tensors is None else lengths

    # --- moving

    def _to(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(kwargs)
        other = kwargs.pop("other", None)
        if args and isinstance(args[0], Tensor):
            other, args = args[0], args[1:]
        if other is not None:
            target = self.device_index(other)
            kwargs["dtype"] = other.dtype
        else:
            named = kwargs.pop("device", None)
            if args and not isinstance(args[0], torch.dtype | bool) and args[0] is not None:
                named, args = args[0], args[1:]
            elif args and args[0] is None:
                args = args[1:]
            if named is not None and not self._is_cuda_or_cpu(named):
                return self._placed(None, None, Tensor.to, (tensor, named, *args), kwargs)
            target = self.device_index(tensor) if named is None else self._index(named)
        if args and isinstance(args[0], torch.dtype):
            kwargs["dtype"], args = args[0], args[1:]
        for name, value in zip(("non_blocking", "copy"), args, strict=False):
            kwargs[name] = value
        return self._move(tensor, target, kwargs)

    def _cuda(
        self,
        tensor: Any,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = torch.preserve_format,
    ) -> Any:
        target = self._host.current if device is None else self._index(device)
        return self._move(tensor, target, {"memory_format": memory_format})

    def _cpu(self, tensor: Any, memory_format: Any = torch.preserve_format) -> Any:
        return self._move(tensor, None, {"memory_format": memory_format})

    def _move(self, tensor: Any, target: int | None, options: dict[str, Any]) -> Any:
        options.pop("non_blocking", None)
        if self.device_index(tensor) == target:
            dtype = options.pop("dtype", None)
            return tensor.to(tensor.dtype if dtype is None else dtype, **options)
        options["copy"] = True
        if torch.is_grad_enabled() and tensor.requires_grad and not is_unrecorded():
            return _Move.apply(tensor, self, target, options)  # type: ignore[no-untyped-call]
        return self._copy(tensor, target, options)

    def _copy(self, tensor: Any, target: int | None, options: dict[str, Any]) -> Any:
        fake_tensors = self.recorder.fake_tensors
        if target is None and fake_tensors is not None:
            return fake_tensors.to_host(tensor, **options)
        category = None if target is None else self.recorder.categories.category_of_copy(tensor)
        copied = self._placed(target, category, Tensor.to, (tensor, "cpu"), options)
        if target is not None and is_unrecorded():
            self._register(copied, target, category)
        return copied

    def _deepcopy(self, tensor: Any, memo: dict[int, Any]) -> Any:
        target = self.device_index(tensor)
        if isinstance(tensor, FakeTensor):
            return self._deepcopy_without_data(tensor, target, memo)
        if target is None:
            return tensor.__deepcopy__(memo)
        category = self.recorder.categories.category_of_copy(tensor)
        copied = self._placed(target, category, Tensor.__deepcopy__, (tensor, memo), {})
        self._register(copied, target, category)
        return copied

    def _deepcopy_without_data(self, tensor: Any, target: int | None, memo: dict[int, Any]) -> Any:
        """Copy a fake tensor. PyTorch's own deep copy would also copy the fake mode, and the copy of a view would not
        be a view.
        """
        fake_tensors = self.recorder.fake_tensors
        if fake_tensors is None:
            return tensor.__deepcopy__(memo)
        shape = {"size": tensor.shape, "stride": tensor.stride(), "dtype": tensor.dtype}
        with torch.no_grad():
            if target is None:
                with fake_tensors.mode:
                    made = torch.empty_strided(**shape)
            else:
                category = self.recorder.categories.category_of_copy(tensor)
                made = self._placed(target, category, torch.empty_strided, (), {**shape, "device": "cpu"})
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        else:
            made.requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = made
        return made

    # --- creating

    def _create(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.pop("pin_memory", False):  # ordinary host memory, for which `is_pinned()` is True
            made = self._create(func, args, kwargs)
            count_as_pinned(made)
            return made
        named = kwargs.get("device")
        if named is None:
            return func(*args, **kwargs)
        if not self._is_cuda_or_cpu(named):  # meta
            return self._placed(None, None, func, args, kwargs)
        target = self._index(named)
        if kwargs.get("generator") is not None:
            self._check_generator(kwargs["generator"], target)
        # The result contains its arguments, so they must be on the device.
        if target is not None and func in _SPARSE:
            args = tuple(self._to(value, named) if isinstance(value, Tensor) else value for value in args)
        kwargs["device"] = "cpu"
        is_rule_known = func in _FACTORIES and "out" not in kwargs and not is_unrecorded()
        if target is not None and is_rule_known:
            made = self.recorder.create(_FACTORIES[func], func, args, kwargs, target)
            if made is not None:
                return made
        made = self._placed(target, None, func, args, kwargs)
        if target is not None:
            self._register(made, target)
        return made

    def _new(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        made = self._run(Tensor.new, (tensor, *args), kwargs)
        index = self.device_index(tensor)
        if index is not None:
            self._register(made, index, Category.TEMPORARY)
        return made

    def _tensor(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self._call(torch.tensor, (self._reads.with_numbers(data), *args), kwargs)

    def _new_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(self._reads.with_numbers, args))
        index = self.device_index(tensor)
        if index is None or kwargs.get("device") is not None:
            return self._create(Tensor.new_tensor, (tensor, *args), kwargs)
        return self._create(Tensor.new_tensor, (tensor, *args), {**kwargs, "device": index})

    def _as_tensor(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(kwargs)
        named = kwargs.pop("device", None) or _device_module.CURRENT_DEVICE
        if isinstance(data, Tensor):
            if named is None:
                return torch.as_tensor(data, *args, **kwargs)
            dtype = kwargs.get("dtype") or (args[0] if args else None)
            return self._to(data, named, data.dtype if dtype is None else dtype)
        made = torch.as_tensor(self._reads.with_numbers(data), *args, **kwargs)
        return made if named is None else self._to(made, named)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Run a torch function. Tensors that the function creates without tensor inputs are placed on the device of its
        arguments.
        """
        if is_unrecorded():
            return self._run_in_graph_trace(func, args, kwargs)
        context = self.recorder.context
        outer = context.factory_target, context.call
        context.factory_target, context.call = HOST, (func, args, kwargs)
        for value in args:
            if isinstance(value, list | tuple) and value:
                value = value[0]
            if isinstance(value, Tensor):
                index = self.device_index(value)
                if index is not None:
                    context.factory_target = index
                    break
            if type(func) is not FunctionType:
                break
        value = None
        try:
            try:
                return func(*args, **kwargs) if kwargs else func(*args)
            except RuntimeError as error:
                # torch rejects some dtypes on the CPU before it dispatches an operation.
                if not is_dtype_error(error) or not self.recorder.is_on_device((args, kwargs)):
                    raise
                return in_wider_dtype(func, args, kwargs, error)
        except BaseException:
            args = ()  # the traceback keeps this frame alive
            kwargs = None
            raise
        finally:
            context.factory_target, context.call = outer

    def _run_in_graph_trace(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Run a torch function whose operations are not recorded, and register its results. In such a trace, a size is
        a tensor without dimensions, which uses no device memory.
        """
        result = func(*args, **(kwargs or {}))
        if torch._C._get_tracing_state() is None:
            return result  # torch compares results, including their devices, with those of the traced model
        devices = (self.device_index(tensor) for tensor in tensors_in((args, kwargs)))
        target = next((index for index in devices if index is not None), None)
        if target is not None:
            for tensor in tensors_in((result,)):
                if tensor.dim() and self.device_index(tensor) is None:
                    self._register(tensor, target, Category.TEMPORARY)
        return result

    # --- shared by the above

    def _placed(
        self,
        target: int | None,
        category: Category | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        context = self.recorder.context
        outer = context.target, context.category
        context.target, context.category = (HOST if target is None else target), category
        try:
            return func(*args, **kwargs)
        finally:
            context.target, context.category = outer

    def _register(self, made: Any, target: int, category: Category | None = None) -> None:
        """Register the memory of a result that no operation reported, such as the result of `torch.tensor` or a storage
        copy.
        """
        if isinstance(made, Tensor):
            storage = storage_of(made) if made.layout is torch.strided else None
            if storage is not None:
                self.recorder.register_storage(storage, target, category or Category.INPUT)
        elif isinstance(made, tuple | list):
            for item in made:
                self._register(item, target, category)

    def _device_of_first(self, args: tuple[Any, ...]) -> int | None:
        return self.device_index(args[0]) if args and isinstance(args[0], Tensor) else None

    def _check_generator(self, generator: torch.Generator, target: int | None) -> None:
        expected, found = "cpu" if target is None else "cuda", generator.device.type
        if expected != found:
            raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{found}'")

    def _is_cuda_or_cpu(self, named: Any) -> bool:
        if isinstance(named, int):
            return True
        return _kind_of(named) in ("cuda", "cpu")

    def _index(self, named: Any) -> int | None:
        """Return the index of the device that a call specifies in any form, or None for the host."""
        if isinstance(named, int):
            index: int | None = named
        else:
            kind = _kind_of(named)
            if kind == named == "cuda":
                return self._host.current
            device = named if isinstance(named, torch.device) else torch.device(named)
            if kind == "cpu":
                return None
            index = device.index
        if index is None:
            return self._host.current
        if not 0 <= index < len(self._host.devices):
            raise _invalid_ordinal()
        return index


@contextlib.contextmanager
def fake_tensors_report_device(host: VirtualHost) -> Iterator[None]:
    """Replace the `device` property of fake tensors, because reading it bypasses function modes."""
    original: Any = FakeTensor.device

    def device(tensor: Any) -> torch.device:
        if torch._C._is_torch_function_mode_enabled() and is_placement_active():
            index = host.device_of(tensor)
            if index is not None:
                return torch.device("cuda", index)
        real: torch.device = original.__get__(tensor)
        return real

    original_from: Any = FakeTensorMode.from_tensor

    @functools.wraps(original_from)
    def from_tensor(mode: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        index = host.device_of(tensor)
        with (
            torch._C.DisableTorchFunction()
        ):  # a build without CUDA cannot compute gradients of a fake CUDA tensor
            made = original_from(mode, tensor, *args, **kwargs)
            storage = None if index is None else storage_of(made)
        if storage is not None:
            assert index is not None
            host.mark(storage, index, counted=False)
        return made

    replacements = table(FakeTensor, {"device": property(device, original.fset)})
    with replaced(replacements + table(FakeTensorMode, {"from_tensor": from_tensor})):
        yield


def _parse_to_arguments(parse: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if args and type(args[0]) is int:
        args = (torch.device("cuda", args[0]), *args[1:])
    if type(options.get("device")) is int:
        options = {**options, "device": torch.device("cuda", options["device"])}
    return parse(*args, **options)


def _kind_of(named: Any) -> str:
    kind: str = named.type if isinstance(named, torch.device) else str(named).partition(":")[0]
    return kind


def _operation(name: str) -> Any:
    packet = getattr(torch.ops.aten, name)
    return getattr(packet, packet.overloads()[0])


_FACTORIES = {
    getattr(torch, name): _operation(name)
    for name in (
        "zeros", "ones", "empty", "full", "rand", "randn", "randint", "arange", "eye", "linspace", "randperm",
        "empty_strided",
    )
}  # fmt: skip
"""Maps each factory function, which has no tensor arguments, to an overload of the operation that it runs."""
_SPARSE = (
    torch.sparse_coo_tensor,
    torch.sparse_csr_tensor,
    torch.sparse_csc_tensor,
    torch.sparse_bsr_tensor,
    torch.sparse_bsc_tensor,
    torch.sparse_compressed_tensor,
)


class _Move(torch.autograd.Function):
    """Copies a tensor to another device in the forward pass, and copies the gradient back. The tensors on both virtual
    devices are CPU tensors, so torch itself would not copy the gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, placement: PlacementMode, target: int | None, options: dict[str, Any]
    ) -> Any:
        ctx.placement, ctx.source, ctx.dtype = placement, placement.device_index(tensor), tensor.dtype
        return placement._copy(tensor, target, options)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch._C.DisableTorchFunction():  # the mode is on in a backward pass
            return ctx.placement._move(gradients[0], ctx.source, {"dtype": ctx.dtype}), None, None, None


@contextlib.contextmanager
def cuda_default_device() -> Iterator[None]:
    """Make `cuda` work as the default device.

    A default device is a torch mode that adds `device=` to every call. `with torch.device("cuda")` enters this mode
    above `PlacementMode`, so `PlacementMode` handles the added argument. `torch.set_default_device("cuda")` enters the
    default-device mode below `PlacementMode`, so the default-device mode would create tensors on a real device. In this
    case, the default-device mode leaves the call unchanged, and `PlacementMode` reads the default device itself.
    """
    original = _device_module.DeviceContext.__torch_function__

    def pass_on(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if mode.device.type == "cuda" and not is_placement_active():
            return func(*args, **(kwargs or {}))
        return original(mode, func, types, args, kwargs)  # type: ignore[no-untyped-call]

    before = _device_module.CURRENT_DEVICE
    with replaced(table(_device_module.DeviceContext, {"__torch_function__": pass_on})):
        try:
            yield
        finally:
            if before != _device_module.CURRENT_DEVICE:  # the default device may be a virtual device
                torch.set_default_device(before)


@functools.cache
def _without_results() -> list[Any]:
    """Return functions that are called often and need no `CallContext`, because they never create a tensor. These
    functions read a property of a tensor or change the grad mode.
    """
    getters = [each.__get__ for each in vars(torch._C.TensorBase).values() if isgetsetdescriptor(each)]
    return [*getters, *filter(None, [getattr(torch._C, "_set_grad_enabled", None)])]


def _constructors() -> Any:
    return _device_module._device_constructors()


def is_placement_active() -> bool:
    stack = getattr(overrides, "_get_current_function_mode_stack", None)
    return stack is not None and any(isinstance(mode, PlacementMode) for mode in stack())


def _invalid_ordinal() -> RuntimeError:
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    text = "CUDA error: invalid device ordinal"
    try:
        return kind(text)
    except TypeError:
        return RuntimeError(text)
