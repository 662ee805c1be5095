"""Activates the virtual GPUs of the parent process in a Python process that it starts.

Python imports this module at startup, because `processes._inherited_by_programs` adds its folder to PYTHONPATH. The
module does nothing until the program imports torch. If Legroom is not installed in the Python environment of the
process, the process has no virtual GPUs.
"""

import importlib
import os
import sys


def _enter_after_torch() -> None:
    try:
        from legroom.observe.import_hook import ImportHook
    except ImportError:
        return

    def enter() -> None:
        try:
            from legroom.observe.virtual.gpu import enter_inherited
        except ImportError:
            return
        enter_inherited()

    ImportHook("torch", enter).install()


def _import_next() -> None:
    """Import the `sitecustomize` module of the program, which this module hides."""
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
    _enter_after_torch()
_import_next()
