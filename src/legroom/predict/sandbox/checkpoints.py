"""Implements `torch.save` and `torch.load` for a traced script in the sandbox.

A saved file contains descriptions of the tensors that have no data. Host tensors keep their values, because a script
may save its preprocessed dataset. The script can load these files again. Each file contains a token that identifies this
run, and only files with this token are unpickled.
"""

import contextlib
import functools
import io
import os
import pickle
import secrets
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from legroom.observe.virtual.patching import replaced, table
from legroom.predict.sandbox.native_files import native_files_in
from legroom.predict.sandbox.sandbox import Sandbox

_MARK = b"legroom-traced-checkpoint:" + secrets.token_bytes(16)


@contextlib.contextmanager
def checkpoints_in(sandbox: Sandbox, *, has_data: bool) -> Iterator[None]:
    """Save files to the sandbox inside the `with` block, and load the files that were saved there.

    The user's checkpoints are memory-mapped instead of read, because tensors without data need no memory. Files that
    cannot be mapped are read as usual.
    """
    plain_save, plain_load = torch.save, torch.load

    @functools.wraps(plain_save)
    def save_tensors(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        if isinstance(f, str | bytes | os.PathLike):
            with open(f, "wb") as file:  # torch would open a path in C++
                save_tensors(obj, file, *args, **options)
        elif has_data or isinstance(obj, torch.UntypedStorage | torch.TypedStorage):
            plain_save(obj, f, *args, **options)  # `pickle` saves a host tensor as a storage
        else:
            save(obj, f)

    @functools.wraps(plain_load)
    def load_tensors(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        is_ours, loaded = load_saved(f, map_location)
        if is_ours:
            return loaded
        return (
            load_user_file(f, map_location, *args, **options)
            if has_data
            else _loaded_through_host(functools.partial(load_user_file, f, *args, **options), map_location)
        )

    def load_user_file(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(f, str | os.PathLike):
            if options.get("mmap") is None:
                with contextlib.suppress(RuntimeError, ValueError), sandbox.located(f) as file:
                    return plain_load(file, map_location, *args, **{**options, "mmap": True})
            with sandbox.located(f) as file:
                return plain_load(file, map_location, *args, **options)
        return plain_load(f, map_location, *args, **options)

    functions = {"save": save_tensors, "load": load_tensors}
    tables = table(torch, functions) + table(torch.serialization, functions)
    with contextlib.suppress(ImportError):
        import safetensors.numpy
        import safetensors.torch

        tables += [] if has_data else table(safetensors.torch, {"serialize_file": _save_empty_file})
    with replaced([*native_files_in(sandbox), *tables]):
        yield


def no_model_saved() -> None:
    """Replace the Transformers functions that save models, if the script has loaded that library. These functions read
    the data of tensors before they write.

    If this version of Transformers has none of these functions, a script that saves a model in its first steps fails.
    """
    for module, kind, method in _SAVERS:
        saver = getattr(sys.modules.get(module), kind, None)
        if hasattr(saver, method):
            setattr(saver, method, _save_nothing)


_SAVERS = (
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("transformers.trainer", "Trainer", "_save_checkpoint"),
)


def _save_nothing(*_arguments: Any, **_options: Any) -> None: ...


def _save_empty_file(_tensors: Any, filename: Any, *_arguments: Any, **_options: Any) -> None:
    open(filename, "wb").close()


def save(obj: Any, f: Any) -> None:
    """Write an object to a file, with descriptions in place of its tensors."""
    content = io.BytesIO()
    content.write(_MARK)
    _Pickler(content, protocol=4).dump(obj)
    if isinstance(f, str | bytes | os.PathLike):
        with open(f, "wb") as file:
            file.write(content.getvalue())
    else:
        f.write(content.getvalue())


def load_saved(f: Any, map_location: Any) -> tuple[bool, Any]:
    """Return whether `save` wrote the file `f`, and the object in the file. The object is None if another function
    wrote the file."""
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
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        detached: Any = obj.detach()
        data = None if isinstance(obj, FakeTensor) else detached.__reduce_ex__(4)
        is_parameter = isinstance(obj, torch.nn.Parameter)
        return _make_tensor, (
            tuple(obj.shape), obj.dtype, str(obj.device), obj.requires_grad, is_parameter, data
        )  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Creates tensors from descriptions, on the devices that `map_location` selects."""

    def __init__(self, file: Any, map_location: Any) -> None:
        super().__init__(file)
        self._map_location = map_location

    def find_class(self, module: str, name: str, /) -> Any:
        found = super().find_class(module, name)
        return self._make_mapped_tensor if found is _make_tensor else found

    def _make_mapped_tensor(self, shape: Any, dtype: Any, device: str, *rest: Any) -> torch.Tensor:
        return _make_tensor(shape, dtype, _mapped(device, self._map_location), *rest)


def _make_tensor(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    is_parameter: bool,
    data: tuple[Callable[..., torch.Tensor], tuple[Any, ...]] | None,
) -> torch.Tensor:
    if data is None:
        tensor = torch.zeros(
            shape, dtype=dtype, device="cpu"
        )  # zeros use no host memory until they are written
    else:
        rebuild, arguments = data
        tensor = rebuild(*arguments)
    if device != "cpu":
        tensor = tensor.to(device)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def _loaded_through_host(load: Callable[..., Any], map_location: Any) -> Any:
    """Load a file to the host, and then copy each tensor to its device. A tensor without data cannot use the storage
    that was read from the file."""
    devices: dict[int, str] = {}

    def to_host(storage: Any, location: str) -> Any:
        devices[storage._cdata] = _mapped(location, map_location)
        return storage

    def moved(value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            return value.to(next((device for device in devices.values() if device != "cpu"), "cpu"))
        if not isinstance(value, torch.Tensor):
            return value
        device = devices.get(value.untyped_storage()._cdata, "cpu")
        if device == "cpu":
            return value
        copy = value.detach().to(device).requires_grad_(value.requires_grad)
        is_parameter = isinstance(value, torch.nn.Parameter)
        return torch.nn.Parameter(copy, value.requires_grad) if is_parameter else copy

    return tree_map(moved, load(map_location=to_host))


def _mapped(device: str, map_location: Any) -> str:
    if map_location is None:
        return device
    if isinstance(map_location, dict):
        return str(map_location.get(device, device))
    if callable(map_location):  # nearly always `lambda storage, location: storage`
        return "cpu"
    return str(torch.device(map_location))
