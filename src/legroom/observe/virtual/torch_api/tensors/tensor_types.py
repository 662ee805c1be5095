"""`torch.cuda.FloatTensor` and the other types of GPU tensors. Old scripts use these types to create tensors on a GPU,
or to check whether a tensor is on a GPU.
"""

from collections.abc import Iterable
from typing import Any

import torch

from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, optional_module, table

TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    types = {name: _tensor_type(host, name, dtype) for name, dtype in TYPES.items()}
    original = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any, /) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        on_device = name.startswith("torch.cuda.")
        if on_device:
            torch.set_default_dtype(TYPES[name.removeprefix("torch.cuda.")])
        else:
            original(kind)
        torch.set_default_device("cuda" if on_device else None)

    yield from table(optional_module("torch.cuda"), types)
    yield from table(torch, {"set_default_tensor_type": set_default_tensor_type})


def _tensor_type(host: VirtualHost, name: str, data_type: torch.dtype) -> type:
    class TensorType(type):
        """The metaclass of the legacy tensor types. `isinstance` compares the device and the dtype, and a call creates
        a tensor.
        """

        def __instancecheck__(cls, value: object) -> bool:
            return (
                isinstance(value, torch.Tensor)
                and value.dtype is data_type
                and host.device_of(value) is not None
            )

        def __call__(cls, *arguments: Any, **_options: Any) -> Any:
            """Create a tensor. If the arguments are integers or a `torch.Size`, the tensor has this size and is
            uninitialized. The values of a sequence, an array or a tensor are copied.
            """
            device = torch.device("cuda", host.current)
            if not arguments:
                return torch.empty(0, dtype=data_type, device=device)
            first = arguments[0]
            if isinstance(first, torch.Size) or (isinstance(first, int) and not isinstance(first, bool)):
                size = first if isinstance(first, torch.Size) else arguments
                return torch.empty(size, dtype=data_type, device=device)
            if isinstance(first, torch.Tensor):
                return first.to(device, data_type)
            return torch.tensor(first, dtype=data_type, device=device)

        dtype = data_type
        is_cuda = True

    return TensorType(name, (), {"__module__": "torch.cuda"})
