"""Reads and writes sharded tensors (FSDP2) through torch.distributed.checkpoint. Every rank writes its own shards, and
any number of ranks can read them.

PyTorch loads these tensors without unpickling them. However, its metadata file is a pickle, which could run arbitrary
code. Therefore, this module reads the metadata with an unpickler that accepts only a few classes.
"""

import contextlib
import pickle
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor

from legroom.errors import CheckpointError
from legroom.train.checkpoints.files.checked_files import Checksum, checksum_of
from legroom.train.checkpoints.process_group import CheckpointGroup

FOLDER = "shards"
METADATA = ".metadata"
_ALLOWED_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def write_sharded(folder: Path, tensors: Mapping[str, torch.Tensor], group: CheckpointGroup) -> None:
    """Write sharded tensors to `folder`. Every rank must call this function with the same names."""
    writer = FileSystemWriter(folder / FOLDER, single_file_per_rank=True, sync_files=True)
    try:
        with _no_single_process_warning():
            save(
                dict(tensors),
                storage_writer=writer,
                process_group=group.process_group,
                no_dist=group.process_group is None,
            )
    except CheckpointException as error:
        raise _cause(error) from None


def checksums(folder: Path) -> dict[str, Checksum]:
    return {
        path.relative_to(folder).as_posix(): checksum_of(path)
        for path in sorted((folder / FOLDER).iterdir())
        if path.is_file()
    }


def sharded_sizes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    metadata = _Reader(folder / FOLDER).read_metadata()
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read_sharded(
    folder: Path, like: Mapping[str, torch.Tensor | None], group: CheckpointGroup
) -> dict[str, torch.Tensor]:
    """Read the tensors whose names are the keys of `like`. If the value in `like` is a DTensor, the loaded tensor has
    the same sharding. Otherwise, the loaded tensor is unsharded.
    """
    sizes = sharded_sizes(folder)
    targets: dict[str, torch.Tensor] = {}
    for name, target in like.items():
        shape, dtype = sizes[name]
        if isinstance(target, DTensor) and target.shape == shape:
            targets[name] = torch.empty_like(target, dtype=dtype)
        else:
            targets[name] = torch.empty(shape, dtype=dtype)
    reader = _Reader(folder / FOLDER)
    try:
        with _no_single_process_warning():
            load(
                targets,
                storage_reader=reader,
                process_group=group.process_group,
                no_dist=group.process_group is None,
            )
    except CheckpointException as error:
        raise _cause(error) from None
    return targets


def shard(tensor: torch.Tensor, like: DTensor) -> torch.Tensor:
    """Shard a tensor in the same way as another tensor of the same shape. Every rank must have the unsharded tensor."""
    if isinstance(tensor, DTensor) or tensor.shape != like.shape:
        return tensor
    local = tensor.to(like.to_local().device)
    return distribute_tensor(local, like.device_mesh, like.placements)


@contextlib.contextmanager
def _no_single_process_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _cause(error: CheckpointException) -> BaseException:
    """Return the error of the first failed rank. The exception from torch contains the errors of all ranks with their
    tracebacks."""
    rank = min(error.failures)
    cause = error.failures[rank][0]
    if isinstance(cause, OSError | CheckpointError):
        return cause
    return CheckpointError(f"Rank {rank}: {type(cause).__name__}: {cause}")


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / METADATA
        try:
            with open(path, "rb") as file:
                metadata: Metadata = _MetadataUnpickler(file).load()
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"The metadata of the sharded checkpoint could not be read from {path}: {error}."
            ) from None
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """An unpickler that creates only dataclasses, enums, paths, shapes and dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("torch.serialization", "_get_layout"), ("torch", "Size"), ("torch", "device")):
            return super().find_class(module, name)
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath"):
            return Path
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module in _ALLOWED_MODULES and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum)):
                return found
        raise pickle.UnpicklingError(
            f"the file references {module}.{name}, which is not allowed in a metadata file"
        )
