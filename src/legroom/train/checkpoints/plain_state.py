"""What `state_dict()` gave, taken apart: tensors here, plain data there; and put together again.

Only plain data is taken: numbers, texts, containers and tensors. It can be read with `torch.load(weights_only=True)`,
which runs no code of the file's, and it does not depend on where a class lies. Anything else, a whole model above all,
is refused with its place and the reason.
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


def taken_apart(value: Any, name: str, tensors: Tensors) -> Any:
    """`value` with its tensors moved into `tensors` under their paths; two names for one tensor share an entry.

    `name` is the path so far: `optimizer`, or nothing.
    """
    return _TakingApart(tensors).walk(value, name)


def put_together(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The reverse of `taken_apart`."""
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return tensors[value[_TENSOR]]
        if set(value) == {_BYTES}:
            return value[_BYTES].encode("latin-1")
        return {key: put_together(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(put_together(item, tensors) for item in value)
    return value


def names_of_tensors(value: Any) -> dict[str, str]:
    """For a taken-apart dict: each key that stood for a tensor, and the name that the tensor has."""
    return {
        key: item[_TENSOR] for key, item in value.items() if isinstance(item, dict) and set(item) == {_TENSOR}
    }


def as_bytes(value: Any) -> bytes:
    """Plain data as a file that `torch.load` reads."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def read_plain(path: Path, expected: Checksum) -> Any:
    data = bytes(read_file(path, expected))
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise CheckpointError(
            f"{path} cannot be read as plain data: it was not written by legroom.Checkpoints"
        ) from None


class _TakingApart:
    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._names = {_identity(tensor): name for name, tensor in tensors.items() if _is_somewhere(tensor)}

    def walk(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            return value.item()
        if isinstance(value, _PLAIN):
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind(value)  # an enumeration's member, say, would bring its class with it
        if isinstance(value, bytes):
            return {_BYTES: value.decode("latin-1")}  # weights_only does not read empty ones
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
        raise refused(value, name)

    def _key(self, key: Any, name: str) -> Any:
        if isinstance(key, str | int | float | bool | tuple | bytes | type(None)):
            return key
        raise refused(key, f"a key of {name}")

    def _tensor(self, tensor: torch.Tensor, name: str) -> Any:
        if not (can_hold(tensor) or is_sharded(tensor)):
            return tensor.detach().to("cpu", copy=True)  # sparse, quantised: as torch writes them
        known = self._names.setdefault(_identity(tensor), name) if _is_somewhere(tensor) else name
        self._tensors.setdefault(known, tensor)
        return {_TENSOR: known}


def refused(value: Any, name: str) -> UsageError:
    """Why something is not saved."""
    kind = type(value).__name__
    if isinstance(value, nn.Module):
        return UsageError(
            f"{name} is a whole model ({kind}): pickled, it would need this class at this very place to be read, and reading it would "
            "run whatever code the file names. Give the model to track(), which saves its state_dict, or save "
            f"{name}.state_dict()"
        )
    return UsageError(
        f"{name} is a {kind}, which torch.load(weights_only=True) does not read: save numbers, texts, tensors and containers "
        "of them, and make the object from these again"
    )


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is one of many ranks' pieces of a larger tensor."""
    # Slow to import: where nobody has, there is no such tensor.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _is_somewhere(tensor: torch.Tensor) -> bool:
    """Whether it has an address: an empty one, or an empty piece of one, has none."""
    return bool(getattr(tensor, "_local_tensor", tensor).numel())


def _identity(tensor: torch.Tensor) -> Any:
    """The same for two tensors that are the same memory seen the same way."""
    whole = getattr(tensor, "_local_tensor", tensor)
    return (
        whole.device, whole.untyped_storage().data_ptr(), whole.storage_offset(), whole.dtype, tuple(whole.shape), whole.stride(),
        tuple(tensor.shape),
    )  # fmt: skip
