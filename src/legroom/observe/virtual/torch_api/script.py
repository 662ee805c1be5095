"""TorchScript on virtual GPUs.

TorchScript runs in C++, where the tensors of a virtual GPU are CPU tensors. For a scripted function, the original
Python function is called instead. Methods of a scripted module, and traced functions, run in C++. If this C++ code
creates a tensor with `device=x.device`, the tensor is placed on the device of the arguments. In the C++ code, `is_cuda`
is False, and moving a tensor to `cuda` raises `Unsupported`.
"""

from collections.abc import Iterable
from typing import Any

import torch

from legroom.errors import Unsupported
from legroom.observe.dispatch.storages import tensors_in
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, optional_module, table

MOVING = (
    "On a virtual GPU, a scripted module cannot move tensors to `cuda`. "
    "Move the tensors before the call, or set PYTORCH_JIT=0 to run the module in Python."
)
_NO_CUDA = "Cannot initialize CUDA without ATen_cuda"


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    for name in ("ScriptFunction", "ScriptMethod"):
        kind = getattr(torch._C, name, None)
        if kind is not None:
            yield from table(kind, {"__call__": _on_device(host, kind.__call__)})
    yield from _device_in_scripts()
    yield from _load()


def _on_device(host: VirtualHost, original: Any) -> Any:
    def call(scripted: Any, *args: Any, **kwargs: Any) -> Any:
        # torch stores the original function for its compiler. If it is missing, the scripted function runs in C++.
        function = getattr(scripted, "_torchdynamo_inline", None)
        if function is not None:
            return function(*args, **kwargs)
        found = (host.device_of(tensor) for tensor in tensors_in((args, kwargs)))
        index = next((device for device in found if device is not None), None)
        try:
            if index is None:
                return original(scripted, *args, **kwargs)
            with host.factories_on(index, if_named=True):
                return original(scripted, *args, **kwargs)
        except RuntimeError as error:
            if _NO_CUDA in str(error):
                raise Unsupported(MOVING) from None
            raise

    return call


def _device_in_scripts() -> Iterable[Replacement]:
    """Let TorchScript code call `torch.device`, which the virtual GPU replaces with a different class."""
    builtins = optional_module("torch.jit._builtins")
    original = getattr(builtins, "_find_builtin", None)
    if original is None:
        return []

    def find(function: Any) -> Any:
        return "aten::device" if function is torch.device else original(function)

    return table(builtins, {"_find_builtin": find})


def _load() -> Iterable[Replacement]:
    """Make `torch.jit.load(file, map_location="cuda")` load to the host in C++ and then move the module.

    An archive does not record that its tensors were on a virtual GPU. Without `map_location`, its tensors are loaded to
    the host.
    """
    original: Any = torch.jit.load

    def load(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        device = None if map_location is None else torch.device(map_location)
        if device is None or device.type != "cuda":
            return original(f, map_location, *args, **options)
        return original(f, "cpu", *args, **options).to(device)

    yield from table(torch.jit, {"load": load})
    yield from table(optional_module("torch.jit._serialization"), {"load": load})
