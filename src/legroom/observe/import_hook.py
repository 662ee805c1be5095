"""Calls a function when a program imports a module, such as torch."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any


class ImportHook:
    """An import hook that calls `loaded` after the module `name` is loaded."""

    def __init__(self, name: str, loaded: Callable[[], None]) -> None:
        self._name, self._loaded = name, loaded
        self._searching = False

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            self.remove()  # only now: a library may look for torch without importing it
            load(module)
            self._loaded()

        loader.exec_module = exec_module
        return spec
