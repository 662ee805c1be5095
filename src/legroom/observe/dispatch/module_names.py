"""The paths of modules inside the running model, and the fraction of the model that has run."""

import weakref

from torch import nn

from legroom.observe.dispatch.forward_progress import forward_progress

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

    def progress(
        self, names: dict[int, str], entered: int, last: int, pixels: int = 0, running: str = ""
    ) -> float | None:
        """Return the approximate fraction of the forward pass that is complete. `names` are the submodules of the
        running root module, `entered` is the number of submodules that were called, and `last` is the `id` of the last
        of them. `pixels` is the size of one input image, or 0 if it is unknown. `running` is the path of the running
        module. The fraction is None if submodules are called repeatedly.
        """
        counted = fraction_entered(entered, names)
        root = next((root() for root, known in self._roots.values() if known is names), None)
        if counted is None or root is None:
            return None
        try:
            has_returned = names.get(last, running) != running
            measured = forward_progress(root, entered, last, pixels, has_returned=has_returned)
        except Exception:  # a module may define any attribute of a layer with another meaning
            measured = None
        # The number of modules does not include the loss.
        return 0.8 * counted if measured is None else min(max(measured, 0.01), 0.99)

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
