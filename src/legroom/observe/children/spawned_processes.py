"""Runs Legroom code in the processes that a program starts with `multiprocessing`, before they import the program.

A spawned process unpickles a dictionary of preparation data before it imports the program again. This module adds an
entry to the dictionary. Unpickling the entry calls a function. This module does not import torch.
"""

import multiprocessing.spawn
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from legroom.observe.import_hook import ImportHook


@contextmanager
def in_spawned_processes(entry: object) -> Iterator[None]:
    """Within the block, spawned processes unpickle `entry`."""
    spawn: Any = multiprocessing.spawn
    original = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**original(name), f"legroom-{id(entry)}": entry}

    spawn.get_preparation_data = get_preparation_data
    try:
        yield
    finally:
        if spawn.get_preparation_data is get_preparation_data:
            spawn.get_preparation_data = original


class CallWhenUnpickled:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call


def after_torch_import(function: Callable[[], None]) -> None:
    if "torch" in sys.modules:
        function()
    else:
        ImportHook("torch", function).install()
