"""Separates the tensors of a `state_dict()` from its plain data, and combines them again.

Only numbers, strings, containers and tensors are accepted. Plain data can be read with
`torch.load(weights_only=True)`, which runs no code from the file and does not need the user's classes. Any other
object, such as a whole model, is rejected with an error.
"""

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from legroom.errors import CheckpointError, UsageError
from legroom.train.checkpoints.files.checked_files import Checksum, read_file
from legroom.train.checkpoints.files.tensor_file import can_hold

_TENSOR = "legroom.tensor"
_BYTES = "legroom.bytes"
_PLAIN = (bool, complex, type(None), torch.dtype, torch.device, torch.Size)
Tensors = dict[str, torch.Tensor]


def extract_tensors(value: Any, name: str, tensors: Tensors) -> Any:
    """Return `value` with its tensors replaced by references, and add each tensor to `tensors` under its path.

    A tensor that occurs twice is added once. `name` is the prefix of the paths, for example `optimizer` or "".
    """
    return _TensorExtractor(tensors).walk(value, name)


def insert_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return tensors[value[_TENSOR]]
        if set(value) == {_BYTES}:
            return value[_BYTES].encode("latin-1")
        return {key: insert_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(insert_tensors(item, tensors) for item in value)
    return value


def as_plain(value: Any, name: str) -> Any:
    tensors: Tensors = {}
    return insert_tensors(extract_tensors(value, name, tensors), tensors)


def tensor_names(value: Any) -> dict[str, str]:
    return {
        key: item[_TENSOR] for key, item in value.items() if isinstance(item, dict) and set(item) == {_TENSOR}
    }


def as_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def read_plain(path: Path, expected: Checksum) -> Any:
    data = bytes(read_file(path, expected))
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise CheckpointError(
            f"{path} cannot be loaded, because it was not written by legroom.Checkpoints."
        ) from None


class _TensorExtractor:
    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._names = {_identity(tensor): name for name, tensor in tensors.items() if _has_address(tensor)}

    def walk(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            return value.item()
        if isinstance(value, _PLAIN):
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind(value)  # drops subclasses, such as members of an enum
        if isinstance(value, bytes):
            return {_BYTES: value.decode("latin-1")}  # weights_only cannot read empty bytes
        if isinstance(value, Mapping):
            return {
                self._key(key, name): self.walk(item, f"{name}.{key}" if name else str(key))
                for key, item in value.items()
            }
        if isinstance(value, list | tuple | set):
            container: Callable[[Any], Any] = (
                list if isinstance(value, list) else set if isinstance(value, set) else tuple
            )
            return container(self.walk(item, f"{name}.{index}") for index, item in enumerate(value))
        raise not_plain_error(value, name)

    def _key(self, key: Any, name: str) -> Any:
        if isinstance(key, str | int | float | bool | tuple | bytes | type(None)):
            return key
        raise not_plain_error(key, f"a key of {name}")

    def _tensor(self, tensor: torch.Tensor, name: str) -> Any:
        if not (can_hold(tensor) or is_sharded(tensor)):
            return tensor.detach().to("cpu", copy=True)  # sparse and quantized tensors, in torch's own format
        path = self._names.setdefault(_identity(tensor), name) if _has_address(tensor) else name
        self._tensors.setdefault(path, tensor)
        return {_TENSOR: path}


def not_plain_error(value: Any, name: str) -> UsageError:
    kind = type(value).__name__
    if isinstance(value, nn.Module):
        return UsageError(
            f"{name} is a whole model ({kind}). A pickled model needs its class at the same import path, and loading it can run "
            "arbitrary code. Pass the model to track(), which saves its state_dict, or save "
            f"{name}.state_dict()."
        )
    return UsageError(
        f"{name} is of type {kind}, which torch.load(weights_only=True) cannot read. Save numbers, strings, "
        "tensors and containers of these, and create the object from the saved values when loading."
    )


def is_sharded(tensor: torch.Tensor) -> bool:
    # The module is slow to import. If it is not imported, there are no such tensors.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _has_address(tensor: torch.Tensor) -> bool:
    """Return True if the tensor, or this rank's shard of it, is not empty. Empty tensors have no memory address."""
    return bool(getattr(tensor, "_local_tensor", tensor).numel())


def _identity(tensor: torch.Tensor) -> Any:
    """Return a key that is equal for two views of the same memory with the same layout."""
    local = getattr(tensor, "_local_tensor", tensor)
    return (
        local.device, local.untyped_storage().data_ptr(), local.storage_offset(), local.dtype, tuple(local.shape), local.stride(),
        tuple(tensor.shape),
    )  # fmt: skip
