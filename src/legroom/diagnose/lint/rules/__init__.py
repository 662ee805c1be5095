"""The lint rules, one module each.

The docstring of a module is the page of its code (`CODE`), and its function `check` finds the problems.
"""

from importlib import import_module
from pkgutil import walk_packages

from legroom.diagnose.lint.rule import RuleCheck

_MODULES = [import_module(found.name) for found in walk_packages(__path__, f"{__name__}.") if not found.ispkg]

RULES: dict[str, RuleCheck] = {
    module.CODE: module.check for module in sorted(_MODULES, key=lambda module: module.CODE)
}
