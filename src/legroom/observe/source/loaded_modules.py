"""Lists the loaded modules. Thousands of modules may be loaded, so the list is rebuilt only after `sys.modules` or the
script has changed.
"""

import sys
from functools import lru_cache
from types import ModuleType

from legroom.observe.source.user_files import is_user_file


def user_modules() -> list[tuple[str, ModuleType]]:
    modules = ((file, sys.modules.get(name)) for name, file in _user_modules(*_state()))
    return [(file, module) for file, module in modules if isinstance(module, ModuleType)]


def user_namespaces() -> list[tuple[str, dict[str, object]]]:
    """Return the names and the variables of the user's modules. They include modules without a file, which the program
    created itself, and the script or the notebook (`__main__`).
    """
    found = []
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and _is_of_user(name, module):
            found.append((name, vars(module)))
    return found


def _is_of_user(name: str, module: ModuleType) -> bool:
    file = vars(module).get("__file__")
    if isinstance(file, str):
        return is_user_file(file)
    if name == "__main__":
        return True
    is_builtin = vars(module).get("__spec__") is not None  # written in C, or a folder without `__init__.py`
    package, _, _ = name.rpartition(".")
    parent = sys.modules.get(package)
    return not is_builtin and (not package or (parent is not None and _is_of_user(package, parent)))


def module_namespaces() -> dict[int, str]:
    return dict(_namespaces(*_state()))


def _state() -> tuple[int, str, int, int]:
    """Return a tuple that changes when `sys.modules` changes, even if a module is deleted and imported again."""
    newest, module = next(reversed(sys.modules.items()))
    return len(sys.modules), newest, id(module), id(sys.modules.get("__main__"))


@lru_cache(maxsize=1)
def _user_modules(count: int, newest: str, newest_id: int, script_id: int) -> list[tuple[str, str]]:
    files = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    return [(name, file) for name, file in files if isinstance(file, str) and is_user_file(file)]


@lru_cache(maxsize=1)
def _namespaces(count: int, newest: str, newest_id: int, script_id: int) -> dict[int, str]:
    modules = list(sys.modules.items())
    return {id(module.__dict__): name for name, module in modules if isinstance(module, ModuleType)}
