"""Gives a Python process the virtual GPUs of the process that started it.

Python imports this module at startup, because `processes.inherited_by_programs` adds the folder of this module to
PYTHONPATH. The module does nothing until the program imports torch. If Legroom is not installed in the Python
environment of the process, the process has no virtual GPUs.
"""

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any


class _AfterTorch:
    """An import hook that finds torch as usual, and enters the virtual GPUs once torch is loaded."""

    def __init__(self) -> None:
        self._searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch" or self._searching:
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
            if self in sys.meta_path:  # only now: a library may look for torch without importing it
                sys.meta_path.remove(self)
            load(module)
            try:
                from legroom.observe.virtual.gpu import enter_inherited
            except ImportError:
                return
            enter_inherited()

        loader.exec_module = exec_module
        return spec


def _import_next() -> None:
    """Import the `sitecustomize` module that this module hides, if there is one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if os.path.abspath(entry) != folder]
    own = sys.modules.pop(__name__, None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules[__name__] = own


if os.environ.get("LEGROOM_VIRTUAL_GPUS"):
    sys.meta_path.insert(0, _AfterTorch())
_import_next()
