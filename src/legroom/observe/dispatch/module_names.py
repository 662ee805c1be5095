"""The paths of modules inside the model that runs, and how far it has come by the modules that were called."""

import weakref

from torch import nn

_MOST_ROOTS = 256


class ModuleNames:
    """The paths of the modules below each root that was called, looked through once. Keeps no module alive."""

    def __init__(self) -> None:
        self._roots: dict[int, tuple[weakref.ref[nn.Module], dict[int, str]]] = {}

    def under(self, root: nn.Module) -> dict[int, str]:
        """`id` of each module below the root → its path."""
        known = self._roots.get(id(root))
        if known is not None and known[0]() is root:
            return known[1]
        try:
            names = {id(module): name for name, module in root.named_modules() if name}
        except Exception:  # a module that cannot be looked through can still be called
            names = {}
        if len(self._roots) > _MOST_ROOTS:
            self._roots.clear()
        self._roots[id(root)] = (weakref.ref(root), names)
        return names

    def around(self, module: nn.Module) -> dict[int, str]:
        """The same of the root that the module was found below, or of the module itself."""
        for root, names in self._roots.values():
            if id(module) in names and root() is not None:
                return names
        return self.under(module)

    def clear(self) -> None:
        self._roots.clear()


def part_begun(entered: int, names: dict[int, str]) -> float | None:
    """The part of a model that has begun, by how many modules were entered; None where they are called over and over."""
    return entered / (len(names) + 1) if entered <= len(names) else None
