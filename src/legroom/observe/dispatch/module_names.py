"""The paths of modules inside the running model, and the fraction of the model that has run."""

import weakref

from torch import nn

_MAX_ROOTS = 256


class ModuleNames:
    """Caches the submodule paths of each root module. The cache keeps no module alive."""

    def __init__(self) -> None:
        self._roots: dict[int, tuple[weakref.ref[nn.Module], dict[int, str]]] = {}

    def below(self, root: nn.Module) -> dict[int, str]:
        known = self._roots.get(id(root))
        if known is not None and known[0]() is root:
            return known[1]
        try:
            names = {
                id(module): displayed_path(name, module) for name, module in root.named_modules() if name
            }
        except Exception:  # a module whose submodules cannot be listed can still be called
            names = {}
        if len(self._roots) > _MAX_ROOTS:
            self._roots.clear()
        self._roots[id(root)] = (weakref.ref(root), names)
        return names

    def containing(self, module: nn.Module) -> dict[int, str]:
        """Return the paths inside the known root that contains `module`, or inside `module` itself if there is no such
        root.
        """
        for root, names in self._roots.values():
            if id(module) in names and root() is not None:
                return names
        return self.below(module)

    def clear(self) -> None:
        self._roots.clear()


def displayed_path(path: str, module: nn.Module) -> str:
    """Return the module path without the names that wrappers add. If the path has only indices, the module type is
    added, as in `Tanh (3)`.
    """
    path = _without_wrappers(path)
    return f"{type(module).__name__} ({path})" if path.replace(".", "").isdecimal() else path


def _without_wrappers(name: str) -> str:
    # `torch.compile` adds `_orig_mod`.
    return name.replace("._orig_mod", "").removeprefix("_orig_mod.") if "_orig_mod" in name else name


def fraction_entered(entered: int, names: dict[int, str]) -> float | None:
    return entered / (len(names) + 1) if entered <= len(names) else None
