"""Saves a checkpoint: copies the tracked objects, writes the copies, and renames the folder. Training waits only for
the copies.

If all ranks have the same tensors (a single process, DDP), rank 0 writes the models and optimizers. If ranks have
different tensors (FSDP, a pipeline), each rank writes its own tensors through torch.distributed.checkpoint. Each rank
always writes its own random states and loader positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from legroom.errors import CheckpointError
from legroom.train.checkpoints import catalog
from legroom.train.checkpoints.files.checked_files import Checksum, write_file
from legroom.train.checkpoints.files.host_buffers import HostBuffers
from legroom.train.checkpoints.files.tensor_file import TensorFile, tensor_file
from legroom.train.checkpoints.files.unfinished_folder import (
    UnfinishedFolder,
    disk_errors,
    remove_leftovers,
)
from legroom.train.checkpoints.loader_position import ResumableLoader, is_stateful_dataloader
from legroom.train.checkpoints.optimizer_names import parameter_names, state_by_name
from legroom.train.checkpoints.plain_state import Tensors, as_bytes, as_plain, extract_tensors, is_sharded
from legroom.train.checkpoints.process_group import CheckpointGroup
from legroom.train.checkpoints.random_states import random_states
from legroom.train.checkpoints.unwrapped_modules import module_state

STATE = "state.pt"
STATE_TENSORS = "state.safetensors"
STAGE_ATTRIBUTE = "_legroom_stage"
"""The attribute that marks a model that has only the weights of one pipeline stage."""


def module_file(name: str) -> str:
    return f"{name}.safetensors"


def rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


@dataclass(slots=True)
class CheckpointContents:
    """The data that one rank will write."""

    tensor_files: dict[str, TensorFile] = field(default_factory=dict)
    plain_files: dict[str, bytes] = field(default_factory=dict)
    sharded_tensors: Tensors = field(default_factory=dict)
    is_sharded: bool = False
    modules: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return (
            sum(file.size + len(file.head) for file in self.tensor_files.values())
            + sum(len(file) for file in self.plain_files.values())
            + sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in self.sharded_tensors.values())
        )


def is_sharded_over_ranks(parts: Mapping[str, Any], group: CheckpointGroup) -> bool:
    """Return True if the ranks have different tensors of a model. The ranks have different tensors if the tensors are
    shards or have different names.
    """

    def own_tensors() -> tuple[bool, dict[str, list[str]]]:
        states = {name: module_state(part) for name, part in parts.items() if isinstance(part, nn.Module)}
        tensors = [
            value for state in states.values() for value in state.values() if isinstance(value, torch.Tensor)
        ]
        return any(map(is_sharded, tensors)), {name: sorted(state) for name, state in states.items()}

    ranks = group.gather(own_tensors)
    return any(each != ranks[0] or each[0] for each in ranks)


def has_all_tensors(part: Any) -> bool:
    """Return True if this rank has all tensors of the model. The result is False for a sharded model and for one stage
    of a pipeline.
    """
    if not isinstance(part, nn.Module):
        return True
    is_stage = any(getattr(module, STAGE_ATTRIBUTE, False) for module in part.modules())
    return not is_stage and not any(
        is_sharded(value) for value in module_state(part).values() if isinstance(value, torch.Tensor)
    )


def copy_contents(
    parts: Mapping[str, Any],
    group: CheckpointGroup,
    buffers: Callable[[str], HostBuffers],
    *,
    sharded: bool,
    written_later: bool,
) -> CheckpointContents:
    """Copy the tracked objects. With `sharded`, each rank copies its own tensors. Set `written_later` if training
    continues while the files are being written.
    """
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    names = parameter_names(modules.values())
    files: dict[str, Tensors] = {}
    shared: dict[str, Any] = {"modules": {}, "parts": {}}
    own: dict[str, Any] = {"random": random_states(), "loaders": {}, "optimizers": {}}
    shards: Tensors = {}
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            tensors = shards if sharded else files.setdefault(module_file(name), {})
            shared["modules"][name] = extract_tensors(module_state(part), name if sharded else "", tensors)
        elif isinstance(part, ResumableLoader) or is_stateful_dataloader(part):
            own["loaders"][name] = as_plain(part.state_dict(), name)
        elif isinstance(part, torch.optim.Optimizer):
            tensors = shards if sharded else files.setdefault(STATE_TENSORS, {})
            optimizers = own["optimizers"] if sharded else shared["parts"]
            optimizers[name] = extract_tensors(state_by_name(part, names), name, tensors)
        elif group.is_main:
            shared["parts"][name] = extract_tensors(
                part.state_dict(), name, files.setdefault(STATE_TENSORS, {})
            )
    contents = CheckpointContents(is_sharded=sharded, modules=tuple(modules), parts=tuple(parts))
    if sharded:
        from legroom.train.checkpoints.sharded import host_copy

        contents.sharded_tensors = (
            {name: host_copy(tensor) for name, tensor in shards.items()} if written_later else shards
        )
        own["modules"] = shared.pop("modules")
    contents.plain_files[rank_file(group.rank)] = as_bytes(own)
    if group.is_main:
        contents.plain_files[STATE] = as_bytes(shared)
        for file, tensors in files.items():
            if tensors:
                contents.tensor_files[file] = layout = tensor_file(tensors)
                if written_later or any(tensor.is_cuda for tensor in tensors.values()):
                    layout.copy(buffers(file))
    return contents


def write(
    contents: CheckpointContents,
    folder: Path,
    group: CheckpointGroup,
    *,
    step: int,
    metrics: Mapping[str, float],
) -> catalog.CheckpointInfo:
    """Write the contents as the newest checkpoint in `folder`. An incomplete checkpoint is never visible."""
    unfinished = group.run(lambda: _begin(folder, contents) if group.is_main else None)
    try:
        return _write(contents, folder, group, unfinished, step, metrics)
    except BaseException:
        if unfinished is not None:
            unfinished.discard()
        raise


def _write(
    contents: CheckpointContents,
    folder: Path,
    group: CheckpointGroup,
    unfinished: UnfinishedFolder | None,
    step: int,
    metrics: Mapping[str, float],
) -> catalog.CheckpointInfo:
    path = Path(group.broadcast(None if unfinished is None else str(unfinished.path)))
    if contents.is_sharded:
        group.run(lambda: _write_shards(contents, path, folder, group))
    written = group.gather(lambda: _write_files(contents, path, folder))

    def finish() -> catalog.CheckpointInfo | None:
        if unfinished is None:
            return None
        with disk_errors(folder, contents.size):
            files = {name: checksum for each in written for name, checksum in each.items()}
            if contents.is_sharded:
                from legroom.train.checkpoints.sharded import checksums

                files |= checksums(path)
            serial = max((each.serial for each in catalog.list_checkpoints(folder)), default=0) + 1
            name = catalog.unused_name(folder, step)
            info = catalog.CheckpointInfo(
                path=folder / name,
                step=step,
                serial=serial,
                metrics=dict(metrics),
                ranks=group.size,
                modules=contents.modules,
                parts=contents.parts,
                sharded=contents.is_sharded,
                files=files,
            )
            catalog.write_manifest(path, info)
            unfinished.finish(name)
            return info

    info = group.gather(finish)[0]
    assert info is not None
    return info


def _begin(folder: Path, contents: CheckpointContents) -> UnfinishedFolder:
    with disk_errors(folder, contents.size):
        remove_leftovers(folder)
        return UnfinishedFolder(folder)


def _write_files(contents: CheckpointContents, path: Path, folder: Path) -> dict[str, Checksum]:
    if not path.is_dir():
        raise CheckpointError(
            f"{folder} is not the folder that rank 0 writes to. Use a folder on a file system that all nodes share."
        )
    with disk_errors(folder, contents.size):
        return {
            **{name: file.write(path / name) for name, file in contents.tensor_files.items()},
            **{name: write_file(path / name, data) for name, data in contents.plain_files.items()},
        }


def _write_shards(contents: CheckpointContents, path: Path, folder: Path, group: CheckpointGroup) -> None:
    from legroom.train.checkpoints.sharded import write_sharded  # slow to import, and rarely needed

    with disk_errors(folder, contents.size):
        write_sharded(path, contents.sharded_tensors, group)
