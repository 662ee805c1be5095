"""`torch.save` and `torch.load` in a traced script: the tensors have no data, so a file holds their descriptions.

What the script saved it can load again. A file of this kind is recognised by a token of this run, so that no file from elsewhere is ever
unpickled here.
"""

import io
import os
import pickle
import secrets
from collections.abc import Callable
from typing import Any

import torch

_MARK = b"legroom-traced-checkpoint:" + secrets.token_bytes(16)


def save(obj: Any, f: Any, *_args: Any, **_options: Any) -> None:
    """In place of `torch.save`."""
    content = io.BytesIO()
    content.write(_MARK)
    _Pickler(content, protocol=4).dump(obj)
    if isinstance(f, str | bytes | os.PathLike):
        with open(f, "wb") as file:
            file.write(content.getvalue())
    else:
        f.write(content.getvalue())


def load_saved(f: Any, map_location: Any) -> tuple[bool, Any]:
    """Whether `f` is a file that `save` wrote, and the object in it."""
    if isinstance(f, str | bytes | os.PathLike):
        with open(f, "rb") as file:
            return load_saved(file, map_location)
    if not hasattr(f, "seek") or not hasattr(f, "read"):
        return False, None
    start = f.tell()
    if f.read(len(_MARK)) != _MARK:
        f.seek(start)
        return False, None
    return True, _Unpickler(f, map_location).load()


class _Pickler(pickle.Pickler):
    """Writes a description in place of each tensor."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and type(obj) in (torch.Tensor, torch.nn.Parameter):
            kind = "parameter" if isinstance(obj, torch.nn.Parameter) else "tensor"
            described = (tuple(obj.shape), obj.dtype, str(obj.device), obj.requires_grad, kind)
            return _tensor, described
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Makes tensors of the descriptions, where `map_location` says."""

    def __init__(self, file: Any, map_location: Any) -> None:
        super().__init__(file)
        self._map_location = map_location

    def find_class(self, module: str, name: str, /) -> Any:
        found = super().find_class(module, name)
        return self._tensor if found is _tensor else found

    def _tensor(self, shape: Any, dtype: Any, device: str, requires_grad: bool, kind: str) -> torch.Tensor:
        return _tensor(shape, dtype, _mapped(device, self._map_location), requires_grad, kind)


def _tensor(shape: Any, dtype: Any, device: str, requires_grad: bool, kind: str) -> torch.Tensor:
    tensor = torch.zeros(
        shape, dtype=dtype, device="cpu"
    )  # pages of zeros use no host memory until they are written
    if device != "cpu":
        tensor = tensor.to(device)
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor


def _mapped(device: str, map_location: Any) -> str:
    if map_location is None:
        return device
    if isinstance(map_location, dict):
        return str(map_location.get(device, device))
    if isinstance(map_location, Callable):  # type: ignore[arg-type]
        return "cpu"  # a function of storages; nearly always `lambda storage, location: storage`
    return str(torch.device(map_location))
