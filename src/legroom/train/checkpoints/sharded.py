"""Tensors that are spread over ranks (FSDP2), through torch.distributed.checkpoint: every rank writes its own pieces,
and any other number of ranks, or one process, reads them.

Only tensors go this way, so torch unpickles nothing from the pieces. Its table of contents is a pickle, though, which
could name any code: it is read here with the few classes that belong in it, and nothing else.
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
from legroom.train.checkpoints.process_group import Crew

FOLDER = "shards"
CONTENTS = ".metadata"
_HOMES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same pieces in host memory, for a checkpoint that is written later."""
    return tensor.detach().to("cpu", copy=True)


def write_sharded(folder: Path, tensors: Mapping[str, torch.Tensor], crew: Crew) -> None:
    """Each rank's pieces into `folder`/shards. Every rank calls this with the same names."""
    writer = FileSystemWriter(folder / FOLDER, single_file_per_rank=True, sync_files=True)
    try:
        with _alone_is_meant():
            save(dict(tensors), storage_writer=writer, process_group=crew.group, no_dist=crew.group is None)
    except CheckpointException as error:
        raise _cause(error) from None


def checksums(folder: Path) -> dict[str, Checksum]:
    """Of all that `write_sharded` left, by path below `folder`."""
    return {
        path.relative_to(folder).as_posix(): checksum_of(path)
        for path in sorted((folder / FOLDER).iterdir())
        if path.is_file()
    }


def sharded_sizes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """The tensors in there, whole: shape and type by name."""
    contents = _Reader(folder / FOLDER).read_metadata()
    return {
        name: (told.size, told.properties.dtype)
        for name, told in contents.state_dict_metadata.items()
        if isinstance(told, TensorStorageMetadata)
    }


def read_sharded(
    folder: Path, like: Mapping[str, torch.Tensor | None], crew: Crew
) -> dict[str, torch.Tensor]:
    """The tensors of these names: spread as `like` is where that is a DTensor, whole otherwise."""
    sizes = sharded_sizes(folder)
    targets: dict[str, torch.Tensor] = {}
    for name, model in like.items():
        shape, dtype = sizes[name]
        if isinstance(model, DTensor) and model.shape == shape:
            targets[name] = torch.empty_like(model, dtype=dtype)
        else:
            targets[name] = torch.empty(shape, dtype=dtype)
    reader = _Reader(folder / FOLDER)
    try:
        with _alone_is_meant():
            load(targets, storage_reader=reader, process_group=crew.group, no_dist=crew.group is None)
    except CheckpointException as error:
        raise _cause(error) from None
    return targets


def spread(tensor: torch.Tensor, like: DTensor) -> torch.Tensor:
    """A whole tensor, which every rank has, spread as another of its shape is."""
    if isinstance(tensor, DTensor) or tensor.shape != like.shape:
        return tensor
    local = tensor.to(like.to_local().device)
    return distribute_tensor(local, like.device_mesh, like.placements)


@contextlib.contextmanager
def _alone_is_meant() -> Iterator[None]:
    """Torch warns where one process reads what many wrote."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _cause(error: CheckpointException) -> BaseException:
    """What failed on the first rank that failed: torch tells all of them, with tracebacks."""
    rank = min(error.failures)
    cause = error.failures[rank][0]
    if isinstance(cause, OSError | CheckpointError):
        return cause
    return CheckpointError(f"rank {rank}: {type(cause).__name__}: {cause}")


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / CONTENTS
        try:
            with open(path, "rb") as file:
                contents: Metadata = _OnlyContents(file).load()
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"{path} is no table of contents of a sharded checkpoint ({error})"
            ) from None
        if contents.storage_meta is not None:
            contents.storage_meta.load_id = self.load_id
        return contents


class _OnlyContents(pickle.Unpickler):
    """Makes records, paths, shapes and types, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("torch.serialization", "_get_layout"), ("torch", "Size"), ("torch", "device")):
            return super().find_class(module, name)
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath"):
            return Path
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module in _HOMES and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum)):
                return found
        raise pickle.UnpicklingError(f"it names {module}.{name}, which does not belong there")
