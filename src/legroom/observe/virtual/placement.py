"""Serves `cuda` device requests with CPU tensors that stand for device memory.

A function mode answers what a tensor says of its device and rewrites calls that name one. The arithmetic is the
CPU's own, so results are bit-identical to the same program on the CPU.

Inside a torch function that is written in Python the mode is off (torch switches it off to run the body), and
that body consistently sees CPU tensors; results without tensor inputs made there are placed where the arguments
live. Where such a body calls the user's code back, `callbacks` switches the mode on again.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import overrides
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _device as _device_module

from legroom.memory.events import Category
from legroom.observe.dispatch.device_placement import HOST
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.virtual.patching import Replacement, replaced, table
from legroom.observe.virtual.protocols import Host
from legroom.observe.virtual.torch_api.pinned import count_as_pinned

Tensor = torch.Tensor


class Placement(TorchFunctionMode):
    """The function mode of one thread."""

    def __init__(self, host: Host, recorder: Recorder) -> None:
        super().__init__()
        self._host = host
        self.recorder = recorder
        said_by: Any = Tensor  # its properties, as the descriptors that a function mode is handed
        self._handlers: dict[Any, Callable[..., Any]] = {
            said_by.device.__get__: self._device,
            said_by.is_cuda.__get__: self._is_cuda,
            said_by.is_cpu.__get__: lambda tensor: self.where(tensor) is None and tensor.is_cpu,
            Tensor.get_device: self._get_device,
            Tensor.to: self._to,
            Tensor.cuda: self._cuda,
            Tensor.cpu: self._cpu,
            Tensor.type: self._type,
            Tensor.type_as: lambda tensor, other: self._to(tensor, other),
            Tensor.numpy: self._numpy,
            Tensor.__array__: self._array,
            Tensor.tolist: self._tolist,
            Tensor.new: self._new,
            Tensor.new_tensor: self._new_tensor,
            Tensor.__deepcopy__: self._deepcopy,
            Tensor.__repr__: self._repr,
            said_by.grad.__set__: self._set_grad,
            torch._VF._pack_padded_sequence: self._pack,
            torch.as_tensor: self._as_tensor,
            torch.asarray: self._as_tensor,
        }
        # Private: it reads the arguments of `Module.to`. A torch without it reads them elsewhere, and nothing is lost.
        if (parse := getattr(torch._C._nn, "_parse_to", None)) is not None:
            self._handlers[parse] = functools.partial(_read_arguments, parse)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            handler = self._handlers.get(func)
            if handler is not None:
                return handler(*args, **kwargs) if kwargs else handler(*args)
            if kwargs:
                if kwargs.get("device") is not None or kwargs.get("pin_memory"):
                    return self._made_on(func, args, dict(kwargs))
                if kwargs.get("generator") is not None and _device_module.CURRENT_DEVICE is None:
                    self._check_generator(kwargs["generator"], self._where_of_first(args))
            if _device_module.CURRENT_DEVICE is not None and func in _constructors():
                return self._made_on(func, args, {**(kwargs or {}), "device": _device_module.CURRENT_DEVICE})
            if isinstance(
                func, HigherOrderOperator
            ):  # it would ask fake tensors for a say of their own, which they have not
                with torch._C.DisableTorchFunctionSubclass():
                    return self._inside(func, args, kwargs)
            return self._inside(func, args, kwargs)
        except BaseException:
            # The traceback will hold this frame: let it hold no tensors.
            args = ()
            kwargs = None
            raise

    # --- what a tensor says of itself

    def where(self, tensor: Any) -> int | None:
        return self.recorder.device_of(tensor)

    def _device(self, tensor: Any) -> torch.device:
        index = self.where(tensor)
        return tensor.device if index is None else torch.device("cuda", index)

    def _is_cuda(self, tensor: Any) -> bool:
        return self.where(tensor) is not None

    def _get_device(self, tensor: Any) -> int:
        index = self.where(tensor)
        return -1 if index is None else index

    def _type(self, tensor: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        index = self.where(tensor)
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

    def _repr(self, tensor: Any, **kwargs: Any) -> str:
        index = self.where(tensor)
        with replaced(() if index is None else _device_in_text(index)):
            text: str = Tensor.__repr__(tensor, **kwargs)  # type: ignore[no-untyped-call]
        return text

    def _numpy(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        self._refuse_numpy(tensor)
        return tensor.numpy(*args, **kwargs)

    def _array(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        self._refuse_numpy(tensor)
        return tensor.__array__(*args, **kwargs)

    def _tolist(self, tensor: Any) -> Any:
        fake_tensors = self.recorder.fake_tensors
        if fake_tensors is not None and isinstance(tensor, FakeTensor):
            return fake_tensors.tolist(tensor)
        return tensor.tolist()

    def _refuse_numpy(self, tensor: Any) -> None:
        index = self.where(tensor)
        if index is not None:
            raise TypeError(
                f"can't convert cuda:{index} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )

    def _set_grad(self, tensor: Any, gradient: Any) -> None:
        if isinstance(gradient, Tensor) and self.where(gradient) != self.where(tensor):
            raise RuntimeError("assigned grad has data located on a different device")
        tensor.grad = gradient

    def _pack(self, data: Any, lengths: Any, *args: Any, **kwargs: Any) -> Any:
        index = self.where(lengths)
        if index is not None:
            raise RuntimeError(
                "'lengths' argument should be a 1D CPU int64 tensor, "
                f"but got {lengths.dim()}D cuda:{index} {lengths.type().removeprefix('torch.').removesuffix('Tensor')} tensor"
            )
        return self._inside(torch._VF._pack_padded_sequence, (data, lengths, *args), kwargs)

    # --- moving

    def _to(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(kwargs)
        other = kwargs.pop("other", None)
        if args and isinstance(args[0], Tensor):
            other, args = args[0], args[1:]
        if other is not None:
            there = self.where(other)
            kwargs["dtype"] = other.dtype
        else:
            named = kwargs.pop("device", None)
            if args and not isinstance(args[0], torch.dtype | bool) and args[0] is not None:
                named, args = args[0], args[1:]
            elif args and args[0] is None:
                args = args[1:]
            if named is not None and not self._is_ours_or_cpu(named):
                return tensor.to(named, *args, **kwargs)
            there = self.where(tensor) if named is None else self._index(named)
        if args and isinstance(args[0], torch.dtype):
            kwargs["dtype"], args = args[0], args[1:]
        for name, value in zip(("non_blocking", "copy"), args, strict=False):
            kwargs[name] = value
        return self._move(tensor, there, kwargs)

    def _cuda(
        self,
        tensor: Any,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = torch.preserve_format,
    ) -> Any:
        there = self._host.current if device is None else self._index(device)
        return self._move(tensor, there, {"memory_format": memory_format})

    def _cpu(self, tensor: Any, memory_format: Any = torch.preserve_format) -> Any:
        return self._move(tensor, None, {"memory_format": memory_format})

    def _move(self, tensor: Any, there: int | None, options: dict[str, Any]) -> Any:
        options.pop("non_blocking", None)
        if self.where(tensor) == there:
            dtype = options.pop("dtype", None)
            return tensor.to(tensor.dtype if dtype is None else dtype, **options)
        options["copy"] = True
        if torch.is_grad_enabled() and tensor.requires_grad:
            return _Move.apply(tensor, self, there, options)  # type: ignore[no-untyped-call]
        return self._copy(tensor, there, options)

    def _copy(self, tensor: Any, there: int | None, options: dict[str, Any]) -> Any:
        fake_tensors = self.recorder.fake_tensors
        if there is None and fake_tensors is not None:
            return fake_tensors.to_host(tensor, **options)
        category = None if there is None else self.recorder.categories.category_of_copy(tensor)
        return self._placed(there, category, Tensor.to, (tensor, "cpu"), options)

    def _deepcopy(self, tensor: Any, memo: dict[int, Any]) -> Any:
        there = self.where(tensor)
        if isinstance(tensor, FakeTensor):
            return self._deepcopy_without_data(tensor, there, memo)
        if there is None:
            return tensor.__deepcopy__(memo)
        category = self.recorder.categories.category_of_copy(tensor)
        copied = self._placed(there, category, Tensor.__deepcopy__, (tensor, memo), {})
        self._claim(copied, there, category)
        return copied

    def _deepcopy_without_data(self, tensor: Any, there: int | None, memo: dict[int, Any]) -> Any:
        """torch would copy what such a tensor belongs to as well, and its views would be no views any more."""
        fake_tensors = self.recorder.fake_tensors
        if fake_tensors is None:
            return tensor.__deepcopy__(memo)
        shape = {"size": tensor.shape, "stride": tensor.stride(), "dtype": tensor.dtype}
        with torch.no_grad():
            if there is None:
                with fake_tensors.mode:
                    made = torch.empty_strided(**shape)
            else:
                role = self.recorder.categories.category_of_copy(tensor)
                made = self._placed(there, role, torch.empty_strided, (), {**shape, "device": "cpu"})
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        else:
            made.requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = made
        return made

    # --- making

    def _made_on(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.pop("pin_memory", False):  # host memory is host memory, but says that it is pinned
            made = self._made_on(func, args, kwargs)
            count_as_pinned(made)
            return made
        named = kwargs.get("device")
        if named is None or not self._is_ours_or_cpu(named):
            return func(*args, **kwargs)
        there = self._index(named)
        if kwargs.get("generator") is not None:
            self._check_generator(kwargs["generator"], there)
        # It keeps the tensors it is given: they must be the device's own.
        if there is not None and func in _SPARSE:
            args = tuple(self._to(value, named) if isinstance(value, Tensor) else value for value in args)
        kwargs["device"] = "cpu"
        made = self._placed(there, None, func, args, kwargs)
        if there is not None:
            self._claim(made, there)
        return made

    def _new(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """The oldest way to make a tensor like another one, of sizes or of values."""
        made = self._inside(Tensor.new, (tensor, *args), kwargs)
        index = self.where(tensor)
        if index is not None:
            self._claim(made, index, Category.TEMPORARY)
        return made

    def _new_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        index = self.where(tensor)
        if index is None or kwargs.get("device") is not None:
            return self._made_on(Tensor.new_tensor, (tensor, *args), kwargs)
        return self._made_on(Tensor.new_tensor, (tensor, *args), {**kwargs, "device": index})

    def _as_tensor(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(kwargs)
        named = kwargs.pop("device", None) or _device_module.CURRENT_DEVICE
        if isinstance(data, Tensor):
            if named is None:
                return torch.as_tensor(data, *args, **kwargs)
            dtype = kwargs.get("dtype") or (args[0] if args else None)
            return self._to(data, named, data.dtype if dtype is None else dtype)
        made = torch.as_tensor(data, *args, **kwargs)
        return made if named is None else self._to(made, named)

    def _inside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Run a torch function: what it makes from nothing lives where its arguments live."""
        context = self.recorder.context
        outer = context.factory_target, context.call
        context.factory_target, context.call = HOST, (func, args, kwargs)
        for value in args:
            if isinstance(value, list | tuple) and value:
                value = value[0]
            if isinstance(value, Tensor):
                index = self.where(value)
                if index is not None:
                    context.factory_target = index
                    break
            if type(func) is not FunctionType:
                break
        value = None
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:
            args = ()  # the traceback will hold this frame
            kwargs = None
            raise
        finally:
            context.factory_target, context.call = outer

    # --- the parts above in common

    def _placed(
        self,
        there: int | None,
        category: Category | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        context = self.recorder.context
        outer = context.target, context.category
        context.target, context.category = (HOST if there is None else there), category
        try:
            return func(*args, **kwargs)
        finally:
            context.target, context.category = outer

    def _claim(self, made: Any, there: int, category: Category | None = None) -> None:
        """Mark results whose memory no operation reported (`torch.tensor`, storage copies)."""
        if isinstance(made, Tensor):
            if made.layout is torch.strided:
                self.recorder.register_storage(made.untyped_storage(), there, category or Category.INPUT)
        elif isinstance(made, tuple | list):
            for item in made:
                self._claim(item, there, category)

    def _where_of_first(self, args: tuple[Any, ...]) -> int | None:
        return self.where(args[0]) if args and isinstance(args[0], Tensor) else None

    def _check_generator(self, generator: torch.Generator, there: int | None) -> None:
        expected, found = "cpu" if there is None else "cuda", generator.device.type
        if expected != found:
            raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{found}'")

    def _is_ours_or_cpu(self, named: Any) -> bool:
        if isinstance(named, int):
            return True
        kind = named.type if isinstance(named, torch.device) else str(named).partition(":")[0]
        return kind in ("cuda", "cpu")

    def _index(self, named: Any) -> int | None:
        """A device as any call may name it → its index, None for the host."""
        if isinstance(named, int):
            index: int | None = named
        else:
            device = named if isinstance(named, torch.device) else torch.device(named)
            if device.type == "cpu":
                return None
            index = device.index
        if index is None:
            return self._host.current
        if not 0 <= index < len(self._host.devices):
            raise _invalid_ordinal()
        return index


@contextlib.contextmanager
def stand_ins_say_where(host: Host) -> Iterator[None]:
    """A tensor without data has a `device` property of its own, which no function mode sees."""
    original: Any = FakeTensor.device

    def device(tensor: Any) -> torch.device:
        if torch._C._is_torch_function_mode_enabled() and is_on():
            index = host.device_of(tensor)
            if index is not None:
                return torch.device("cuda", index)
        place: torch.device = original.__get__(tensor)
        return place

    with replaced(table(FakeTensor, {"device": property(device, original.fset)})):
        yield


def _read_arguments(parse: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Of `Module.to`: a device is named, perhaps by its number alone, and nothing is made on it."""
    if args and type(args[0]) is int:
        args = (torch.device("cuda", args[0]), *args[1:])
    if type(options.get("device")) is int:
        options = {**options, "device": torch.device("cuda", options["device"])}
    return parse(*args, **options)


def _device_in_text(index: int) -> list[Replacement]:
    """torch's printing adds the device itself, where a line has room for it. Without its private function, none."""
    printing: Any = torch._tensor_str
    plain = getattr(printing, "_add_suffixes", None)

    def add(text: str, suffixes: list[str], *args: Any, **kwargs: Any) -> Any:
        assert plain is not None
        return plain(text, [f"device='cuda:{index}'", *suffixes], *args, **kwargs)

    return table(printing, {"_add_suffixes": add})


_SPARSE = (
    torch.sparse_coo_tensor,
    torch.sparse_csr_tensor,
    torch.sparse_csc_tensor,
    torch.sparse_bsr_tensor,
    torch.sparse_bsc_tensor,
    torch.sparse_compressed_tensor,
)


class _Move(torch.autograd.Function):
    """A copy between devices whose gradient travels back (between CPU tensors torch would leave it where it is)."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, placement: Placement, there: int | None, options: dict[str, Any]
    ) -> Any:
        ctx.placement, ctx.here, ctx.dtype = placement, placement.where(tensor), tensor.dtype
        return placement._copy(tensor, there, options)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch._C.DisableTorchFunction():  # the mode is on in a backward pass, and this is its own work
            return ctx.placement._move(gradients[0], ctx.here, {"dtype": ctx.dtype}), None, None, None


@contextlib.contextmanager
def default_device_is_ours() -> Iterator[None]:
    """A default device is a mode of torch's own that names it in every call. `with torch.device("cuda")` puts it
    above ours, which serves the call; `torch.set_default_device("cuda")` puts it below, where it would ask for a real
    device: there it passes the call on, and `Placement` reads the default itself."""
    original = _device_module.DeviceContext.__torch_function__

    def pass_on(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if mode.device.type == "cuda" and not is_on():
            return func(*args, **(kwargs or {}))
        return original(mode, func, types, args, kwargs)  # type: ignore[no-untyped-call]

    before = _device_module.CURRENT_DEVICE
    with replaced(table(_device_module.DeviceContext, {"__torch_function__": pass_on})):
        try:
            yield
        finally:
            if before != _device_module.CURRENT_DEVICE:  # it may name a device that is about to vanish
                torch.set_default_device(before)


def _constructors() -> Any:
    """The functions that make tensors from nothing, as torch's own default device knows them."""
    return _device_module._device_constructors()


def is_on() -> bool:
    """Whether a `Placement` will see the next torch call of this thread."""
    stack = getattr(overrides, "_get_current_function_mode_stack", None)
    return stack is not None and any(isinstance(mode, Placement) for mode in stack())


def _invalid_ordinal() -> RuntimeError:
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    text = "CUDA error: invalid device ordinal"
    try:
        return kind(text)
    except TypeError:
        return RuntimeError(text)
