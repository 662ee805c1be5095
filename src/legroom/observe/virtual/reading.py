"""Handles reads of device tensor values in Python: conversions to NumPy and lists, printing, formatting and pickling.

The function mode calls these handlers instead of torch's methods. Like a real CUDA tensor, a tensor on a virtual GPU
reports its device and cannot be converted to a NumPy array. A read of a tensor without data (`FakeTensors`) returns
placeholder values, so the trace continues.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.virtual.patching import Replacement, replaced, table
from legroom.observe.virtual.torch_api.tensors import dlpack

Tensor = torch.Tensor


class TensorReads:
    def __init__(
        self,
        device_index: Callable[[Any], int | None],
        to_host: Callable[[Any], Any],
        fake_tensors: FakeTensors | None,
    ) -> None:
        self._device_index, self._to_host, self._fake_tensors = device_index, to_host, fake_tensors

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        properties: Any = Tensor
        handlers: dict[Any, Callable[..., Any]] = {
            Tensor.numpy: self._numpy,
            Tensor.__array__: self._array,
            Tensor.__repr__: self._repr,
            Tensor.__format__: self._format,
            Tensor.__dlpack__: self._dlpack,
            Tensor.__dlpack_device__: self._dlpack_device,
            properties.__cuda_array_interface__.__get__: self._cuda_array_interface,
        }
        if self._fake_tensors is None:
            return handlers
        return handlers | {Tensor.tolist: self._tolist, Tensor.__reduce_ex__: self._reduce}

    def _repr(self, tensor: Any, **kwargs: Any) -> str:
        index = self._device_index(tensor)
        with replaced(() if index is None else _device_in_text(index)):
            text: str = Tensor.__repr__(tensor, **kwargs)  # type: ignore[no-untyped-call]
        return text

    def _format(self, tensor: Any, spec: str) -> str:
        if tensor.dim() == 0 and isinstance(tensor, FakeTensor):
            return format(tensor.detach().item(), spec)
        if tensor.dim() == 0 or self._device_index(tensor) is None:
            text: str = tensor.__format__(spec)
            return text
        return object.__format__(self._repr(tensor), spec)

    def _numpy(self, tensor: Any, *, force: bool = False) -> Any:
        if force and self._device_index(tensor) is not None:
            return self._to_host(tensor.detach()).resolve_conj().resolve_neg().numpy()
        self._reject_numpy(tensor)
        if isinstance(tensor, FakeTensor) and (force or not tensor.requires_grad):
            return self._host_copy(
                tensor.detach()
            ).numpy()  # computed on the host with a parameter without data
        return tensor.numpy(force=force)

    def _array(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        self._reject_numpy(tensor)
        if isinstance(tensor, FakeTensor) and not tensor.requires_grad:
            return self._host_copy(tensor).__array__(*args, **kwargs)
        return tensor.__array__(*args, **kwargs)

    def _reject_numpy(self, tensor: Any) -> None:
        index = self._device_index(tensor)
        if index is not None:
            raise TypeError(
                f"can't convert cuda:{index} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )

    def _dlpack_device(self, tensor: Any) -> tuple[Any, int]:
        index = self._device_index(tensor)
        kind, number = tensor.__dlpack_device__()
        return (kind, number) if index is None else (type(kind)(dlpack.CUDA), index)

    def _dlpack(self, tensor: Any, *stream: Any, **options: Any) -> Any:
        """Implement `__dlpack__`. `stream` is a positional argument in torch 2.6 and a keyword argument in later
        releases.
        """
        if stream:
            options["stream"] = stream[0]
        index = self._device_index(tensor)
        wanted = options.get("dl_device")
        if index is None or (wanted is not None and wanted[0] == dlpack.CPU):
            return self._to_host(tensor).__dlpack__(**options)
        options["stream"] = None
        options.pop("dl_device", None)
        return dlpack.with_device(tensor.__dlpack__(**options), index)

    def _cuda_array_interface(self, tensor: Any) -> dict[str, Any]:
        if self._device_index(tensor) is None or tensor.requires_grad or tensor.layout is not torch.strided:
            interface: dict[str, Any] = tensor.__cuda_array_interface__  # raises torch's own error
            return interface
        size = tensor.element_size()
        return {
            "typestr": tensor.detach().numpy().dtype.str,
            "shape": tuple(tensor.shape),
            "strides": None if tensor.is_contiguous() else tuple(step * size for step in tensor.stride()),
            "data": (tensor.data_ptr() if tensor.numel() else 0, False),
            "version": 2,
        }

    # --- tensors without data

    def _tolist(self, tensor: Any) -> Any:
        return self._host_copy(tensor).tolist()

    def _reduce(self, tensor: Any, protocol: Any) -> Any:
        """Pickle a fake tensor as a placeholder that uses the memory of a single element, regardless of its shape."""
        if not isinstance(tensor, FakeTensor):
            return tensor.__reduce_ex__(protocol)
        index = self._device_index(tensor)
        size = tensor.numel() * tensor.element_size()  # `nbytes` raises an error for a sparse tensor
        known = self._host_copy(tensor.detach()) if size <= MAX_PICKLED else None
        value = torch.ones((), dtype=tensor.dtype).expand(tensor.shape) if known is None else known
        device = "cpu" if index is None else f"cuda:{index}"
        return _unpickled, (value, device, tensor.requires_grad, isinstance(tensor, torch.nn.Parameter))

    def with_numbers(self, data: Any) -> Any:
        """In nested lists, replace single-element tensors that have no data with numbers. `torch.tensor` reads these lists in
        C++, where no mode applies.
        """
        if self._fake_tensors is None or type(data) not in (list, tuple):
            return data
        return type(data)(
            value.item() if isinstance(value, FakeTensor) and value.numel() == 1 else self.with_numbers(value)
            for value in data
        )

    def _host_copy(self, tensor: Any) -> Any:
        fake_tensors = self._fake_tensors
        return fake_tensors.to_host(tensor) if fake_tensors and isinstance(tensor, FakeTensor) else tensor


MAX_PICKLED = 64 << 10
"""The maximum size in bytes of a fake tensor that is pickled with its known values. Larger fake tensors are pickled
with placeholders.
"""


def _unpickled(value: Tensor, device: str, requires_grad: bool, is_parameter: bool) -> Any:
    made = value.to(device)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def _device_in_text(index: int) -> list[Replacement]:
    """Replace the private torch function that appends the device to the text of a printed tensor. If this version of
    torch lacks the function, the device is not printed.
    """
    printing: Any = torch._tensor_str
    original = getattr(printing, "_add_suffixes", None)

    def add(text: str, suffixes: list[str], *args: Any, **kwargs: Any) -> Any:
        assert original is not None
        return original(text, [f"device='cuda:{index}'", *suffixes], *args, **kwargs)

    return table(printing, {"_add_suffixes": add})
