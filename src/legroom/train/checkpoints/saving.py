"""Saving: what the tracked objects are now is copied, then written, then given its name. Only the copying needs the
training to wait.

Where every rank holds the same (one process, DDP), rank 0 writes model and optimizer. Where ranks hold different parts
(FSDP, a pipeline) each writes its own through torch.distributed.checkpoint. Random generators and loaders' places are
every rank's own in any case.
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
from legroom.train.checkpoints.files.host_copies import Slabs
from legroom.train.checkpoints.files.tensor_file import TensorFile, tensor_file
from legroom.train.checkpoints.files.unfinished_folder import (
    UnfinishedFolder,
    remove_leftovers,
    saying_what_failed,
)
from legroom.train.checkpoints.loader_position import PlacedLoader
from legroom.train.checkpoints.optimizer_names import by_name, parameter_names
from legroom.train.checkpoints.plain_state import Tensors, as_bytes, is_sharded, taken_apart
from legroom.train.checkpoints.process_group import Crew
from legroom.train.checkpoints.random_numbers import random_numbers
from legroom.train.checkpoints.unwrapped_modules import module_state

STATE = "state.pt"
STATE_TENSORS = "state.safetensors"


def module_file(name: str) -> str:
    return f"{name}.safetensors"


def rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


@dataclass(slots=True)
class Copied:
    """All that one rank will write, as it was at the call."""

    tensor_files: dict[str, TensorFile] = field(default_factory=dict)
    plain_files: dict[str, bytes] = field(default_factory=dict)
    spread: Tensors = field(default_factory=dict)
    is_spread: bool = False
    modules: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return (
            sum(file.size + len(file.head) for file in self.tensor_files.values())
            + sum(len(file) for file in self.plain_files.values())
            + sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in self.spread.values())
        )


def is_spread(parts: Mapping[str, Any], crew: Crew) -> bool:
    """Whether ranks hold different parts of a model: pieces of its tensors, or other names."""

    def held() -> tuple[bool, dict[str, list[str]]]:
        states = {name: module_state(part) for name, part in parts.items() if isinstance(part, nn.Module)}
        tensors = [
            value for state in states.values() for value in state.values() if isinstance(value, torch.Tensor)
        ]
        return any(map(is_sharded, tensors)), {name: sorted(state) for name, state in states.items()}

    told = crew.together(held)
    return any(one != told[0] or one[0] for one in told)


def copied(
    parts: Mapping[str, Any], crew: Crew, slabs: Callable[[str], Slabs], *, spread: bool, later: bool
) -> Copied:
    """A copy of what is to be saved. `spread`: each rank writes its own part; `later`: training goes on while it is written."""
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    names = parameter_names(modules.values())
    files: dict[str, Tensors] = {}
    shared: dict[str, Any] = {"modules": {}, "parts": {}}
    own: dict[str, Any] = {"random": random_numbers(), "loaders": {}, "optimizers": {}}
    pieces: Tensors = {}
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            tensors = pieces if spread else files.setdefault(module_file(name), {})
            shared["modules"][name] = taken_apart(module_state(part), name if spread else "", tensors)
        elif isinstance(part, PlacedLoader):
            own["loaders"][name] = part.state_dict()
        elif isinstance(part, torch.optim.Optimizer):
            tensors = pieces if spread else files.setdefault(STATE_TENSORS, {})
            place = own["optimizers"] if spread else shared["parts"]
            place[name] = taken_apart(by_name(part, names), name, tensors)
        elif crew.main:
            shared["parts"][name] = taken_apart(part.state_dict(), name, files.setdefault(STATE_TENSORS, {}))
    made = Copied(is_spread=spread, modules=tuple(modules), parts=tuple(parts))
    if spread:
        from legroom.train.checkpoints.sharded import host_copy

        made.spread = {name: host_copy(tensor) for name, tensor in pieces.items()} if later else pieces
        own["modules"] = shared.pop("modules")
    made.plain_files[rank_file(crew.rank)] = as_bytes(own)
    if crew.main:
        made.plain_files[STATE] = as_bytes(shared)
        for file, tensors in files.items():
            if tensors:
                made.tensor_files[file] = laid_out = tensor_file(tensors)
                if later or any(tensor.is_cuda for tensor in tensors.values()):
                    laid_out.copy(slabs(file))
    return made


def write(
    contents: Copied, folder: Path, crew: Crew, *, step: int, metrics: Mapping[str, float]
) -> catalog.Saved:
    """Write a copy as the newest checkpoint of `folder`. It is there for good when this returns, or not at all."""
    unfinished = crew.each(lambda: _begun(folder, contents) if crew.main else None)
    try:
        return _write(contents, folder, crew, unfinished, step, metrics)
    except BaseException:
        if unfinished is not None:
            unfinished.discard()
        raise


def _write(
    contents: Copied, folder: Path, crew: Crew, unfinished: UnfinishedFolder | None, step: int, metrics: Mapping[str, float]
) -> catalog.Saved:  # fmt: skip
    path = Path(crew.from_main(None if unfinished is None else str(unfinished.path)))
    if contents.is_spread:
        crew.each(lambda: _shards(contents, path, folder, crew))
    written = crew.together(lambda: _files(contents, path, folder))

    def finish() -> catalog.Saved | None:
        if unfinished is None:
            return None
        with saying_what_failed(folder, contents.size):
            files = {name: checksum for each in written for name, checksum in each.items()}
            if contents.is_spread:
                from legroom.train.checkpoints.sharded import checksums

                files |= checksums(path)
            serial = max((one.serial for one in catalog.all_saved(folder)), default=0) + 1
            name = catalog.free_name(folder, step)
            saved = catalog.Saved(
                path=folder / name, step=step, serial=serial, metrics=dict(metrics), ranks=crew.size,
                modules=contents.modules, parts=contents.parts, sharded=contents.is_spread, files=files,
            )  # fmt: skip
            catalog.write_manifest(path, saved)
            unfinished.finish(name)
            return saved

    saved = crew.together(finish)[0]
    assert saved is not None
    return saved


def _begun(folder: Path, contents: Copied) -> UnfinishedFolder:
    with saying_what_failed(folder, contents.size):
        remove_leftovers(folder)
        return UnfinishedFolder(folder)


def _files(contents: Copied, path: Path, folder: Path) -> dict[str, Checksum]:
    if not path.is_dir():
        raise CheckpointError(
            f"{folder} is not the folder that rank 0 writes to: put the checkpoints on a disk that all nodes share"
        )
    with saying_what_failed(folder, contents.size):
        return {
            **{name: file.write(path / name) for name, file in contents.tensor_files.items()},
            **{name: write_file(path / name, data) for name, data in contents.plain_files.items()},
        }


def _shards(contents: Copied, path: Path, folder: Path, crew: Crew) -> None:
    from legroom.train.checkpoints.sharded import write_sharded  # slow to import, and rarely wanted

    with saying_what_failed(folder, contents.size):
        write_sharded(path, contents.spread, crew)
