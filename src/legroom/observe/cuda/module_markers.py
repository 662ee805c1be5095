"""Marks the running module in the CUDA history.

This code runs before and after the forward call of every `nn.Module` in every step, so it is optimized for speed.
PyTorch's global module hooks are not used. With any hook, a module call takes a slower path through torch, which costs
several times as much as replacing a method. `ModuleMarkers` replaces `nn.Module._call_impl` while it is attached.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from legroom.observe.cuda.markers import BACKWARD, FORWARD, INFERENCE, Markers
from legroom.observe.dispatch.backward_engine import current_node
from legroom.observe.dispatch.forward_progress import pixels_of
from legroom.observe.dispatch.module_names import ModuleNames

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled

OnRoot = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], str, str], None]
"""A callback that receives the module, its positional and keyword arguments, the activity and the path of the module.
"""


class ModuleMarkers:
    """Marks each module call while attached. Modules inside compiled code are not marked."""

    def __init__(self, markers: Markers, on_root: OnRoot, activity_outside: Callable[[], str]) -> None:
        """`on_root` is called when a root module starts. `activity_outside()` returns the activity after the root
        module ends.
        """
        self._markers = markers
        self._on_root = on_root
        self._activity_outside = activity_outside
        self._path = ""
        self._names: dict[int, str] = {}
        """The path of each module inside the running root module, by `id`."""
        self._entered = self._last = self._pixels = 0
        self._known = ModuleNames()
        self._recomputes = False
        """True while a checkpoint recomputes its forward pass during the backward pass."""
        self._is_attached = False
        self._original: Callable[..., Any] | None = None
        self._replacement: Callable[..., Any] | None = None

    def attach(self) -> None:
        """Start marking modules. If torch's private method `_call_impl` is missing, modules, forward passes and inputs
        are not recognized.
        """
        original = getattr(nn.Module, "_call_impl", None)
        if original is not None:
            self._is_attached = True
            self._original, self._replacement = original, self._replacement_for(original)
            nn.Module._call_impl = self._replacement  # type: ignore[method-assign]

    def detach(self) -> None:
        self._is_attached = False
        if self._original is not None and getattr(nn.Module, "_call_impl", None) is self._replacement:
            nn.Module._call_impl = self._original  # type: ignore[method-assign]

    def _replacement_for(self, original: Callable[..., Any]) -> Callable[..., Any]:
        enter_module = self._markers.enter_module

        def _call_impl(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or not self._is_attached:
                return original(module, *args, **kwargs)
            outer = self._path
            if outer:
                self._entered += 1
                self._last = id(module)
                self._path = path = self._names.get(self._last) or type(module).__name__
                enter_module(self._activity(), path)
            else:
                self._begin_root(module, args, kwargs)
            try:
                return original(module, *args, **kwargs)
            finally:
                self._path = outer
                if outer:
                    enter_module(self._activity(), outer)
                else:
                    enter_module(BACKWARD if self._recomputes else self._activity_outside(), "")

        return _call_impl

    @property
    def progress(self) -> float | None:
        """The approximate fraction of the root's forward pass that is complete. The fraction is None outside a forward
        pass, and if modules are called repeatedly.
        """
        if not self._path or self._recomputes:
            return None
        return self._known.progress(self._names, self._entered, self._last, self._pixels, self._path)

    def _activity(self) -> str:
        if self._recomputes:
            return BACKWARD
        return FORWARD if _is_grad_enabled() else INFERENCE

    def _begin_root(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._recomputes = current_node() is not None
        # A checkpoint runs a part of a model. The names of its modules come from the whole model.
        self._names = self._known.containing(module) if self._recomputes else self._known.below(module)
        self._path = path = self._names.get(id(module)) or type(module).__name__
        self._entered, self._pixels = 1, pixels_of(args)
        if self._recomputes:
            self._markers.enter_module(BACKWARD, path)
        else:
            self._on_root(module, args, kwargs, self._activity(), path)
