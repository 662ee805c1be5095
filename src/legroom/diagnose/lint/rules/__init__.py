"""The rules, one module each: its docstring is the page of its code `CODE`, its `check` finds the problems."""

from importlib import import_module
from pkgutil import iter_modules

from legroom.diagnose.lint.rule import Check

_MODULES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]

RULES: dict[str, Check] = {
    module.CODE: module.check for module in sorted(_MODULES, key=lambda module: module.CODE)
}
"""Code → check, in the order of the codes."""
