"""What a traced script does with files: it reads what it likes, and nothing that it writes lands.

Its results are made of stand-ins: a file of them in the place of one from a real run would be worse than none.
"""

import builtins
import contextlib
import functools
import io
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from legroom.observe.virtual.patching import replaced, table


@contextlib.contextmanager
def nothing_saved() -> Iterator[None]:
    """An estimate writes no checkpoint: neither with torch nor with safetensors, which transformers saves with."""

    tables = table(torch, {"save": _save_nothing}) + table(torch.serialization, {"save": _save_nothing})
    with contextlib.suppress(ImportError):
        import safetensors.torch

        tables += table(safetensors.torch, {"serialize_file": _save_nothing})
    with replaced(tables):
        yield


@contextlib.contextmanager
def checkpoints_mapped() -> Iterator[None]:
    """Checkpoints are mapped from their files rather than read: what goes to the device without data needs no memory.

    Files that cannot be mapped (of before torch 1.6, or none at all) are read as usual.
    """
    plain_load = torch.load

    @functools.wraps(plain_load)
    def load(source: Any, *args: Any, **options: Any) -> Any:
        if isinstance(source, str | os.PathLike) and options.get("mmap") is None:
            with contextlib.suppress(RuntimeError, ValueError):
                return plain_load(source, *args, **{**options, "mmap": True})
        return plain_load(source, *args, **options)

    with replaced(table(torch, {"load": load}) + table(torch.serialization, {"load": load})):
        yield


def no_model_saved() -> None:
    """Nor does transformers, if the script has loaded it: its saving looks at tensors' data before it writes.

    Without these names in a version of it, the script fails where it saves, if that is in its first steps.
    """
    for module, kind, method in _SAVERS:
        saver = getattr(sys.modules.get(module), kind, None)
        if hasattr(saver, method):
            setattr(saver, method, _save_nothing)


def _save_nothing(*_arguments: Any, **_options: Any) -> None:
    pass


_SAVERS = (
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("transformers.trainer", "Trainer", "_save_checkpoint"),
)


def write_apart(folder: Path) -> None:
    """From now on, files that are opened for writing are copies in `folder`; who reads one of them again sees what was written. Who renames
    one has it under its new name, who renames or removes a file that was there before leaves it there.
    Files that are open already, and those that C code opens, are written as ever."""
    plain_open, plain_remove = io.open, os.remove
    copies: dict[str, str] = {}
    began = time.time()

    def copied(path: str) -> str:
        copy = str(folder / f"written-{os.getpid()}-{next(numbers)}")
        if os.path.exists(path):
            shutil.copyfile(path, copy)
        return copy

    @functools.wraps(plain_open)
    def open(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not isinstance(file, str | bytes | os.PathLike):
            return plain_open(file, mode, *args, **options)
        path = _real(file)
        if path not in copies and set(mode) & set("wax+") and _is_a_place_for_files(path, folder):
            copies[path] = copied(path)
        return plain_open(copies.get(path, file), mode, *args, **options)

    def moving(plain: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(plain)
        def move(source: Any, target: Any, **options: Any) -> None:
            path, new = _real(source), _real(target)
            if path not in copies and not os.path.isfile(path):
                plain(source, target, **options)
                return
            copies[new] = copies.pop(path) if path in copies else copied(path)

        return move

    @functools.wraps(plain_remove)
    def remove(path: Any, **options: Any) -> None:
        if copies.pop(_real(path), None) is None and not _was_there(path, began):
            plain_remove(path, **options)

    numbers = itertools.count()
    builtins.open = io.open = open
    os.rename, os.replace = moving(os.rename), moving(os.replace)
    os.remove = os.unlink = remove


def _real(path: Any) -> str:
    return os.path.realpath(os.fsdecode(path))


def _was_there(path: Any, began: float) -> bool:
    """Whether it is a file from before `began`."""
    return os.path.isfile(path) and os.stat(path).st_mtime < began


def _is_a_place_for_files(path: str, folder: Path) -> bool:
    """Whether a plain file is there or could be; what is in `folder` is our own."""
    parent = os.path.dirname(path)
    return os.path.isdir(parent) and parent != os.path.realpath(folder) and (
        os.path.isfile(path) or not os.path.exists(path)
    )  # fmt: skip
